//! Whole gangs that give way to a job of higher priority.
//!
//! A job that cannot begin with what is free, what is about to be free and what elastic gangs can spare gets the slots of gangs whose jobs
//! have a lower priority: of the lowest first, among equals of the one that began last, and of none that could be spared. These are
//! stopped at a checkpoint and queued again. Each stop is paid from a budget that is never refilled ([`MAX_PREEMPTIONS`]), and nobody
//! is stopped before what was taken last is free, so it comes to an end.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::fmt;

use chrono::{DateTime, Utc};
use lockstep_api::{AttemptId, Priority, RankCount};

use super::elastic::{is_placed, with_freed};
use super::{
    Decision, NodeOffer, Reason, Reclaimable, Request, SlotKey, as_count, reclaim, schedule,
};
use crate::job::MAX_PREEMPTIONS;

/// A gang at work, and whether it may have to give way.
#[derive(Debug, Clone, PartialEq)]
pub struct GangAtWork {
    /// Which.
    pub attempt: AttemptId,
    /// Its job's.
    pub priority: Priority,
    /// How often its job has given way.
    pub preemptions: u32,
    /// When it was placed.
    pub placed_at: DateTime<Utc>,
    /// Whether its slots will be free soon anyway.
    pub is_nearly_done: bool,
    /// World size, or between which sizes it may be.
    pub ranks: RankCount,
    /// The slot of each rank, in order.
    pub slots: Vec<SlotKey>,
}

impl GangAtWork {
    /// What it can spare of its ranks, now or after its next step.
    fn spares(&self) -> Option<Reclaimable> {
        let least = usize::try_from(self.ranks.min()).unwrap_or(usize::MAX);
        let Self { attempt, ranks, slots, .. } = self;
        let can_spare = !self.is_nearly_done && least < slots.len();
        can_spare.then(|| Reclaimable { attempt: *attempt, ranks: *ranks, slots: slots.clone() })
    }
}

/// Held slots whose processes are about to go.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Coming {
    /// All.
    pub slots: BTreeSet<SlotKey>,
    /// Those of gangs that give way to a job of higher priority.
    pub preempted: BTreeSet<SlotKey>,
}

impl Coming {
    fn is_preempting_on(&self, nodes: &[NodeOffer]) -> bool {
        self.preempted.iter().any(|slot| nodes.iter().any(|node| node.node == slot.node))
    }
}

/// Which gangs have to give way so that the last of a queue, which has this priority, can begin; see the module's text. None if that
/// would not help, if it will begin without, or as long as slots of others that give way are not free. `nodes` are those that take work.
pub fn preempt(
    (queue, priority): (&[Request], Priority),
    nodes: &[NodeOffer],
    coming: &Coming,
    at_work: &[GangAtWork],
) -> BTreeSet<AttemptId> {
    let mut candidates: Vec<&GangAtWork> = at_work
        .iter()
        .filter(|it| it.priority < priority && !it.is_nearly_done)
        .filter(|it| it.preemptions < MAX_PREEMPTIONS)
        .collect();
    candidates.sort_by_key(|it| (it.priority, Reverse(it.placed_at), Reverse(it.attempt)));
    let begins = |chosen: &[&GangAtWork]| {
        let leaving = at_work.iter().filter(|it| it.is_nearly_done);
        let leaving = leaving.chain(chosen.iter().copied()).flat_map(|it| &it.slots);
        let freed: BTreeSet<SlotKey> = coming.slots.iter().chain(leaving).copied().collect();
        let others = at_work.iter().filter(|it| chosen.iter().all(|c| c.attempt != it.attempt));
        let spared: Vec<Reclaimable> = others.filter_map(GangAtWork::spares).collect();
        is_placed(queue, nodes, &freed, &[]) || !reclaim(queue, nodes, &freed, &spared).is_empty()
    };
    let is_of_use =
        || !coming.is_preempting_on(nodes) && !begins(&[]) && begins(candidates.as_slice());
    if candidates.is_empty() || !is_of_use() {
        return BTreeSet::new();
    }
    let enough = (1..candidates.len()).find(|&count| begins(&candidates[..count]));
    let mut chosen = candidates[..enough.unwrap_or(candidates.len())].to_vec();
    let can_be_spared = |chosen: &[&GangAtWork], place: usize| {
        let mut fewer = chosen.to_vec();
        fewer.remove(place);
        begins(&fewer)
    };
    // Some may be where they are of no use, or too small beside one that came later.
    while let Some(place) = (0..chosen.len()).rev().find(|&place| can_be_spared(&chosen, place)) {
        chosen.remove(place);
    }
    chosen.iter().map(|it| it.attempt).collect()
}

/// Has jobs that will be placed in slots of gangs that give way say so.
pub fn expect_preempted(
    queue: &[Request],
    nodes: &[NodeOffer],
    coming: &Coming,
    decisions: &mut [Decision],
) {
    if !coming.is_preempting_on(nodes) {
        return;
    }
    let later = schedule(queue, &with_freed(nodes, &coming.slots)).decisions;
    for (decision, later) in decisions.iter_mut().zip(later) {
        let (Decision::Waits(reason), Decision::Placed(places)) = (&*decision, later) else {
            continue;
        };
        let key = |node, device, index| SlotKey { node, device, index };
        let of_preempted = places
            .iter()
            .filter(|it| coming.preempted.contains(&key(it.node, it.device, it.index)));
        let slots = as_count(of_preempted.count());
        if 0 < slots {
            let otherwise = Box::new(reason.clone());
            *decision = Decision::Waits(Reason::Preempting { otherwise, slots });
        }
    }
}

/// Why a gang gives way: `preempted: gives its slots to job urgent of priority 80 (1 of 3 preemptions)`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GivesWay<'a> {
    /// The name of the job that gets its slots, if its owner may know it.
    pub to: Option<&'a str>,
    /// That job's priority.
    pub priority: Priority,
    /// How often it has given way by now.
    pub preemptions: u32,
}

impl fmt::Display for GivesWay<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { to, priority, preemptions } = self;
        f.write_str("preempted: gives its slots to ")?;
        match to {
            Some(name) => write!(f, "job {name}")?,
            None => f.write_str("a job of another project,")?,
        }
        write!(f, " of priority {priority} ({preemptions} of {MAX_PREEMPTIONS} preemptions)")
    }
}

#[cfg(test)]
#[path = "preempt_tests.rs"]
mod tests;
