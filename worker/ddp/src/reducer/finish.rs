//! The end of a step.

use std::ops::Range;

use lockstep_collective::GroupError;

use super::Reducer;
use crate::{StepOutcome, Votes, config::COLUMNS};

impl Reducer {
    /// Waits until the step's gradient is complete on every rank; [`Reducer::gradients`] has it then.
    ///
    /// # Errors
    /// See [`GroupError`]; the step must not be applied.
    ///
    /// # Panics
    /// If own grains are missing.
    pub fn finish_step(&mut self, votes: Votes) -> Result<StepOutcome, GroupError> {
        let step = self.step.as_ref().expect("a step has begun");
        let missing = step.grains.len() - step.finished;
        assert!(missing == 0, "{missing} own grains of {:?} are not finished", step.grains);
        self.launch_rest(votes)?;
        self.outcome()
    }

    /// Ends a step that this rank cannot do: it contributes zeros to what is not launched, and its
    /// votes, which say why. No rank waits for it, and none may apply the step.
    ///
    /// # Errors
    /// See [`GroupError`].
    ///
    /// # Panics
    /// Outside a step.
    pub fn give_up_step(&mut self, votes: Votes) -> Result<StepOutcome, GroupError> {
        let step = self.step.as_mut().expect("a step has begun");
        // Additions of a grain that is not complete mean nothing.
        step.current = None;
        let ranges: Vec<Range<usize>> = self.launch_order[step.launched..]
            .iter()
            .map(|bucket| self.plan.buckets[*bucket].range.clone())
            .collect();
        let slots = step.orders.large.slots_of(self.rank).max(1);
        for range in ranges {
            (0..slots).for_each(|slot| self.arena.floats_mut(slot, range.clone()).fill(0.0));
        }
        self.launch_rest(votes)?;
        self.outcome()
    }

    /// Waits for everything that was launched.
    fn outcome(&mut self) -> Result<StepOutcome, GroupError> {
        let mut step = self.step.take().expect("a step has begun");
        self.comm.replies(|reply| step.see(reply))?;
        let tally = step.tally.ok_or(GroupError::Aborted { by: None })?;
        let sums = self.board.sum(step.step, step.grains_total);
        let metrics = sums[COLUMNS..].chunks_exact(2).map(|pair| (pair[0], pair[1])).collect();
        let ranks =
            |mask: u64| (0..self.topology.world()).filter(move |rank| mask >> rank & 1 == 1);
        let outcome = StepOutcome {
            loss_sum: sums[0],
            weight: sums[1],
            own_weight: step.own_weight,
            metrics,
            stop: tally.stop,
            non_finite: tally.non_finite,
            non_finite_ranks: ranks(tally.non_finite_ranks).collect(),
            out_of_memory_ranks: ranks(tally.out_of_memory_ranks).collect(),
            diverged_ranks: ranks(tally.digest_ranks).collect(),
            buckets: self.launch_order.iter().map(|bucket| step.spans[*bucket]).collect(),
        };
        if outcome.non_finite || !outcome.out_of_memory_ranks.is_empty() {
            self.drop_leftovers()?;
        }
        self.agree_on_launch_order()?;
        Ok(outcome)
    }
}
