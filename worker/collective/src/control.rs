//! The control pages of a node: who is here, how far each has come, who gave up and why.
//!
//! Every rank of the node has a *line*: a word that counts the rounds it has entered. A round is over when
//! every line has reached it, so whoever waits too long knows who is missing. The top bit of each
//! line is the *mark*: set by whoever gives the group up, it changes every word that anybody may
//! sleep on, so no sleeper can miss it.

use std::{
    hint, io,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use lockstep_shm::{CONTROL_BYTES, Mapping, Waited, wait_until, wake_all};
use rustix::thread::sched_getcpu;

use crate::{
    GroupError, MAX_WORLD,
    op::OpWords,
    pause::Pause,
    verdict::{Verdict, ranks_of},
};

/// Set in a line or in the state when the group is given up.
const MARK: u32 = 1 << 31;
const COUNT: u32 = MARK - 1;

/// The longest that a rank looks for another that works as long as itself, instead of sleeping.
const LONGEST_SPIN: Duration = Duration::from_millis(5);

/// Words of a ballot.
pub(crate) const BALLOT_WORDS: usize = 7;
pub(crate) type BallotWords = [u64; BALLOT_WORDS];

/// Byte offsets. Each line and ballot has cache lines of its own.
mod at {
    use super::MAX_WORLD;

    pub(super) const STATE: usize = 0;
    pub(super) const PLAN_BYTES: usize = 8;
    pub(super) const WORDS_BYTES: usize = 16;
    pub(super) const TOTAL_BYTES: usize = 24;
    pub(super) const VERDICT_CLAIMED: usize = 128;
    pub(super) const VERDICT_BYTES: usize = 132;
    pub(super) const VERDICT: usize = 256;
    pub(super) const LINES: usize = 4096;
    pub(super) const LINE_BYTES: usize = 128;
    pub(super) const SLEEPERS: usize = 4;
    pub(super) const PRESENT: usize = 8;
    pub(super) const CORE: usize = 12;
    pub(super) const BLOCKED: usize = 16;
    pub(super) const PAUSE: usize = 24;
    pub(super) const OPS: usize = 32;
    pub(super) const PASSED_ON: usize = 64;
    pub(super) const BALLOTS: usize = LINES + MAX_WORLD * LINE_BYTES;
    pub(super) const BALLOT_BYTES: usize = 128;
    pub(super) const END: usize = BALLOTS + 2 * MAX_WORLD * BALLOT_BYTES;
}
const _: () = assert!(at::END <= CONTROL_BYTES);

/// Where the words and floats lie, as the node's leader decided.
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

/// The verdict lies in the rest of its page.
const VERDICT_CAP: usize = at::LINES - at::VERDICT;

#[derive(Debug, Clone)]
pub(crate) struct Control {
    map: Arc<Mapping>,
    /// The node's ranks.
    ranks: Range<usize>,
    /// How long to look before sleeping; zero when ranks have to share cores.
    spin: Duration,
}

impl Control {
    pub(crate) fn new(map: Arc<Mapping>, ranks: Range<usize>, spin: Duration) -> Self {
        Self { map, ranks, spin }
    }

    /// The same words in another mapping.
    pub(crate) fn in_map(&self, map: Arc<Mapping>) -> Self {
        Self { map, ranks: self.ranks.clone(), spin: self.spin }
    }

    /// The node's ranks.
    pub(crate) fn ranks(&self) -> Range<usize> {
        self.ranks.clone()
    }

    /// Says that `rank` is here; false when somebody has said so before.
    pub(crate) fn claim(&self, rank: usize) -> bool {
        let present = self.map.u32_at(self.line(rank) + at::PRESENT);
        present.swap(1, Ordering::AcqRel) == 0
    }

    /// Ranks that have not said they are here.
    pub(crate) fn absent(&self) -> Vec<usize> {
        let is_here =
            |rank| self.map.u32_at(self.line(rank) + at::PRESENT).load(Ordering::Acquire) != 0;
        self.ranks().filter(|rank| !is_here(*rank)).collect()
    }

    /// The node's leader: the memory is sized, the plan is written.
    pub(crate) fn publish(&self, extent: Extent) {
        let Extent { plan_bytes, words_bytes, total_bytes } = extent;
        self.map.u64_at(at::PLAN_BYTES).store(plan_bytes as u64, Ordering::Relaxed);
        self.map.u64_at(at::WORDS_BYTES).store(words_bytes as u64, Ordering::Relaxed);
        self.map.u64_at(at::TOTAL_BYTES).store(total_bytes as u64, Ordering::Relaxed);
        let state = self.map.u32_at(at::STATE);
        state.fetch_or(1, Ordering::Release);
        wake_all(state);
    }

    /// The others: waits until the leader has published.
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
                // The leader may be here and still have failed to publish.
                let missing = if absent.is_empty() { vec![self.ranks.start] } else { absent };
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
    pub(crate) fn enter(&self, rank: usize, count: u32, op: OpWords) -> bool {
        for (index, word) in op.into_iter().enumerate() {
            self.op(rank, count, index).store(word, Ordering::Relaxed);
        }
        self.core_of(rank).store(own_core(), Ordering::Relaxed);
        let line_word = self.map.u32_at(self.line(rank));
        let entered = line_word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |word| {
            (word & MARK == 0).then_some(count & COUNT)
        });
        // Sequentially consistent with the sleeper, who counts itself before it looks again.
        if self.map.u32_at(self.line(rank) + at::SLEEPERS).load(Ordering::SeqCst) != 0 {
            wake_all(line_word);
        }
        entered.is_ok()
    }

    /// Waits until every rank has entered round `count`. `worked`: how long this rank did what the
    /// others do before they enter it.
    pub(crate) fn wait_all(
        &self,
        count: u32,
        worked: Duration,
        deadline: Instant,
    ) -> Result<(), Broken> {
        let spin = match self.spin.is_zero() {
            true => Duration::ZERO,
            false => worked.clamp(self.spin, LONGEST_SPIN),
        };
        for rank in self.ranks() {
            if let Err(is_marked) = self.wait_for(rank, count, spin, deadline) {
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

    fn wait_for(
        &self,
        rank: usize,
        count: u32,
        spin: Duration,
        deadline: Instant,
    ) -> Result<(), IsMarked> {
        let word = self.map.u32_at(self.line(rank));
        let sleepers = self.map.u32_at(self.line(rank) + at::SLEEPERS);
        // Whoever shares a core with this rank is only kept from coming.
        let is_elsewhere = || self.core_of(rank).load(Ordering::Relaxed) != own_core();
        let spin_until = (!spin.is_zero() && is_elsewhere()).then(|| Instant::now() + spin);
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
            |rank| has_reached(self.map.u32_at(self.line(rank)).load(Ordering::Acquire), count);
        self.ranks().filter(|rank| !has_entered(*rank)).collect()
    }

    /// The first rank that entered round `count` for something else, with what.
    pub(crate) fn first_other_op(&self, count: u32, op: OpWords) -> Option<(usize, OpWords)> {
        let theirs = |rank| [0, 1].map(|index| self.op(rank, count, index).load(Ordering::Relaxed));
        self.ranks().map(|rank| (rank, theirs(rank))).find(|(_, theirs)| *theirs != op)
    }

    /// Says which ranks of other nodes `rank` waits for; bit r for rank r. With none, what it passed on is over.
    pub(crate) fn set_blocked_on(&self, rank: usize, ranks: u64) {
        self.map.u64_at(self.line(rank) + at::BLOCKED).store(ranks, Ordering::Relaxed);
        if ranks == 0 {
            self.passed_on(rank).end();
        }
    }

    /// The pause that `rank` has announced.
    pub(crate) fn pause(&self, rank: usize) -> Pause<'_> {
        Pause(self.map.u64_at(self.line(rank) + at::PAUSE))
    }

    /// The pause of those on other nodes that `rank` waits for.
    pub(crate) fn passed_on(&self, rank: usize) -> Pause<'_> {
        Pause(self.map.u64_at(self.line(rank) + at::PASSED_ON))
    }

    /// Who is at fault when `missing` are: those of another node that they themselves wait for, if any.
    pub(crate) fn blamed(&self, missing: &[usize]) -> Vec<usize> {
        let blocked_on =
            |rank: &usize| self.map.u64_at(self.line(*rank) + at::BLOCKED).load(Ordering::Relaxed);
        let to_blame = |rank: &usize| match blocked_on(rank) {
            0 => 1 << rank,
            others => others,
        };
        ranks_of(missing.iter().fold(0, |all, rank| all | to_blame(rank)))
    }

    /// Gives the group up, unless that has happened: the first verdict stays. Wakes everybody.
    pub(crate) fn give_up(&self, verdict: &Verdict) {
        let claimed = self.map.u32_at(at::VERDICT_CLAIMED);
        if claimed.swap(1, Ordering::AcqRel) != 0 {
            return;
        }
        let text = verdict.to_text(VERDICT_CAP);
        self.map.store_octets(at::VERDICT, &text);
        let bytes = u32::try_from(text.len()).unwrap_or(0);
        self.map.u32_at(at::VERDICT_BYTES).store(bytes, Ordering::Relaxed);
        let lines = (0..MAX_WORLD).map(|index| at::LINES + index * at::LINE_BYTES);
        for word in lines.chain([at::STATE]).map(|offset| self.map.u32_at(offset)) {
            // Releases the verdict to whoever sees the mark.
            word.fetch_or(MARK, Ordering::SeqCst);
            wake_all(word);
        }
    }

    /// Whether the group was given up.
    pub(crate) fn is_given_up(&self) -> bool {
        self.map.u32_at(at::STATE).load(Ordering::Acquire) & MARK != 0
    }

    /// Why the group was given up; to be asked after a mark was seen.
    pub(crate) fn verdict(&self) -> Option<Verdict> {
        let bytes = self.map.u32_at(at::VERDICT_BYTES).load(Ordering::Relaxed) as usize;
        Verdict::of_text(&self.map.load_octets(at::VERDICT, bytes.min(VERDICT_CAP)))
    }

    /// Writes a rank's ballot, of whatever node. Two sets, used in turn as on the board.
    pub(crate) fn cast(&self, turn: u64, rank: usize, words: BallotWords) {
        for (index, word) in words.into_iter().enumerate() {
            self.map.u64_at(ballot(turn, rank) + 8 * index).store(word, Ordering::Relaxed);
        }
    }

    /// A rank's ballot.
    pub(crate) fn ballot(&self, turn: u64, rank: usize) -> BallotWords {
        std::array::from_fn(|index| {
            self.map.u64_at(ballot(turn, rank) + 8 * index).load(Ordering::Relaxed)
        })
    }

    /// On which core a rank entered its last round.
    fn core_of(&self, rank: usize) -> &AtomicU32 {
        self.map.u32_at(self.line(rank) + at::CORE)
    }

    fn op(&self, rank: usize, count: u32, index: usize) -> &AtomicU64 {
        let turn = usize::from(!count.is_multiple_of(2));
        self.map.u64_at(self.line(rank) + at::OPS + 16 * turn + 8 * index)
    }

    fn line(&self, rank: usize) -> usize {
        at::LINES + (rank - self.ranks.start) * at::LINE_BYTES
    }
}

enum IsMarked {
    Yes,
    No,
}

/// Refuses to map what the leader cannot have meant.
pub(crate) fn checked_extent(extent: Extent) -> Result<Extent, GroupError> {
    let Extent { plan_bytes, words_bytes, total_bytes } = extent;
    let plan_end = CONTROL_BYTES.checked_add(plan_bytes);
    if plan_end.is_some_and(|end| end <= words_bytes) && words_bytes <= total_bytes {
        return Ok(extent);
    }
    let error = io::Error::new(io::ErrorKind::InvalidData, format!("{extent:?}"));
    Err(GroupError::io("reading the extent of the group's memory", error))
}

fn own_core() -> u32 {
    u32::try_from(sched_getcpu()).unwrap_or(u32::MAX)
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
