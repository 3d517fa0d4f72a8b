//! Which slots a gang gets: all of them or none, and why it waits.
//!
//! # One pass over the queue
//!
//! Jobs are looked at in their order: by priority, and as they came. One that fits takes its slots. One that would fit if
//! slots were free keeps the free ones where it would fit first, so that smaller jobs behind it cannot starve it. One that
//! the nodes could not hold even when empty keeps nothing, and others pass it.
//!
//! # Over several nodes
//!
//! A gang goes to one node if one has room, else over as few as have it together, unless its transport keeps it on one.
//! Ranks of a node are neighbours, and nodes come in the order of their names. Ranks with one `memory_index` share a
//! group memory; others reach each other over TCP.
//!
//! # Elastic gangs
//!
//! A gang whose size may change begins with as many ranks as there is room for and waits only for its fewest. What it has
//! beyond them may be reclaimed: see `elastic`.
//!
//! # Priorities
//!
//! Gangs of a lower priority give way as a whole to a job that could not begin otherwise: see `preempt`.

mod closed;
mod elastic;
mod preempt;
mod reason;
mod refill;

use std::cmp::Reverse;
use std::collections::BTreeMap;

use lockstep_api::{DeviceKind, NodeId, Rank, RankCount, SlotSpec, Transport};

pub use closed::{Closed, ClosedNode, ClosedSlots, schedule_beside};
pub use elastic::{Growing, Reclaimable, SlotKey, grow, is_nearly_done, reclaim};
pub use preempt::{Coming, GangAtWork, GivesWay, expect_preempted, preempt};
pub use reason::Reason;
pub use refill::{Refill, refill};

/// What a job asks for.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// World size, or between which sizes it may be.
    pub ranks: RankCount,
    /// What each rank runs on.
    pub slot: SlotSpec,
    /// How ranks reach each other.
    pub transport: Transport,
}

/// A node and its slots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeOffer {
    /// Which.
    pub node: NodeId,
    /// For people.
    pub name: String,
    /// Whether it gets work only if nobody else has room.
    pub is_avoided: bool,
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
    /// Which of the gang's group memories, counted from 0 in order of rank.
    pub memory_index: i32,
}

/// What became of a request.
#[derive(Debug, Clone, PartialEq)]
pub enum Decision {
    /// Every rank has a slot; in order of rank.
    Placed(Vec<Placed>),
    /// It waits.
    Waits(Reason),
}

/// What became of a queue.
#[derive(Debug, Clone, PartialEq)]
pub struct Pass {
    /// Of each request, in order.
    pub decisions: Vec<Decision>,
    /// The nodes with what is left: slots that were taken, or are kept for one that waits, are held.
    pub spare: Vec<NodeOffer>,
}

/// Decides about each request, one after the other; see the module's text. `nodes` are those that take work.
pub fn schedule(queue: &[Request], nodes: &[NodeOffer]) -> Pass {
    let mut spare = nodes.to_vec();
    spare.sort_by(|a, b| (&a.name, a.node).cmp(&(&b.name, b.node)));
    let decisions = queue.iter().map(|request| place(request, &mut spare)).collect();
    Pass { decisions, spare }
}

fn place(request: &Request, nodes: &mut [NodeOffer]) -> Decision {
    let size = |ranks| usize::try_from(ranks).unwrap_or(usize::MAX);
    let (wanted, most) = (size(request.ranks.min()), size(request.ranks.max()));
    let count = |node: &NodeOffer, is_counted: fn(&SlotOffer) -> bool| {
        node.slots.iter().filter(|slot| slot.suits(&request.slot) && is_counted(slot)).count()
    };
    let free: Vec<usize> = nodes.iter().map(|node| count(node, |slot| !slot.is_held)).collect();
    let suiting: Vec<usize> = nodes.iter().map(|node| count(node, |_| true)).collect();
    let favoured =
        nodes.iter().zip(&free).map(|(node, free)| if node.is_avoided { 0 } else { *free });
    let favoured: Vec<usize> = favoured.collect();
    let shares_of = |free: &[usize]| {
        (wanted..=most).rev().find_map(|ranks| shares(ranks, free, request.transport))
    };
    if let Some(shares) = shares_of(&favoured).or_else(|| shares_of(&free)) {
        return Decision::Placed(take(request, nodes, &shares));
    }
    if let Some(reason) = never_fits(request, nodes, wanted, &suiting) {
        return Decision::Waits(reason);
    }
    let mut kept = 0;
    for index in closest(wanted, &suiting, &free) {
        for slot in &mut nodes[index].slots {
            if slot.suits(&request.slot) && !slot.is_held {
                slot.is_held = true;
                kept += 1;
            }
        }
    }
    let free = match request.transport {
        Transport::Shm => kept,
        Transport::Auto | Transport::Tcp => as_count(free.iter().sum()),
    };
    Decision::Waits(Reason::NotFree { request: request.clone(), free })
}

/// How many ranks a node gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Share {
    /// Which.
    node_index: usize,
    /// How many.
    ranks: usize,
}

/// Which of nodes with so many slots get how many ranks, in order of nodes; `None` if there is no room.
fn shares(wanted: usize, slots: &[usize], transport: Transport) -> Option<Vec<Share>> {
    // The tightest fit leaves the large holes whole; the order of names settles ties.
    let tightest = |wanted: usize, taken: &[Share]| {
        let is_left = |index: &usize| taken.iter().all(|share| share.node_index != *index);
        let fits = (0..slots.len()).filter(is_left).filter(|&index| wanted <= slots[index]);
        fits.min_by_key(|&index| slots[index])
    };
    let mut largest_first: Vec<usize> = (0..slots.len()).collect();
    largest_first.sort_by_key(|&index| Reverse(slots[index]));
    let (mut taken, mut left) = (Vec::new(), wanted);
    for node_index in largest_first {
        if let Some(last) = tightest(left, &taken) {
            taken.push(Share { node_index: last, ranks: left });
            taken.sort_by_key(|share| share.node_index);
            return Some(taken);
        }
        if transport == Transport::Shm {
            return None;
        }
        // Whole nodes from the largest on: no fewer can hold them.
        let ranks = slots[node_index];
        taken.push(Share { node_index, ranks });
        left -= ranks;
    }
    None
}

/// The nodes whose free slots are kept for a gang that waits: the one with most of them that could hold it alone, or else
/// the fewest that could together.
fn closest(wanted: usize, suiting: &[usize], free: &[usize]) -> Vec<usize> {
    let alone = (0..suiting.len()).filter(|&index| wanted <= suiting[index]);
    match alone.max_by_key(|&index| free[index]) {
        Some(index) => vec![index],
        None => {
            let shares = shares(wanted, suiting, Transport::Auto).unwrap_or_default();
            shares.into_iter().map(|share| share.node_index).collect()
        }
    }
}

/// Which of a gang's group memories each rank is in, of ranks on these nodes: neighbours on one node share one, unless
/// they are to speak over TCP.
pub fn memory_indices(nodes: &[NodeId], transport: Transport) -> Vec<i32> {
    let mut index = 0;
    let starts_anew = |place: usize| match transport {
        Transport::Tcp => true,
        Transport::Auto | Transport::Shm => nodes[place] != nodes[place - 1],
    };
    let step = |place: usize| {
        index += i32::from(0 < place && starts_anew(place));
        index
    };
    (0..nodes.len()).map(step).collect()
}

/// Takes the lowest slots of each node; ranks go up with the nodes.
fn take(request: &Request, nodes: &mut [NodeOffer], shares: &[Share]) -> Vec<Placed> {
    let mut places = Vec::new();
    for share in shares {
        let node = &mut nodes[share.node_index];
        let free: BTreeMap<i32, &mut SlotOffer> = node
            .slots
            .iter_mut()
            .filter(|slot| slot.suits(&request.slot) && !slot.is_held)
            .map(|slot| (slot.index, slot))
            .collect();
        for (index, slot) in free.into_iter().take(share.ranks) {
            slot.is_held = true;
            let rank = Rank(i32::try_from(places.len()).unwrap_or(i32::MAX));
            let (node, device) = (node.node, slot.device);
            places.push(Placed { rank, node, device, index, memory_index: 0 });
        }
    }
    let nodes: Vec<NodeId> = places.iter().map(|place| place.node).collect();
    for (place, memory_index) in places.iter_mut().zip(memory_indices(&nodes, request.transport)) {
        place.memory_index = memory_index;
    }
    places
}

fn never_fits(
    request: &Request,
    nodes: &[NodeOffer],
    wanted: usize,
    suiting: &[usize],
) -> Option<Reason> {
    let Some(largest) = (0..nodes.len()).max_by_key(|&index| suiting[index]) else {
        return Some(Reason::NoNode);
    };
    let total: usize = suiting.iter().sum();
    let request = request.clone();
    match request.transport {
        _ if wanted <= suiting[largest] => None,
        _ if total == 0 => Some(Reason::NoSuchSlot { slot: request.slot }),
        Transport::Auto | Transport::Tcp if wanted <= total => None,
        Transport::Auto | Transport::Tcp => {
            Some(Reason::TooFewTogether { request, slots: as_count(total) })
        }
        Transport::Shm if wanted <= total => {
            let with_slots = nodes.iter().zip(suiting).filter(|(_, slots)| 0 < **slots);
            let nodes = with_slots.map(|(node, slots)| (node.name.clone(), as_count(*slots)));
            Some(Reason::SpansNodes { request, nodes: nodes.collect() })
        }
        Transport::Shm => Some(Reason::TooFewSlots {
            request,
            node_name: nodes[largest].name.clone(),
            slots: as_count(suiting[largest]),
        }),
    }
}

fn as_count(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
