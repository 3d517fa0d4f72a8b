//! Ranks that stand still and that nobody misses: that of a gang of one, or all of a gang at once.
//!
//! A rank that others wait for is missed by them, at their deadline. Whoever has no others is looked at from outside: a process
//! that is stopped does nothing, whatever it was doing.

use std::collections::BTreeMap;
use std::fmt;
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

/// A process that is found stopped.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stopped {
    pub(crate) rank: Rank,
    pub(crate) pid: i32,
    pub(crate) position: (Phase, Step),
}

impl Watchdog {
    /// Of a job with this time limit for collectives. Others that wait for the rank go first: they say more.
    pub(crate) fn new(collective: Duration) -> Self {
        Self { limit: collective + collective / 4, stopped: BTreeMap::new() }
    }

    /// The failure of those that have been stopped for too long.
    pub(crate) fn look(&mut self, found: &[Stopped], now: Instant) -> Option<FailureReport> {
        self.stopped.retain(|pid, _| found.iter().any(|it| it.pid == *pid));
        for it in found {
            self.stopped.entry(it.pid).or_insert(now);
        }
        let waited = |it: &Stopped| self.stopped.get(&it.pid).map(|since| now - *since);
        let is_late = |it: &&Stopped| waited(it).is_some_and(|waited| self.limit <= waited);
        let late: Vec<Stopped> = found.iter().filter(is_late).copied().collect();
        let first = late.first()?;
        let waited = waited(first)?;
        // Counted anew: if a group forms again with one that is still stopped, that is told as well.
        self.stopped.clear();
        Some(failure(&late, *first, waited))
    }
}

fn failure(late: &[Stopped], first: Stopped, waited: Duration) -> FailureReport {
    let seconds = waited.as_secs_f64();
    let said: Vec<String> = late.iter().map(Stopped::to_string).collect();
    let message =
        format!("{}: stopped for {seconds:.1} s, and no other rank has missed it", said.join("; "));
    let missing: Vec<Rank> = late.iter().map(|it| it.rank).collect();
    let (phase, step) = first.position;
    FailureReport {
        rank: Some(first.rank),
        step: Some(step),
        phase: Some(phase),
        evidence: json!({ "missing": missing }),
        ..own_failure(FailureCode::NotEntered, message)
    }
}

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rank, pid, position: (phase, step), .. } = self;
        write!(f, "rank {rank} (pid {pid}) in phase {phase} of step {step}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stopped(pid: i32) -> Stopped {
        Stopped { rank: Rank(pid - 100), pid, position: (Phase::Data, Step(3)) }
    }

    #[tokio::test]
    async fn one_that_is_stopped_at_every_look_for_too_long_is_told_of() {
        let mut watchdog = Watchdog::new(Duration::from_secs(4));
        let began = Instant::now();
        let mut at =
            |seconds, found: &[Stopped]| watchdog.look(found, began + Duration::from_secs(seconds));
        assert_eq!(at(0, &[stopped(101)]), None);
        assert_eq!(at(4, &[stopped(100), stopped(101)]), None);
        let told = at(5, &[stopped(100), stopped(101)]).unwrap();
        assert_eq!((told.code, told.rank), (FailureCode::NotEntered, Some(Rank(1))));
        assert_eq!(
            told.message,
            "rank 1 (pid 101) in phase data of step 3: stopped for 5.0 s, and no other rank has missed it"
        );
        assert_eq!(at(6, &[stopped(100)]), None, "it was told");
        assert_eq!(at(7, &[]), None);
        assert_eq!(at(11, &[stopped(100)]), None, "it went on in between");
        assert_eq!(at(12, &[stopped(100), stopped(101)]), None);
        let both = at(17, &[stopped(100), stopped(101)]).unwrap();
        assert_eq!(
            both.missing_ranks().collect::<Vec<_>>(),
            [Rank(0), Rank(1)],
            "all that are late"
        );
    }
}
