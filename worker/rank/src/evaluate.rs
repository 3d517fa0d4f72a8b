//! The evaluation pass: every sample of the evaluation split once, in its own order.
//!
//! It goes in windows of as many grains as a training step has, so that its collectives lie no further apart than
//! those of training. Each grain's sums travel in a place of their own and are added up in the order of grains:
//! the result has the same bits for any number of ranks.

use lockstep_api::{EvalSpec, FailureCode, NamedValue, Phase, RankMessage};
use lockstep_ddp::grains_of;
use lockstep_models::Mode;
use lockstep_sandbox::{Batch, BatchData};

use crate::failure::Failure;
use crate::grain::{Engine, meta};
use crate::loss::MAX_METRICS;
use crate::measure::{self, BadLabel};
use crate::order::sample_seed;
use crate::report::{finite, signed};
use crate::train::Trainer;

/// Loss and weight, then (sum, weight) of each of the engine's measures, then of each of the guest's metrics.
const COLUMNS: usize = GUEST + 2 * MAX_METRICS;
const GUEST: usize = 2 + 2 * measure::ALL.len();

impl Trainer {
    /// Evaluates the weights after `steps_done` steps. Says whether all ranks agreed to stop meanwhile; then
    /// nothing is reported.
    pub(crate) fn evaluate(&mut self, steps_done: u64) -> Result<bool, Failure> {
        let Some((_, samples)) = &self.ready.eval else { return Ok(false) };
        let samples = *samples;
        self.position.enter(Phase::Evaluation);
        let micro_batch = u64::from(self.spec.train.micro_batch);
        let window = self.ready.schedule.max_grains() as u64 * micro_batch;
        let mut sums = [0.0; COLUMNS];
        self.swap_average();
        let stopped = self.evaluate_windows(samples, window, &mut sums);
        self.swap_average();
        let is_stopped = stopped?;
        self.end_pause()?;
        if is_stopped {
            return Ok(true);
        }
        if self.is_reporter() {
            self.report_evaluation(steps_done, &sums);
        }
        Ok(false)
    }

    /// Puts the running mean in the place of the weights, or the weights back, if the job wants that evaluated.
    fn swap_average(&mut self) {
        if self.spec.eval.use_ema
            && let Some((_, average)) = &mut self.ready.average
        {
            std::mem::swap(average, &mut self.ready.engine.weights);
        }
    }

    fn report_evaluation(&self, steps_done: u64, sums: &[f64; COLUMNS]) {
        let value = |name: &str, value: f64| NamedValue {
            name: format!("eval/{name}"),
            value: finite(value),
        };
        let pairs = |columns: &[f64]| -> Vec<(f64, f64)> {
            columns.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect()
        };
        let measured = measure::ALL.into_iter().zip(pairs(&sums[2..GUEST]));
        let wanted = measured.filter(|(metric, _)| self.spec.eval.metrics.contains(metric));
        let mut metrics = vec![value("loss", sums[0] / sums[1])];
        metrics.extend(wanted.map(|(it, sums)| value(it.name(), measure::figure(it, sums))));
        metrics.extend(self.named("eval", &pairs(&sums[GUEST..])));
        self.link.send(RankMessage::Evaluated { step: signed(steps_done), metrics });
    }

    fn evaluate_windows(
        &mut self,
        samples: u64,
        window: u64,
        sums: &mut [f64; COLUMNS],
    ) -> Result<bool, Failure> {
        for first in (0..samples).step_by(usize::try_from(window).unwrap_or(usize::MAX)) {
            let end = (first + window).min(samples);
            self.begin_pause()?;
            if self.evaluate_window(first, end, sums)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Samples `first..end`, dealt to the ranks by grains; adds to `sums`.
    fn evaluate_window(
        &mut self,
        first: u64,
        end: u64,
        sums: &mut [f64; COLUMNS],
    ) -> Result<bool, Failure> {
        let micro_batch = u64::from(self.spec.train.micro_batch);
        let total = self.ready.schedule.grain_count(end - first);
        let (rank, world) = (self.ready.reducer.rank(), self.ready.reducer.world_size());
        let mut table = vec![0.0; total * COLUMNS + 1];
        for grain in grains_of(rank, world, total) {
            let start = first + grain as u64 * micro_batch;
            let samples: Vec<u64> = (start..(start + micro_batch).min(end)).collect();
            let row = &mut table[grain * COLUMNS..][..COLUMNS];
            row.copy_from_slice(&self.evaluate_grain(&samples)?);
        }
        table[total * COLUMNS] = f64::from(u8::from(self.link.is_stop_requested()));
        let reducer = &mut self.ready.reducer;
        let reduced = self.position.timeline().wait(|| reducer.all_reduce_f64(&mut table));
        reduced.map_err(|error| Failure::of_group(&error))?;
        for row in table[..total * COLUMNS].chunks_exact(COLUMNS) {
            for (sum, value) in sums.iter_mut().zip(row) {
                *sum += value;
            }
        }
        Ok(0.0 < table[total * COLUMNS])
    }

    fn evaluate_grain(&mut self, samples: &[u64]) -> Result<[f64; COLUMNS], Failure> {
        let seeds: Vec<u64> =
            samples.iter().map(|sample| sample_seed(self.spec.train.seed, 0, *sample)).collect();
        let (loader_call, loss_call) = (self.call("loader", samples), self.call("loss", samples));
        let Some((loader, _)) = &mut self.ready.eval else { return Ok([0.0; COLUMNS]) };
        let batch = loader
            .load(samples, &seeds, false)
            .map_err(|error| Failure::of_guest(&error, loader_call))?;
        let value = self.ready.engine.forward(&batch, samples, Mode::Eval);
        let value = value.map_err(|error| error.failure(loss_call))?;
        let mut row = [0.0; COLUMNS];
        (row[0], row[1]) = (value.sum, value.weight);
        let measured = self.measure(&batch, samples)?;
        for (pair, metric) in row[2..GUEST].chunks_exact_mut(2).zip(measured) {
            (pair[0], pair[1]) = metric;
        }
        for (pair, metric) in row[GUEST..].chunks_exact_mut(2).zip(value.metrics) {
            (pair[0], pair[1]) = metric;
        }
        Ok(row)
    }

    /// The engine's own measures of the last forward; nothing, if the job wants none.
    fn measure(&self, batch: &Batch, samples: &[u64]) -> Result<measure::Sums, Failure> {
        let spec = &self.spec.eval;
        if spec.metrics.is_empty() {
            return Ok(measure::Sums::default());
        }
        let failed =
            |message: String| Failure::new(FailureCode::GuestShape, message).of_rank(self.rank);
        measure_batch(&self.ready.engine, batch, samples, spec).map_err(failed)
    }
}

/// The engine's measures of its last forward over `batch`.
///
/// # Errors
/// In words: the labels are missing, of another kind or shape, or one is no class.
pub(crate) fn measure_batch(
    engine: &Engine,
    batch: &Batch,
    samples: &[u64],
    spec: &EvalSpec,
) -> Result<measure::Sums, String> {
    let name = &spec.labels;
    let labels = batch.tensors.iter().find(|tensor| tensor.name == *name);
    let labels = labels.ok_or_else(|| format!("the loader puts no tensor `{name}` of labels"))?;
    let (logits, values) = engine.logits().ok_or("the model has put nothing out")?;
    let (classes, rows) = logits.shape.split_last().ok_or("the model's output is a scalar")?;
    match &labels.data {
        BatchData::I64(data) if labels.shape == rows => {
            measure::measure(values, *classes, data, spec).map_err(|BadLabel { row, label }| {
                let sample = samples.get(row * samples.len() / data.len().max(1));
                let sample = sample.copied().unwrap_or(0);
                format!("sample {sample} has label {label}, but there are {classes} classes")
            })
        }
        _ => Err(format!(
            "the loader's tensor `{name}` is {}, expected i64{rows:?} as labels of `logits` {logits}",
            meta(labels)
        )),
    }
}
