//! Position arithmetic: which positions a step uses, which of them a grain holds. Pure; knows nothing of ranks.

use std::ops::Range;

use lockstep_api::{FieldError, LedgerEntry, Step, TrainSpec, Uneven};

/// The whole course of a job, as numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Schedule {
    samples: u64,
    /// Positions of one pass: one a sample, or fewer or more, so that all batches are whole.
    positions: u64,
    global_batch: u64,
    micro_batch: u64,
    steps_per_epoch: u64,
    steps_total: u64,
}

/// The positions of one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    /// Pass over the data, from 0.
    pub(crate) data_epoch: u64,
    /// First position within the epoch's order.
    pub(crate) first_position: u64,
    /// How many: a global batch, or what the epoch has left.
    pub(crate) sample_count: u64,
}

impl Schedule {
    /// `samples`: of the training split, at least 1. `train`: checked.
    ///
    /// # Errors
    /// When there is no whole batch where only whole ones count.
    ///
    /// # Panics
    /// If one of the counts is 0.
    pub(crate) fn new(samples: u64, train: &TrainSpec, uneven: Uneven) -> Result<Self, FieldError> {
        let (global_batch, micro_batch) = (train.global_batch.into(), train.micro_batch.into());
        assert!(
            0 < samples && 0 < global_batch && 0 < micro_batch,
            "{samples} samples, global batch {global_batch}, micro batch {micro_batch}"
        );
        let positions = uneven.positions(samples, train.global_batch);
        if positions == 0 {
            let message = format!(
                "expected `join` or `pad`: the {samples} samples make no batch of {global_batch}"
            );
            return Err(FieldError::new("ddp.uneven", message));
        }
        let steps_per_epoch = positions.div_ceil(global_batch);
        let steps = steps_per_epoch.saturating_mul(train.epochs.into());
        let steps_total = steps.min(train.max_steps.unwrap_or(u64::MAX));
        Ok(Self { samples, positions, global_batch, micro_batch, steps_per_epoch, steps_total })
    }

    /// Steps from start to end.
    pub(crate) fn steps_total(&self) -> u64 {
        self.steps_total
    }

    /// Samples of the training split.
    pub(crate) fn samples(&self) -> u64 {
        self.samples
    }

    /// Positions of one pass, as the ledger counts them.
    pub(crate) fn positions(&self) -> u64 {
        self.positions
    }

    /// The place in the pass's order of samples that a position takes its sample from: behind the last
    /// sample the order begins anew.
    pub(crate) fn place_in_order(&self, position: u64) -> u64 {
        position % self.samples
    }

    /// What `step` uses. Also defined past the end: a checkpoint names the place that would come next.
    pub(crate) fn place(&self, step: u64) -> Place {
        let data_epoch = step / self.steps_per_epoch;
        let first_position = step % self.steps_per_epoch * self.global_batch;
        let sample_count = self.global_batch.min(self.positions - first_position);
        Place { data_epoch, first_position, sample_count }
    }

    /// Whether a data epoch, or the job, ends with `step`: time for an evaluation.
    pub(crate) fn ends_epoch(&self, step: u64) -> bool {
        (step + 1).is_multiple_of(self.steps_per_epoch) || step + 1 == self.steps_total
    }

    /// The positions, in the first pass, of one grain of each length that there is: the longest first.
    pub(crate) fn grain_of_each_length(&self) -> Vec<Range<u64>> {
        let last_step = self.steps_per_epoch.min(self.steps_total) - 1;
        let positions = |step| {
            let Place { first_position, sample_count, .. } = self.place(step);
            first_position..first_position + sample_count
        };
        grain_of_each_length([positions(0), positions(last_step)], self.micro_batch)
    }

    /// Grains of the largest step.
    pub(crate) fn max_grains(&self) -> usize {
        grain_count(self.global_batch.min(self.positions), self.micro_batch)
    }

    /// Grains of a step that uses `sample_count` positions.
    pub(crate) fn grain_count(&self, sample_count: u64) -> usize {
        grain_count(sample_count, self.micro_batch)
    }

    /// The offsets that `grain` holds among `sample_count` positions.
    pub(crate) fn grain(&self, grain: usize, sample_count: u64) -> Range<u64> {
        let first = grain as u64 * self.micro_batch;
        first..(first + self.micro_batch).min(sample_count)
    }
}

/// Where ranges of positions are cut into grains: one of each length, the longest first.
pub(crate) fn grain_of_each_length(
    ranges: impl IntoIterator<Item = Range<u64>>,
    micro_batch: u64,
) -> Vec<Range<u64>> {
    let mut grains: Vec<Range<u64>> = Vec::new();
    for Range { start, end } in ranges {
        let last = end - 1 - (end - 1 - start) % micro_batch;
        for grain in [start..end.min(start + micro_batch), last..end] {
            let length = |grain: &Range<u64>| grain.end - grain.start;
            if grains.iter().all(|known| length(known) != length(&grain)) {
                grains.push(grain);
            }
        }
    }
    grains
}

fn grain_count(sample_count: u64, micro_batch: u64) -> usize {
    usize::try_from(sample_count.div_ceil(micro_batch)).unwrap_or(usize::MAX)
}

impl Place {
    /// As the ledger has it.
    pub(crate) fn ledger_entry(&self, step: Step) -> LedgerEntry {
        LedgerEntry {
            step,
            data_epoch: self.data_epoch.cast_signed(),
            first_position: self.first_position.cast_signed(),
            sample_count: self.sample_count.cast_signed(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn train(global_batch: u32, micro_batch: u32, epochs: u32) -> TrainSpec {
        let optimizer = serde_json::from_value(serde_json::json!({ "name": "sgd", "lr": 0.1 }));
        TrainSpec::new(global_batch, micro_batch, epochs, optimizer.unwrap())
    }

    proptest! {
        #[test]
        fn the_grains_of_all_steps_cover_each_epoch_exactly_once_and_in_order(
            samples in 1u64..3000, global_batch in 1u32..400, micro in 1u32..400, epochs in 1u32..4,
        ) {
            let spec = train(global_batch, micro.min(global_batch), epochs);
            let schedule = Schedule::new(samples, &spec, Uneven::Join).unwrap();
            let mut next = (0, 0);
            for step in 0..schedule.steps_total() {
                let place = schedule.place(step);
                let grains = schedule.grain_count(place.sample_count);
                prop_assert!(grains <= schedule.max_grains());
                for grain in 0..grains {
                    let offsets = schedule.grain(grain, place.sample_count);
                    prop_assert!(!offsets.is_empty());
                    prop_assert_eq!(next, (place.data_epoch, place.first_position + offsets.start));
                    next.1 = place.first_position + offsets.end;
                }
                prop_assert_eq!(schedule.ends_epoch(step), next.1 == samples);
                let shown = schedule.grain_of_each_length();
                for grain in 0..grains {
                    let length = |range: &Range<u64>| range.end - range.start;
                    let this = length(&schedule.grain(grain, place.sample_count));
                    prop_assert_eq!(shown.iter().filter(|it| length(it) == this).count(), 1);
                }
                if next.1 == samples {
                    next = (place.data_epoch + 1, 0);
                }
            }
            prop_assert_eq!(next, (u64::from(epochs), 0));
        }
    }

    #[test]
    fn grains_of_each_length_stand_where_they_are_met() {
        let ends = |samples, spec: &TrainSpec| {
            let grains = Schedule::new(samples, spec, Uneven::Join)
                .unwrap()
                .grain_of_each_length()
                .into_iter();
            grains.map(|grain| [grain.start, grain.end]).collect::<Vec<_>>()
        };
        assert_eq!(ends(1437, &train(128, 50, 1)), [[0, 50], [100, 128], [1408, 1437]]);
        let short = TrainSpec { max_steps: Some(3), ..train(128, 64, 1) };
        assert_eq!(ends(1437, &short), [[0, 64]]);
        assert_eq!(ends(5, &train(128, 64, 1)), [[0, 5]]);
    }

    #[test]
    fn max_steps_ends_the_job_early_and_its_last_step_counts_as_an_end() {
        let spec = TrainSpec { max_steps: Some(7), ..train(128, 32, 20) };
        let schedule = Schedule::new(1437, &spec, Uneven::Join).unwrap();
        assert_eq!(schedule.steps_total(), 7);
        assert!(schedule.ends_epoch(6) && !schedule.ends_epoch(5));
        let last = Schedule::new(1437, &train(128, 32, 20), Uneven::Join).unwrap().place(11);
        assert_eq!(last, Place { data_epoch: 0, first_position: 1408, sample_count: 29 });
    }

    #[test]
    fn passes_have_whole_batches_only_if_the_job_says_so() {
        let schedule = |uneven| Schedule::new(10, &train(4, 2, 2), uneven).unwrap();
        let counts = |schedule: Schedule| {
            let counts = (0..schedule.steps_total()).map(|step| schedule.place(step).sample_count);
            counts.collect::<Vec<_>>()
        };
        assert_eq!(counts(schedule(Uneven::Join)), [4, 4, 2, 4, 4, 2]);
        assert_eq!(counts(schedule(Uneven::Shortest)), [4, 4, 4, 4]);
        let padded = schedule(Uneven::Pad);
        assert_eq!(counts(padded), [4, 4, 4, 4, 4, 4]);
        // The first samples of the pass once more.
        let order: Vec<u64> = (0..12).map(|position| padded.place_in_order(position)).collect();
        assert_eq!(order, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]);
        assert_eq!((padded.positions(), padded.samples()), (12, 10));
        let error = Schedule::new(3, &train(4, 2, 2), Uneven::Shortest).unwrap_err();
        assert_eq!(error.field, "ddp.uneven");
    }
}
