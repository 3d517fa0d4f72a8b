//! Copies between buffers of any alignment at one speed.
//!
//! The C library's routine falls back to a processor instruction that is up to 20 times slower where
//! source and destination lie differently in their pages.
#![expect(unsafe_code, reason = "vector loads and stores by pointer")]

use std::ptr;

/// Below this the C library's routine does not use that instruction; above the upper bound it
/// streams, and is as fast.
const OWN_RANGE: std::ops::Range<usize> = 2048..1 << 20;

/// Copies `from` into `into`.
///
/// # Panics
/// If their lengths differ.
pub fn copy<T: Copy>(from: &[T], into: &mut [T]) {
    assert!(from.len() == into.len(), "a copy of {} into {}", from.len(), into.len());
    // SAFETY: both are slices of that length, and a unique reference does not overlap another.
    unsafe { copy_by_pointer(from.as_ptr().cast(), into.as_mut_ptr().cast(), size_of_val(from)) };
}

/// # Safety
/// As for [`ptr::copy_nonoverlapping`].
pub(crate) unsafe fn copy_by_pointer(from: *const u8, to: *mut u8, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    if OWN_RANGE.contains(&bytes) && is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has it; the rest is the caller's word.
        return unsafe { copy_avx2(from, to, bytes) };
    }
    // SAFETY: the caller's word.
    unsafe { ptr::copy_nonoverlapping(from, to, bytes) };
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn copy_avx2(from: *const u8, to: *mut u8, bytes: usize) {
    use std::arch::x86_64::{__m256i, _mm256_loadu_si256, _mm256_storeu_si256};
    const WIDE: usize = 128;
    let whole = bytes - bytes % WIDE;
    let mut at = 0;
    while at < whole {
        // SAFETY: `at + WIDE <= bytes`, of which the caller vouches that they may be read and written.
        unsafe {
            let from = from.add(at).cast::<__m256i>();
            let to = to.add(at).cast::<__m256i>();
            let lines = [0, 1, 2, 3].map(|line| _mm256_loadu_si256(from.add(line)));
            for (index, line) in lines.into_iter().enumerate() {
                _mm256_storeu_si256(to.add(index), line);
            }
        }
        at += WIDE;
    }
    // SAFETY: what is left of the same ranges.
    unsafe { ptr::copy_nonoverlapping(from.add(whole), to.add(whole), bytes - whole) };
}

#[cfg(test)]
mod tests {
    use super::copy;

    #[test]
    fn every_length_and_alignment_is_copied_whole_and_nothing_beside() {
        let source: Vec<u8> = (0..9000_u32).map(|index| (index * 31 % 251) as u8).collect();
        for (from, to) in [(0, 0), (0, 16), (3, 1), (64, 63)] {
            for len in [0, 1, 127, 2047, 2048, 2049, 4096 + 65, 8000] {
                let mut into = vec![255; 9000];
                copy(&source[from..from + len], &mut into[to..to + len]);
                assert_eq!(into[to..to + len], source[from..from + len]);
                assert!(into[..to].iter().chain(&into[to + len..]).all(|octet| *octet == 255));
            }
        }
    }
}
