//! Ballots as the words that travel.

use std::{collections::BTreeMap, ops::Range};

use lockstep_shm::Found;

use crate::{Ballot, Intent, Tally, control::BallotWords};

const STOP: u64 = 1;
const NON_FINITE: u64 = 2;
const OUT_OF_MEMORY: u64 = 4;
const HAS_DATA: u64 = 8;
const FOUND_NON_FINITE: u64 = 16;

/// What a rank writes: its ballot, and what it found in its parts. `found_ranks`: whose values.
pub(crate) fn words(ballot: &Ballot, found: &Found, found_ranks: u64) -> BallotWords {
    let Ballot { step, grains_total, intent, non_finite, digest, .. } = *ballot;
    let grains = ballot.grains.clone();
    let (first_grain, grains) = (grains.start as u64, grains.len() as u64);
    let flag = |is_set, flag| if is_set { flag } else { 0 };
    let flags = flag(intent == Intent::Stop, STOP)
        | flag(non_finite, NON_FINITE)
        | flag(intent == Intent::OutOfMemory, OUT_OF_MEMORY)
        | flag(0 < grains, HAS_DATA)
        | flag(found.is_non_finite, FOUND_NON_FINITE);
    [step, grains_total, flags, found_ranks, digest, first_grain, grains]
}

/// The step and its size, which must be the same everywhere.
pub(crate) fn step_of(words: BallotWords) -> (u64, u64) {
    (words[0], words[1])
}

/// Which grains the rank has.
pub(crate) fn grains_of(words: BallotWords) -> Range<usize> {
    let [.., first, count] = words.map(|word| usize::try_from(word).unwrap_or(usize::MAX));
    first..first.saturating_add(count)
}

/// The outcome, from the ballots of all ranks in order.
pub(crate) fn tally(ballots: &[BallotWords]) -> Tally {
    let mut tally = Tally::default();
    for (rank, [_, _, flags, found_ranks, ..]) in ballots.iter().enumerate() {
        let bit = |flag| u64::from(flags & flag != 0) << rank;
        tally.stop |= flags & STOP != 0;
        tally.non_finite |= flags & (NON_FINITE | FOUND_NON_FINITE) != 0;
        tally.non_finite_ranks |= found_ranks | bit(NON_FINITE);
        tally.out_of_memory_ranks |= bit(OUT_OF_MEMORY);
        tally.with_data += usize::from(flags & HAS_DATA != 0);
    }
    tally.digest_ranks = minority(ballots.iter().map(|ballot| ballot[4]));
    tally
}

/// Bit r: the digest of rank r is another than that of most; of equally many, than that of the
/// lowest rank.
fn minority(digests: impl Iterator<Item = u64> + Clone) -> u64 {
    let mut counts: BTreeMap<u64, (usize, usize)> = BTreeMap::new();
    for (rank, digest) in digests.clone().enumerate() {
        counts.entry(digest).or_insert((0, usize::MAX - rank)).0 += 1;
    }
    let usual = counts.iter().max_by_key(|(_, count)| **count).map(|(digest, _)| *digest);
    digests
        .enumerate()
        .fold(0, |ranks, (rank, digest)| ranks | u64::from(Some(digest) != usual) << rank)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_of_the_fewer_is_at_fault() {
        assert_eq!(minority([7, 7, 7].into_iter()), 0);
        assert_eq!(minority([7, 9, 7].into_iter()), 0b010);
        assert_eq!(minority([7, 9, 9].into_iter()), 0b001);
        assert_eq!(minority([7, 9].into_iter()), 0b10);
        assert_eq!(minority([9, 7].into_iter()), 0b10);
    }
}
