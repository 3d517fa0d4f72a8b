//! Gangs whose size may change: where they grow, and what they give back.
//!
//! Slots that the queue has no use for are lent to gangs that can grow, on nodes that they are on already before others and
//! never on one that is avoided. When a job waits for slots, ranks beyond the fewest of such gangs are given back: as few as let
//! the job begin, from the gang with most of them.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use lockstep_api::{AttemptId, DeviceKind, NodeId, Rank, RankCount, SlotSpec, Transport};

use super::{NodeOffer, Refill, Request, shares};

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
        !spare[*index].is_avoided && (is_own(index) || gang.transport != Transport::Shm)
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

/// A gang with more ranks than its fewest.
#[derive(Debug, Clone, PartialEq)]
pub struct Lender {
    /// Which.
    pub attempt: AttemptId,
    /// Between which sizes it may be.
    pub ranks: RankCount,
    /// The slot of each rank, in order.
    pub slots: Vec<SlotKey>,
}

/// Which ranks of which gangs have to leave so that `request` can be placed; none if that would not help, or if it will be
/// placed anyway once slots are free whose processes are about to go (`coming`). `nodes` are those that take work.
pub fn reclaim(
    request: &Request,
    nodes: &[NodeOffer],
    coming: &BTreeSet<SlotKey>,
    lenders: &[Lender],
) -> BTreeMap<AttemptId, BTreeSet<Rank>> {
    let wanted = usize::try_from(request.ranks.min()).unwrap_or(usize::MAX);
    let fits = |freed: &[(usize, Rank, SlotKey)]| {
        let free = nodes.iter().map(|node| {
            let is_free = |device, index| {
                let key = SlotKey { node: node.node, device, index };
                coming.contains(&key) || freed.iter().any(|(_, _, slot)| *slot == key)
            };
            let slots = node.slots.iter().filter(|it| it.suits(&request.slot));
            slots.filter(|it| !it.is_held || is_free(it.device, it.index)).count()
        });
        shares(wanted, &free.collect::<Vec<_>>(), request.transport).is_some()
    };
    let mut freed: Vec<(usize, Rank, SlotKey)> = Vec::new();
    let mut left: Vec<usize> = lenders.iter().map(|it| it.slots.len()).collect();
    while !fits(&freed) {
        let surplus = |place: &usize| {
            left[*place].saturating_sub(usize::try_from(lenders[*place].ranks.min()).unwrap_or(0))
        };
        let largest = (0..lenders.len()).rev().max_by_key(surplus).filter(|it| 0 < surplus(it));
        let Some(place) = largest else { return BTreeMap::new() };
        left[place] -= 1;
        let rank = Rank(i32::try_from(left[place]).unwrap_or(i32::MAX));
        freed.push((place, rank, lenders[place].slots[left[place]]));
    }
    // Some may have been on nodes where they are of no use.
    for place in (0..freed.len()).rev() {
        let kept = freed.remove(place);
        if !fits(&freed) {
            freed.insert(place, kept);
        }
    }
    let mut ranks: BTreeMap<AttemptId, BTreeSet<Rank>> = BTreeMap::new();
    for (place, rank, _) in freed {
        ranks.entry(lenders[place].attempt).or_default().insert(rank);
    }
    ranks
}

#[cfg(test)]
#[path = "elastic_tests.rs"]
mod tests;
