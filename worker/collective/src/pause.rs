//! Announced pauses: a rank that has said that it will be busy is not taken for hung.
//!
//! Silence is the only fault that a waiter can see, so whoever is about to be silent for long says so first: while it
//! compiles and plans in its first step, evaluates, or writes a checkpoint. It names an end; a pause that runs out is
//! silence again. After a pause that was ended in time, the rank is missed only when a whole deadline has passed since.
//!
//! Inside a node the announcement is a word in the rank's line; to other nodes it goes as a message, and a rank that
//! waits for one of them passes it on to the ranks of its own node, which wait for it.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use lockstep_shm::monotonic_ns;

use crate::control::Control;

/// An announcement is good for so many times the timeout of the group.
pub(crate) const LONGEST_PAUSE: u32 = 5;
/// No wait lasts longer than so many times its usual limit, whatever is announced.
pub(crate) const LONGEST_WAIT: u32 = LONGEST_PAUSE + 1;
/// Set in the word while the pause lasts; the other bits are nanoseconds of the node's monotonic clock.
const LASTS: u64 = 1;

/// A word that says until when a rank pauses, or when its last pause was over. 0: it never did.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pause<'a>(pub(crate) &'a AtomicU64);

impl Pause<'_> {
    /// It begins, or goes on; not beyond `longest` from now.
    pub(crate) fn begin(self, longest: Duration) {
        let longest = u64::try_from(longest.as_nanos()).unwrap_or(u64::MAX);
        self.0.store(monotonic_ns().saturating_add(longest) | LASTS, Ordering::Release);
    }

    /// It is over. One that had not begun stays as it is.
    pub(crate) fn end(self) {
        if self.0.load(Ordering::Relaxed) & LASTS != 0 {
            self.0.store(monotonic_ns() & !LASTS, Ordering::Release);
        }
    }

    /// How long it will last at most; zero when it does not.
    pub(crate) fn left(self) -> Duration {
        match self.0.load(Ordering::Acquire) {
            until if until & LASTS != 0 => {
                Duration::from_nanos(until.saturating_sub(monotonic_ns()))
            }
            _ => Duration::ZERO,
        }
    }

    /// From when on the rank is missed that should have come within `limit` from `started` on.
    fn due(self, started: Instant, limit: Duration) -> Instant {
        let (now, now_ns) = (Instant::now(), monotonic_ns());
        let usual = started + limit;
        match self.0.load(Ordering::Acquire) {
            0 => usual,
            until if until & LASTS != 0 => {
                usual.max(now + Duration::from_nanos(until.saturating_sub(now_ns)))
            }
            ended => {
                let ago = Duration::from_nanos(now_ns.saturating_sub(ended));
                usual.max((now + limit).checked_sub(ago).unwrap_or(usual))
            }
        }
    }
}

impl Control {
    /// From when on `rank` of this node is missed that should have come within `limit` from `started` on.
    pub(crate) fn due(&self, rank: usize, started: Instant, limit: Duration) -> Instant {
        let own = self.pause(rank).due(started, limit);
        let passed_on = self.passed_on(rank).due(started, limit);
        own.max(passed_on).min(started + limit * LONGEST_WAIT)
    }

    /// How long the pauses of some ranks of this node may last; zero when none does.
    pub(crate) fn pause_left(&self, ranks: &[usize]) -> Duration {
        let left = |rank: &usize| self.pause(*rank).left().max(self.passed_on(*rank).left());
        ranks.iter().map(left).max().unwrap_or(Duration::ZERO)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(100);

    #[test]
    fn a_rank_is_due_as_usual_later_in_a_pause_and_a_whole_limit_after_one() {
        let word = AtomicU64::new(0);
        let pause = Pause(&word);
        let started = Instant::now();
        pause.end();
        assert_eq!((pause.due(started, LIMIT), pause.left()), (started + LIMIT, Duration::ZERO));
        pause.begin(2 * LIMIT);
        let due = pause.due(started, LIMIT);
        assert!(started + 2 * LIMIT <= due && due < started + 3 * LIMIT);
        assert!(LIMIT < pause.left() && pause.left() <= 2 * LIMIT);
        pause.end();
        let (ended, after) = (pause.due(started, LIMIT), Instant::now() + LIMIT);
        assert!(started + LIMIT <= ended && ended <= after, "counted from the end of the pause");
        assert_eq!(pause.left(), Duration::ZERO);
        // A pause that is shorter than the limit shortens nothing, and one that has run out is silence.
        pause.begin(Duration::ZERO);
        assert_eq!((pause.due(started, LIMIT), pause.left()), (started + LIMIT, Duration::ZERO));
    }
}
