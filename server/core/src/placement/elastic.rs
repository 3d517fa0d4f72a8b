//! Gangs whose size may change: where they grow, and which ranks are reclaimed.
//!
//! Slots that the queue has no use for go to gangs that can grow, on nodes that they are on already before others and never on
//! another one that is avoided. When a job waits for slots, ranks beyond the fewest of such gangs are reclaimed: as few as let the job
//! begin, from the gang with most of them.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use chrono::TimeDelta;
use lockstep_api::{AttemptId, DeviceKind, NodeId, Rank, RankCount, SlotSpec, Transport};

use super::{Decision, NodeOffer, Refill, Request, schedule};

/// A slot of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SlotKey {
    /// The node.
    pub node: NodeId,
    /// Kind of device.
    pub device: DeviceKind,
    /// Position among its kind.
    pub index: i32,
}

/// A gang that has room for more ranks.
#[derive(Debug, Clone, PartialEq)]
pub struct Growing {
    /// Where its ranks are, in their order.
    pub nodes: Vec<NodeId>,
    /// Between which sizes it may be.
    pub ranks: RankCount,
    /// What each rank runs on.
    pub slot: SlotSpec,
    /// How ranks reach each other.
    pub transport: Transport,
}

/// Slots for further ranks of a gang. What is taken is held from then on.
pub fn grow(gang: &Growing, spare: &mut [NodeOffer]) -> Vec<Refill> {
    let (size, most) = (gang.nodes.len(), usize::try_from(gang.ranks.max()).unwrap_or(usize::MAX));
    let mut order: Vec<usize> = (0..spare.len()).collect();
    let is_own = |index: &usize| gang.nodes.contains(&spare[*index].node);
    order.retain(|index| {
        is_own(index) || (!spare[*index].is_avoided && gang.transport != Transport::Shm)
    });
    let free = |node: &NodeOffer| {
        node.slots.iter().filter(|it| it.suits(&gang.slot) && !it.is_held).count()
    };
    order.sort_by_key(|index| (!is_own(index), Reverse(free(&spare[*index]))));
    let mut places = Vec::new();
    for index in order {
        let node = spare[index].clone();
        for slot in &mut spare[index].slots {
            let rank = size + places.len();
            if most <= rank {
                return places;
            }
            if slot.suits(&gang.slot) && !slot.is_held {
                let rank = Rank(i32::try_from(rank).unwrap_or(i32::MAX));
                places.push(Refill::new(rank, &node, slot));
                slot.is_held = true;
            }
        }
    }
    places
}

/// A gang that will be done within this time, at the rate so far, is left alone: its slots come anyway.
const NEARLY_DONE: TimeDelta = TimeDelta::seconds(10);

/// Whether an attempt with so many steps done and left after so long a time is left alone.
pub fn is_nearly_done((done, left): (i64, i64), so_far: TimeDelta) -> bool {
    let time_left = so_far.as_seconds_f64() / done.max(1) as f64 * left as f64;
    time_left < NEARLY_DONE.as_seconds_f64()
}

/// A gang with more ranks than its fewest.
#[derive(Debug, Clone, PartialEq)]
pub struct Reclaimable {
    /// Which.
    pub attempt: AttemptId,
    /// Between which sizes it may be.
    pub ranks: RankCount,
    /// The slot of each rank, in order.
    pub slots: Vec<SlotKey>,
}

/// Which ranks of which gangs have to leave so that the last of a queue can be placed; none if that would not help, if slots are
/// kept for one before it, or if it will be placed anyway once slots are free whose processes are about to go (`coming`).
/// `nodes` are those that take work.
pub fn reclaim(
    queue: &[Request],
    nodes: &[NodeOffer],
    coming: &BTreeSet<SlotKey>,
    candidates: &[Reclaimable],
) -> BTreeMap<AttemptId, BTreeSet<Rank>> {
    let Some(request) = queue.last() else { return BTreeMap::new() };
    let fits = |freed: &[Freed]| is_placed(queue, nodes, coming, freed);
    if fits(&[]) {
        return BTreeMap::new();
    }
    let found = useful(request, nodes).into_iter().find_map(|of_use| {
        let freed = freed_until(fits, &of_use, candidates);
        fits(&freed).then_some(freed)
    });
    let mut freed = found.unwrap_or_default();
    // Some may have been on nodes where they are of no use.
    for place in (0..freed.len()).rev() {
        let kept = freed.remove(place);
        if !fits(&freed) {
            freed.insert(place, kept);
        }
    }
    let mut ranks: BTreeMap<AttemptId, BTreeSet<Rank>> = BTreeMap::new();
    for (place, rank, _) in freed {
        ranks.entry(candidates[place].attempt).or_default().insert(rank);
    }
    ranks
}

/// A rank that would leave: the place of its gang among the candidates, itself, its slot.
type Freed = (usize, Rank, SlotKey);

/// The same nodes with these slots free.
pub(super) fn with_freed(nodes: &[NodeOffer], freed: &BTreeSet<SlotKey>) -> Vec<NodeOffer> {
    let mut nodes = nodes.to_vec();
    for node in &mut nodes {
        for slot in &mut node.slots {
            let key = SlotKey { node: node.node, device: slot.device, index: slot.index };
            slot.is_held &= !freed.contains(&key);
        }
    }
    nodes
}

/// Whether the last of a queue would be placed if these slots were free as well.
pub(super) fn is_placed(
    queue: &[Request],
    nodes: &[NodeOffer],
    coming: &BTreeSet<SlotKey>,
    freed: &[Freed],
) -> bool {
    let free = coming.iter().copied().chain(freed.iter().map(|it| it.2)).collect();
    let decisions = schedule(queue, &with_freed(nodes, &free)).decisions;
    matches!(decisions.last(), Some(Decision::Placed(_)))
}

/// Slots that would be of use to a request: those of one node after the other if it has to be on one, else all.
fn useful(request: &Request, nodes: &[NodeOffer]) -> Vec<BTreeSet<SlotKey>> {
    let of_node = |node: &NodeOffer| -> BTreeSet<SlotKey> {
        let slots = node.slots.iter().filter(|it| it.suits(&request.slot));
        let key = |device, index| SlotKey { node: node.node, device, index };
        slots.map(|it| key(it.device, it.index)).collect()
    };
    match request.transport {
        Transport::Shm => nodes.iter().map(of_node).collect(),
        Transport::Auto | Transport::Tcp => vec![nodes.iter().flat_map(of_node).collect()],
    }
}

/// Frees slots one after the other until it is enough, the highest rank of the gang that has most to spare first.
fn freed_until(
    fits: impl Fn(&[Freed]) -> bool,
    of_use: &BTreeSet<SlotKey>,
    candidates: &[Reclaimable],
) -> Vec<Freed> {
    let mut freed: Vec<Freed> = Vec::new();
    while !fits(&freed) {
        let taken = |place: usize| freed.iter().filter(|it| it.0 == place).count();
        let surplus = |place: usize| {
            let least = usize::try_from(candidates[place].ranks.min()).unwrap_or(usize::MAX);
            (candidates[place].slots.len() - taken(place)).saturating_sub(least)
        };
        let next = |place: usize| {
            let slots = candidates[place].slots.iter().enumerate().rev();
            let mut left = slots
                .filter(|(_, slot)| of_use.contains(slot) && freed.iter().all(|it| it.2 != **slot));
            let (rank, slot) = left.next()?;
            Some((place, Rank(i32::try_from(rank).unwrap_or(i32::MAX)), *slot))
        };
        let gangs = (0..candidates.len()).rev().filter(|place| 0 < surplus(*place));
        let Some((_, found)) =
            gangs.filter_map(|place| Some((surplus(place), next(place)?))).max_by_key(|it| it.0)
        else {
            return freed;
        };
        freed.push(found);
    }
    freed
}

#[cfg(test)]
#[path = "elastic_tests.rs"]
mod tests;
