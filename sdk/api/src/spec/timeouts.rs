//! A job's time limits: one number, the ratios that the others are of it, and the order that they keep.
//!
//! # The order of the limits
//!
//! `snapshot < soft < abort < collective ≤ formation`. Who looks is quicker than who warns, who warns is quicker than
//! who clears away, and all of them are done before somebody waits in vain: a death is known before a symptom of it is
//! believed, a straggler is told of before anybody is killed, and ranks that must leave are gone before their peers'
//! own deadline would pass. To meet at first takes no less time than to meet once more. The ratios below keep this
//! order for every `collective`; values of a job file that do not are refused.
//!
//! How often agents are heard and when a node is unreachable is not a job's business: these are settings of the server.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::parse::parse_duration;

/// Shortest time that is left for other ranks' deaths to become known before a symptom is believed.
const SNAPSHOT_FLOOR: Duration = Duration::from_millis(100);
/// The same for ranks on several nodes: the death and what it did to others are told by different agents, each over a
/// connection of its own. Only a symptom that nobody explains waits so long.
const SNAPSHOT_OF_NODES_FLOOR: Duration = Duration::from_secs(2);
/// Shortest time in which ranks can leave after the step that they are in.
const STOP_GRACE_FLOOR: Duration = Duration::from_secs(2);
/// Shortest time in which a rank can leave after its own verdict.
const LEAVE_GRACE_FLOOR: Duration = Duration::from_millis(500);
/// An announced pause may last so many times `collective`.
const PAUSE_FACTOR: u32 = 5;

/// Time limits: a number and a unit (`ms`, `s`, `m`) each. What is absent is a ratio of `collective`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TimeoutSpec {
    /// Longest wait for a collective. 500ms to 60m.
    pub collective: String,
    /// After how long a straggler is told of in the job's log. Absent: a tenth of `collective`.
    pub soft: Option<String>,
    /// How long a symptom waits for its cause. Absent: a hundredth of `collective`, at least 100 ms.
    pub snapshot: Option<String>,
    /// How long the ranks of a lost group may take to leave it. Absent: a sixth of `collective`.
    pub abort: Option<String>,
    /// How long ranks may take to meet. Absent: as long as `collective`.
    pub formation: Option<String>,
}

impl Default for TimeoutSpec {
    fn default() -> Self {
        Self {
            collective: "60s".to_owned(),
            soft: None,
            snapshot: None,
            abort: None,
            formation: None,
        }
    }
}

impl TimeoutSpec {
    /// Every limit of the job. Call on a checked spec: here a value that cannot be read counts as absent.
    pub fn effective(&self) -> Timeouts {
        let Self { collective, soft, snapshot, abort, formation } = self;
        let read = |text: &Option<String>, ratio: Duration| {
            text.as_deref().and_then(|text| parse_duration(text).ok()).unwrap_or(ratio)
        };
        let collective = parse_duration(collective).unwrap_or(Duration::from_secs(60));
        let ratios = Timeouts::from_collective(collective);
        Timeouts {
            collective,
            soft: read(soft, ratios.soft),
            snapshot: read(snapshot, ratios.snapshot),
            abort: read(abort, ratios.abort),
            formation: read(formation, ratios.formation),
        }
    }
}

/// Every time limit of a job. The only place where their ratios are written down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    collective: Duration,
    soft: Duration,
    snapshot: Duration,
    abort: Duration,
    formation: Duration,
}

impl Timeouts {
    /// All of them as ratios of `collective`, in whole milliseconds.
    pub fn from_collective(collective: Duration) -> Self {
        let part = |of: u32| whole_millis(collective / of);
        // Where `collective` is under two seconds the floor gives way, so that the limits stay in order.
        let floor = SNAPSHOT_FLOOR.min(part(20));
        Self {
            collective,
            soft: part(10),
            snapshot: part(100).max(floor),
            abort: part(6),
            formation: collective,
        }
    }

    /// Longest wait for a collective: whoever is missing then, and has announced no pause, is at fault.
    pub fn collective(self) -> Duration {
        self.collective
    }

    /// After how long a straggler is told of.
    pub fn soft(self) -> Duration {
        self.soft
    }

    /// How long a symptom waits for its cause.
    pub fn snapshot(self) -> Duration {
        self.snapshot
    }

    /// How long a symptom waits for its cause when ranks are on several nodes.
    pub fn snapshot_of_nodes(self) -> Duration {
        self.snapshot.max(SNAPSHOT_OF_NODES_FLOOR)
    }

    /// How long the ranks of a lost group may take to leave it.
    pub fn abort(self) -> Duration {
        self.abort
    }

    /// How long ranks may take to meet: until it is known where all of them listen, and again until they are a group.
    pub fn formation(self) -> Duration {
        self.formation
    }

    /// From asking ranks to stop until they are killed: abort and a twelfth of `collective`.
    pub fn stop_grace(self) -> Duration {
        self.kill().max(STOP_GRACE_FLOOR)
    }

    /// From a rank's own verdict until it is killed, if it does not leave: abort and a twelfth of `collective`.
    pub fn leave_grace(self) -> Duration {
        self.kill().max(LEAVE_GRACE_FLOOR)
    }

    /// Longest pause that a rank can announce: five times `collective`. Silence stays at `collective`.
    pub fn pause(self) -> Duration {
        self.collective * PAUSE_FACTOR
    }

    fn kill(self) -> Duration {
        self.abort + whole_millis(self.collective / 12)
    }
}

/// The effective limits of a job as people and programs see them, milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct TimeoutsView {
    /// Longest wait for a collective.
    pub collective_ms: u64,
    /// After how long a straggler is told of.
    pub soft_ms: u64,
    /// How long a symptom waits for its cause.
    pub snapshot_ms: u64,
    /// How long the ranks of a lost group may take to leave it.
    pub abort_ms: u64,
    /// How long ranks may take to meet.
    pub formation_ms: u64,
    /// From asking ranks to stop until they are killed.
    pub stop_grace_ms: u64,
    /// Longest pause that a rank can announce.
    pub pause_ms: u64,
}

impl From<Timeouts> for TimeoutsView {
    fn from(limits: Timeouts) -> Self {
        Self {
            collective_ms: millis(limits.collective),
            soft_ms: millis(limits.soft),
            snapshot_ms: millis(limits.snapshot),
            abort_ms: millis(limits.abort),
            formation_ms: millis(limits.formation),
            stop_grace_ms: millis(limits.stop_grace()),
            pause_ms: millis(limits.pause()),
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn whole_millis(duration: Duration) -> Duration {
    Duration::from_millis(millis(duration))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(seconds: u64) -> Timeouts {
        Timeouts::from_collective(Duration::from_secs(seconds))
    }

    #[test]
    fn limits_are_ratios_with_a_floor() {
        let minute = of(60);
        assert_eq!(minute.snapshot(), Duration::from_millis(600));
        assert_eq!(minute.soft(), Duration::from_secs(6));
        assert_eq!(minute.abort(), Duration::from_secs(10));
        assert_eq!(minute.formation(), Duration::from_secs(60));
        assert_eq!(
            (minute.stop_grace(), minute.leave_grace()),
            (Duration::from_secs(15), Duration::from_secs(15))
        );
        assert_eq!(minute.pause(), Duration::from_secs(300));
        assert_eq!(minute.snapshot_of_nodes(), Duration::from_secs(2));
        let short = of(2);
        assert_eq!(short.snapshot(), Duration::from_millis(100));
        assert_eq!(short.soft(), Duration::from_millis(200));
        assert_eq!(
            (short.stop_grace(), short.leave_grace()),
            (Duration::from_secs(2), Duration::from_millis(500))
        );
    }

    #[test]
    fn what_the_job_says_counts_more_than_the_ratio_and_changes_no_other() {
        let spec = TimeoutSpec {
            soft: Some("5s".to_owned()),
            abort: Some("20s".to_owned()),
            ..TimeoutSpec::default()
        };
        let limits = spec.effective();
        assert_eq!(
            (limits.soft(), limits.abort()),
            (Duration::from_secs(5), Duration::from_secs(20))
        );
        assert_eq!(limits.stop_grace(), Duration::from_secs(25));
        assert_eq!(
            (limits.snapshot(), limits.formation()),
            (of(60).snapshot(), of(60).formation())
        );
    }

    proptest! {
        /// Whatever `collective` a job may have, the ratios of it are in strict order.
        #[test]
        fn the_ratios_keep_the_order(collective in 500_u64..=3_600_000) {
            let limits = Timeouts::from_collective(Duration::from_millis(collective));
            prop_assert!(Duration::ZERO < limits.snapshot());
            prop_assert!(limits.snapshot() < limits.soft());
            prop_assert!(limits.soft() < limits.abort());
            prop_assert!(limits.abort() < limits.leave_grace());
            prop_assert!(limits.abort() < limits.collective());
            prop_assert!(limits.collective() <= limits.formation());
            prop_assert!(limits.formation() < limits.pause());
        }
    }
}
