//! Which ranks share a node, and who carries what between nodes. Pure.

use std::ops::Range;

use lockstep_shm::Dtype;

use crate::MAX_WORLD;

/// Bytes at whose multiples the parts of a collective begin: a cache line.
const PART_ALIGN_BYTES: usize = 64;

/// The ranks of a group by node. Ranks of a node follow one another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    nodes: Vec<Range<usize>>,
}

/// Nodes that make no topology.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TopologyError {
    /// Ranks are missing, double or in another order.
    #[error("node {node} begins at rank {found}, expected {expected}")]
    Order {
        /// Which node.
        node: usize,
        /// Its first rank.
        found: usize,
        /// The rank that comes next.
        expected: usize,
    },
    /// A node without ranks.
    #[error("node {node} has no ranks")]
    Empty {
        /// Which node.
        node: usize,
    },
    /// No ranks, or too many.
    #[error("{world} ranks, expected 1 to {MAX_WORLD}")]
    World {
        /// How many.
        world: usize,
    },
}

impl Topology {
    /// All ranks on one node.
    ///
    /// # Panics
    /// If there are none, or more than [`MAX_WORLD`].
    pub fn one_node(world: usize) -> Self {
        assert!((1..=MAX_WORLD).contains(&world), "{world} ranks");
        Self { nodes: std::iter::once(0..world).collect() }
    }

    /// These ranks on these nodes.
    pub fn new(nodes: Vec<Range<usize>>) -> Result<Self, TopologyError> {
        let mut next = 0;
        for (node, ranks) in nodes.iter().enumerate() {
            if ranks.start != next {
                return Err(TopologyError::Order { node, found: ranks.start, expected: next });
            }
            if ranks.is_empty() {
                return Err(TopologyError::Empty { node });
            }
            next = ranks.end;
        }
        if !(1..=MAX_WORLD).contains(&next) {
            return Err(TopologyError::World { world: next });
        }
        Ok(Self { nodes })
    }

    /// How many ranks there are.
    pub fn world(&self) -> usize {
        self.nodes.last().map_or(0, |ranks| ranks.end)
    }

    /// How many ranks each node has.
    pub fn node_sizes(&self) -> Vec<usize> {
        (0..self.node_count()).map(|node| self.members(node).len()).collect()
    }

    /// How many nodes there are.
    pub fn node_count(&self) -> usize {
        self.nodes.len()
    }

    /// The node of a rank.
    ///
    /// # Panics
    /// If there is no such rank.
    pub fn node_of(&self, rank: usize) -> usize {
        let node = self.nodes.iter().position(|ranks| ranks.contains(&rank));
        node.unwrap_or_else(|| panic!("rank {rank} of {}", self.world()))
    }

    /// The ranks of a node.
    pub fn members(&self, node: usize) -> Range<usize> {
        self.nodes[node].clone()
    }

    /// The rank that speaks for its node.
    pub fn leader(&self, node: usize) -> usize {
        self.nodes[node].start
    }

    /// The rank of `node` that carries what goes between it and `rank` of another node: its equal
    /// on that node, so that every rank of a node has its share.
    pub fn carrier(&self, node: usize, rank: usize) -> usize {
        let local = rank - self.leader(self.node_of(rank));
        self.leader(node) + local % self.nodes[node].len()
    }

    /// Ranks of other nodes that `rank` is connected to, in order.
    pub fn neighbours(&self, rank: usize) -> Vec<usize> {
        let own = self.node_of(rank);
        let is_neighbour = |other: &usize| {
            let node = self.node_of(*other);
            node != own && (self.carrier(own, *other) == rank || self.carrier(node, rank) == *other)
        };
        (0..self.world()).filter(is_neighbour).collect()
    }
}

/// The numbers of a collective over `len` that `rank` reduces.
///
/// # Panics
/// If `rank` is not below `world`.
pub fn part_of(rank: usize, world: usize, len: usize, dtype: Dtype) -> Range<usize> {
    assert!(rank < world, "rank {rank} of {world}");
    let each = len.div_ceil(world).next_multiple_of(PART_ALIGN_BYTES / dtype.bytes());
    let at = |rank: usize| (each * rank).min(len);
    at(rank)..at(rank + 1)
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Some nodes of some ranks.
    pub(crate) fn any_topology() -> impl Strategy<Value = Topology> {
        proptest::collection::vec(1..4_usize, 1..5).prop_map(|sizes| {
            let mut next = 0;
            let node = |size: usize| {
                next += size;
                next - size..next
            };
            Topology::new(sizes.into_iter().map(node).collect()).unwrap()
        })
    }

    proptest! {
        #[test]
        fn parts_cover_every_length_once(world in 1..9_usize, len in 0..3000_usize) {
            for dtype in [Dtype::F32, Dtype::F64, Dtype::Bf16] {
                let parts = (0..world).map(|rank| part_of(rank, world, len, dtype));
                let mut next = 0;
                for part in parts {
                    prop_assert_eq!(part.start, next);
                    next = part.end;
                }
                prop_assert_eq!(next, len);
            }
        }

        #[test]
        fn everything_between_nodes_has_one_carrier_that_is_connected(topology in any_topology()) {
            for rank in 0..topology.world() {
                let own = topology.node_of(rank);
                for node in (0..topology.node_count()).filter(|node| *node != own) {
                    let carrier = topology.carrier(node, rank);
                    prop_assert_eq!(topology.node_of(carrier), node);
                    prop_assert!(topology.neighbours(rank).contains(&carrier));
                    prop_assert!(topology.neighbours(carrier).contains(&rank));
                }
                for other in topology.neighbours(rank) {
                    prop_assert!(topology.neighbours(other).contains(&rank));
                }
            }
            for one in 0..topology.node_count() {
                for other in (0..topology.node_count()).filter(|other| *other != one) {
                    let neighbours = topology.neighbours(topology.leader(one));
                    prop_assert!(neighbours.contains(&topology.leader(other)));
                }
            }
        }
    }

    #[test]
    fn nodes_that_leave_ranks_out_are_refused() {
        let error = |nodes| Topology::new(nodes).unwrap_err();
        let order = TopologyError::Order { node: 1, found: 3, expected: 2 };
        assert_eq!(error(vec![0..2, 3..4]), order);
        assert_eq!(error(vec![0..2, 2..2]), TopologyError::Empty { node: 1 });
        assert_eq!(error(vec![]), TopologyError::World { world: 0 });
        assert_eq!(
            Topology::new(vec![0..2, 2..3]).unwrap().neighbours(2),
            [0, 1],
            "the only rank of a node carries for both of the other"
        );
    }
}
