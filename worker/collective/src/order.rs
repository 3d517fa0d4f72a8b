//! In which order contributions are added: pure data, the same on every rank.

use lockstep_shm::{Source, SumOp};

use crate::Topology;

/// A checked program over a stack of partial sums, which leaves one sum (none when it is empty).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SumOrder {
    ops: Vec<SumOp<Source>>,
}

/// A list of operations that is no sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OrderError {
    /// An addition has too few operands.
    #[error("operation {index} adds where only {depth} sums are there")]
    Underflow {
        /// Which operation.
        index: usize,
        /// How many sums there were.
        depth: usize,
    },
    /// More or less than one sum is left.
    #[error("{depth} sums are left at the end")]
    Leftover {
        /// How many.
        depth: usize,
    },
}

impl SumOrder {
    /// Checks that `ops` leaves one sum, or is empty.
    pub fn new(ops: Vec<SumOp<Source>>) -> Result<Self, OrderError> {
        let mut depth = 0;
        for (index, op) in ops.iter().enumerate() {
            let needed = match op {
                SumOp::Push(_) => 0,
                SumOp::AddSource(_) => 1,
                SumOp::Add => 2,
            };
            if depth < needed {
                return Err(OrderError::Underflow { index, depth });
            }
            match op {
                SumOp::Push(_) => depth += 1,
                SumOp::AddSource(_) => {}
                SumOp::Add => depth -= 1,
            }
        }
        if depth != usize::from(!ops.is_empty()) {
            return Err(OrderError::Leftover { depth });
        }
        Ok(Self { ops })
    }

    /// Arena 0 of each of `ranks`, one after the other.
    pub fn in_rank_order(ranks: impl IntoIterator<Item = usize>) -> Self {
        let source = |rank| Source { rank, slot: 0 };
        let ops = ranks
            .into_iter()
            .enumerate()
            .map(|(index, rank)| match index {
                0 => SumOp::Push(source(rank)),
                _ => SumOp::AddSource(source(rank)),
            })
            .collect();
        Self { ops }
    }

    /// The ranks of each node in order, then the nodes' sums in order: one sum of each node goes
    /// over the network. `has_part`: which ranks have anything.
    pub fn by_node(topology: &Topology, has_part: impl Fn(usize) -> bool) -> Self {
        let mut ops = Vec::new();
        let mut is_first_node = true;
        for node in 0..topology.node_count() {
            let ranks = topology.members(node).filter(|rank| has_part(*rank));
            let before = ops.len();
            ops.extend(Self::in_rank_order(ranks).ops);
            if before < ops.len() && !is_first_node {
                ops.push(SumOp::Add);
            }
            is_first_node &= before == ops.len();
        }
        Self { ops }
    }

    /// The operations.
    pub fn ops(&self) -> &[SumOp<Source>] {
        &self.ops
    }

    /// How many ranks there must be.
    pub fn world(&self) -> usize {
        let ranks = self.ops.iter().map(|op| match op {
            SumOp::Push(source) | SumOp::AddSource(source) => source.rank + 1,
            SumOp::Add => 0,
        });
        ranks.max().unwrap_or(0)
    }

    /// How many arenas `rank` contributes; they are its first ones.
    pub fn slots_of(&self, rank: usize) -> usize {
        let slots = self.ops.iter().filter_map(|op| match op {
            SumOp::Push(source) | SumOp::AddSource(source) if source.rank == rank => {
                Some(source.slot + 1)
            }
            SumOp::Push(_) | SumOp::AddSource(_) | SumOp::Add => None,
        });
        slots.max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_leaves_no_single_sum_is_refused() {
        let source = Source { rank: 0, slot: 0 };
        let push = SumOp::Push(source);
        assert_eq!(SumOrder::new(vec![push, push]), Err(OrderError::Leftover { depth: 2 }));
        let early = SumOrder::new(vec![push, SumOp::Add]);
        assert_eq!(early, Err(OrderError::Underflow { index: 1, depth: 1 }));
        let nothing = SumOrder::new(vec![SumOp::AddSource(source)]);
        assert_eq!(nothing, Err(OrderError::Underflow { index: 0, depth: 0 }));
        assert!(SumOrder::new(vec![push, push, SumOp::Add]).is_ok());
        assert!(SumOrder::new(vec![]).is_ok());
    }

    #[test]
    fn ranks_are_added_in_the_order_given() {
        let order = SumOrder::in_rank_order([0, 2]);
        let source = |rank| Source { rank, slot: 0 };
        assert_eq!(order.ops(), [SumOp::Push(source(0)), SumOp::AddSource(source(2))]);
        assert_eq!((order.slots_of(2), order.slots_of(1)), (1, 0));
    }
}
