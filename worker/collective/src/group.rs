//! What a process group can do, whatever carries it.

use std::{ops::Range, time::Duration};

use lockstep_shm::{Combine, Dtype, Lease, Span};

use crate::{Aborter, Findings, GroupError, Plan, SumOrder, Topology, What};

/// What carries a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    /// Pages that all ranks share: one node.
    Shm,
    /// Connections between ranks: every rank is a node of its own.
    Tcp,
    /// Shared pages inside a node, connections between nodes.
    Hier,
}

/// What a rank wants of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Intent {
    /// That it is applied and training goes on.
    #[default]
    GoOn,
    /// That it is applied and training stops.
    Stop,
    /// That it is not applied: it ran out of memory.
    OutOfMemory,
}

/// One rank's part in the votes of a step. They travel in the header of the step's last bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ballot {
    /// The step; must be the same everywhere.
    pub step: u64,
    /// Grains of the step over all ranks; must be the same everywhere.
    pub grains_total: u64,
    /// Which of them are this rank's. A rank without any still takes part.
    pub grains: Range<usize>,
    /// What this rank wants.
    pub intent: Intent,
    /// This rank's loss or gradient is not finite.
    pub non_finite: bool,
    /// What this rank's collectives and weights amount to; must be the same everywhere.
    pub digest: u64,
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
    /// Bit r: rank r ran out of memory.
    pub out_of_memory_ranks: u64,
    /// Bit r: the digest of rank r is another than most ranks'.
    pub digest_ranks: u64,
    /// How many ranks had grains.
    pub with_data: usize,
}

/// How contributions become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReduceOp {
    /// Their sum.
    Sum,
    /// Their sum, divided by the number of ranks. Not of integers.
    Avg,
    /// The greatest; not a number if any is none.
    Max,
}

impl ReduceOp {
    pub(crate) fn combine(self) -> Combine {
        match self {
            Self::Sum | Self::Avg => Combine::Sum,
            Self::Max => Combine::Max,
        }
    }
}

/// Ranks that call collectives together, in the same order, each with a deadline.
///
/// Works in place on leased ranges of the arena (`lockstep_shm::OwnArena`), which are handed back
/// when all is well; after an error the group answers everything with that error.
///
/// # Shapes
/// A `span` lies under its `lease`; where an order names several own arenas, the lease covers
/// all of them. Results are in arena 0.
///
/// # Errors
/// See [`GroupError`].
pub trait ProcessGroup: Send + std::fmt::Debug {
    /// What carries it.
    fn backend(&self) -> Backend;

    /// This rank.
    fn rank(&self) -> usize;

    /// How many ranks there are.
    fn world_size(&self) -> usize;

    /// Which of them share a node.
    fn topology(&self) -> &Topology;

    /// The agreed plan.
    fn plan(&self) -> &Plan;

    /// Which of `len` numbers a reduce-scatter leaves at `rank`, and an all-gather takes from it.
    fn part(&self, rank: usize, len: usize, dtype: Dtype) -> Range<usize>;

    /// Combines the contributions in the given order; afterwards all ranks have the same bits.
    fn all_reduce(
        &mut self,
        what: What,
        lease: Lease,
        span: Span,
        op: ReduceOp,
        order: &SumOrder,
    ) -> Result<Lease, GroupError>;

    /// [`ProcessGroup::all_reduce`] of the step's last bucket, a sum, with the votes in its header.
    /// Afterwards every row of the board is on every node. The span may be empty: then it is the votes alone.
    fn all_reduce_and_vote(
        &mut self,
        bucket: usize,
        lease: Lease,
        span: Span,
        order: &SumOrder,
        ballot: Ballot,
    ) -> Result<(Lease, Tally), GroupError>;

    /// Combines the contributions in the given order; afterwards each rank has its own part, and
    /// what is in the others has any value.
    fn reduce_scatter(
        &mut self,
        what: What,
        lease: Lease,
        span: Span,
        op: ReduceOp,
        order: &SumOrder,
    ) -> Result<Lease, GroupError>;

    /// Gives every rank the part of each.
    fn all_gather(&mut self, what: What, lease: Lease, span: Span) -> Result<Lease, GroupError>;

    /// Gives every rank what `root` has.
    fn broadcast(
        &mut self,
        what: What,
        root: usize,
        lease: Lease,
        span: Span,
    ) -> Result<Lease, GroupError>;

    /// The floats of arena 0 under a lease, between two collectives on them.
    fn floats_mut(&mut self, lease: &Lease) -> &mut [f32];

    /// What was found in the collectives since the last vote, for the vote of another group over the same ranks.
    fn take_findings(&mut self) -> Findings;

    /// Adds it to what this group's next vote says.
    fn add_findings(&mut self, findings: Findings);

    /// Puts the caller's judgement in place of what was found in the collectives since the last vote:
    /// whoever makes several of one sum knows better whether it is finite.
    fn judge(&mut self, is_non_finite: bool);

    /// Returns once every rank has called it.
    fn barrier(&mut self) -> Result<(), GroupError>;

    /// Says that this rank will be busy without entering a collective, at most for `longest` (and not longer than the
    /// group takes): others that miss it wait so long beyond their deadline. A later call replaces it.
    fn announce_pause(&mut self, longest: Duration);

    /// Says that the pause is over: from now on the rank is missed as usual.
    fn end_pause(&mut self);

    /// The way to give the group up from another thread.
    fn aborter(&self) -> Aborter;

    /// Leaves after the last collective. Others are not disturbed, as they are when a group that is
    /// in use is dropped.
    fn leave(self: Box<Self>);
}
