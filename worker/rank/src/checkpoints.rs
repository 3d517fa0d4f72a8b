//! Checkpoints are written off the step path: the state is copied, a thread writes it and tells the agent.

use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use camino::Utf8PathBuf;
use lockstep_api::{FailureCode, Phase, RankMessage};
use lockstep_checkpoint::{CheckpointError, FORMAT_VERSION, Meta, State, curve_settings};
use lockstep_ddp::hook::HookState;
use lockstep_tensor::{Layout, OptimizerState};
use std::sync::Arc;

use crate::failure::Failure;
use crate::link::AgentLink;
use crate::report::signed;
use crate::train::Trainer;

/// Longest wait for a checkpoint to be written and read back: a disk that takes longer has stopped.
const WRITE_LIMIT: Duration = Duration::from_secs(600);

/// Writes one checkpoint at a time.
#[derive(Debug)]
pub(crate) struct Checkpoints {
    dir: Utf8PathBuf,
    link: AgentLink,
    writing: Option<Receiver<Result<(), CheckpointError>>>,
}

/// A copy of the state between two steps.
#[derive(Debug)]
pub(crate) struct Snapshot {
    /// Where each parameter lies.
    pub(crate) layout: Arc<Layout>,
    /// In arena order.
    pub(crate) weights: Vec<f32>,
    /// Where each running statistic lies.
    pub(crate) buffer_layout: Arc<Layout>,
    /// In their arena's order.
    pub(crate) buffers: Vec<f32>,
    /// The running mean of the weights, if one is kept.
    pub(crate) average: Option<Vec<f32>>,
    /// Of the communication hook, if it carries one.
    pub(crate) hook: Option<HookState>,
    /// Each moment in arena order.
    pub(crate) optimizer: OptimizerState,
    /// Everything else.
    pub(crate) meta: Meta,
}

impl Checkpoints {
    /// Into `dir`, which exists.
    pub(crate) fn new(dir: Utf8PathBuf, link: AgentLink) -> Self {
        Self { dir, link, writing: None }
    }

    /// Starts writing, after the one before is done.
    ///
    /// # Errors
    /// That of the one before.
    pub(crate) fn begin(&mut self, snapshot: Snapshot) -> Result<(), Failure> {
        self.finish()?;
        let path = self.dir.join(format!("step-{:08}.safetensors", snapshot.meta.step.0));
        let link = self.link.clone();
        let (done, writing) = channel();
        thread::Builder::new()
            .name("checkpoint".to_owned())
            // Nobody listens any more if the job has failed meanwhile.
            .spawn(move || drop(done.send(write(&path, &snapshot, &link))))
            .map_err(|error| Failure::new(FailureCode::CheckpointFailed, error.to_string()))?;
        self.writing = Some(writing);
        Ok(())
    }

    /// Waits for the one that is being written.
    ///
    /// # Errors
    /// Why it could not be.
    pub(crate) fn finish(&mut self) -> Result<(), Failure> {
        let Some(writing) = self.writing.take() else { return Ok(()) };
        let message = match writing.recv_timeout(WRITE_LIMIT) {
            Ok(written) => return written.map_err(|error| Failure::of_checkpoint(&error)),
            Err(RecvTimeoutError::Timeout) => {
                format!("a checkpoint in {} was not written within {WRITE_LIMIT:?}", self.dir)
            }
            Err(RecvTimeoutError::Disconnected) => {
                "the thread that writes checkpoints panicked".to_owned()
            }
        };
        Err(Failure::new(FailureCode::CheckpointFailed, message))
    }
}

impl Trainer {
    pub(crate) fn is_checkpoint_due(&self) -> bool {
        let done = self.ready.next_step;
        let every = self.spec.checkpoint.every_steps;
        done == self.ready.schedule.steps_total()
            || every.is_some_and(|every| done.is_multiple_of(every))
    }

    /// Begins a checkpoint of the state between two steps.
    pub(crate) fn checkpoint(&mut self) -> Result<(), Failure> {
        self.position.enter(Phase::Checkpoint);
        let hook = self.share_hook_state()?;
        let optimizer = match &self.ready.shard {
            None if self.is_reporter() => self.ready.optimizer_state.clone(),
            None => return Ok(()),
            Some(shard) => {
                let len = self.ready.engine.weights.len();
                let (reducer, state) = (&mut self.ready.reducer, &self.ready.optimizer_state);
                let whole = shard.whole_state(reducer, state, len);
                whole.map_err(|error| Failure::of_group(&error))?
            }
        };
        if !self.is_reporter() {
            return Ok(());
        }
        let step = self.ready.next_step;
        let place = self.ready.schedule.place(step);
        let meta = Meta {
            version: FORMAT_VERSION,
            step: signed(step),
            data_epoch: place.data_epoch.cast_signed(),
            next_position: place.first_position.cast_signed(),
            samples_per_epoch: self.ready.schedule.samples().cast_signed(),
            optimizer_step: self.ready.optimizer_state.step,
            loss_scale: self.ready.loss_scale.as_ref().map(|scale| scale.state()),
            settings: curve_settings(&self.spec),
        };
        self.checkpoints.begin(Snapshot {
            layout: self.ready.engine.model.layout().clone(),
            weights: self.ready.engine.weights.clone(),
            buffer_layout: self.ready.engine.model.buffers().clone(),
            buffers: self.ready.engine.buffers.clone(),
            average: self.ready.average.as_ref().map(|(_, average)| average.clone()),
            hook,
            optimizer,
            meta,
        })
    }

    /// What the hook carries, if it does, becomes the same on every rank: a checkpoint has what all have left over
    /// together, and whoever goes on from it must do as this run does.
    fn share_hook_state(&mut self) -> Result<Option<HookState>, Failure> {
        if !self.spec.ddp.hook.has_state() {
            return Ok(None);
        }
        let shared = self.ready.reducer.share_hook_state();
        shared.map(Some).map_err(|error| Failure::of_restoring(&error))
    }
}

fn write(path: &Utf8PathBuf, snapshot: &Snapshot, link: &AgentLink) -> Result<(), CheckpointError> {
    let Snapshot { layout, weights, buffer_layout, buffers, average, hook, optimizer, meta } =
        snapshot;
    let average = average.as_deref();
    let hook = hook.as_ref().map(|hook| [hook.shared.as_slice(), hook.leftovers.as_slice()]);
    let state = State { layout, weights, buffer_layout, buffers, average, hook, optimizer };
    lockstep_checkpoint::save(path, &state, meta)?;
    link.send(RankMessage::Checkpoint {
        path: path.to_string(),
        step: meta.step,
        data_epoch: meta.data_epoch,
        next_position: meta.next_position,
    });
    Ok(())
}
