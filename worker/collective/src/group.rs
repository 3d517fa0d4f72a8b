//! What a process group can do, whatever carries it.

use lockstep_shm::Lease;

use crate::{Aborter, GroupError, Plan, SumOrder};

/// One rank's part in the votes of a step. They travel in the header of the step's last bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ballot {
    /// The step; must be the same everywhere.
    pub step: u64,
    /// Grains of the step over all ranks; must be the same everywhere.
    pub grains_total: u64,
    /// How many of them are this rank's. A rank without any still takes part.
    pub grains: u64,
    /// This rank wants to stop after the step.
    pub stop: bool,
    /// This rank's loss is not finite.
    pub non_finite: bool,
}

/// The outcome of a vote, identical on all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    /// Any rank wants to stop.
    pub stop: bool,
    /// Any loss, any contribution or any sum of gradients is not finite.
    pub non_finite: bool,
    /// Bit r: it came from rank r. None is set when only a sum overflowed.
    pub non_finite_ranks: u64,
    /// How many ranks had grains.
    pub with_data: usize,
}

/// Ranks that call collectives together, in the same order, each with a deadline.
///
/// Works in place on leased ranges of the arena (`lockstep_shm::OwnArena`); after an error the
/// group answers everything with that error.
pub trait ProcessGroup: Send {
    /// This rank.
    fn rank(&self) -> usize;

    /// How many ranks there are.
    fn world_size(&self) -> usize;

    /// The agreed plan.
    fn plan(&self) -> &Plan;

    /// Sums the contributions to `bucket` in the given order; afterwards arena 0 of every rank holds
    /// the same bits there.
    ///
    /// # Shapes
    /// `lease` covers the bucket's range of arena 0 and of every own arena that `order` names.
    ///
    /// # Errors
    /// See [`GroupError`].
    fn all_reduce(
        &mut self,
        bucket: usize,
        lease: Lease,
        order: &SumOrder,
    ) -> Result<(), GroupError>;

    /// [`ProcessGroup::all_reduce`] of the step's last bucket, with the votes in its header.
    fn all_reduce_and_vote(
        &mut self,
        bucket: usize,
        lease: Lease,
        order: &SumOrder,
        ballot: Ballot,
    ) -> Result<Tally, GroupError>;

    /// Gives every rank what `root` has in `values`, by way of arena 0.
    ///
    /// # Shapes
    /// `lease` covers exactly `values.len()` floats of arena 0; those of `root` hold its values.
    fn broadcast(
        &mut self,
        root: usize,
        lease: Lease,
        values: &mut [f32],
    ) -> Result<(), GroupError>;

    /// Sums `values` over all ranks in rank order; exact where only one rank's entry is not zero.
    fn all_reduce_f64(&mut self, values: &mut [f64]) -> Result<(), GroupError>;

    /// Returns once every rank has called it.
    fn barrier(&mut self) -> Result<(), GroupError>;

    /// The way to give the group up from another thread.
    fn aborter(&self) -> Aborter;
}
