//! The check at submit: do components, data, model and loss fit together? Answered by doing it, on one batch.
//!
//! Every refusal names a field of the job, what was expected there and what was found.

mod memory;
mod refusal;

use std::iter::once;
use std::ops::Range;
use std::sync::Arc;

use camino::Utf8Path;
use lockstep_api::{CheckRequest, CheckResponse, CheckSummary, FieldError, JobSpec, MAX_STEPS};
use lockstep_models::{Mode, Model};
use lockstep_sandbox::{Batch, GuestError, Loader, LogLevel, LogSink};
use lockstep_tensor::{Accumulate, GradBuffer, Threads};

use self::refusal::{component_error, grain_error, guest_error};
use crate::evaluate::measure_batch;
use crate::grain::{Engine, GrainError};
use crate::guest::{Guests, Split};
use crate::loss::LossValue;
use crate::order::{Permutation, sample_seed};
use crate::schedule::{Schedule, grain_of_each_length};
use crate::start;
use crate::update;

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

/// A split with a grain of each length that will be asked of it, the first one first.
struct Probe {
    name: &'static str,
    samples: u64,
    grains: Vec<ProbeGrain>,
}

struct ProbeGrain {
    /// Which samples.
    indices: Vec<u64>,
    batch: Batch,
}

fn dry_run(request: &CheckRequest) -> Result<CheckSummary, FieldError> {
    let spec = &request.spec;
    let model = Model::new(&spec.model)
        .map_err(|error| FieldError::new(error.field().to_owned(), error.message()))?;
    update::plan(&spec.train, model.layout())?;
    update::loss_scale(&spec.train)?;
    let guests = Guests::prepare(
        request.loader_path.as_ref(),
        request.loss_path.as_ref(),
        request.cache_dir.as_ref(),
    )
    .map_err(|error| component_error(&error))?;
    let (train, steps_total) = probe_training(&guests, spec, request.train_dir.as_ref())?;
    let model_bytes = memory::of_model(spec, &model, &train.grains[0].batch)?;
    let eval = request.eval_dir.as_deref();
    let eval = eval.map(|dir| probe_evaluation(&guests, spec, dir.as_ref())).transpose()?;
    let loss =
        guests.open_loss(spec, silent()).map_err(|error| guest_error("loss", "train", &error))?;
    let parameter_count = model.layout().len() as u64;
    let mut weights = model.initial_weights(spec.train.seed);
    let mut buffers = model.initial_buffers();
    if let Some(path) = &request.init_path {
        let strict = spec.model.init_strict;
        start::begin_from(&model, path.as_ref(), (&mut weights, &mut buffers), strict)?;
    }
    let mut engine = Engine::new(model, loss, (weights, buffers), Threads::single());
    dry_steps(&mut engine, &train, spec)?;
    if let Some(eval) = &eval {
        for grain in &eval.grains {
            forward(&mut engine, (eval, grain), Mode::Eval, spec)?;
            check_measures(&engine, grain, spec)?;
        }
    }
    let rank_memory_bytes = model_bytes.saturating_add(engine.loss.graph_bytes());
    memory::fits_slot(spec, &engine.model, rank_memory_bytes)?;
    Ok(CheckSummary {
        train_samples: train.samples,
        eval_samples: eval.map(|eval| eval.samples),
        parameter_count,
        steps_total,
        rank_memory_bytes,
    })
}

fn probe_training(
    guests: &Guests,
    spec: &JobSpec,
    dir: &Utf8Path,
) -> Result<(Probe, u64), FieldError> {
    let (mut loader, samples) = open(guests, spec, Split { name: "train", dir })?;
    let schedule = Schedule::new(samples, &spec.train, spec.ddp.uneven)?;
    let steps_total = schedule.steps_total();
    if MAX_STEPS < steps_total {
        let message = format!(
            "expected at most {MAX_STEPS} steps, found {steps_total}: {} passes over {samples} samples",
            spec.train.epochs
        );
        return Err(FieldError::new("train.epochs", message));
    }
    update::schedule(&spec.train, steps_total)?;
    let order = Permutation::new(spec.train.seed, 0, samples);
    let load = |positions: Range<u64>| {
        let indices = positions.map(|at| order.sample_at(schedule.place_in_order(at))).collect();
        load(&mut loader, spec, "train", indices)
    };
    let grains = schedule.grain_of_each_length().into_iter().map(load);
    let grains = grains.collect::<Result<_, _>>()?;
    Ok((Probe { name: "train", samples, grains }, steps_total))
}

fn probe_evaluation(guests: &Guests, spec: &JobSpec, dir: &Utf8Path) -> Result<Probe, FieldError> {
    let (mut loader, samples) = open(guests, spec, Split { name: "eval", dir })?;
    let lengths = grain_of_each_length(once(0..samples), spec.train.micro_batch.into());
    let load = |positions: Range<u64>| load(&mut loader, spec, "eval", positions.collect());
    let grains = lengths.into_iter().map(load).collect::<Result<_, _>>()?;
    Ok(Probe { name: "eval", samples, grains })
}

/// Opens a split and counts its samples.
fn open(guests: &Guests, spec: &JobSpec, split: Split<'_>) -> Result<(Loader, u64), FieldError> {
    let name = split.name;
    let failed = |error: GuestError| guest_error("loader", name, &error);
    let mut loader = guests.open_loader(&spec.loader, split, silent()).map_err(failed)?;
    match loader.len().map_err(failed)? {
        0 => {
            let message =
                format!("expected at least 1 sample, the loader counts 0 in split {name:?}");
            Err(FieldError::new(format!("data.{name}"), message))
        }
        samples => Ok((loader, samples)),
    }
}

/// Loads one grain of the first pass.
fn load(
    loader: &mut Loader,
    spec: &JobSpec,
    name: &str,
    indices: Vec<u64>,
) -> Result<ProbeGrain, FieldError> {
    let seed = |sample: &u64| sample_seed(spec.train.seed, 0, *sample);
    let seeds: Vec<u64> = indices.iter().map(seed).collect();
    let batch = loader.load(&indices, &seeds, name == "train");
    let batch = batch.map_err(|error| guest_error("loader", name, &error))?;
    Ok(ProbeGrain { indices, batch })
}

fn forward(
    engine: &mut Engine,
    (probe, grain): (&Probe, &ProbeGrain),
    mode: Mode,
    spec: &JobSpec,
) -> Result<LossValue, FieldError> {
    let (split, count) = (probe.name, grain.indices.len());
    let value = engine.forward(&grain.batch, &grain.indices, mode).map_err(|error| {
        let longest = probe.grains[0].indices.len();
        match &error {
            // The longer one went through.
            GrainError::Model(error) if count < longest => {
                let micro_batch = spec.train.micro_batch;
                let message = format!(
                    "expected one that leaves no grain that the model cannot take; found {micro_batch}, which leaves one \
                     of {count} of the {} samples of split {split:?}: {error}",
                    probe.samples
                );
                FieldError::new("train.micro_batch", message)
            }
            error => grain_error(spec, split, error),
        }
    })?;
    if !value.sum.is_finite() || !value.weight.is_finite() {
        let message = format!(
            "expected a finite loss, found sum {} and weight {} on {count} samples of split {split:?}",
            value.sum, value.weight,
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
fn check_measures(engine: &Engine, grain: &ProbeGrain, spec: &JobSpec) -> Result<(), FieldError> {
    if spec.eval.metrics.is_empty() {
        return Ok(());
    }
    measure_batch(engine, &grain.batch, &grain.indices, &spec.eval)
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

/// Forward and backward of each grain.
fn dry_steps(engine: &mut Engine, probe: &Probe, spec: &JobSpec) -> Result<(), FieldError> {
    let mut gradients = GradBuffer::new(Arc::clone(engine.model.layout()));
    for grain in &probe.grains {
        let mut value = forward(engine, (probe, grain), mode(spec), spec)?;
        engine
            .backward(&mut value, 1.0, Accumulate::Overwrite, &mut gradients)
            .map_err(|error| FieldError::new("loss", error.to_string()))?;
        for param in engine.model.layout().params() {
            if !gradients.values()[param.range.clone()].iter().all(|value| value.is_finite()) {
                let message = format!("expected finite gradients, that of `{}` is not", param.name);
                return Err(FieldError::new("loss", message));
            }
        }
    }
    Ok(())
}

/// The check answers with one document; what guests say on the way has no place in it.
fn silent() -> LogSink {
    Arc::new(|_: LogLevel, _: &str| {})
}
