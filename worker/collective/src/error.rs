//! What can go wrong in a group.

use std::{io, sync::Arc, time::Duration};

/// Why a collective did not happen. The group is dead afterwards and answers everything with the
/// same error; the ranges it was working on stay leased.
#[derive(Debug, Clone, thiserror::Error)]
pub enum GroupError {
    /// Ranks were silent until the deadline, or until another rank's deadline.
    #[error("{} not entered {what} for {:.1} s", named(missing), waited.as_secs_f64())]
    NotEntered {
        /// Who did not come.
        missing: Vec<usize>,
        /// The collective, as in "bucket 3 of 9 (fc2.bias … fc1.weight)".
        what: String,
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
    #[error("rank {rank} is at {theirs} while this rank is at {ours}")]
    Diverged {
        /// Which rank.
        rank: usize,
        /// Where this rank is.
        ours: String,
        /// Where that one is.
        theirs: String,
    },
    /// Somebody gave the group up.
    #[error("the group was aborted{}", by_rank(*by))]
    Aborted {
        /// Which rank; `None` when this one did, or it is not known.
        by: Option<usize>,
    },
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
            Self::NotEntered { .. } | Self::FormationTimeout { .. } | Self::Aborted { .. } => true,
            Self::PlanMismatch { .. } | Self::Diverged { .. } | Self::Io { .. } => false,
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
