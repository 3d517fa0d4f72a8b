//! A copy of what trains, as it is between two steps.

use std::borrow::Cow;
use std::sync::Arc;

use camino::Utf8PathBuf;
use lockstep_checkpoint::{CheckpointError, Meta, State};
use lockstep_ddp::hook::HookState;
use lockstep_models::Model;
use lockstep_tensor::{Layout, OptimizerState};

use crate::setup::Ready;

/// A copy of the state between two steps. It is kept for the next one: memory that is there already costs the step path
/// one copy, memory that is new costs it a page fault every few kilobytes as well.
#[derive(Debug)]
pub(crate) struct Snapshot {
    /// Where each parameter lies.
    layout: Arc<Layout>,
    /// In arena order.
    pub(crate) weights: Vec<f32>,
    /// Where each running statistic lies.
    buffer_layout: Arc<Layout>,
    /// In their arena's order.
    buffers: Vec<f32>,
    /// The running mean of the weights, if one is kept.
    average: Option<Vec<f32>>,
    /// Of the communication hook, if it carries one.
    hook: Option<HookState>,
    /// Each moment in arena order.
    optimizer: OptimizerState,
    /// Everything else.
    pub(crate) meta: Meta,
}

/// What a snapshot is taken of.
pub(crate) struct Source<'a> {
    pub(crate) model: &'a Model,
    pub(crate) weights: &'a [f32],
    pub(crate) buffers: &'a [f32],
    pub(crate) average: Option<&'a [f32]>,
    pub(crate) hook: Option<HookState>,
    /// Owned if it was gathered from other ranks for this checkpoint.
    pub(crate) optimizer: Cow<'a, OptimizerState>,
    pub(crate) meta: Meta,
}

impl Snapshot {
    /// Of nothing yet.
    pub(crate) fn empty(model: &Model, meta: Meta) -> Self {
        Self {
            layout: model.layout().clone(),
            weights: Vec::new(),
            buffer_layout: model.buffers().clone(),
            buffers: Vec::new(),
            average: None,
            hook: None,
            optimizer: OptimizerState { step: 0, moments: Vec::new() },
            meta,
        }
    }

    /// Of nothing yet, with memory that has been written to for a state as large as this one; made by whoever calls what this returns.
    pub(crate) fn roomy(ready: &Ready, meta: Meta) -> impl FnOnce() -> Self + Send + use<> {
        let Ready { engine, average, optimizer_state, shard, .. } = ready;
        let empty = Self::empty(&engine.model, meta);
        let (weights, buffers) = (engine.weights.len(), engine.buffers.len());
        let average = average.as_ref().map(|(_, average)| average.len());
        // What is gathered for a checkpoint brings its own memory.
        let own = optimizer_state.moments.iter().filter(|_| shard.is_none());
        let moments: Vec<_> = own.map(|(name, values)| (name.clone(), values.len())).collect();
        // Zeros would be pages that are not there before somebody writes to them.
        let written = |len| vec![1.0_f32; len];
        move || Self {
            weights: written(weights),
            buffers: written(buffers),
            average: average.map(written),
            optimizer: OptimizerState {
                step: 0,
                moments: moments.into_iter().map(|(name, len)| (name, written(len))).collect(),
            },
            ..empty
        }
    }

    /// Takes a state of the same run, in the memory of the one before.
    pub(crate) fn take(&mut self, source: Source<'_>) {
        let Source { model: _, weights, buffers, average, hook, optimizer, meta } = source;
        copy(&mut self.weights, weights);
        copy(&mut self.buffers, buffers);
        match (&mut self.average, average) {
            (Some(to), Some(average)) => copy(to, average),
            (to, average) => *to = average.map(<[f32]>::to_vec),
        }
        match optimizer {
            Cow::Owned(optimizer) => self.optimizer = optimizer,
            Cow::Borrowed(optimizer) => {
                let own = &mut self.optimizer;
                own.step = optimizer.step;
                own.moments.resize_with(optimizer.moments.len(), Default::default);
                for ((name, to), (named, values)) in own.moments.iter_mut().zip(&optimizer.moments)
                {
                    name.clone_from(named);
                    copy(to, values);
                }
            }
        }
        self.hook = hook;
        self.meta = meta;
    }

    /// Writes it to a file, and reads that back.
    ///
    /// # Errors
    /// What the file system says, and what was read if it is something else.
    pub(crate) fn save(&self, path: &Utf8PathBuf) -> Result<(), CheckpointError> {
        let Self { layout, weights, buffer_layout, buffers, average, hook, optimizer, meta } = self;
        let average = average.as_deref();
        let hook = hook.as_ref().map(|hook| [hook.shared.as_slice(), hook.leftovers.as_slice()]);
        let state = State { layout, weights, buffer_layout, buffers, average, hook, optimizer };
        lockstep_checkpoint::save(path, &state, meta)
    }
}

/// Without an allocation when it had this length before.
fn copy(to: &mut Vec<f32>, from: &[f32]) {
    to.clear();
    to.extend_from_slice(from);
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeMap;

    use lockstep_api::Step;
    use lockstep_checkpoint::FORMAT_VERSION;

    use super::*;

    pub(crate) fn source<'a>(
        model: &'a Model,
        weights: &'a [f32],
        optimizer: &'a OptimizerState,
        step: i64,
    ) -> Source<'a> {
        let meta = Meta {
            version: FORMAT_VERSION,
            step: Step(step),
            data_epoch: 0,
            next_position: 0,
            samples_per_epoch: 1,
            optimizer_step: optimizer.step,
            loss_scale: None,
            settings: serde_json::Value::Null,
            digests: BTreeMap::new(),
        };
        Source {
            model,
            weights,
            buffers: &[],
            average: Some(weights),
            hook: None,
            optimizer: Cow::Borrowed(optimizer),
            meta,
        }
    }

    #[test]
    fn a_later_snapshot_holds_the_later_state_in_the_memory_of_the_earlier_one() {
        let spec = serde_json::from_str(r#"{"arch":"mlp","inputs":2,"classes":2}"#).unwrap();
        let model = Model::new(&spec).unwrap();
        let state = |step, value: f32| OptimizerState {
            step,
            moments: vec![("m".to_owned(), vec![value; 6]), ("v".to_owned(), vec![-value; 6])],
        };
        let mut snapshot = Snapshot::empty(&model, source(&model, &[], &state(0, 0.0), 0).meta);
        snapshot.take(source(&model, &[1.0; 6], &state(1, 1.0), 1));
        assert_eq!(
            (snapshot.weights.as_slice(), &snapshot.optimizer),
            (&[1.0; 6][..], &state(1, 1.0))
        );
        let places = |it: &Snapshot| {
            let average = it.average.as_ref().map(Vec::as_ptr);
            let moments: Vec<_> = it.optimizer.moments.iter().map(|(_, m)| m.as_ptr()).collect();
            (it.weights.as_ptr(), average, moments)
        };
        let before = places(&snapshot);
        snapshot.take(source(&model, &[2.0; 6], &state(2, 3.0), 2));
        assert_eq!(places(&snapshot), before, "nothing was allocated");
        assert_eq!(
            (snapshot.weights.as_slice(), &snapshot.optimizer),
            (&[2.0; 6][..], &state(2, 3.0))
        );
        assert_eq!(
            (snapshot.average.as_deref(), snapshot.meta.step),
            (Some(&[2.0; 6][..]), Step(2))
        );
        // What the memory was of is no part of what is taken.
        let bare = OptimizerState { step: 3, moments: vec![("m".to_owned(), vec![5.0; 6])] };
        snapshot.take(Source { average: None, ..source(&model, &[4.0; 6], &bare, 3) });
        assert_eq!((&snapshot.optimizer, snapshot.average), (&bare, None));
    }
}
