//! The fixed tree: gradients of grains are added along a binary tree over grain indices, so that
//! the bits do not depend on which rank computed which grain.
//!
//! A node of level l covers 2^l grains from a multiple of 2^l on, cut off at the last grain; a node
//! whose right half is empty is its left half. A rank adds up whatever whole nodes lie in its block
//! (a stack, as in counting in binary) and hands over one partial sum per largest such node; the
//! other levels are added on arrival, in the same order.

use lockstep_collective::{Source, SumOp, SumOrder};

use crate::grains_of;

/// A node of the tree: the grains it covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Node {
    /// First grain.
    pub start: usize,
    /// One past the last grain.
    pub end: usize,
}

impl Node {
    /// Whether this node and `right`, which follows it, are the two halves of one node.
    pub(crate) fn is_sibling_of(self, right: Self, grains_total: usize) -> bool {
        let size = self.end - self.start;
        self.end == right.start
            && size.is_power_of_two()
            && self.start.is_multiple_of(2 * size)
            && right.end == (right.start + size).min(grains_total)
    }

    /// The node that `self` and `right` are the halves of.
    pub(crate) fn joined(self, right: Self) -> Self {
        Self { start: self.start, end: right.end }
    }
}

/// The largest nodes that lie in the block of `rank`, from left to right.
pub fn cover(rank: usize, world: usize, grains_total: usize) -> Vec<Node> {
    let mut stack = Vec::new();
    for grain in grains_of(rank, world, grains_total) {
        push_grain(&mut stack, grain, grains_total, |_, _| {});
    }
    stack
}

/// Pushes a grain and joins what it completes; `add(into, from)` is told which entries of the stack
/// are added up.
pub(crate) fn push_grain(
    stack: &mut Vec<Node>,
    grain: usize,
    grains_total: usize,
    mut add: impl FnMut(usize, usize),
) {
    stack.push(Node { start: grain, end: grain + 1 });
    while let [.., left, right] = stack[..]
        && left.is_sibling_of(right, grains_total)
    {
        let into = stack.len() - 2;
        add(into, into + 1);
        stack.truncate(into);
        stack.push(left.joined(right));
    }
}

/// How deep the stack of any rank gets, with at most `max_grains` grains in a step: the number of
/// arenas that each needs.
///
/// While a rank works on a grain, the whole nodes of its grains before lie below. k of them need
/// at least 1, 2, 4, 6, 10, 14, 22, … grains (up and down in powers of two), or 1, 3, 7, … (down
/// only) if the block begins at grain 0, as it does for a single rank.
pub fn slots_needed(world: usize, max_grains: usize) -> usize {
    let before = max_grains.div_ceil(world).saturating_sub(1);
    let mut nodes = 0;
    while least_grains(nodes + 1, world) <= before {
        nodes += 1;
    }
    nodes + 1
}

fn least_grains(nodes: usize, world: usize) -> usize {
    if world == 1 {
        return (1 << nodes) - 1;
    }
    let half = nodes / 2;
    if nodes.is_multiple_of(2) { 2 * ((1 << half) - 1) } else { 3 * (1 << half) - 2 }
}

/// The additions that are left once every rank has handed over its [`cover`]: arena i of a rank
/// holds node i.
pub fn tree_order(world: usize, grains_total: usize) -> SumOrder {
    let leaves: Vec<(Node, Source)> = (0..world)
        .flat_map(|rank| {
            let nodes = cover(rank, world, grains_total).into_iter().enumerate();
            nodes.map(move |(slot, node)| (node, Source { rank, slot }))
        })
        .collect();
    let mut ops = Vec::new();
    // The same stack again, over nodes instead of grains.
    let mut stack: Vec<Node> = Vec::new();
    for (node, source) in leaves {
        ops.push(SumOp::Push(source));
        stack.push(node);
        while let [.., left, right] = stack[..]
            && left.is_sibling_of(right, grains_total)
        {
            match ops.pop() {
                Some(SumOp::Push(source)) => ops.push(SumOp::AddSource(source)),
                other => ops.extend(other.into_iter().chain([SumOp::Add])),
            }
            stack.truncate(stack.len() - 2);
            stack.push(left.joined(right));
        }
    }
    SumOrder::new(ops).expect("the nodes of all ranks join up to the root")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The tree by its definition: what is added to what, as text.
    fn by_definition(start: usize, size: usize, total: usize) -> String {
        if size == 1 {
            return start.to_string();
        }
        let half = size / 2;
        let left = by_definition(start, half, total);
        if total <= start + half {
            return left;
        }
        format!("({left}+{})", by_definition(start + half, half, total))
    }

    /// The same text, by way of the ranks' stacks and the order of what is left.
    fn by_ranks(world: usize, total: usize) -> (String, usize) {
        let mut arenas: Vec<Vec<String>> = Vec::new();
        let mut deepest = 0;
        for rank in 0..world {
            let (mut stack, mut texts) = (Vec::new(), Vec::new());
            for grain in grains_of(rank, world, total) {
                texts.push(grain.to_string());
                deepest = deepest.max(texts.len());
                push_grain(&mut stack, grain, total, |into, from| {
                    texts[into] = format!("({}+{})", texts[into], texts[from]);
                    texts.truncate(from);
                });
            }
            arenas.push(texts);
        }
        let mut sums: Vec<String> = Vec::new();
        for op in tree_order(world, total).ops() {
            match op {
                SumOp::Push(source) => sums.push(arenas[source.rank][source.slot].clone()),
                SumOp::AddSource(source) => {
                    let left = sums.pop().unwrap();
                    sums.push(format!("({left}+{})", arenas[source.rank][source.slot]));
                }
                SumOp::Add => {
                    let (right, left) = (sums.pop().unwrap(), sums.pop().unwrap());
                    sums.push(format!("({left}+{right})"));
                }
            }
        }
        (sums.pop().unwrap_or_default(), deepest)
    }

    proptest! {
        #[test]
        fn any_number_of_ranks_adds_along_the_same_tree(world in 1..13_usize, total in 1..90_usize) {
            let (text, deepest) = by_ranks(world, total);
            prop_assert_eq!(text, by_definition(0, total.next_power_of_two(), total));
            prop_assert!(deepest <= slots_needed(world, total), "{} arenas", deepest);
        }
    }

    #[test]
    fn twelve_grains_need_few_partial_sums() {
        assert_eq!(cover(1, 3, 12), [Node { start: 4, end: 8 }]);
        assert_eq!(cover(0, 2, 12), [Node { start: 0, end: 4 }, Node { start: 4, end: 6 }]);
        assert_eq!(cover(0, 1, 12), [Node { start: 0, end: 12 }]);
        assert_eq!((slots_needed(1, 12), slots_needed(3, 12), slots_needed(12, 12)), (4, 3, 1));
    }
}
