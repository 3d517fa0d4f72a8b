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

/// The same, past the caches where the processor can: for what nobody reads soon.
///
/// # Panics
/// If their lengths differ.
pub fn copy_streaming<T: Copy>(from: &[T], into: &mut [T]) {
    assert!(from.len() == into.len(), "a copy of {} into {}", from.len(), into.len());
    let (from, to, bytes) = (from.as_ptr().cast(), into.as_mut_ptr().cast(), size_of_val(from));
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has it; both are slices of that length that do not overlap.
        return unsafe { stream_avx2(from, to, bytes) };
    }
    // SAFETY: as above.
    unsafe { ptr::copy_nonoverlapping::<u8>(from, to, bytes) };
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

/// # Safety
/// The processor has AVX2; else as for [`ptr::copy_nonoverlapping`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn stream_avx2(from: *const u8, to: *mut u8, bytes: usize) {
    use std::arch::x86_64::{__m256i, _mm_sfence, _mm256_loadu_si256, _mm256_stream_si256};
    const LINE: usize = 64;
    let head = to.align_offset(LINE).min(bytes);
    let end = bytes - (bytes - head) % LINE;
    // SAFETY: the first bytes, up to a line's beginning, and below what is left after whole lines:
    // of all of them the caller vouches that they may be read and written.
    unsafe {
        ptr::copy_nonoverlapping(from, to, head);
        for at in (head..end).step_by(LINE) {
            let from = from.add(at).cast::<__m256i>();
            let to = to.add(at).cast::<__m256i>();
            let halves = [0, 1].map(|half| _mm256_loadu_si256(from.add(half)));
            _mm256_stream_si256(to, halves[0]);
            _mm256_stream_si256(to.add(1), halves[1]);
        }
        ptr::copy_nonoverlapping(from.add(end), to.add(end), bytes - end);
    }
    // What was streamed is seen before anything that is stored from here on.
    _mm_sfence();
}

#[cfg(test)]
mod tests {
    use super::{copy, copy_streaming};

    #[test]
    fn every_length_and_alignment_is_copied_whole_and_nothing_beside() {
        let source: Vec<u8> = (0..9000_u32).map(|index| (index * 31 % 251) as u8).collect();
        for (from, to) in [(0, 0), (0, 16), (3, 1), (64, 63)] {
            for len in [0, 1, 127, 2047, 2048, 2049, 4096 + 65, 8000] {
                for way in [copy, copy_streaming] {
                    let mut into = vec![255; 9000];
                    way(&source[from..from + len], &mut into[to..to + len]);
                    assert_eq!(into[to..to + len], source[from..from + len]);
                    assert!(into[..to].iter().chain(&into[to + len..]).all(|octet| *octet == 255));
                }
            }
        }
    }
}
