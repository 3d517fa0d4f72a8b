//! What can go wrong in a group.

use std::{io, sync::Arc, time::Duration};

use crate::Phase;

/// Which collective of a rank, counted from 1, and how far it had come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Moment {
    /// As in "bucket 3 of 9 (fc2.bias … fc1.weight)".
    pub what: String,
    /// The collective's number since the group formed.
    pub sequence: u64,
    /// Which of several groups of the same ranks: each counts for itself.
    pub lane: u8,
    /// How far it had come.
    pub phase: Phase,
}

impl std::fmt::Display for Moment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} (collective {}, {})", self.what, self.sequence, self.phase)
    }
}

/// Why a collective did not happen. The group is dead afterwards and answers everything with the
/// same error; the ranges it was working on stay leased.
#[derive(Debug, Clone, thiserror::Error)]
pub enum GroupError {
    /// Ranks were silent until the deadline, or until another rank's deadline.
    #[error("{} not entered {} for {:.1} s (collective {}, {})", named(missing), at.what, waited.as_secs_f64(), at.sequence, at.phase)]
    NotEntered {
        /// Who did not come.
        missing: Vec<usize>,
        /// Which collective.
        at: Moment,
        /// How long this rank has waited for them.
        waited: Duration,
    },
    /// The ranks did not meet in time.
    #[error("{} not joined the group within {:.1} s", named(missing), waited.as_secs_f64())]
    FormationTimeout {
        /// Who did not come.
        missing: Vec<usize>,
        /// How long this rank has waited for them.
        waited: Duration,
    },
    /// A rank cannot be reached at any of its addresses.
    #[error("rank {rank} cannot be reached: {reason}")]
    Unreachable {
        /// Which rank.
        rank: usize,
        /// The last address and the system's answer.
        reason: String,
    },
    /// The ranks were given different plans. Every rank gets the same report.
    #[error(
        "rank {rank} disagrees with rank 0 on {parameter}: {other} there, {rank_zero} at rank 0"
    )]
    PlanMismatch {
        /// The first rank that noticed.
        rank: usize,
        /// The first parameter that differs, or the property of the plan that does.
        parameter: String,
        /// What rank 0 has there.
        rank_zero: String,
        /// What `rank` has there.
        other: String,
    },
    /// Another rank is somewhere else in the order of collectives: a defect, not a fault.
    #[error("rank {rank} is at {theirs} while this rank is at {ours}, its collective {sequence}")]
    Diverged {
        /// Which rank.
        rank: usize,
        /// Where this rank is.
        ours: String,
        /// Where that one is.
        theirs: String,
        /// The collective's number.
        sequence: u64,
    },
    /// Another rank means other numbers in the same collective: a defect, not a fault.
    #[error("rank {rank} has {theirs} in {at}, this rank {ours}")]
    NumbersMismatch {
        /// Which rank.
        rank: usize,
        /// The collective.
        at: Moment,
        /// Kind and number here.
        ours: String,
        /// Kind and number there.
        theirs: String,
    },
    /// A rank's connection is closed: its process has ended, or its node is cut off.
    #[error("rank {rank} has closed its connection in {at}")]
    PeerGone {
        /// Which rank.
        rank: usize,
        /// The collective.
        at: Moment,
        /// How long this rank had been in it.
        waited: Duration,
    },
    /// What comes from a rank is no message of ours, or was changed on its way.
    #[error("rank {rank} sends {detail} in {at}")]
    Garbage {
        /// Which rank.
        rank: usize,
        /// What is wrong with it.
        detail: String,
        /// The collective.
        at: Moment,
    },
    /// A rank of an earlier or later generation of the group.
    #[error("rank {rank} is of generation {theirs}, this rank of generation {ours}")]
    StaleGeneration {
        /// Which rank.
        rank: usize,
        /// This rank's generation.
        ours: u64,
        /// That one's.
        theirs: u64,
    },
    /// Somebody gave the group up.
    #[error("the group was aborted{}", by_rank(*by))]
    Aborted {
        /// Which rank; `None` when this one did, or it is not known.
        by: Option<usize>,
    },
    /// What was asked for cannot be done; nothing was begun.
    #[error("{0}")]
    InvalidArgument(String),
    /// The system refused something.
    #[error("{operation}")]
    Io {
        /// What was tried.
        operation: &'static str,
        /// The system's answer.
        #[source]
        source: Arc<io::Error>,
    },
}

impl GroupError {
    /// Whether the same ranks may succeed if they form a new group.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::NotEntered { .. }
            | Self::FormationTimeout { .. }
            | Self::PeerGone { .. }
            | Self::Garbage { .. }
            | Self::Unreachable { .. }
            | Self::Aborted { .. } => true,
            Self::PlanMismatch { .. }
            | Self::Diverged { .. }
            | Self::NumbersMismatch { .. }
            | Self::StaleGeneration { .. }
            | Self::InvalidArgument(_)
            | Self::Io { .. } => false,
        }
    }

    pub(crate) fn io(operation: &'static str, source: io::Error) -> Self {
        Self::Io { operation, source: Arc::new(source) }
    }
}

/// "rank 2 has", "ranks 1, 2 have".
fn named(ranks: &[usize]) -> String {
    let list: Vec<String> = ranks.iter().map(ToString::to_string).collect();
    match ranks {
        [_] => format!("rank {} has", list.concat()),
        _ => format!("ranks {} have", list.join(", ")),
    }
}

fn by_rank(by: Option<usize>) -> String {
    by.map_or_else(String::new, |rank| format!(" by rank {rank}"))
}
