//! What can happen to an attempt, what follows, and why a word is refused.

use std::collections::BTreeSet;

use lockstep_api::{AttemptOutcome, Blame, FailureReport, Generation, NodeId, Rank, RankExit};

use crate::placement::Refill;
use crate::verdict::{Failure, Standing};

/// What can happen to an attempt.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// A node said something.
    Said {
        /// Who.
        node: NodeId,
        /// Under which fence.
        generation: Generation,
        /// What.
        word: Word,
    },
    /// A node is no longer what it was.
    NodeLost {
        /// Which.
        node: NodeId,
        /// In which way.
        loss: NodeLoss,
    },
    /// There are slots for ranks whose processes were given up: for all of them, or for as many as an elastic gang goes on
    /// with.
    Refilled(Vec<Refill>),
    /// There are slots for further ranks of an elastic gang, numbered from its size on.
    Grown(Vec<Refill>),
    /// Other jobs wait for the slots of these ranks of an elastic gang.
    Reclaimed(BTreeSet<Rank>),
    /// Someone wants it to end.
    StopRequested,
    /// Time passed.
    Tick,
}

/// What a node says about an attempt.
#[derive(Debug, Clone, PartialEq)]
pub enum Word {
    /// A rank's socket listens, and it is written down where.
    RankListens {
        /// Which.
        rank: Rank,
    },
    /// Everything is there that the node's ranks need.
    Prepared,
    /// A rank's process runs.
    RankStarted {
        /// Which.
        rank: Rank,
    },
    /// The group is formed.
    Formed,
    /// A step was done.
    Progressed,
    /// Its ranks live: the lease goes on.
    Renewed,
    /// A rank's process is gone.
    RankExited {
        /// Which: it may have had another rank in an earlier group.
        process: i32,
        /// How.
        exit: RankExit,
    },
    /// Something broke.
    Failed(FailureReport),
    /// Every rank of the node finished and left.
    Finished,
    /// Every rank of the node is gone.
    Stopped,
    /// None of the attempt's ranks lives on the node, said long enough after the attempt's end that no start of them can
    /// be under way (an attempt that ended before its node heard of it). Means nothing before the end.
    Absent,
}

/// How a node was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeLoss {
    /// It has not renewed its lease. Its ranks may live.
    LeaseExpired,
    /// So long ago that it must have stopped its ranks itself.
    OrphanGracePassed,
    /// Its agent was started anew; no rank outlives its agent.
    Restarted,
    /// Another agent joined under its name.
    Replaced,
}

impl NodeLoss {
    /// Whether no rank of the node can be alive.
    pub fn proves_gone(self) -> bool {
        match self {
            Self::LeaseExpired => false,
            Self::OrphanGracePassed | Self::Restarted | Self::Replaced => true,
        }
    }

    pub(super) fn sentence(self, node_name: &str) -> String {
        match self {
            Self::LeaseExpired | Self::OrphanGracePassed => {
                format!("node {node_name} stopped answering: its lease ran out")
            }
            Self::Restarted => {
                format!("the agent of node {node_name} was started anew: its ranks are gone")
            }
            Self::Replaced => {
                format!("another agent joined as node {node_name}: its ranks are gone")
            }
        }
    }
}

/// What the caller must do.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Write a failure down.
    File {
        /// What.
        failure: Failure,
        /// Under which generation it happened.
        generation: Generation,
        /// As what.
        standing: Standing,
    },
    /// The suspect that was filed first becomes the verdict.
    PromoteSuspect,
    /// A process is gone: its slot is free.
    Release {
        /// Whose.
        rank: Rank,
    },
    /// A rank's process is given up; its slot stays held until its node says that it is gone, unless that is known.
    Evict {
        /// Whose.
        rank: Rank,
    },
    /// A new generation of the same attempt begins: other processes take the place of those that were lost, or it has more
    /// ranks than the one before, or fewer.
    Begin {
        /// Those that are to be started.
        replacements: Vec<Replacement>,
        /// Everybody in it, in order of rank.
        seats: Vec<Seated>,
        /// Whether the job pays for it.
        is_paid: bool,
    },
    /// The nodes' sets of assignments changed.
    Reassign,
    /// The job must hear that the attempt is over.
    Over {
        /// How.
        outcome: AttemptOutcome,
        /// Whose fault.
        blame: Blame,
    },
}

/// A process that is to be started in a gang at work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replacement {
    /// The rank.
    pub rank: Rank,
    /// The number of the process.
    pub process: i32,
    /// Where.
    pub slot: NewSlot,
}

/// The slot of a process that is to be started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NewSlot {
    /// That of the process with this number, which is given up.
    Of(i32),
    /// One that was free.
    Free(Refill),
}

/// One process's place in a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seated {
    /// The number of the process.
    pub process: i32,
    /// Its rank.
    pub rank: Rank,
    /// Which group memory it is in.
    pub memory_index: i32,
}

/// Why an event was refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum StepError {
    /// From a gang that lost its lease: drop it, and tell the node to stop its ranks.
    #[error("event carries generation {got}, the attempt is at {held}")]
    Stale {
        /// As it came.
        got: Generation,
        /// The attempt's.
        held: Generation,
    },
    /// About a rank that this node does not run.
    #[error("node {node} runs no such rank of this attempt ({rank:?})")]
    NotAMember {
        /// Who spoke.
        node: NodeId,
        /// Of whom; absent: none of the ranks is its own.
        rank: Option<Rank>,
    },
    /// The attempt is over and the word means nothing for it: the node has yet to hear.
    #[error("the attempt has ended")]
    Over,
}
