//! The loss guest as the loop sees it: a kept graph for each set of shapes, or numbers in and gradients out.

use std::sync::Arc;

use lockstep_api::GuestSpec;
use lockstep_models::OUTPUT;
use lockstep_sandbox::{
    Batch, BuiltLoss, GuestComponent, GuestError, Limits, LogSink, LossGraph, RawLoss, Sandbox,
    World,
};
use lockstep_tensor::{Meta, OpError, Replay, Tape, Value};

use crate::grain::meta;
use crate::report::ENGINE_METRICS;

/// Named metrics of a loss. Every bucket header has room for so many.
pub(crate) const MAX_METRICS: usize = 32;
/// Sets of shapes whose graphs are kept. A job has two or three: full grains, the last of an epoch, evaluation.
const MAX_KEPT_GRAPHS: usize = 64;

/// A loss, opened.
#[derive(Debug)]
pub(crate) struct Loss {
    kind: Kind,
    /// Fixed by the first call: sums are added over ranks by place.
    metrics: Option<Vec<String>>,
}

#[derive(Debug)]
enum Kind {
    Kept(Box<Kept>),
    Raw(Box<RawLoss>),
}

struct Kept {
    sandbox: Arc<Sandbox>,
    component: GuestComponent,
    limits: Limits,
    config_json: String,
    log: LogSink,
    /// What its graphs may compute, bytes.
    memory_bytes: u64,
    built: Vec<(Shapes, BuiltLoss)>,
    /// What the last replay put on the tape.
    replay: Replay,
}

/// What a graph was built for.
#[derive(Debug, Clone, PartialEq)]
struct Shapes {
    output: Meta,
    batch: Vec<(String, Meta)>,
}

/// A loss over one batch.
#[derive(Debug)]
pub(crate) struct LossValue {
    /// Σ over the samples.
    pub(crate) sum: f64,
    /// What to divide by.
    pub(crate) weight: f64,
    /// (sum, weight) of each of [`Loss::metric_names`].
    pub(crate) metrics: Vec<(f64, f64)>,
    /// Where backward begins.
    pub(crate) seed: Seed,
}

/// Where backward begins.
#[derive(Debug)]
pub(crate) enum Seed {
    /// At the sum, with 1.
    Sum(Value),
    /// At the model's output, with what the guest said.
    Output(Value, Vec<f32>),
}

/// Why there is no loss.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LossError {
    /// The guest failed.
    #[error(transparent)]
    Guest(#[from] GuestError),
    /// An operation of its graph failed on this batch.
    #[error(transparent)]
    Operation(#[from] OpError),
    /// What its graph computes does not fit into the rank's slot.
    #[error("the loss's graph needs {} MiB for its numbers, the slot has {}", asked >> 20, limit >> 20)]
    Memory {
        /// Bytes, forward and backward.
        asked: u64,
        /// Bytes of the slot.
        limit: u64,
    },
    /// It reports other metrics than before, or too many.
    #[error("the loss reports the metrics {found:?}, expected {expected}")]
    Metrics {
        /// This time.
        found: Vec<String>,
        /// What would be right.
        expected: String,
    },
}

impl Loss {
    /// Opens a loss component of either kind. `memory_bytes`: of the rank's slot.
    ///
    /// # Errors
    /// A guest that does not instantiate.
    ///
    /// # Panics
    /// If the component is a loader: the caller has looked.
    pub(crate) fn open(
        sandbox: &Arc<Sandbox>,
        component: GuestComponent,
        world: World,
        spec: &GuestSpec,
        memory_bytes: u64,
        log: LogSink,
    ) -> Result<Self, GuestError> {
        let limits = crate::guest::limits(&spec.limits);
        let config_json = spec.config.to_string();
        let kind = match world {
            World::Loader => panic!("a loader was opened as a loss"),
            World::Loss => Kind::Kept(Box::new(Kept {
                sandbox: Arc::clone(sandbox),
                component,
                limits,
                config_json,
                log,
                memory_bytes,
                built: Vec::new(),
                replay: Replay::default(),
            })),
            World::LossRaw => {
                let raw = RawLoss::open(sandbox, &component, limits, &config_json, log)?;
                Kind::Raw(Box::new(raw))
            }
        };
        Ok(Self { kind, metrics: None })
    }

    /// Names of the metrics; empty before the first call.
    pub(crate) fn metric_names(&self) -> &[String] {
        self.metrics.as_deref().unwrap_or_default()
    }

    /// The most that one of its graphs needs for its numbers, bytes; 0 for a loss that computes by itself.
    pub(crate) fn graph_bytes(&self) -> u64 {
        match &self.kind {
            Kind::Kept(kept) => {
                kept.built.iter().map(|(_, built)| graph_bytes(built)).max().unwrap_or(0)
            }
            Kind::Raw(_) => 0,
        }
    }

    /// Computes the loss of `output` on `batch`, whose tensors lie on the tape as `inputs` by the same names.
    ///
    /// # Errors
    /// See [`LossError`]. Whether the numbers are finite is the caller's business.
    pub(crate) fn compute(
        &mut self,
        tape: &mut Tape<f32>,
        output: Value,
        batch: &Batch,
        inputs: &[Value],
        weights: &[f32],
    ) -> Result<LossValue, LossError> {
        let (found, names) = match &mut self.kind {
            Kind::Kept(kept) => kept.compute(tape, output, batch, inputs, weights)?,
            Kind::Raw(raw) => compute_raw(raw, tape, output, batch)?,
        };
        match &self.metrics {
            Some(expected) if *expected == names => {}
            None if names.iter().any(|name| ENGINE_METRICS.contains(&name.as_str())) => {
                let expected = format!("none of {ENGINE_METRICS:?}: those are the engine's own");
                return Err(LossError::Metrics { found: names, expected });
            }
            Some(expected) => {
                let expected = format!("{expected:?} as in the call before");
                return Err(LossError::Metrics { found: names, expected });
            }
            None if names.len() <= MAX_METRICS => self.metrics = Some(names),
            None => {
                let expected = format!("at most {MAX_METRICS}");
                return Err(LossError::Metrics { found: names, expected });
            }
        }
        Ok(found)
    }
}

impl Kept {
    fn compute(
        &mut self,
        tape: &mut Tape<f32>,
        output: Value,
        batch: &Batch,
        inputs: &[Value],
        weights: &[f32],
    ) -> Result<(LossValue, Vec<String>), LossError> {
        let shapes = Shapes { output: tape.meta(output)?.clone(), batch: metas(batch) };
        let place = self.place_of(shapes)?;
        let (_, built) = &self.built[place];
        let names = batch.tensors.iter().map(|tensor| tensor.name.as_str());
        let mut named: Vec<(&str, Value)> = names.zip(inputs.iter().copied()).collect();
        named.push((OUTPUT, output));
        built.recipe.replay(tape, &named, weights, &mut self.replay)?;
        let outputs = self.replay.outputs();
        let number = |value: Value| tape.values(value).map(|values| f64::from(values[0]));
        // In the sandbox's order: sum and weight of the loss, then of each metric.
        let &[sum, weight, ref metrics @ ..] = outputs else {
            unreachable!("the sandbox put a sum and a weight into the recipe")
        };
        let metrics = metrics.as_chunks::<2>().0.iter();
        let metrics = metrics.map(|&[sum, weight]| Ok((number(sum)?, number(weight)?)));
        let value = LossValue {
            sum: number(sum)?,
            weight: number(weight)?,
            metrics: metrics.collect::<Result<_, OpError>>()?,
            seed: Seed::Sum(sum),
        };
        Ok((value, built.metrics.clone()))
    }

    fn place_of(&mut self, shapes: Shapes) -> Result<usize, LossError> {
        if let Some(place) = self.built.iter().position(|(known, _)| *known == shapes) {
            return Ok(place);
        }
        if MAX_KEPT_GRAPHS <= self.built.len() {
            self.built.clear();
        }
        let built = LossGraph::build(
            &self.sandbox,
            &self.component,
            self.limits,
            &self.config_json,
            &[(OUTPUT.to_owned(), shapes.output.clone())],
            &shapes.batch,
            Arc::clone(&self.log),
        )?;
        let (asked, limit) = (graph_bytes(&built), self.memory_bytes);
        if limit < asked {
            return Err(LossError::Memory { asked, limit });
        }
        self.built.push((shapes, built));
        Ok(self.built.len() - 1)
    }
}

impl std::fmt::Debug for Kept {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kept").field("built", &self.built.len()).finish_non_exhaustive()
    }
}

/// Forward's numbers, and as much again for backward.
fn graph_bytes(built: &BuiltLoss) -> u64 {
    let bytes = built.recipe.elements().saturating_mul(2 * size_of::<f32>());
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

fn compute_raw(
    raw: &mut RawLoss,
    tape: &Tape<f32>,
    output: Value,
    batch: &Batch,
) -> Result<(LossValue, Vec<String>), LossError> {
    let shape = &tape.meta(output)?.shape;
    let answer = raw.compute(&[(OUTPUT, shape, tape.values(output)?)], batch)?;
    let gradient = answer.grads.into_iter().find(|(name, _)| name == OUTPUT);
    let (_, gradient) = gradient.expect("the sandbox checks that every output has a gradient");
    let (names, metrics) =
        answer.metrics.into_iter().map(|(name, sum, weight)| (name, (sum, weight))).unzip();
    let seed = Seed::Output(output, gradient);
    Ok((LossValue { sum: answer.sum, weight: answer.weight, metrics, seed }, names))
}

fn metas(batch: &Batch) -> Vec<(String, Meta)> {
    batch.tensors.iter().map(|tensor| (tensor.name.clone(), meta(tensor))).collect()
}
