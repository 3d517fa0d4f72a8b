//! The check at submit: do components, data, model and loss fit together? Answered by doing it, on one batch.
//!
//! Every refusal names a field of the job, what was expected there and what was found.

use std::sync::Arc;

use camino::Utf8Path;
use lockstep_api::{ArchSpec, CheckRequest, CheckResponse, CheckSummary, FieldError, JobSpec};
use lockstep_models::{Mode, Model};
use lockstep_sandbox::{Batch, GuestError, GuestErrorKind, Loader, LogLevel, LogSink};
use lockstep_tensor::{Accumulate, GradBuffer, Threads};

use crate::evaluate::measure_batch;
use crate::grain::{Engine, GrainError};
use crate::guest::{ComponentError, Guests, Split};
use crate::loss::{LossError, LossValue};
use crate::order::{Permutation, sample_seed};
use crate::schedule::Schedule;
use crate::setup;
use crate::update;
use lockstep_service::chain;

/// Program, runtime, stacks, compiled guests: what a rank needs before its first number.
const BASE_BYTES: u64 = 64 << 20;
const F32_BYTES: u64 = 4;

/// Answers a request. Never panics because of what is in it.
pub fn check(request: &CheckRequest) -> CheckResponse {
    let errors = request.spec.check();
    if !errors.is_empty() {
        return CheckResponse::Refused { errors };
    }
    match dry_run(request) {
        Ok(summary) => CheckResponse::Accepted(summary),
        Err(error) => CheckResponse::Refused { errors: vec![error] },
    }
}

/// A split with the first batch that will be asked of it.
struct Probe {
    samples: u64,
    /// Which samples.
    indices: Vec<u64>,
    batch: Batch,
}

fn dry_run(request: &CheckRequest) -> Result<CheckSummary, FieldError> {
    let spec = &request.spec;
    let model = Model::new(&spec.model)
        .map_err(|error| FieldError::new(error.field().to_owned(), error.to_string()))?;
    let rank_memory_bytes = memory(spec, &model)?;
    update::plan(&spec.train, model.layout())?;
    update::loss_scale(&spec.train)?;
    let guests = Guests::prepare(
        request.loader_path.as_ref(),
        request.loss_path.as_ref(),
        request.cache_dir.as_ref(),
    )
    .map_err(|error| component_error(&error))?;
    let train = probe(&guests, spec, "train", request.train_dir.as_ref())?;
    let steps_total = Schedule::new(train.samples, &spec.train).steps_total();
    update::schedule(&spec.train, steps_total)?;
    let eval = request.eval_dir.as_deref().map(|dir| probe(&guests, spec, "eval", dir.as_ref()));
    let eval = eval.transpose()?;
    let loss =
        guests.open_loss(spec, silent()).map_err(|error| guest_error("loss", "train", &error))?;
    let parameter_count = model.layout().len() as u64;
    let mut weights = model.initial_weights(spec.train.seed);
    let mut buffers = model.initial_buffers();
    if let Some(path) = &request.init_path {
        let strict = spec.model.init_strict;
        setup::begin_from(&model, path.as_ref(), (&mut weights, &mut buffers), strict)?;
    }
    let mut engine = Engine::new(model, loss, (weights, buffers), Threads::single());
    dry_step(&mut engine, &train, spec)?;
    if let Some(eval) = &eval {
        forward(&mut engine, eval, ("eval", Mode::Eval), spec)?;
        check_measures(&engine, eval, spec)?;
    }
    Ok(CheckSummary {
        train_samples: train.samples,
        eval_samples: eval.map(|eval| eval.samples),
        parameter_count,
        steps_total,
        rank_memory_bytes,
    })
}

/// Opens a split and loads the first grain of its first pass.
fn probe(
    guests: &Guests,
    spec: &JobSpec,
    name: &'static str,
    dir: &Utf8Path,
) -> Result<Probe, FieldError> {
    let failed = |error: GuestError| guest_error("loader", name, &error);
    let mut loader: Loader =
        guests.open_loader(&spec.loader, Split { name, dir }, silent()).map_err(failed)?;
    let samples = loader.len().map_err(failed)?;
    if samples == 0 {
        let message = format!("expected at least 1 sample, the loader counts 0 in split {name:?}");
        return Err(FieldError::new(format!("data.{name}"), message));
    }
    let count = samples.min(spec.train.micro_batch.into());
    let is_training = name == "train";
    let order = Permutation::new(spec.train.seed, 0, samples);
    let index = |position| if is_training { order.sample_at(position) } else { position };
    let indices: Vec<u64> = (0..count).map(index).collect();
    let seeds: Vec<u64> =
        indices.iter().map(|sample| sample_seed(spec.train.seed, 0, *sample)).collect();
    let batch = loader.load(&indices, &seeds, is_training).map_err(failed)?;
    Ok(Probe { samples, indices, batch })
}

fn forward(
    engine: &mut Engine,
    probe: &Probe,
    (split, mode): (&str, Mode),
    spec: &JobSpec,
) -> Result<LossValue, FieldError> {
    let value = engine.forward(&probe.batch, &probe.indices, mode);
    let value = value.map_err(|error| grain_error(spec, split, &error))?;
    if !value.sum.is_finite() || !value.weight.is_finite() {
        let message = format!(
            "expected a finite loss, found sum {} and weight {} on the first {} samples of split {split:?}",
            value.sum,
            value.weight,
            probe.indices.len()
        );
        return Err(FieldError::new("loss", message));
    }
    if value.weight <= 0.0 {
        let message = format!("expected a weight above 0, found {}", value.weight);
        return Err(FieldError::new("loss", message));
    }
    Ok(value)
}

/// What is measured besides the loss: its labels fit, and the guest reports nothing of that name.
fn check_measures(engine: &Engine, probe: &Probe, spec: &JobSpec) -> Result<(), FieldError> {
    if spec.eval.metrics.is_empty() {
        return Ok(());
    }
    measure_batch(engine, &probe.batch, &probe.indices, &spec.eval)
        .map_err(|message| FieldError::new("eval.labels", message))?;
    let reported = engine.loss.metric_names();
    for (index, metric) in spec.eval.metrics.iter().enumerate() {
        if reported.iter().any(|name| name == metric.name()) {
            let message = format!("the loss reports `{}` itself", metric.name());
            return Err(FieldError::new(format!("eval.metrics[{index}]"), message));
        }
    }
    Ok(())
}

/// The first step's mode.
fn mode(spec: &JobSpec) -> Mode {
    let train = &spec.train;
    let (precision, checkpointing) = (train.precision, train.activation_checkpointing);
    Mode::Train { key: sample_seed(train.seed, 0, 0), precision, checkpointing }
}

fn dry_step(engine: &mut Engine, probe: &Probe, spec: &JobSpec) -> Result<(), FieldError> {
    let mut value = forward(engine, probe, ("train", mode(spec)), spec)?;
    let mut gradients = GradBuffer::new(Arc::clone(engine.model.layout()));
    engine
        .backward(&mut value, 1.0, Accumulate::Overwrite, &mut gradients)
        .map_err(|error| FieldError::new("loss", error.to_string()))?;
    for param in engine.model.layout().params() {
        if !gradients.values()[param.range.clone()].iter().all(|value| value.is_finite()) {
            let message = format!("expected finite gradients, that of `{}` is not", param.name);
            return Err(FieldError::new("loss", message));
        }
    }
    Ok(())
}

/// What the model's training needs, partial sums, a copy for a checkpoint and the mean of the weights. The two
/// guests' ceilings are left out: those are limits, not needs.
fn memory(spec: &JobSpec, model: &Model) -> Result<u64, FieldError> {
    let parameters = model.layout().len() as u64;
    let moments = update::optimizer(&spec.train.optimizer).moment_names().len();
    let grains = spec.train.global_batch.div_ceil(spec.train.micro_batch) as usize;
    let more_sums = match spec.ddp.reduction {
        lockstep_api::Reduction::Fast => 0,
        lockstep_api::Reduction::FixedTree => {
            lockstep_ddp::slots_needed(spec.gang.ranks as usize, grains).saturating_sub(1) as u64
        }
    };
    let inputs = model.typical_inputs(spec.train.micro_batch as usize);
    let estimate = model
        .memory_estimate(&inputs, moments, mode(spec))
        .map_err(|error| FieldError::new("model", chain(&error)))?;
    let average = 2 * u64::from(spec.train.ema.is_some());
    let copies = more_sums.saturating_add(1 + moments as u64 + average);
    let numbers = parameters.saturating_mul(copies).saturating_mul(F32_BYTES);
    let bytes = estimate.total().saturating_add(numbers).saturating_add(BASE_BYTES);
    let slot_bytes = u64::from(spec.gang.slot.memory_mib) << 20;
    if slot_bytes < bytes {
        let message = format!(
            "expected at least {} for {parameters} parameters and micro_batch {}, found {}",
            bytes.div_ceil(1 << 20),
            spec.train.micro_batch,
            spec.gang.slot.memory_mib
        );
        return Err(FieldError::new("gang.slot.memory_mib", message));
    }
    Ok(bytes)
}

fn component_error(error: &ComponentError) -> FieldError {
    FieldError::new(format!("{}.component", error.guest), chain(&error.source))
}

/// The field that a guest's error is about: its own, or that of what it complains of.
fn guest_error(guest: &str, split: &str, error: &GuestError) -> FieldError {
    let field = match error {
        GuestError::Guest { kind: GuestErrorKind::Config, .. } => format!("{guest}.config"),
        GuestError::Guest { kind: GuestErrorKind::Data | GuestErrorKind::Sample, .. } => {
            format!("data.{split}")
        }
        GuestError::TimeLimit { .. } => format!("{guest}.limits.call_ms"),
        GuestError::MemoryLimit { .. } => format!("{guest}.limits.memory_mib"),
        GuestError::OutputLimit { .. } => format!("{guest}.limits.output_mib"),
        GuestError::Guest { kind: GuestErrorKind::Internal, .. }
        | GuestError::Trap { .. }
        | GuestError::StackOverflow { .. }
        | GuestError::Shape { .. }
        | GuestError::Operation { .. }
        | GuestError::NonFinite { .. }
        | GuestError::Host(_) => guest.to_owned(),
    };
    FieldError::new(field, chain(error))
}

fn grain_error(spec: &JobSpec, split: &str, error: &GrainError) -> FieldError {
    match error {
        GrainError::Input(found) => match (&spec.model.arch, found.axis) {
            (ArchSpec::Mlp(mlp), Some(0)) => {
                let length = found.found.shape.last().copied().unwrap_or(0);
                let message = format!(
                    "expected {length}, because the loader's tensor `{}` is {}; found {}",
                    found.name, found.found, mlp.inputs
                );
                FieldError::new("model.inputs", message)
            }
            _ => FieldError::new("loader", error.to_string()),
        },
        GrainError::NoInput { .. } => FieldError::new("loader", error.to_string()),
        GrainError::Label { sample, label, classes } => {
            let message = format!(
                "expected more than {label}, because sample {sample} of split {split:?} has label {label}; \
                 found {classes} (labels 0 to {})",
                classes - 1
            );
            FieldError::new("model.classes", message)
        }
        GrainError::Model(_) => FieldError::new("model", chain(error)),
        GrainError::Loss(LossError::Guest(error)) => guest_error("loss", split, error),
        GrainError::Loss(LossError::Operation(_) | LossError::Metrics { .. }) => {
            FieldError::new("loss", chain(error))
        }
    }
}

/// The check answers with one document; what guests say on the way has no place in it.
fn silent() -> LogSink {
    Arc::new(|_: LogLevel, _: &str| {})
}
