//! Ballots as the words that travel.

use lockstep_shm::Found;

use crate::{Ballot, Tally};

const STOP: u64 = 1;
const NON_FINITE: u64 = 2;
const HAS_DATA: u64 = 4;

/// What a rank writes: its ballot, and what it found in its slices.
pub(crate) fn words(ballot: Ballot, found: Found) -> [u64; 4] {
    let Ballot { step, grains_total, grains, stop, non_finite } = ballot;
    let flag = |is_set, flag| if is_set { flag } else { 0 };
    let flags = flag(stop, STOP)
        | flag(non_finite, NON_FINITE)
        | flag(0 < grains, HAS_DATA)
        | flag(found.is_non_finite, NON_FINITE << 8);
    [step, grains_total, flags, found.ranks]
}

/// A tally with the words of `rank` counted in.
pub(crate) fn counted(mut tally: Tally, rank: usize, words: [u64; 4]) -> Tally {
    let [_, _, flags, found_ranks] = words;
    tally.stop |= flags & STOP != 0;
    tally.non_finite |= flags & (NON_FINITE | NON_FINITE << 8) != 0;
    tally.non_finite_ranks |= found_ranks | (u64::from(flags & NON_FINITE != 0) << rank);
    tally.with_data += usize::from(flags & HAS_DATA != 0);
    tally
}
