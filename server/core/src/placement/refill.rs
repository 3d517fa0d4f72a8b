//! Slots for ranks whose processes were lost.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use lockstep_api::{DeviceKind, NodeId, Rank, SlotSpec, Transport};

use super::{NodeOffer, SlotOffer};

/// The place of a process that is to be started in a gang at work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refill {
    /// The rank.
    pub rank: Rank,
    /// The node.
    pub node: NodeId,
    /// Its name, for people.
    pub node_name: String,
    /// Kind of device.
    pub device: DeviceKind,
    /// Which slot.
    pub index: i32,
}

impl Refill {
    pub(super) fn new(rank: Rank, node: &NodeOffer, slot: &SlotOffer) -> Self {
        let (device, index) = (slot.device, slot.index);
        Self { rank, node: node.node, node_name: node.name.clone(), device, index }
    }
}

/// Slots for ranks whose processes were lost, on as few nodes as can be and on those that are avoided only for want of others;
/// for the lowest ranks, if there are too few. `nodes` are those that take work.
pub fn refill(
    ranks: &BTreeSet<Rank>,
    (slot, transport): (&SlotSpec, Transport),
    nodes: &[NodeOffer],
) -> Vec<Refill> {
    if transport == Transport::Shm {
        // The others' memory is on the node that was lost.
        return Vec::new();
    }
    let mut nodes: Vec<(&NodeOffer, Vec<&SlotOffer>)> = nodes
        .iter()
        .map(|node| {
            let free = node.slots.iter().filter(|it| it.suits(slot) && !it.is_held);
            (node, free.collect())
        })
        .collect();
    nodes.sort_by_key(|(node, free)| {
        (node.is_avoided, Reverse(free.len()), node.name.clone(), node.node)
    });
    let free = nodes.iter().flat_map(|(node, free)| free.iter().map(move |slot| (*node, *slot)));
    ranks.iter().zip(free).map(|(&rank, (node, slot))| Refill::new(rank, node, slot)).collect()
}
