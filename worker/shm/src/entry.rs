//! What a collective in a flight record is, as one word and for people.

use std::fmt;

/// What is done with the numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FlightKind {
    /// Nothing that this version knows.
    #[default]
    Unknown,
    /// They are combined, and everybody gets the result.
    AllReduce,
    /// The same, with the votes of a step in the header.
    Vote,
    /// They are combined, and each rank gets its part.
    ReduceScatter,
    /// Each rank's part goes to all.
    AllGather,
    /// One rank's numbers go to all.
    Broadcast,
    /// There are none.
    Barrier,
}

impl FlightKind {
    const ALL: [Self; 7] = [
        Self::Unknown,
        Self::AllReduce,
        Self::Vote,
        Self::ReduceScatter,
        Self::AllGather,
        Self::Broadcast,
        Self::Barrier,
    ];
}

/// What the numbers belong to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FlightOf {
    /// What ranks count or compare.
    #[default]
    Numbers,
    /// Parameters of the model, or what goes with them.
    Weights,
    /// Gradients of one bucket.
    Bucket {
        /// From 0.
        index: u16,
        /// How many there are.
        count: u16,
    },
}

/// A collective, as far as a record says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FlightOp {
    /// What is done.
    pub kind: FlightKind,
    /// With what.
    pub of: FlightOf,
}

impl FlightOp {
    /// As it stands in the file.
    pub(crate) fn word(self) -> u64 {
        let (of, index, count) = match self.of {
            FlightOf::Numbers => (0, 0, 0),
            FlightOf::Weights => (1, 0, 0),
            FlightOf::Bucket { index, count } => (2, index, count),
        };
        (self.kind as u64) << 56 | of << 48 | u64::from(index) << 16 | u64::from(count)
    }

    pub(crate) fn of_word(word: u64) -> Self {
        let kind = usize::try_from(word >> 56).unwrap_or(0);
        let half = |shift: u32| u16::try_from(word >> shift & 0xffff).unwrap_or(0);
        let of = match word >> 48 & 0xff {
            1 => FlightOf::Weights,
            2 => FlightOf::Bucket { index: half(16), count: half(0) },
            _ => FlightOf::Numbers,
        };
        Self { kind: FlightKind::ALL.get(kind).copied().unwrap_or_default(), of }
    }
}

/// `bucket 3 of 9`, `an all-gather of the weights`
impl fmt::Display for FlightOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let done = match self.kind {
            FlightKind::Unknown => "something unknown",
            FlightKind::AllReduce | FlightKind::Vote => "an all-reduce",
            FlightKind::ReduceScatter => "a reduce-scatter",
            FlightKind::AllGather => "an all-gather",
            FlightKind::Broadcast => "a broadcast",
            FlightKind::Barrier => return f.write_str("a barrier"),
        };
        match self.of {
            FlightOf::Numbers => write!(f, "{done} of numbers"),
            FlightOf::Weights => write!(f, "{done} of the weights"),
            FlightOf::Bucket { index, count } => {
                let bucket = u32::from(index) + 1;
                match self.kind {
                    FlightKind::AllReduce => write!(f, "bucket {bucket} of {count}"),
                    FlightKind::Vote => write!(f, "bucket {bucket} of {count} and the votes"),
                    _ => write!(f, "{done} of bucket {bucket} of {count}"),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_collective_comes_through_its_word_and_is_named() {
        let of = [FlightOf::Numbers, FlightOf::Weights, FlightOf::Bucket { index: 2, count: 9 }];
        for (kind, of) in FlightKind::ALL.into_iter().flat_map(|kind| of.map(|of| (kind, of))) {
            let op = FlightOp { kind, of };
            assert_eq!(FlightOp::of_word(op.word()), op);
        }
        let named = |kind, of| FlightOp { kind, of }.to_string();
        assert_eq!(named(FlightKind::AllReduce, of[2]), "bucket 3 of 9");
        assert_eq!(named(FlightKind::Vote, of[2]), "bucket 3 of 9 and the votes");
        assert_eq!(named(FlightKind::ReduceScatter, of[2]), "a reduce-scatter of bucket 3 of 9");
        assert_eq!(named(FlightKind::AllGather, of[1]), "an all-gather of the weights");
        assert_eq!(named(FlightKind::Barrier, of[0]), "a barrier");
        assert_eq!(FlightOp::of_word(u64::MAX).kind, FlightKind::Unknown);
    }
}
