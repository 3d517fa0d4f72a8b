//! An order of additions cut up by node: what each node adds up before it sends anything, and what
//! is left to do with what came from elsewhere. Pure.
//!
//! Additions are never exchanged: the result has the bits of the whole order.

use lockstep_shm::{Source, SumOp, Term};

use crate::{SumOrder, Topology};

/// A [`SumOrder`] over the nodes of a [`Topology`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Split {
    /// For each node, the programs whose results it sends to others. Ranks count from 0 on it.
    pub(crate) partials: Vec<Vec<Vec<SumOp<Term>>>>,
    /// For each node, the whole order as a rank of it does it: its own arenas, and the results of
    /// other nodes in the order of `staged`.
    pub(crate) programs: Vec<Vec<SumOp<Term>>>,
    /// For each node, which results of others its program needs: (node, partial).
    pub(crate) staged: Vec<Vec<(usize, usize)>>,
}

/// The order as a tree.
#[derive(Debug, Clone)]
enum Sum {
    Source(Source),
    Pair(Box<(Sum, Sum)>),
}

impl Split {
    /// Of a collective that adds nothing up.
    pub(crate) fn nothing(topology: &Topology) -> Self {
        let nodes = topology.node_count();
        let (partials, programs) = (vec![Vec::new(); nodes], vec![Vec::new(); nodes]);
        Self { partials, programs, staged: vec![Vec::new(); nodes] }
    }

    /// Cuts `order` up. With `keeps_sources` nothing is added up before it is sent: numbers that
    /// lose bits when they are sent must be rounded once only.
    pub(crate) fn new(order: &SumOrder, topology: &Topology, keeps_sources: bool) -> Self {
        let mut split = Self::nothing(topology);
        let Some(sum) = tree_of(order) else { return split };
        split.visit(&sum, topology, keeps_sources);
        split
    }

    /// Adds what leaves `sum` on the stack to every node's program.
    fn visit(&mut self, sum: &Sum, topology: &Topology, keeps_sources: bool) {
        let home = sum.home(topology);
        let is_whole = match (sum, home) {
            (Sum::Source(_), _) => true,
            (Sum::Pair(_), Some(_)) => !keeps_sources || topology.node_count() == 1,
            (Sum::Pair(_), None) => false,
        };
        match (home, sum) {
            (Some(home), _) if is_whole => {
                let mut local = Vec::new();
                sum.emit(topology.leader(home), &mut local);
                let partial = self.partials[home].len();
                for node in 0..topology.node_count() {
                    if node == home {
                        self.programs[node].extend(local.iter().copied());
                    } else {
                        let staged = Term::Staged(self.staged[node].len());
                        self.programs[node].push(SumOp::Push(staged));
                        self.staged[node].push((home, partial));
                    }
                }
                if 1 < topology.node_count() {
                    self.partials[home].push(local);
                }
            }
            (_, Sum::Pair(pair)) => {
                self.visit(&pair.0, topology, keeps_sources);
                self.visit(&pair.1, topology, keeps_sources);
                self.programs.iter_mut().for_each(add);
            }
            (_, Sum::Source(_)) => unreachable!("a source has one home"),
        }
    }
}

impl Sum {
    /// The node that has all of it.
    fn home(&self, topology: &Topology) -> Option<usize> {
        match self {
            Self::Source(source) => Some(topology.node_of(source.rank)),
            Self::Pair(pair) => {
                let home = pair.0.home(topology)?;
                (pair.1.home(topology) == Some(home)).then_some(home)
            }
        }
    }

    /// The operations of it, with ranks counted from `first` on.
    fn emit(&self, first: usize, ops: &mut Vec<SumOp<Term>>) {
        match self {
            Self::Source(source) => {
                let source = Source { rank: source.rank - first, slot: source.slot };
                ops.push(SumOp::Push(Term::Arena(source)));
            }
            Self::Pair(pair) => {
                pair.0.emit(first, ops);
                pair.1.emit(first, ops);
                add(ops);
            }
        }
    }
}

/// Adds the top to the one below; a top that was just pushed need not be on the stack at all.
fn add(ops: &mut Vec<SumOp<Term>>) {
    match ops.pop() {
        Some(SumOp::Push(term)) => ops.push(SumOp::AddSource(term)),
        last => ops.extend(last.into_iter().chain([SumOp::Add])),
    }
}

fn tree_of(order: &SumOrder) -> Option<Sum> {
    let mut stack: Vec<Sum> = Vec::new();
    for op in order.ops() {
        let right = match op {
            SumOp::Push(source) => {
                stack.push(Sum::Source(*source));
                continue;
            }
            SumOp::AddSource(source) => Sum::Source(*source),
            SumOp::Add => stack.pop().expect("checked by `SumOrder::new`"),
        };
        let left = stack.pop().expect("checked by `SumOrder::new`");
        stack.push(Sum::Pair(Box::new((left, right))));
    }
    stack.pop()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::topology::tests::any_topology;

    /// What a program leaves, as text; `leaf` names what it reads.
    fn text<T>(ops: &[SumOp<T>], leaf: impl Fn(&T) -> String) -> String {
        let mut stack: Vec<String> = Vec::new();
        for op in ops {
            let right = match op {
                SumOp::Push(term) => {
                    stack.push(leaf(term));
                    continue;
                }
                SumOp::AddSource(term) => leaf(term),
                SumOp::Add => stack.pop().unwrap(),
            };
            let left = stack.pop().unwrap();
            stack.push(format!("({left}+{right})"));
        }
        assert!(stack.len() <= 1, "{stack:?}");
        stack.pop().unwrap_or_default()
    }

    fn name(source: &Source) -> String {
        format!("{}.{}", source.rank, source.slot)
    }

    /// Some order over all ranks, drawn from what is on the stack at each moment.
    fn drawn_order(world: usize, choices: &[bool]) -> SumOrder {
        let mut ops = Vec::new();
        let (mut depth, mut choices) = (0, choices.iter().cycle());
        for source in (0..world).flat_map(|rank| [0, 1].map(|slot| Source { rank, slot })) {
            if 0 < depth && *choices.next().unwrap() {
                ops.push(SumOp::AddSource(source));
            } else {
                ops.push(SumOp::Push(source));
                depth += 1;
            }
            while 1 < depth && *choices.next().unwrap() {
                ops.push(SumOp::Add);
                depth -= 1;
            }
        }
        ops.extend((1..depth).map(|_| SumOp::Add));
        SumOrder::new(ops).unwrap()
    }

    proptest! {
        #[test]
        fn every_node_adds_in_the_whole_order(
            topology in any_topology(),
            choices in proptest::collection::vec(any::<bool>(), 7..20),
            keeps_sources in any::<bool>(),
        ) {
            prop_assume!(choices.contains(&false) && choices.contains(&true));
            let order = drawn_order(topology.world(), &choices);
            let expected = text(order.ops(), name);
            let split = Split::new(&order, &topology, keeps_sources);
            for node in 0..topology.node_count() {
                let local = |at: usize| move |term: &Term| match term {
                    Term::Arena(source) => name(&Source { rank: source.rank + at, slot: source.slot }),
                    Term::Staged(_) => panic!("a partial of a partial"),
                };
                let leaf = |term: &Term| match term {
                    Term::Arena(_) => local(topology.leader(node))(term),
                    Term::Staged(index) => {
                        let (from, partial) = split.staged[node][*index];
                        assert_ne!(from, node);
                        text(&split.partials[from][partial], local(topology.leader(from)))
                    }
                };
                prop_assert_eq!(text(&split.programs[node], leaf), expected.clone());
                let kept = split.partials[node].iter().all(|partial| partial.len() == 1);
                prop_assert!(!keeps_sources || kept);
            }
        }
    }

    #[test]
    fn a_node_sends_one_sum_where_the_order_allows_it() {
        let topology = Topology::new(vec![0..2, 2..4]).unwrap();
        let split = Split::new(&SumOrder::in_rank_order(0..4), &topology, false);
        // ((0+1)+2)+3: the first node's two can go as one, the second's cannot.
        assert_eq!(split.partials.iter().map(Vec::len).collect::<Vec<_>>(), [1, 2]);
        let by_node = SumOrder::by_node(&topology, |_| true);
        let split = Split::new(&by_node, &topology, false);
        assert_eq!(split.partials.iter().map(Vec::len).collect::<Vec<_>>(), [1, 1]);
        assert_eq!(Split::new(&SumOrder::in_rank_order([]), &topology, false).programs[1], []);
    }
}
