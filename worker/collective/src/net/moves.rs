//! Who sends what to whom in a collective over several nodes. Pure.
//!
//! Large ones go directly: each rank reduces its own part of the numbers. On every other node one
//! rank carries that part: it sends what its node has of it and takes the result in for its node. Small ones
//! are exchanged whole between the leaders, each of which reduces all of it: one latency instead of two.
//! Either way every number is reduced in the same order, so the bits do not depend on which it is.

use std::ops::Range;

use lockstep_shm::Dtype;

use crate::{Topology, part_of};

/// Collectives of at most so many bytes are exchanged whole: the part of every rank travels, so they
/// can as well be added up in rank order.
pub const IN_RANK_ORDER_BYTES: usize = 32 << 10;

/// What one rank does.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Moves {
    /// Numbers of which this rank sends all partials of its node, and to whom.
    pub(crate) give: Vec<(usize, Range<usize>)>,
    /// Numbers that it reduces.
    pub(crate) reduce: Range<usize>,
    /// From whom it gets each other node's partials of them, by node; own node: itself.
    pub(crate) from: Vec<usize>,
    /// Numbers of whose result it tells others, and whom.
    pub(crate) tell: Vec<(usize, Range<usize>)>,
    /// Numbers whose result it takes in for its node, and from whom.
    pub(crate) take: Vec<(usize, Range<usize>)>,
}

impl Moves {
    /// An all-reduce.
    pub(crate) fn all_reduce(rank: usize, topology: &Topology, len: usize, dtype: Dtype) -> Self {
        if len * dtype.bytes() <= IN_RANK_ORDER_BYTES {
            return Self::small(rank, topology, len);
        }
        let gather = Self::all_gather(rank, topology, len, dtype);
        Self {
            tell: gather.tell,
            take: gather.take,
            ..Self::reduce_scatter(rank, topology, len, dtype)
        }
    }

    /// The first half of it: each rank's part.
    pub(crate) fn reduce_scatter(
        rank: usize,
        topology: &Topology,
        len: usize,
        dtype: Dtype,
    ) -> Self {
        let part = |rank| part_of(rank, topology.world(), len, dtype);
        let own = topology.node_of(rank);
        let give = Self::carried(rank, topology).map(|other| (other, part(other))).collect();
        let from = (0..topology.node_count())
            .map(|node| if node == own { rank } else { topology.carrier(node, rank) })
            .collect();
        Self { give, reduce: part(rank), from, ..Self::default() }
    }

    /// The second half of it.
    pub(crate) fn all_gather(rank: usize, topology: &Topology, len: usize, dtype: Dtype) -> Self {
        let part = |rank| part_of(rank, topology.world(), len, dtype);
        let tell = Self::others(rank, topology)
            .map(|node| (topology.carrier(node, rank), part(rank)))
            .collect();
        let take = Self::carried(rank, topology).map(|other| (other, part(other))).collect();
        Self { tell, take, ..Self::default() }
    }

    /// `root` tells one rank of each other node.
    pub(crate) fn broadcast(root: usize, rank: usize, topology: &Topology, len: usize) -> Self {
        if rank == root {
            let tell = Self::others(rank, topology)
                .map(|node| (topology.carrier(node, rank), 0..len))
                .collect();
            return Self { tell, ..Self::default() };
        }
        let own = topology.node_of(rank);
        let is_carrier = topology.node_of(root) != own && topology.carrier(own, root) == rank;
        Self { take: is_carrier.then_some((root, 0..len)).into_iter().collect(), ..Self::default() }
    }

    fn small(rank: usize, topology: &Topology, len: usize) -> Self {
        let own = topology.node_of(rank);
        if topology.leader(own) != rank {
            return Self::default();
        }
        let give =
            Self::others(rank, topology).map(|node| (topology.leader(node), 0..len)).collect();
        let from = (0..topology.node_count()).map(|node| topology.leader(node)).collect();
        Self { give, reduce: 0..len, from, ..Self::default() }
    }

    fn others(rank: usize, topology: &Topology) -> impl Iterator<Item = usize> {
        let own = topology.node_of(rank);
        (0..topology.node_count()).filter(move |node| *node != own)
    }

    /// Ranks of other nodes whose parts `rank` carries for its node.
    fn carried(rank: usize, topology: &Topology) -> impl Iterator<Item = usize> {
        let own = topology.node_of(rank);
        let is_carried = move |other: &usize| {
            topology.node_of(*other) != own && topology.carrier(own, *other) == rank
        };
        (0..topology.world()).filter(is_carried)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::topology::tests::any_topology;

    proptest! {
        /// Whatever somebody sends, somebody expects, and every node gets every number once.
        #[test]
        fn all_that_is_sent_is_expected_and_every_node_has_everything_once(
            topology in any_topology(),
            len in prop_oneof![0..200_usize, 9000..20_000_usize],
        ) {
            let world = topology.world();
            let all: Vec<_> = (0..world)
                .map(|rank| Moves::all_reduce(rank, &topology, len, Dtype::F32))
                .collect();
            for (rank, moves) in all.iter().enumerate() {
                for (to, part) in &moves.give {
                    prop_assert_eq!(all[*to].from[topology.node_of(rank)], rank);
                    prop_assert_eq!(&all[*to].reduce, part);
                }
                for (to, part) in &moves.tell {
                    prop_assert!(all[*to].take.contains(&(rank, part.clone())));
                }
                let others = moves.give.iter().chain(&moves.tell).chain(&moves.take);
                let neighbours = topology.neighbours(rank);
                prop_assert!(others.map(|(other, _)| other).all(|other| neighbours.contains(other)));
            }
            for node in 0..topology.node_count() {
                let mut times = vec![0; len];
                for rank in topology.members(node) {
                    let taken = all[rank].take.iter().map(|(_, part)| part.clone());
                    taken.chain([all[rank].reduce.clone()]).flatten().for_each(|at| times[at] += 1);
                }
                prop_assert!(times.iter().all(|times| *times == 1));
            }
            for rank in 0..world {
                let given = all.iter().flat_map(|moves| &moves.give).filter(|(to, _)| *to == rank);
                let expected = all[rank].from.iter().filter(|from| **from != rank).count();
                prop_assert_eq!(given.count(), expected);
            }
        }
    }
}
