//! From the verdict in the control pages to the error that each rank gets.

use serde::{Deserialize, Serialize};

use crate::{GroupError, control::Verdict};

/// A plan mismatch as it travels between ranks.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) what: String,
    pub(crate) rank_zero: String,
    pub(crate) other: String,
}

/// The error of rank `own`, which sees that the group was given up.
pub(crate) fn verdict_error(own: usize, verdict: Verdict) -> GroupError {
    match verdict {
        Verdict::Left { rank } | Verdict::TimedOut { rank } => {
            GroupError::Aborted { by: (rank != own).then_some(rank) }
        }
        Verdict::PlanMismatch { rank, report } => match serde_json::from_slice(&report) {
            Ok(report) => mismatch(rank, report),
            // The report was too long for its page.
            Err(_) => mismatch(
                rank,
                Report {
                    what: "the plan".to_owned(),
                    rank_zero: "one".to_owned(),
                    other: "another".to_owned(),
                },
            ),
        },
    }
}

pub(crate) fn mismatch(rank: usize, report: Report) -> GroupError {
    let Report { what, rank_zero, other } = report;
    GroupError::PlanMismatch { rank, parameter: what, rank_zero, other }
}
