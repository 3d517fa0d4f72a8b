//! What a round is for: written beside each line, so that ranks in different places notice.

use crate::Plan;

/// What a round is for, as ranks compare it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Op {
    Formation,
    Enter(usize),
    Leave(usize),
    BroadcastEnter(usize),
    BroadcastLeave(usize),
    Exchange(usize),
    Barrier,
}

impl Op {
    pub(crate) fn word(self) -> u64 {
        let (kind, index) = match self {
            Self::Formation => (1, 0),
            Self::Enter(bucket) => (2, bucket),
            Self::Leave(bucket) => (3, bucket),
            Self::BroadcastEnter(len) => (4, len),
            Self::BroadcastLeave(len) => (5, len),
            Self::Exchange(len) => (6, len),
            Self::Barrier => (7, 0),
        };
        (kind << 56) | index as u64
    }

    pub(crate) fn name(word: u64, plan: &Plan) -> String {
        let index = usize::try_from(word & ((1 << 56) - 1)).unwrap_or(usize::MAX);
        match word >> 56 {
            1 => "the formation of the group".to_owned(),
            2 => plan.bucket_name(index),
            3 => format!("the end of {}", plan.bucket_name(index)),
            4 => format!("a broadcast of {index} floats"),
            5 => format!("the end of a broadcast of {index} floats"),
            6 => format!("an exchange of {index} numbers"),
            7 => "a barrier".to_owned(),
            kind => format!("something unknown ({kind})"),
        }
    }
}
