//! Ranks that stand still and that nobody misses: that of a gang of one, or all of a gang at once.
//!
//! A rank that others wait for is missed by them, at their deadline. Whoever has no others is looked at from outside: a process
//! that is stopped does nothing, whatever it was doing.

use std::collections::BTreeMap;
use std::time::Duration;

use lockstep_api::{FailureCode, FailureReport, Phase, Rank, Step};
use serde_json::json;
use tokio::time::Instant;

use super::course::own_failure;

/// How often processes are looked at.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Looks for processes that are stopped for too long.
#[derive(Debug)]
pub(crate) struct Watchdog {
    limit: Duration,
    /// By process id: since when it has been found stopped at every look.
    stopped: BTreeMap<i32, Instant>,
}

/// A process at one look.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Look {
    pub(crate) rank: Rank,
    pub(crate) pid: i32,
    pub(crate) is_stopped: bool,
    pub(crate) position: (Phase, Step),
}

impl Watchdog {
    /// Of a job with this time limit for collectives. Others that wait for the rank go first: they say more.
    pub(crate) fn new(collective: Duration) -> Self {
        Self { limit: collective + collective / 4, stopped: BTreeMap::new() }
    }

    /// The failure of one that has been stopped for too long, told once.
    pub(crate) fn look(&mut self, looks: &[Look], now: Instant) -> Option<FailureReport> {
        self.stopped.retain(|pid, _| looks.iter().any(|it| it.pid == *pid && it.is_stopped));
        for look in looks.iter().filter(|look| look.is_stopped) {
            self.stopped.entry(look.pid).or_insert(now);
        }
        let waited = |look: &Look| self.stopped.get(&look.pid).map(|since| now - *since);
        let (late, waited) = looks
            .iter()
            .filter_map(|look| Some((*look, waited(look)?)))
            .find(|(_, waited)| self.limit <= *waited)?;
        // As long again until it is told again: a server may not have heard.
        self.stopped.clear();
        Some(failure(late, waited))
    }
}

fn failure(
    Look { rank, pid, position: (phase, step), .. }: Look,
    waited: Duration,
) -> FailureReport {
    let seconds = waited.as_secs_f64();
    let message = format!(
        "rank {rank} (pid {pid}) has been stopped for {seconds:.1} s in phase {phase} of step {step}, and no other rank has missed it"
    );
    FailureReport {
        rank: Some(rank),
        step: Some(step),
        phase: Some(phase),
        evidence: json!({ "missing": [rank] }),
        ..own_failure(FailureCode::NotEntered, message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(pid: i32, is_stopped: bool) -> Look {
        Look { rank: Rank(pid - 100), pid, is_stopped, position: (Phase::Data, Step(3)) }
    }

    #[tokio::test]
    async fn one_that_is_stopped_at_every_look_for_too_long_is_told_of() {
        let mut watchdog = Watchdog::new(Duration::from_secs(4));
        let began = Instant::now();
        let mut at =
            |seconds, looks: &[Look]| watchdog.look(looks, began + Duration::from_secs(seconds));
        assert_eq!(at(0, &[look(100, false), look(101, true)]), None);
        assert_eq!(at(4, &[look(100, true), look(101, true)]), None);
        let told = at(5, &[look(100, true), look(101, true)]).unwrap();
        assert_eq!((told.code, told.rank), (FailureCode::NotEntered, Some(Rank(1))));
        assert!(
            told.message.starts_with("rank 1 (pid 101) has been stopped for 5.0 s in phase data")
        );
        assert_eq!(at(6, &[look(100, true)]), None, "it was told");
        assert_eq!(at(7, &[look(100, false)]), None);
        assert_eq!(at(11, &[look(100, true)]), None, "it went on in between");
    }
}
