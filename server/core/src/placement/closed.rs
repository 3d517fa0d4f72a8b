//! Nodes that live and take no new work, and what they have to do with why a job waits.

use std::fmt;

use chrono::{DateTime, Utc};

use super::{Decision, NodeOffer, Pass, Reason, Request, SlotOffer, as_count, schedule};

/// Why a node that lives takes no new work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Closed {
    /// It broke too much of what ran on it.
    Quarantined {
        /// When it is over.
        until: DateTime<Utc>,
        /// Why, as a part of a sentence.
        reason: String,
    },
    /// Someone wants it free.
    Draining,
}

/// A node that lives and takes no new work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClosedNode {
    /// What it would offer.
    pub offer: NodeOffer,
    /// Why it does not.
    pub why: Closed,
}

/// Slots of a node that are closed to a job which they would suit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClosedSlots {
    /// The node.
    pub node_name: String,
    /// How many.
    pub slots: u32,
    /// Why.
    pub why: Closed,
}

/// Like [`schedule`], where some nodes are closed: nothing is placed there, and no slot kept for a job that could only run
/// there. A job that waits says what they have to do with it.
pub fn schedule_beside(queue: &[Request], open: &[NodeOffer], closed: &[ClosedNode]) -> Pass {
    let Pass { decisions, spare } = schedule(queue, open);
    let explained = |(request, decision)| match decision {
        Decision::Waits(reason) => Decision::Waits(explain(request, reason, open, closed)),
        Decision::Placed(places) => Decision::Placed(places),
    };
    Pass { decisions: queue.iter().zip(decisions).map(explained).collect(), spare }
}

fn explain(request: &Request, reason: Reason, open: &[NodeOffer], closed: &[ClosedNode]) -> Reason {
    let count = |node: &NodeOffer| {
        as_count(node.slots.iter().filter(|slot| slot.suits(&request.slot)).count())
    };
    let slots: Vec<ClosedSlots> = closed
        .iter()
        .map(|ClosedNode { offer, why }| ClosedSlots {
            node_name: offer.name.clone(),
            slots: count(offer),
            why: why.clone(),
        })
        .filter(|it| 0 < it.slots)
        .collect();
    if slots.is_empty() {
        return reason;
    }
    let otherwise = match reason {
        reason @ Reason::NotFree { .. } => reason,
        reason => if_taken(request, open, closed).unwrap_or(reason),
    };
    Reason::Closed { otherwise: Box::new(otherwise), slots }
}

/// Why the job would wait if the closed nodes were open and had no free slot.
fn if_taken(request: &Request, open: &[NodeOffer], closed: &[ClosedNode]) -> Option<Reason> {
    let taken = closed.iter().map(|ClosedNode { offer, .. }| {
        let slots = offer.slots.iter().map(|slot| SlotOffer { is_held: true, ..*slot });
        NodeOffer { slots: slots.collect(), ..offer.clone() }
    });
    let all: Vec<NodeOffer> = open.iter().cloned().chain(taken).collect();
    match schedule(std::slice::from_ref(request), &all).decisions.pop()? {
        Decision::Waits(reason) => Some(reason),
        Decision::Placed(_) => None,
    }
}

/// `2 slots are quarantined: node beta until 08:00:30 UTC, because …`
impl fmt::Display for ClosedSlots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { node_name, slots, why } = self;
        let are = if *slots == 1 { "slot is" } else { "slots are" };
        match why {
            Closed::Quarantined { until, reason } => write!(
                f,
                "{slots} {are} quarantined: node {node_name} until {}, because {reason}",
                until.format("%H:%M:%S UTC"),
            ),
            Closed::Draining => write!(f, "{slots} {are} on a node that is drained: {node_name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use lockstep_api::{DeviceKind, RankCount, SlotSpec, Transport};

    use super::super::tests::node;
    use super::*;

    fn quarantined(number: u128, held: &[bool]) -> ClosedNode {
        let until = DateTime::UNIX_EPOCH + chrono::TimeDelta::seconds(30);
        let reason = "5 failures in 10 min are its doing".to_owned();
        ClosedNode { offer: node(number, held), why: Closed::Quarantined { until, reason } }
    }

    fn ask(ranks: u32) -> Request {
        Request {
            ranks: RankCount::Fixed(ranks),
            slot: SlotSpec::default(),
            transport: Transport::Auto,
        }
    }

    fn first(request: Request, open: &[NodeOffer], closed: &[ClosedNode]) -> String {
        match &schedule_beside(&[request], open, closed).decisions[0] {
            Decision::Placed(places) => format!("placed on {}", places[0].node.0.as_u128()),
            Decision::Waits(reason) => reason.to_string(),
        }
    }

    const WHY: &str =
        "quarantined: node n2 until 00:00:30 UTC, because 5 failures in 10 min are its doing";

    #[test]
    fn nothing_is_placed_on_a_closed_node_and_who_waits_says_so() {
        let closed = [quarantined(2, &[false, false])];
        assert_eq!(first(ask(1), &[node(1, &[false])], &closed), "placed on 1");
        assert_eq!(
            first(ask(2), &[node(1, &[false])], &closed),
            format!(
                "waits for 2 free slots of 1 cpu core and 512 MiB: 1 is free; 2 slots are {WHY}"
            )
        );
        assert_eq!(
            first(ask(1), &[], &closed[..]),
            format!(
                "waits for 1 free slot of 1 cpu core and 512 MiB: 0 are free; 2 slots are {WHY}"
            ),
            "although no node is open"
        );
        assert_eq!(
            first(ask(9), &[], &[quarantined(2, &[true])]),
            format!(
                "all nodes together do not offer 9 slots of 1 cpu core and 512 MiB: they have 1; 1 slot is {WHY}"
            )
        );
        let mut gpu = ask(1);
        gpu.slot.device = DeviceKind::Cuda;
        let told = first(gpu, &[node(1, &[false])], &closed);
        assert!(!told.contains("quarantined"), "it would be of no use: {told}");
    }

    #[test]
    fn a_node_that_is_drained_is_named() {
        let closed = ClosedNode { why: Closed::Draining, ..quarantined(2, &[false]) };
        let told = first(ask(1), &[], &[closed]);
        assert!(told.ends_with("0 are free; 1 slot is on a node that is drained: n2"), "{told}");
    }

    #[test]
    fn no_slot_is_kept_for_who_waits_for_a_closed_node() {
        let (open, closed) = ([node(1, &[false])], [quarantined(2, &[false, false])]);
        let decisions = schedule_beside(&[ask(3), ask(1)], &open, &closed).decisions;
        assert!(matches!(decisions[0], Decision::Waits(_)));
        assert!(matches!(decisions[1], Decision::Placed(_)));
    }
}
