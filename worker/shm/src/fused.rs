//! The reduction of what most programs are, sources one after the other, in registers: every source is read
//! once, every destination written once, nothing lies between.
//!
//! # A bad block is not written
//! A result that is not finite must name the ranks it came from, and those are found by looking at
//! the sources, which are destinations, too. So numbers go block by block: all sources of a block
//! are read, its results are looked at, and only then is it written. The first block with a result
//! that is not finite ends the run before it is written; the plain way does the rest of the chunk.
#![expect(unsafe_code, reason = "reads and writes other ranks' mapped numbers by pointer")]

use crate::{Combine, dtype::Element};

/// Bytes of a block: some cache lines, and no more than the registers hold in the widest kind.
const BLOCK_BYTES: usize = 128;
/// How far ahead lines are asked for, of which other cores have many.
const AHEAD_BYTES: usize = 1024;

/// What is reduced to what.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Run<'a, E> {
    /// Sources, in order; at least one.
    pub(crate) from: &'a [*const E],
    /// Where every result goes.
    pub(crate) to: &'a [*mut E],
    pub(crate) len: usize,
    pub(crate) combine: Combine,
    pub(crate) divisor: Option<usize>,
}

impl<E: Element> Run<'_, E> {
    /// Reduces as many whole blocks as are finite, from the first on; says how many numbers that were.
    ///
    /// # Safety
    /// All pointers are to `len` numbers, which nobody else writes, those of `to` nobody else
    /// reads. Sources and destinations are the same numbers or apart.
    pub(crate) unsafe fn reduce(&self) -> usize {
        #[cfg(target_arch = "x86_64")]
        {
            let has_avx512 = is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512dq");
            if has_avx512 {
                // SAFETY: the processor has it; the rest is the caller's word.
                return unsafe { self.with_avx512() };
            }
            if is_x86_feature_detected!("avx2") {
                // SAFETY: as above.
                return unsafe { self.with_avx2() };
            }
        }
        // SAFETY: the caller's word.
        unsafe { self.blocks() }
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn with_avx512(&self) -> usize {
        // SAFETY: the caller's word.
        unsafe { self.blocks() }
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    unsafe fn with_avx2(&self) -> usize {
        // SAFETY: the caller's word.
        unsafe { self.blocks() }
    }

    /// # Safety
    /// As for [`Run::reduce`].
    #[inline(always)]
    unsafe fn blocks(&self) -> usize {
        const { assert!(matches!(size_of::<E>(), 2 | 4 | 8), "a block is for such numbers") };
        // SAFETY: the caller's word.
        unsafe {
            match (self.combine, size_of::<E>()) {
                (Combine::Sum, 2) => self.blocks_of::<{ BLOCK_BYTES / 2 }>(E::plus),
                (Combine::Sum, 4) => self.blocks_of::<{ BLOCK_BYTES / 4 }>(E::plus),
                (Combine::Sum, _) => self.blocks_of::<{ BLOCK_BYTES / 8 }>(E::plus),
                (Combine::Max, 2) => self.blocks_of::<{ BLOCK_BYTES / 2 }>(E::greater),
                (Combine::Max, 4) => self.blocks_of::<{ BLOCK_BYTES / 4 }>(E::greater),
                (Combine::Max, _) => self.blocks_of::<{ BLOCK_BYTES / 8 }>(E::greater),
            }
        }
    }

    /// # Safety
    /// As for [`Run::reduce`].
    #[inline(always)]
    unsafe fn blocks_of<const LEN: usize>(&self, join: impl Fn(E::Acc, E::Acc) -> E::Acc) -> usize {
        let (first, others) = (self.from[0], &self.from[1..]);
        let mut at = 0;
        while at + LEN <= self.len {
            for to in self.to {
                ask_for(to.wrapping_add(at).cast());
            }
            // SAFETY: `at + LEN <= len`, of which the caller vouches that they may be read.
            let read = |from: *const E| unsafe { from.add(at).cast::<[E; LEN]>().read() };
            // Loops over arrays of known length become vectors; closures handed to `map` are called.
            let mut result = read(first);
            let mut sum = [E::Acc::default(); LEN];
            for (sum, first) in sum.iter_mut().zip(result) {
                *sum = first.up();
            }
            for from in others {
                let more = read(*from);
                for (sum, more) in sum.iter_mut().zip(more) {
                    *sum = join(*sum, more.up());
                }
            }
            if let Some(divisor) = self.divisor {
                for sum in &mut sum {
                    *sum = E::over(*sum, divisor);
                }
            }
            if sum.iter().fold(false, |any, sum| any | E::is_bad(*sum)) {
                break;
            }
            for (result, sum) in result.iter_mut().zip(sum) {
                *result = E::down(sum);
            }
            for to in self.to {
                // SAFETY: as above, and written.
                unsafe { to.add(at).cast::<[E; LEN]>().write(result) };
            }
            at += LEN;
        }
        at
    }
}

/// Asks for the lines of a block some way ahead, to be written: a line that is only read first has to be asked
/// for twice. Past the end that does nothing.
#[inline(always)]
fn ask_for(block: *const u8) {
    #[cfg(target_arch = "x86_64")]
    for line in (0..BLOCK_BYTES).step_by(64) {
        let ahead = block.wrapping_add(AHEAD_BYTES + line);
        // SAFETY: a hint, for any address; it changes nothing that a program can see.
        unsafe {
            std::arch::asm!("prefetchw [{}]", in(reg) ahead, options(nostack, preserves_flags, readonly));
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = block;
}

#[cfg(test)]
mod tests {
    use half::bf16;
    use proptest::prelude::*;

    use super::*;
    use crate::Dtype;

    proptest! {
        /// Rounded as the library rounds, whatever the number.
        #[test]
        fn bf16_is_rounded_to_the_nearest_or_called_bad(bits in any::<u32>()) {
            let value = f32::from_bits(bits);
            let nearest = bf16::from_f32(value);
            prop_assert_eq!(<bf16 as Element>::is_bad(value), !nearest.is_finite());
            if nearest.is_finite() {
                prop_assert_eq!(<bf16 as Element>::down(value).to_bits(), nearest.to_bits());
            }
            prop_assert_eq!(Element::up(nearest).to_bits(), nearest.to_f32().to_bits());
        }

        /// In place, in order, up to the block with the first result that is not finite; nothing of that
        /// block and behind it is touched.
        #[test]
        fn blocks_are_written_up_to_the_first_bad_one(
            len in 0..700_usize,
            bad in 0..900_usize,
            is_max in any::<bool>(),
            divisor in proptest::option::of(1..4_usize),
        ) {
            let block = BLOCK_BYTES / Dtype::F32.bytes();
            let value = |rank: usize, at: usize| match at == bad && rank == 1 {
                true => f32::INFINITY,
                false => (at * 7 + rank * 13) as f32 / 3.0,
            };
            let before = [0, 1, 2].map(|rank| (0..len).map(|at| value(rank, at)).collect::<Vec<_>>());
            let mut ranks = before.clone();
            let to = ranks.each_mut().map(|rank| rank.as_mut_ptr());
            let from = to.map(<*mut f32>::cast_const);
            let combine = if is_max { Combine::Max } else { Combine::Sum };
            // SAFETY: `len` numbers each, of which nobody else knows.
            let done = unsafe { Run { from: &from, to: &to, len, combine, divisor }.reduce() };
            prop_assert_eq!(done, len.min(bad) / block * block);
            for at in 0..len {
                let [a, b, c] = before.each_ref().map(|rank| rank[at]);
                let all = if is_max { a.max(b).max(c) } else { a + b + c };
                let all = divisor.map_or(all, |divisor| all / divisor as f32);
                for (rank, before) in ranks.iter().zip(&before) {
                    let expected = if at < done { all } else { before[at] };
                    prop_assert_eq!(rank[at].to_bits(), expected.to_bits());
                }
            }
        }
    }
}
