//! The control pages of a group: who is here, how far each has come, who gave up and why.
//!
//! Every rank has a *line*: a word that counts the rounds it has entered. A round is over when
//! every line has reached it, so whoever waits too long knows who is missing. The top bit of each
//! line is the *mark*: set by whoever gives the group up, it changes every word that anybody may
//! sleep on, so no sleeper can miss it.

use std::{
    hint, io,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use lockstep_shm::{CONTROL_BYTES, Mapping, Waited, wait_until, wake_all};

use crate::{GroupError, MAX_WORLD};

/// Set in a line or in the state when the group is given up.
const MARK: u32 = 1 << 31;
const COUNT: u32 = MARK - 1;

/// Numbers of an exchange that fit into one round.
pub(crate) const EXCHANGE_LEN: usize = 64;

/// Byte offsets. Each line, ballot and exchange row has cache lines of its own.
mod at {
    use super::{EXCHANGE_LEN, MAX_WORLD};

    pub(super) const STATE: usize = 0;
    pub(super) const PLAN_BYTES: usize = 8;
    pub(super) const WORDS_BYTES: usize = 16;
    pub(super) const TOTAL_BYTES: usize = 24;
    pub(super) const VERDICT_CLAIMED: usize = 128;
    pub(super) const VERDICT_KIND: usize = 132;
    pub(super) const VERDICT_RANK: usize = 136;
    pub(super) const VERDICT_TEXT_BYTES: usize = 140;
    pub(super) const VERDICT_TEXT: usize = 256;
    pub(super) const LINES: usize = 4096;
    pub(super) const LINE_BYTES: usize = 128;
    pub(super) const SLEEPERS: usize = 4;
    pub(super) const PRESENT: usize = 8;
    pub(super) const OPS: usize = 16;
    pub(super) const BALLOTS: usize = LINES + MAX_WORLD * LINE_BYTES;
    pub(super) const BALLOT_BYTES: usize = 128;
    pub(super) const EXCHANGE: usize = BALLOTS + 2 * MAX_WORLD * BALLOT_BYTES;
    pub(super) const END: usize = EXCHANGE + 2 * MAX_WORLD * EXCHANGE_LEN * 8;
}
const _: () = assert!(at::END <= CONTROL_BYTES);

/// Where the words and floats lie, as rank 0 decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) plan_bytes: usize,
    pub(crate) words_bytes: usize,
    pub(crate) total_bytes: usize,
}

/// Why a wait ended without everybody.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Broken {
    /// The deadline passed.
    TimedOut { missing: Vec<usize> },
    /// Somebody gave the group up; `missing` are those who were not there at that moment.
    Marked { missing: Vec<usize> },
}

/// Why the group was given up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// A rank left or was told to.
    Left { rank: usize },
    /// A rank's deadline passed.
    TimedOut { rank: usize },
    /// A rank's plan is another; the text is the report.
    PlanMismatch { rank: usize, report: Vec<u8> },
}

impl Verdict {
    const LEFT: u32 = 1;
    const TIMED_OUT: u32 = 2;
    const PLAN_MISMATCH: u32 = 3;
    /// The report lies in the rest of its page.
    const TEXT_CAP: usize = at::LINES - at::VERDICT_TEXT;
}

#[derive(Debug, Clone)]
pub(crate) struct Control {
    map: Arc<Mapping>,
    world: usize,
    /// How long to look before sleeping; zero when ranks have to share cores.
    spin: Duration,
}

impl Control {
    pub(crate) fn new(map: Arc<Mapping>, world: usize, spin: Duration) -> Self {
        Self { map, world, spin }
    }

    /// Says that `rank` is here; false when somebody has said so before.
    pub(crate) fn claim(&self, rank: usize) -> bool {
        let present = self.map.u32_at(line(rank) + at::PRESENT);
        present.swap(1, Ordering::AcqRel) == 0
    }

    /// Ranks that have not said they are here.
    pub(crate) fn absent(&self) -> Vec<usize> {
        let is_here = |rank| self.map.u32_at(line(rank) + at::PRESENT).load(Ordering::Acquire) != 0;
        (0..self.world).filter(|rank| !is_here(*rank)).collect()
    }

    /// Rank 0: the memory is sized, the plan is written.
    pub(crate) fn publish(&self, extent: Extent) {
        let Extent { plan_bytes, words_bytes, total_bytes } = extent;
        self.map.u64_at(at::PLAN_BYTES).store(plan_bytes as u64, Ordering::Relaxed);
        self.map.u64_at(at::WORDS_BYTES).store(words_bytes as u64, Ordering::Relaxed);
        self.map.u64_at(at::TOTAL_BYTES).store(total_bytes as u64, Ordering::Relaxed);
        let state = self.map.u32_at(at::STATE);
        state.fetch_or(1, Ordering::Release);
        wake_all(state);
    }

    /// The others: waits until rank 0 has published.
    pub(crate) fn published(&self, deadline: Instant) -> Result<Extent, Broken> {
        let state = self.map.u32_at(at::STATE);
        loop {
            let seen = state.load(Ordering::Acquire);
            if seen & MARK != 0 {
                return Err(Broken::Marked { missing: self.absent() });
            }
            if seen != 0 {
                break;
            }
            if wait_until(state, seen, deadline) == Waited::TimedOut {
                let absent = self.absent();
                // Rank 0 may be here and still have failed to publish.
                let missing = if absent.is_empty() { vec![0] } else { absent };
                return Err(Broken::TimedOut { missing });
            }
        }
        let read = |offset| {
            usize::try_from(self.map.u64_at(offset).load(Ordering::Relaxed)).unwrap_or(usize::MAX)
        };
        Ok(Extent {
            plan_bytes: read(at::PLAN_BYTES),
            words_bytes: read(at::WORDS_BYTES),
            total_bytes: read(at::TOTAL_BYTES),
        })
    }

    /// Enters round `count` on behalf of `rank`, saying what it is. False when the group was given
    /// up before.
    pub(crate) fn enter(&self, rank: usize, count: u32, op: u64) -> bool {
        self.op(rank, count).store(op, Ordering::Relaxed);
        let line_word = self.map.u32_at(line(rank));
        let entered = line_word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |word| {
            (word & MARK == 0).then_some(count & COUNT)
        });
        // Sequentially consistent with the sleeper, who counts itself before it looks again.
        if self.map.u32_at(line(rank) + at::SLEEPERS).load(Ordering::SeqCst) != 0 {
            wake_all(line_word);
        }
        entered.is_ok()
    }

    /// Waits until every rank has entered round `count`.
    pub(crate) fn wait_all(&self, count: u32, deadline: Instant) -> Result<(), Broken> {
        for rank in 0..self.world {
            if let Err(is_marked) = self.wait_for(rank, count, deadline) {
                let missing = self.missing(count);
                return match is_marked {
                    IsMarked::Yes => Err(Broken::Marked { missing }),
                    // The last one entered while the time was running out: the round is complete.
                    IsMarked::No if missing.is_empty() => Ok(()),
                    IsMarked::No => Err(Broken::TimedOut { missing }),
                };
            }
        }
        Ok(())
    }

    fn wait_for(&self, rank: usize, count: u32, deadline: Instant) -> Result<(), IsMarked> {
        let word = self.map.u32_at(line(rank));
        let sleepers = self.map.u32_at(line(rank) + at::SLEEPERS);
        let spin_until = (!self.spin.is_zero()).then(|| Instant::now() + self.spin);
        loop {
            let seen = word.load(Ordering::Acquire);
            // In this order: a round that all have entered is complete, even if one gave up since.
            if has_reached(seen, count) {
                return Ok(());
            }
            if seen & MARK != 0 {
                return Err(IsMarked::Yes);
            }
            if spin_until.is_some_and(|until| Instant::now() < until) {
                hint::spin_loop();
                continue;
            }
            sleepers.fetch_add(1, Ordering::SeqCst);
            let waited = match word.load(Ordering::SeqCst) == seen {
                true => wait_until(word, seen, deadline),
                false => Waited::LookAgain,
            };
            sleepers.fetch_sub(1, Ordering::SeqCst);
            if waited == Waited::TimedOut && word.load(Ordering::Acquire) == seen {
                return Err(IsMarked::No);
            }
        }
    }

    fn missing(&self, count: u32) -> Vec<usize> {
        let has_entered =
            |rank| has_reached(self.map.u32_at(line(rank)).load(Ordering::Acquire), count);
        (0..self.world).filter(|rank| !has_entered(*rank)).collect()
    }

    /// The first rank that entered round `count` for something else, with what.
    pub(crate) fn first_other_op(&self, count: u32, op: u64) -> Option<(usize, u64)> {
        (0..self.world)
            .map(|rank| (rank, self.op(rank, count).load(Ordering::Relaxed)))
            .find(|(_, theirs)| *theirs != op)
    }

    /// Gives the group up, unless that has happened: the first verdict stays. Wakes everybody.
    pub(crate) fn give_up(&self, verdict: &Verdict) {
        let claimed = self.map.u32_at(at::VERDICT_CLAIMED);
        if claimed.swap(1, Ordering::AcqRel) != 0 {
            return;
        }
        let (kind, rank, text) = match verdict {
            Verdict::Left { rank } => (Verdict::LEFT, *rank, &[][..]),
            Verdict::TimedOut { rank } => (Verdict::TIMED_OUT, *rank, &[][..]),
            Verdict::PlanMismatch { rank, report } => {
                (Verdict::PLAN_MISMATCH, *rank, report.as_slice())
            }
        };
        let text = &text[..text.len().min(Verdict::TEXT_CAP)];
        self.map.store_octets(at::VERDICT_TEXT, text);
        let store = |offset, value: usize| {
            let value = u32::try_from(value).unwrap_or(u32::MAX);
            self.map.u32_at(offset).store(value, Ordering::Relaxed);
        };
        store(at::VERDICT_TEXT_BYTES, text.len());
        store(at::VERDICT_RANK, rank);
        self.map.u32_at(at::VERDICT_KIND).store(kind, Ordering::Relaxed);
        let words = (0..MAX_WORLD).map(line).chain([at::STATE]);
        for word in words.map(|offset| self.map.u32_at(offset)) {
            // Releases the verdict to whoever sees the mark.
            word.fetch_or(MARK, Ordering::SeqCst);
            wake_all(word);
        }
    }

    /// Why the group was given up; to be asked after a mark was seen.
    pub(crate) fn verdict(&self) -> Option<Verdict> {
        let load = |offset| {
            usize::try_from(self.map.u32_at(offset).load(Ordering::Relaxed)).unwrap_or(usize::MAX)
        };
        let rank = load(at::VERDICT_RANK);
        match self.map.u32_at(at::VERDICT_KIND).load(Ordering::Relaxed) {
            Verdict::LEFT => Some(Verdict::Left { rank }),
            Verdict::TIMED_OUT => Some(Verdict::TimedOut { rank }),
            Verdict::PLAN_MISMATCH => {
                let len = load(at::VERDICT_TEXT_BYTES).min(Verdict::TEXT_CAP);
                let report = self.map.load_octets(at::VERDICT_TEXT, len);
                Some(Verdict::PlanMismatch { rank, report })
            }
            _ => None,
        }
    }

    /// Writes word `index` of this rank's ballot. Two sets, used in turn as on the board.
    pub(crate) fn cast(&self, turn: u64, rank: usize, words: [u64; 4]) {
        for (index, word) in words.into_iter().enumerate() {
            self.map.u64_at(ballot(turn, rank) + 8 * index).store(word, Ordering::Relaxed);
        }
    }

    /// A rank's ballot.
    pub(crate) fn ballot(&self, turn: u64, rank: usize) -> [u64; 4] {
        [0, 1, 2, 3]
            .map(|index| self.map.u64_at(ballot(turn, rank) + 8 * index).load(Ordering::Relaxed))
    }

    /// Number `index` of what `rank` brings to the exchange of round `count`.
    pub(crate) fn exchanged(
        &self,
        count: u32,
        rank: usize,
        index: usize,
    ) -> &std::sync::atomic::AtomicU64 {
        let turn = usize::from(!count.is_multiple_of(2));
        let row = (turn * MAX_WORLD + rank) * EXCHANGE_LEN;
        self.map.u64_at(at::EXCHANGE + (row + index) * 8)
    }

    fn op(&self, rank: usize, count: u32) -> &std::sync::atomic::AtomicU64 {
        let turn = usize::from(!count.is_multiple_of(2));
        self.map.u64_at(line(rank) + at::OPS + 8 * turn)
    }
}

enum IsMarked {
    Yes,
    No,
}

/// Refuses to map what rank 0 cannot have meant.
pub(crate) fn checked_extent(extent: Extent) -> Result<Extent, GroupError> {
    let Extent { plan_bytes, words_bytes, total_bytes } = extent;
    let plan_end = CONTROL_BYTES.checked_add(plan_bytes);
    if plan_end.is_some_and(|end| end <= words_bytes) && words_bytes <= total_bytes {
        return Ok(extent);
    }
    let error = io::Error::new(io::ErrorKind::InvalidData, format!("{extent:?}"));
    Err(GroupError::io("reading the extent of the group's memory", error))
}

fn line(rank: usize) -> usize {
    at::LINES + rank * at::LINE_BYTES
}

fn ballot(turn: u64, rank: usize) -> usize {
    at::BALLOTS + (usize::from(turn % 2 == 1) * MAX_WORLD + rank) * at::BALLOT_BYTES
}

/// Whether a line has come to round `count`; rounds wrap after 2³¹, and ranks are never more than
/// one round apart.
fn has_reached(word: u32, count: u32) -> bool {
    (word.wrapping_sub(count) & COUNT) < COUNT / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_wrap_around_and_the_mark_does_not_count() {
        assert!(has_reached(5, 5) && has_reached(6, 5) && !has_reached(4, 5));
        assert!(has_reached(0, COUNT) && !has_reached(COUNT, 0));
        assert!(has_reached(MARK | 5, 5));
    }
}
