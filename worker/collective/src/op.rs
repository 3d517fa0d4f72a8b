//! What a round is for: written beside each line and at the head of each message, so that ranks in
//! different places notice.

use lockstep_shm::{Combine, Dtype, FlightKind, FlightOf, FlightOp, Span};

use crate::Plan;

/// What numbers belong to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// A bucket of the plan.
    Bucket(usize),
    /// Parameters of the model, or what goes with them.
    Weights,
    /// Numbers that ranks count or compare.
    Numbers,
}

/// Where in a collective a rank is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// It waits until all ranks of its node are there.
    Entering,
    /// It waits for ranks of other nodes.
    Exchanging,
    /// It waits until all ranks of its node are done.
    Leaving,
}

impl Phase {
    pub(crate) fn of([which, _]: OpWords) -> Self {
        match which >> 56 {
            2 => Self::Exchanging,
            3 => Self::Leaving,
            _ => Self::Entering,
        }
    }
}

impl std::fmt::Display for Phase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Entering => "entering",
            Self::Exchanging => "exchanging",
            Self::Leaving => "leaving",
        })
    }
}

/// Which collective.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    AllReduce,
    ReduceScatter,
    AllGather,
    Broadcast,
    Barrier,
    Formation,
}

/// A collective, as ranks compare it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Op {
    pub(crate) kind: Kind,
    pub(crate) what: What,
    pub(crate) dtype: Dtype,
    pub(crate) combine: Combine,
    pub(crate) len: usize,
}

/// An [`Op`] and a [`Phase`] as words: which collective and where in it, and on which numbers.
pub(crate) type OpWords = [u64; 2];

impl Op {
    pub(crate) fn new(kind: Kind, what: What, span: Span, combine: Combine) -> Self {
        Self { kind, what, dtype: span.dtype, combine, len: span.len }
    }

    pub(crate) fn without_numbers(kind: Kind) -> Self {
        let (dtype, combine) = (Dtype::F32, Combine::Sum);
        Self { kind, what: What::Numbers, dtype, combine, len: 0 }
    }

    /// As the flight record has it, of a plan with so many buckets.
    pub(crate) fn flight(self, bucket_count: usize) -> FlightOp {
        let kind = match self.kind {
            Kind::AllReduce => FlightKind::AllReduce,
            Kind::ReduceScatter => FlightKind::ReduceScatter,
            Kind::AllGather => FlightKind::AllGather,
            Kind::Broadcast => FlightKind::Broadcast,
            Kind::Barrier => FlightKind::Barrier,
            Kind::Formation => FlightKind::Unknown,
        };
        let small = |count: usize| u16::try_from(count).unwrap_or(u16::MAX);
        let of = match self.what {
            What::Bucket(index) => {
                FlightOf::Bucket { index: small(index), count: small(bucket_count) }
            }
            What::Weights => FlightOf::Weights,
            What::Numbers => FlightOf::Numbers,
        };
        FlightOp { kind, of }
    }

    pub(crate) fn words(self, phase: Phase) -> OpWords {
        let (what, index) = match self.what {
            What::Bucket(index) => (1, index as u64),
            What::Weights => (2, 0),
            What::Numbers => (3, 0),
        };
        let kind = match self.kind {
            Kind::AllReduce => 1,
            Kind::ReduceScatter => 2,
            Kind::AllGather => 3,
            Kind::Broadcast => 4,
            Kind::Barrier => 5,
            Kind::Formation => 6,
        };
        let phase = match phase {
            Phase::Entering => 1,
            Phase::Exchanging => 2,
            Phase::Leaving => 3,
        };
        let dtype = match self.dtype {
            Dtype::F32 => 1,
            Dtype::F64 => 2,
            Dtype::I64 => 3,
            Dtype::Bf16 => 4,
            Dtype::F16 => 5,
        };
        let combine = match self.combine {
            Combine::Sum => 1,
            Combine::Max => 2,
        };
        [
            phase << 56 | kind << 48 | what << 40 | (index & u64::from(u32::MAX)),
            dtype << 56 | combine << 48 | (self.len as u64 & ((1 << 48) - 1)),
        ]
    }
}

/// "the end of bucket 2 of 9 (fc.bias … fc.weight)".
pub(crate) fn name(words: OpWords, plan: &Plan) -> String {
    let [which, _] = words;
    let index = usize::try_from(which & u64::from(u32::MAX)).unwrap_or(usize::MAX);
    let what = match which >> 40 & 0xff {
        1 => plan.bucket_name(index),
        2 => "the weights".to_owned(),
        _ => "numbers".to_owned(),
    };
    let is_bucket = which >> 40 & 0xff == 1;
    let collective = match which >> 48 & 0xff {
        1 if is_bucket => what,
        1 => format!("an all-reduce of {what}"),
        2 => format!("a reduce-scatter of {what}"),
        3 => format!("an all-gather of {what}"),
        4 => format!("a broadcast of {what}"),
        5 => "a barrier".to_owned(),
        6 => "the formation of the group".to_owned(),
        kind => format!("something unknown ({kind})"),
    };
    match which >> 56 {
        3 => format!("the end of {collective}"),
        _ => collective,
    }
}

/// "the sum of 300 f32".
pub(crate) fn numbers(words: OpWords) -> String {
    let [_, numbers] = words;
    let combine = if numbers >> 48 & 0xff == 2 { "maximum" } else { "sum" };
    let dtype = match numbers >> 56 {
        1 => "f32",
        2 => "f64",
        3 => "i64",
        4 => "bf16",
        5 => "f16",
        _ => "of an unknown kind",
    };
    format!("the {combine} of {} {dtype}", numbers & ((1 << 48) - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_tell_collectives_apart_and_name_them() {
        let plan = Plan::default();
        let span = Span { first: 0, dtype: Dtype::Bf16, len: 300 };
        let op = Op::new(Kind::ReduceScatter, What::Weights, span, Combine::Max);
        assert_eq!(
            name(op.words(Phase::Leaving), &plan),
            "the end of a reduce-scatter of the weights"
        );
        assert_eq!(numbers(op.words(Phase::Entering)), "the maximum of 300 bf16");
        assert_ne!(op.words(Phase::Entering), op.words(Phase::Exchanging));
        let other = Op { dtype: Dtype::F16, ..op };
        assert_ne!(op.words(Phase::Entering)[1], other.words(Phase::Entering)[1]);
        assert_eq!(
            name(Op::without_numbers(Kind::Barrier).words(Phase::Entering), &plan),
            "a barrier"
        );
    }
}
