//! Collectives between steps.

use std::{ops::Range, time::Duration};

use lockstep_collective::{
    Dtype, GroupError, ProcessGroup, ReduceOp, Span, SumOrder, What, part_of,
};

use crate::{
    config::{SCRATCH_LEN, scratch_start},
    digest::of_floats,
    hook::{HookState, HookStateError},
};

use super::{PeersGuard, Reducer};

/// Ranks whose weights are not those of the others, and where the first difference is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Divergence {
    /// The fewer; of equally many, those without the lowest rank.
    pub ranks: Vec<usize>,
    /// The first bucket that differs.
    pub bucket: usize,
    /// The first and the last parameter of it that differ.
    pub params: (String, String),
    /// Floats from the first of the one to the last of the other, in the arena.
    pub range: Range<usize>,
}

/// Why a hook does not go on from a state.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The state is of something else.
    #[error(transparent)]
    State(#[from] HookStateError),
    /// The communication thread is gone.
    #[error(transparent)]
    Group(#[from] GroupError),
}

impl Reducer {
    /// Sums `values` over all ranks in rank order; exact where only one rank's entry is not zero.
    ///
    /// # Panics
    /// During a step.
    pub fn all_reduce_f64(&mut self, values: &mut [f64]) -> Result<(), GroupError> {
        let first = scratch_start(&self.layout);
        let order = SumOrder::in_rank_order(0..self.world_size());
        for values in values.chunks_mut(SCRATCH_LEN / 2) {
            self.between_steps("all_reduce_f64");
            self.arena.doubles_mut(first, values.len()).copy_from_slice(values);
            let lease = self.arena.lease(0..1, first..first + 2 * values.len());
            let span = Span { first, dtype: Dtype::F64, len: values.len() };
            let order = order.clone();
            self.comm.run(move |worker| {
                let group = worker.group();
                group.all_reduce(What::Numbers, lease, span, ReduceOp::Sum, &order).map(drop)
            })?;
            values.copy_from_slice(self.arena.doubles_mut(first, values.len()));
        }
        Ok(())
    }

    /// Gives every rank the `values` of `root`, by pieces as long as the gradients, whose memory they use.
    ///
    /// # Panics
    /// During a step.
    pub fn broadcast(&mut self, root: usize, values: &mut [f32]) -> Result<(), GroupError> {
        for values in values.chunks_mut(scratch_start(&self.layout) + SCRATCH_LEN) {
            self.between_steps("broadcast");
            let range = 0..values.len();
            if self.rank == root {
                lockstep_shm::copy(values, self.arena.floats_mut(0, range.clone()));
            }
            let lease = self.arena.lease(0..1, range.clone());
            let span = Span::floats(range.clone());
            self.comm.run(move |worker| {
                worker.group().broadcast(What::Weights, root, lease, span).map(drop)
            })?;
            lockstep_shm::copy(self.arena.floats(0, range), values);
        }
        Ok(())
    }

    /// The parts of the arena whose gradient this rank has after a sharded step, in order: one of each
    /// bucket, some of them empty.
    pub fn own_parts(&self) -> Vec<Range<usize>> {
        let part = |range: &Range<usize>| {
            let part = part_of(self.rank, self.world_size(), range.len(), Dtype::F32);
            range.start + part.start..range.start + part.end
        };
        self.plan.buckets.iter().map(|bucket| part(&bucket.range)).collect()
    }

    /// Gives every rank the [`Reducer::own_parts`] of each in `values`, which are as long as the
    /// gradients and use their memory.
    ///
    /// # Panics
    /// During a step, or if `values` has another length.
    pub fn all_gather(&mut self, values: &mut [f32]) -> Result<(), GroupError> {
        assert!(values.len() == self.layout.len(), "{} of {}", values.len(), self.layout.len());
        for (bucket, own) in (0..).zip(self.own_parts()) {
            self.between_steps("all_gather");
            let range = self.plan.buckets[bucket].range.clone();
            lockstep_shm::copy(&values[own.clone()], self.arena.floats_mut(0, own));
            let lease = self.arena.lease(0..1, range.clone());
            let span = Span::floats(range.clone());
            self.comm.run(move |worker| {
                worker.group().all_gather(What::Weights, lease, span).map(drop)
            })?;
            lockstep_shm::copy(self.arena.floats(0, range.clone()), &mut values[range]);
        }
        Ok(())
    }

    /// Replaces `values` by their mean over all ranks, by pieces in the gradients' memory.
    ///
    /// # Panics
    /// During a step.
    pub fn average(&mut self, values: &mut [f32]) -> Result<(), GroupError> {
        let order = SumOrder::by_node(&self.topology, |_| true);
        for values in values.chunks_mut(scratch_start(&self.layout) + SCRATCH_LEN) {
            self.between_steps("average");
            let range = 0..values.len();
            lockstep_shm::copy(values, self.arena.floats_mut(0, range.clone()));
            let lease = self.arena.lease(0..1, range.clone());
            let (span, order) = (Span::floats(range.clone()), order.clone());
            self.comm.run(move |worker| {
                let group = worker.group();
                group.all_reduce(What::Weights, lease, span, ReduceOp::Avg, &order).map(drop)
            })?;
            lockstep_shm::copy(self.arena.floats(0, range), values);
        }
        Ok(())
    }

    /// Says to all other ranks that this one is about to be busy, at most for `longest` (and not longer than groups
    /// take): whoever waits for it then waits beyond the deadline. A later call replaces it.
    ///
    /// # Panics
    /// During a step.
    pub fn announce_pause(&mut self, longest: Duration) -> Result<(), GroupError> {
        self.in_every_group(move |group| group.announce_pause(longest))
    }

    /// Says that the pause is over.
    ///
    /// # Panics
    /// During a step.
    pub fn end_pause(&mut self) -> Result<(), GroupError> {
        self.in_every_group(|group| group.end_pause())
    }

    fn in_every_group(
        &mut self,
        say: impl Fn(&mut dyn ProcessGroup) + Copy + Send + 'static,
    ) -> Result<(), GroupError> {
        self.between_steps("a pause");
        if let Some(PeersGuard(peers)) = &self.peers {
            peers.in_group(say);
        }
        for lane in [&mut self.comm].into_iter().chain(&mut self.more) {
            lane.run(move |worker| {
                say(worker.group());
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Returns once every rank has called it.
    ///
    /// # Panics
    /// During a step.
    pub fn barrier(&mut self) -> Result<(), GroupError> {
        self.between_steps("barrier");
        self.comm.run(|worker| worker.group().barrier())
    }

    /// What the hook carries from step to step: this rank's.
    fn hook_state(&mut self) -> Result<HookState, GroupError> {
        assert!(self.step.is_none(), "hook_state during a step");
        self.comm.ask(|worker| worker.hook_state(), |_| {})
    }

    /// What the hook carries from step to step, after all ranks have taken equal parts of what they have left over
    /// together: the same on every rank, and [`HookState::leftovers`] is what all of them have left over.
    ///
    /// # Panics
    /// During a step.
    pub fn share_hook_state(&mut self) -> Result<HookState, RestoreError> {
        let mut state = self.hook_state()?;
        self.average(&mut state.leftovers)?;
        let world = self.world_size() as f32;
        state.leftovers.iter_mut().for_each(|leftover| *leftover *= world);
        self.restore_hook(state.clone())?;
        Ok(state)
    }

    /// Continues from what ranks shared, however many there were: each takes an equal part of what is left over.
    ///
    /// # Errors
    /// If it is of another model, other buckets or another hook.
    ///
    /// # Panics
    /// During a step.
    pub fn restore_hook(&mut self, mut state: HookState) -> Result<(), RestoreError> {
        assert!(self.step.is_none(), "restore_hook during a step");
        let world = self.world_size() as f32;
        state.leftovers.iter_mut().for_each(|leftover| *leftover /= world);
        Ok(self.comm.ask(move |worker| worker.restore_hook(&state), |_| {})??)
    }

    /// Finds out where `weights`, as long as the gradients, differ between ranks; all ranks call it.
    /// `None` if they do not.
    ///
    /// # Panics
    /// During a step.
    pub fn divergence(&mut self, weights: &[f32]) -> Result<Option<Divergence>, GroupError> {
        let buckets: Vec<Range<usize>> =
            self.plan.buckets.iter().map(|bucket| bucket.range.clone()).collect();
        let Some((bucket, ranks)) = self.first_difference(weights, &buckets)? else {
            return Ok(None);
        };
        let params: Vec<(String, Range<usize>)> = self
            .layout
            .params()
            .iter()
            .zip(&self.bucket_of)
            .filter(|(_, of)| **of == bucket)
            .map(|(param, _)| (param.name.clone(), param.range.clone()))
            .collect();
        let ranges: Vec<Range<usize>> = params.iter().map(|(_, range)| range.clone()).collect();
        let table = self.digests(weights, &ranges)?;
        let differs = |row: &&[f64]| row.iter().any(|digest| digest != &row[0]);
        let rows: Vec<&[f64]> = table.chunks_exact(self.world_size()).collect();
        let at = |index: Option<usize>| index.and_then(|index| params.get(index));
        let first = at(rows.iter().position(differs));
        let last = at(rows.iter().rposition(differs));
        Ok(first.zip(last).map(|((first, from), (last, to))| Divergence {
            ranks,
            bucket,
            params: (first.clone(), last.clone()),
            range: from.start..to.end,
        }))
    }

    /// The first range that differs, and the ranks in which it is another than in most.
    fn first_difference(
        &mut self,
        weights: &[f32],
        ranges: &[Range<usize>],
    ) -> Result<Option<(usize, Vec<usize>)>, GroupError> {
        let table = self.digests(weights, ranges)?;
        let fewer = |row: &[f64]| {
            let count = |digest: &f64| row.iter().filter(|other| *other == digest).count();
            // Of equally many the first counts.
            let usual = row.iter().rev().max_by_key(|digest| count(digest)).copied();
            (0..row.len()).filter(|rank| Some(row[*rank]) != usual).collect::<Vec<_>>()
        };
        let rows = table.chunks_exact(self.world_size()).enumerate();
        Ok(rows.map(|(index, row)| (index, fewer(row))).find(|(_, ranks)| !ranks.is_empty()))
    }

    /// A digest of every range of every rank's weights, by range. What f64 holds of it, exactly.
    fn digests(
        &mut self,
        weights: &[f32],
        ranges: &[Range<usize>],
    ) -> Result<Vec<f64>, GroupError> {
        let world = self.world_size();
        let mut table = vec![0.0; ranges.len() * world];
        for (index, range) in ranges.iter().enumerate() {
            table[index * world + self.rank] = (of_floats(&weights[range.clone()]) >> 12) as f64;
        }
        self.all_reduce_f64(&mut table)?;
        Ok(table)
    }

    /// The step is not applied: what a hook keeps of its gradients means nothing.
    pub(super) fn drop_leftovers(&mut self) -> Result<(), GroupError> {
        self.comm.run(|worker| {
            worker.drop_leftovers();
            Ok(())
        })
    }

    /// After the first step all ranks launch buckets in the order in which rank 0's became ready.
    pub(super) fn agree_on_launch_order(&mut self) -> Result<(), GroupError> {
        let Some(observed) = self.observed.take() else { return Ok(()) };
        let buckets = self.plan.buckets.len();
        if SCRATCH_LEN / 2 < buckets {
            return Ok(());
        }
        let mut order = vec![0.0; buckets];
        if self.rank == 0 && observed.len() == buckets {
            for (place, bucket) in order.iter_mut().zip(&observed) {
                *place = 1.0 + *bucket as f64;
            }
        }
        self.all_reduce_f64(&mut order)?;
        let order: Vec<usize> =
            order.iter().filter(|place| 1.0 <= **place).map(|place| *place as usize - 1).collect();
        let mut sorted = order.clone();
        sorted.sort_unstable();
        if sorted.iter().copied().eq(0..buckets) {
            self.launch_order = order;
        }
        Ok(())
    }
}
