//! The evaluation pass: every sample of the evaluation split once, in its own order.
//!
//! It goes in windows of as many grains as a training step has, so that its collectives lie no further apart than
//! those of training. Each grain's sums travel in a place of their own and are added up in the order of grains:
//! the result has the same bits for any number of ranks.

use lockstep_api::{NamedValue, Phase, RankMessage};
use lockstep_ddp::grains_of;

use crate::failure::Failure;
use crate::loss::MAX_METRICS;
use crate::order::sample_seed;
use crate::train::{Trainer, finite, signed};

/// Loss and weight, then (sum, weight) of each metric.
const COLUMNS: usize = 2 + 2 * MAX_METRICS;

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
        for first in (0..samples).step_by(usize::try_from(window).unwrap_or(usize::MAX)) {
            let end = (first + window).min(samples);
            if self.evaluate_window(first, end, &mut sums)? {
                return Ok(true);
            }
        }
        if self.is_reporter() {
            let loss =
                NamedValue { name: "eval/loss".to_owned(), value: finite(sums[0] / sums[1]) };
            let metrics: Vec<(f64, f64)> =
                sums[2..].chunks_exact(2).map(|pair| (pair[0], pair[1])).collect();
            let metrics = [loss].into_iter().chain(self.named("eval", &metrics)).collect();
            self.link.send(RankMessage::Evaluated { step: signed(steps_done), metrics });
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
        self.ready.reducer.all_reduce_f64(&mut table).map_err(|error| Failure::of_group(&error))?;
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
        let value = self.ready.engine.forward(&batch, samples);
        let value = value.map_err(|error| error.failure(loss_call))?;
        let mut row = [0.0; COLUMNS];
        (row[0], row[1]) = (value.sum, value.weight);
        for (pair, metric) in row[2..].chunks_exact_mut(2).zip(value.metrics) {
            (pair[0], pair[1]) = metric;
        }
        Ok(row)
    }
}
