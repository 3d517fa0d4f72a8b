//! Which slots a gang gets: all of them or none, and why it waits.
//!
//! # One pass over the queue
//!
//! Jobs are looked at in the order they came. One that fits takes its slots. One that would fit if slots were free
//! keeps the free ones of the node that has most of them, so that smaller jobs behind it cannot starve it. One that no
//! node could hold even when empty keeps nothing, and others pass it.
//!
//! A gang stays on one node: ranks talk through shared memory only. One that would fit over several nodes together is told so.

use std::collections::BTreeMap;
use std::fmt;

use lockstep_api::{DeviceKind, NodeId, Rank, SlotSpec};

/// What a job asks for.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// World size.
    pub ranks: u32,
    /// What each rank runs on.
    pub slot: SlotSpec,
}

/// A node and its slots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeOffer {
    /// Which.
    pub node: NodeId,
    /// For people.
    pub name: String,
    /// Its slots, held ones included.
    pub slots: Vec<SlotOffer>,
}

/// One slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotOffer {
    /// Kind of device.
    pub device: DeviceKind,
    /// Position among its kind.
    pub index: i32,
    /// Processor cores.
    pub cores: u32,
    /// Memory.
    pub memory_mib: u32,
    /// Whether a process holds it, or may.
    pub is_held: bool,
}

impl SlotOffer {
    fn suits(&self, need: &SlotSpec) -> bool {
        self.device == need.device && need.cores <= self.cores && need.memory_mib <= self.memory_mib
    }
}

/// One rank's place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placed {
    /// The rank.
    pub rank: Rank,
    /// The node.
    pub node: NodeId,
    /// Kind of device.
    pub device: DeviceKind,
    /// Which slot.
    pub index: i32,
}

/// What became of a request.
#[derive(Debug, Clone, PartialEq)]
pub enum Decision {
    /// Every rank has a slot; in order of rank.
    Placed(Vec<Placed>),
    /// It waits.
    Waits(Reason),
}

/// Why a job waits. `Display` is the sentence for people.
#[derive(Debug, Clone, PartialEq)]
pub enum Reason {
    /// No node is there.
    NoNode,
    /// No node has such a slot.
    NoSuchSlot {
        /// What was asked for.
        slot: SlotSpec,
    },
    /// No node has enough such slots, even all together.
    TooFewSlots {
        /// What was asked for.
        request: Request,
        /// The largest node.
        node_name: String,
        /// What it has.
        slots: u32,
    },
    /// Nodes together have enough, none alone, and ranks on different nodes cannot reach each other yet.
    SpansNodes {
        /// What was asked for.
        request: Request,
        /// Each node and its slots.
        nodes: Vec<(String, u32)>,
    },
    /// It fits once slots are free.
    NotFree {
        /// What was asked for.
        request: Request,
        /// The most free slots that a node large enough has now.
        free: u32,
    },
}

/// How many nodes a sentence names.
const NODES_NAMED: usize = 4;

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoNode => f.write_str("no node is connected"),
            Self::NoSuchSlot { slot } => write!(f, "no node offers a slot of {}", Kind(slot)),
            Self::TooFewSlots { request, node_name, slots } => write!(
                f,
                "no node offers {} of {}: the largest, {node_name}, has {slots}",
                Count(request.ranks, "slot"),
                Kind(&request.slot),
            ),
            Self::SpansNodes { request, nodes } => {
                write!(
                    f,
                    "no node offers {} of {}: they would span nodes (",
                    Count(request.ranks, "slot"),
                    Kind(&request.slot)
                )?;
                for (i, (name, slots)) in nodes.iter().take(NODES_NAMED).enumerate() {
                    let comma = if i == 0 { "" } else { ", " };
                    write!(f, "{comma}{name} has {slots}")?;
                }
                if NODES_NAMED < nodes.len() {
                    write!(f, ", and {} more", nodes.len() - NODES_NAMED)?;
                }
                f.write_str("), and ranks on different nodes cannot reach each other yet")
            }
            Self::NotFree { request, free } => write!(
                f,
                "waits for {} of {} on one node: {free} {} free",
                Count(request.ranks, "free slot"),
                Kind(&request.slot),
                if *free == 1 { "is" } else { "are" },
            ),
        }
    }
}

/// `2 slots`
struct Count(u32, &'static str);

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}{}", self.0, self.1, if self.0 == 1 { "" } else { "s" })
    }
}

/// `1 cpu core and 512 MiB`
struct Kind<'a>(&'a SlotSpec);

impl fmt::Display for Kind<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SlotSpec { device, cores, memory_mib } = self.0;
        match device {
            DeviceKind::Cpu => {
                write!(f, "{} and {memory_mib} MiB", Count(*cores, "cpu core"))
            }
            DeviceKind::Cuda => {
                write!(f, "1 cuda device, {} and {memory_mib} MiB", Count(*cores, "core"))
            }
        }
    }
}

/// Decides about each request, first come first served; see the module's text. `nodes` are those that take work.
pub fn schedule(queue: &[Request], nodes: &[NodeOffer]) -> Vec<Decision> {
    let mut nodes = nodes.to_vec();
    nodes.sort_by(|a, b| (&a.name, a.node).cmp(&(&b.name, b.node)));
    queue.iter().map(|request| place(request, &mut nodes)).collect()
}

fn place(request: &Request, nodes: &mut [NodeOffer]) -> Decision {
    let wanted = usize::try_from(request.ranks).unwrap_or(usize::MAX);
    let suiting = |node: &NodeOffer| node.slots.iter().filter(|s| s.suits(&request.slot)).count();
    let free = |node: &NodeOffer| {
        node.slots.iter().filter(|s| s.suits(&request.slot) && !s.is_held).count()
    };
    // The tightest fit leaves the large holes whole; the order of names settles ties.
    let best = nodes.iter_mut().filter(|node| wanted <= free(node)).min_by_key(|node| free(node));
    if let Some(node) = best {
        return Decision::Placed(take(request, node));
    }
    if let Some(reason) = never_fits(request, nodes, wanted, suiting) {
        return Decision::Waits(reason);
    }
    let closest =
        nodes.iter_mut().filter(|node| wanted <= suiting(node)).max_by_key(|node| free(node));
    let mut kept = 0;
    for slot in closest.into_iter().flat_map(|node| &mut node.slots) {
        if slot.suits(&request.slot) && !slot.is_held {
            slot.is_held = true;
            kept += 1;
        }
    }
    Decision::Waits(Reason::NotFree { request: request.clone(), free: kept })
}

/// Takes the lowest slots of a node that has enough.
fn take(request: &Request, node: &mut NodeOffer) -> Vec<Placed> {
    let free: BTreeMap<i32, &mut SlotOffer> = node
        .slots
        .iter_mut()
        .filter(|slot| slot.suits(&request.slot) && !slot.is_held)
        .map(|slot| (slot.index, slot))
        .collect();
    (0..)
        .zip(free)
        .map_while(|(rank, (index, slot))| {
            let is_wanted = i64::from(rank) < i64::from(request.ranks);
            is_wanted.then(|| {
                slot.is_held = true;
                Placed { rank: Rank(rank), node: node.node, device: slot.device, index }
            })
        })
        .collect()
}

fn never_fits(
    request: &Request,
    nodes: &[NodeOffer],
    wanted: usize,
    suiting: impl Fn(&NodeOffer) -> usize,
) -> Option<Reason> {
    let Some(largest) = nodes.iter().max_by_key(|node| suiting(node)) else {
        return Some(Reason::NoNode);
    };
    let as_count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    if wanted <= suiting(largest) {
        return None;
    }
    if suiting(largest) == 0 {
        return Some(Reason::NoSuchSlot { slot: request.slot.clone() });
    }
    if wanted <= nodes.iter().map(&suiting).sum() {
        let with_slots = nodes.iter().filter(|node| 0 < suiting(node));
        let nodes = with_slots.map(|node| (node.name.clone(), as_count(suiting(node)))).collect();
        return Some(Reason::SpansNodes { request: request.clone(), nodes });
    }
    Some(Reason::TooFewSlots {
        request: request.clone(),
        node_name: largest.name.clone(),
        slots: as_count(suiting(largest)),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;
    use uuid::Uuid;

    use super::*;

    fn cpu(index: i32, is_held: bool) -> SlotOffer {
        SlotOffer { device: DeviceKind::Cpu, index, cores: 1, memory_mib: 1024, is_held }
    }

    fn node(number: u128, held: &[bool]) -> NodeOffer {
        let slots = (0..).zip(held).map(|(index, held)| cpu(index, *held)).collect();
        NodeOffer { node: NodeId(Uuid::from_u128(number)), name: format!("n{number}"), slots }
    }

    fn ask(ranks: u32) -> Request {
        Request { ranks, slot: SlotSpec::default() }
    }

    fn sentence(decision: &Decision) -> String {
        match decision {
            Decision::Placed(places) => format!("placed {}", places.len()),
            Decision::Waits(reason) => reason.to_string(),
        }
    }

    fn first(request: Request, nodes: &[NodeOffer]) -> String {
        sentence(&schedule(&[request], nodes)[0])
    }

    #[test]
    fn every_reason_says_what_is_wanted_and_what_there_is() {
        assert_eq!(first(ask(1), &[]), "no node is connected");
        let two = [node(1, &[false]), node(2, &[false])];
        assert_eq!(
            first(ask(2), &two),
            "no node offers 2 slots of 1 cpu core and 512 MiB: they would span nodes (n1 has 1, n2 has 1), \
             and ranks on different nodes cannot reach each other yet"
        );
        assert_eq!(
            first(ask(3), &two),
            "no node offers 3 slots of 1 cpu core and 512 MiB: the largest, n2, has 1"
        );
        let mut big = ask(1);
        big.slot.memory_mib = 4096;
        assert_eq!(first(big, &two), "no node offers a slot of 1 cpu core and 4096 MiB");
        let mut gpu = ask(1);
        gpu.slot.device = DeviceKind::Cuda;
        assert_eq!(first(gpu, &two), "no node offers a slot of 1 cuda device, 1 core and 512 MiB");
        assert_eq!(
            first(ask(2), &[node(1, &[true, false])]),
            "waits for 2 free slots of 1 cpu core and 512 MiB on one node: 1 is free"
        );
    }

    #[test]
    fn a_gang_takes_the_tightest_node_and_its_lowest_slots() {
        let nodes = [node(1, &[false; 4]), node(2, &[true, false, false])];
        let Decision::Placed(places) = &schedule(&[ask(2)], &nodes)[0] else { panic!("it fits") };
        let got: Vec<_> = places.iter().map(|p| (p.rank.0, p.node.0.as_u128(), p.index)).collect();
        assert_eq!(got, [(0, 2, 1), (1, 2, 2)]);
    }

    #[test]
    fn a_job_that_fits_passes_one_that_never_does_but_not_one_that_will() {
        let decisions = schedule(&[ask(9), ask(2), ask(1)], &[node(1, &[true, false])]);
        let got: Vec<_> = decisions.iter().map(sentence).collect();
        assert!(got[0].starts_with("no node offers 9 slots"), "{}", got[0]);
        assert!(got[1].ends_with("1 is free"), "{}", got[1]);
        assert!(got[2].ends_with("0 are free"), "the free slot is kept for the second: {}", got[2]);
        let decisions = schedule(&[ask(9), ask(1)], &[node(1, &[true, false])]);
        assert_eq!(sentence(&decisions[1]), "placed 1");
    }

    fn any_nodes() -> impl Strategy<Value = Vec<NodeOffer>> {
        let slot = (any::<bool>(), 1..4u32, prop::sample::select(DeviceKind::ALL));
        let slots = prop::collection::vec(slot, 0..6);
        prop::collection::vec(slots, 0..5).prop_map(|nodes| {
            (1..)
                .zip(nodes)
                .map(|(number, slots)| {
                    let mut node = node(number, &[]);
                    node.slots = (0..)
                        .zip(slots)
                        .map(|(index, (is_held, cores, device))| SlotOffer {
                            device,
                            index,
                            cores,
                            memory_mib: 512 * cores,
                            is_held,
                        })
                        .collect();
                    node
                })
                .collect()
        })
    }

    fn any_request() -> impl Strategy<Value = Request> {
        (1..6u32, 1..4u32, 1..2048u32, prop::sample::select(DeviceKind::ALL)).prop_map(
            |(ranks, cores, memory_mib, device)| Request {
                ranks,
                slot: SlotSpec { device, cores, memory_mib },
            },
        )
    }

    proptest! {
        /// All or nothing, on one node, on slots that suit, no slot twice; and the same question has the same answer.
        #[test]
        fn a_gang_is_placed_whole_on_slots_that_are_nobodys(
            queue in prop::collection::vec(any_request(), 0..8), nodes in any_nodes(),
        ) {
            let decisions = schedule(&queue, &nodes);
            prop_assert_eq!(&decisions, &schedule(&queue, &nodes));
            let mut given = BTreeSet::new();
            for (request, decision) in queue.iter().zip(&decisions) {
                let Decision::Placed(places) = decision else { continue };
                prop_assert_eq!(places.len(), request.ranks as usize);
                for (i, place) in (0..).zip(places) {
                    prop_assert_eq!(place.rank, Rank(i));
                    prop_assert_eq!(place.node, places[0].node);
                    prop_assert!(given.insert((place.node, place.device, place.index)), "given twice");
                    let node = nodes.iter().find(|n| n.node == place.node).unwrap();
                    let slot = node.slots.iter().find(|s| (s.device, s.index) == (place.device, place.index)).unwrap();
                    prop_assert!(slot.suits(&request.slot) && !slot.is_held);
                }
            }
        }

        /// Nobody waits who could have been placed first.
        #[test]
        fn the_first_in_the_queue_waits_only_if_no_node_has_room(request in any_request(), nodes in any_nodes()) {
            let room = nodes.iter().any(|node| {
                let free = node.slots.iter().filter(|s| s.suits(&request.slot) && !s.is_held);
                request.ranks as usize <= free.count()
            });
            let decision = &schedule(std::slice::from_ref(&request), &nodes)[0];
            prop_assert_eq!(matches!(decision, Decision::Placed(_)), room);
        }
    }
}
