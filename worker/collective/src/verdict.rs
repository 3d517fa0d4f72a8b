//! Why a group was given up, as it travels between ranks: through the control pages of a node, and
//! in messages between nodes. And the error that each rank makes of it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{GroupError, Moment};

/// Why the group was given up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Verdict {
    /// A rank left or was told to.
    Left { rank: usize },
    /// Somebody who is no part of the group knows that it cannot go on.
    Interrupted,
    /// A rank's deadline passed; bit r of `missing`: rank r was not there.
    TimedOut { rank: usize, missing: u64 },
    /// A rank's connection was closed.
    Gone { rank: usize },
    /// A rank's plan is another.
    PlanMismatch { rank: usize, report: Report },
}

/// A plan mismatch as it travels between ranks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) what: String,
    pub(crate) rank_zero: String,
    pub(crate) other: String,
}

impl Verdict {
    /// Of at most `cap` bytes: a report that is too long is told without its details.
    pub(crate) fn to_text(&self, cap: usize) -> Vec<u8> {
        let text =
            |verdict: &Self| serde_json::to_vec(verdict).expect("a verdict is numbers and strings");
        match self {
            Self::PlanMismatch { rank, .. } if cap < text(self).len() => {
                let say = |what: &str| what.to_owned();
                let report =
                    Report { what: say("the plan"), rank_zero: say("one"), other: say("another") };
                text(&Self::PlanMismatch { rank: *rank, report })
            }
            Self::Left { .. }
            | Self::Interrupted
            | Self::TimedOut { .. }
            | Self::Gone { .. }
            | Self::PlanMismatch { .. } => text(self),
        }
    }

    pub(crate) fn of_text(text: &[u8]) -> Option<Self> {
        serde_json::from_slice(text).ok()
    }

    /// The error of rank `own`, which sees it `at` some collective, in which it had been for so long.
    pub(crate) fn error(self, own: usize, at: impl FnOnce() -> (Moment, Duration)) -> GroupError {
        match self {
            Self::Left { rank } | Self::TimedOut { rank, .. } => {
                GroupError::Aborted { by: (rank != own).then_some(rank) }
            }
            Self::Interrupted => GroupError::Aborted { by: None },
            Self::Gone { rank } => {
                let (at, waited) = at();
                GroupError::PeerGone { rank, at, waited }
            }
            Self::PlanMismatch { rank, report } => mismatch(rank, report),
        }
    }
}

pub(crate) fn mismatch(rank: usize, report: Report) -> GroupError {
    let Report { what, rank_zero, other } = report;
    GroupError::PlanMismatch { rank, parameter: what, rank_zero, other }
}

/// Bit r is set for every rank r.
pub(crate) fn mask_of<'a>(ranks: impl IntoIterator<Item = &'a usize>) -> u64 {
    ranks.into_iter().fold(0, |mask, rank| mask | 1 << rank)
}

/// The ranks whose bits are set, in order.
pub(crate) fn ranks_of(mask: u64) -> Vec<usize> {
    (0..u64::BITS as usize).filter(|rank| mask >> rank & 1 == 1).collect()
}
