//! Nodes that break what runs on them: who is blamed, who is avoided, and who gets no work for a while.
//!
//! A verdict on machines or links blames the nodes of the ranks that it names, or the node that it is about. A node with
//! some blames is avoided: it gets work if nobody else has room. One with more is quarantined: it gets none until its
//! cool-down is over. Each quarantine lasts twice as long as the one before; a job that succeeds there halves the next one,
//! and what is left of this one.

use std::collections::BTreeSet;

use chrono::{DateTime, TimeDelta, Utc};
use lockstep_api::{Blame, FailureCode, NodeId};

use crate::attempt::Gang;
use crate::verdict::{self, Failure};

/// Blames count for so long.
pub const WINDOW: TimeDelta = TimeDelta::minutes(10);
/// From so many on, placement prefers other nodes.
pub const AVOIDED_FROM: u32 = 2;
/// From so many on, a node is quarantined. More than a job's usual budget of retries, so that one that breaks wherever it
/// runs is given up before it takes a node along.
pub const QUARANTINED_FROM: u32 = 5;
/// The first quarantine lasts so long.
pub const FIRST_COOL_DOWN: TimeDelta = TimeDelta::seconds(30);
/// None lasts longer.
pub const LONGEST_COOL_DOWN: TimeDelta = TimeDelta::hours(1);
/// How often a cool-down is doubled: more often, and it is the longest one.
const DOUBLINGS: u32 = 7;

/// A node that gets no work, or got none lately.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quarantine {
    /// Which one in a row, less those that were made up for: at least 1.
    pub count: u32,
    /// When it is over.
    pub until: DateTime<Utc>,
}

impl Quarantine {
    /// Whether the node gets no work.
    pub fn holds(self, now: DateTime<Utc>) -> bool {
        now < self.until
    }

    /// After a blame that is one of `blames` within the window. What goes wrong while it holds was begun before.
    pub fn after_blame(held: Option<Self>, blames: u32, now: DateTime<Utc>) -> Option<Self> {
        match held {
            Some(held) if held.holds(now) => Some(held),
            held if blames < QUARANTINED_FROM => held,
            held => {
                let count = held.map_or(0, |it| it.count).saturating_add(1);
                Some(Self { count, until: now + cool_down(count) })
            }
        }
    }

    /// After a job that succeeded on the node and found nothing to blame it for.
    pub fn after_success(self, now: DateTime<Utc>) -> Option<Self> {
        let left = (self.until - now).max(TimeDelta::zero()) / 2;
        match self.count.saturating_sub(1) {
            0 => None,
            count => Some(Self { count, until: now + left }),
        }
    }
}

/// How long the quarantine of this number lasts.
pub fn cool_down(count: u32) -> TimeDelta {
    let doublings = count.saturating_sub(1).min(DOUBLINGS);
    (FIRST_COOL_DOWN * (1 << doublings)).min(LONGEST_COOL_DOWN)
}

/// The nodes whose doing a verdict is.
pub fn blamed(gang: &Gang, failure: &Failure) -> BTreeSet<NodeId> {
    let report = &failure.report;
    if report.code.blame() != Blame::Infrastructure {
        return BTreeSet::new();
    }
    let mut ranks = verdict::culprits(report);
    ranks.extend(report.ranks_between());
    if !ranks.is_empty() {
        let members = ranks.iter().filter_map(|rank| gang.members.get(rank));
        return members.map(|member| member.node).collect();
    }
    match report.code {
        FailureCode::NodeLost | FailureCode::InterfaceUnreachable | FailureCode::PrepareFailed => {
            failure.node.into_iter().collect()
        }
        // Whoever says so need not be who it is about.
        _ => BTreeSet::new(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(seconds: i64) -> DateTime<Utc> {
        DateTime::UNIX_EPOCH + TimeDelta::seconds(seconds)
    }

    #[test]
    fn each_quarantine_lasts_twice_as_long_and_the_longest_an_hour() {
        let seconds: Vec<i64> = (1..10).map(|count| cool_down(count).num_seconds()).collect();
        assert_eq!(seconds, [30, 60, 120, 240, 480, 960, 1920, 3600, 3600]);
        assert_eq!(cool_down(u32::MAX), LONGEST_COOL_DOWN);
    }

    #[test]
    fn a_node_is_quarantined_by_many_blames_and_again_by_one_more_after_its_cool_down() {
        let few = Quarantine::after_blame(None, QUARANTINED_FROM - 1, at(0));
        assert_eq!(few, None);
        let first = Quarantine::after_blame(None, QUARANTINED_FROM, at(0)).unwrap();
        assert_eq!((first.count, first.until), (1, at(30)));
        assert!(first.holds(at(29)) && !first.holds(at(30)));
        let same = Quarantine::after_blame(Some(first), QUARANTINED_FROM + 1, at(29));
        assert_eq!(same, Some(first), "of what was begun before");
        let next = Quarantine::after_blame(Some(first), QUARANTINED_FROM + 2, at(40)).unwrap();
        assert_eq!((next.count, next.until), (2, at(100)));
        let forgotten = Quarantine::after_blame(Some(first), 1, at(10_000));
        assert_eq!(forgotten, Some(first), "the others are long ago");
    }

    #[test]
    fn a_success_halves_what_is_left_and_what_would_come_next() {
        let third = Quarantine { count: 3, until: at(120) };
        let second = third.after_success(at(20)).unwrap();
        assert_eq!((second.count, second.until), (2, at(70)));
        let first = second.after_success(at(500)).unwrap();
        assert_eq!((first.count, first.holds(at(500))), (1, false));
        assert_eq!(first.after_success(at(501)), None);
    }

    proptest! {
        /// Whatever happens: a quarantine is never longer than an hour, and always has a count.
        #[test]
        fn a_quarantine_ends(events in prop::collection::vec((any::<bool>(), 0..10u32, 0..4000i64), 0..60)) {
            let (mut held, mut now) = (None::<Quarantine>, 0);
            for (is_blame, blames, seconds) in events {
                now += seconds;
                held = match is_blame {
                    true => Quarantine::after_blame(held, blames, at(now)),
                    false => held.and_then(|it| it.after_success(at(now))),
                };
                prop_assert!(held.is_none_or(|it| 0 < it.count && it.until <= at(now) + LONGEST_COOL_DOWN));
            }
        }
    }
}
