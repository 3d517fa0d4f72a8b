//! Pieces put together in registers: a masked load for each, shifted so that its lanes fall into place.

use std::arch::x86_64::{
    __m256i, __mmask16, _mm256_and_si256, _mm256_cmpgt_epi32, _mm256_maskload_ps, _mm256_or_ps,
    _mm256_set1_epi32, _mm256_setr_epi32, _mm256_setzero_ps, _mm256_setzero_si256,
    _mm256_storeu_ps, _mm512_mask_loadu_ps, _mm512_mask_mov_ps, _mm512_maskz_loadu_ps,
    _mm512_permutex2var_ps, _mm512_setr_epi32, _mm512_setzero_ps, _mm512_storeu_ps,
};

use crate::kernel::gemm::gather::{Gather, Piece, portable};

/// What a vector's lanes `first..first + vector` have of a piece: lanes within the vector, and where its
/// lane 0 would lie.
fn part(call: &Gather<'_, f32>, piece: &Piece, first: usize, vector: usize) -> Option<Part> {
    let start = piece.lane.max(first);
    let end = (piece.lane + piece.len).min(first + vector);
    let step = call.lane_step.cast_signed();
    let shift = first.cast_signed() - piece.lane.cast_signed();
    let from = piece.from.cast_signed() + shift * step;
    (start < end).then(|| Part { start: start - first, end: end - first, from })
}

struct Part {
    start: usize,
    end: usize,
    from: isize,
}

/// # Safety
/// See [`Gather`]; the width is a multiple of 16. Needs AVX-512 F.
pub(super) unsafe fn avx512(call: &Gather<'_, f32>) {
    if 2 < call.lane_step {
        // SAFETY: passed on.
        return unsafe { portable(call) };
    }
    for first in (0..call.width).step_by(16) {
        let mut parts: [(__mmask16, isize); 16] = [(0, 0); 16];
        let mut count = 0;
        for piece in call.pieces {
            // Pieces are disjoint: no more than 16 have a lane here.
            if let Some(Part { start, end, from }) = part(call, piece, first, 16)
                && let Some(part) = parts.get_mut(count)
            {
                let mask = (0xffff_u32 >> (16 - (end - start))) << start;
                *part = (mask as __mmask16, from);
                count += 1;
            }
        }
        let parts = &parts[..count];
        // Of known number, their masks stay in registers.
        // SAFETY: passed on.
        unsafe {
            match (call.lane_step, parts) {
                (1, &[a]) => avx512_vector(call, first, [a]),
                (1, &[a, b]) => avx512_vector(call, first, [a, b]),
                (1, &[a, b, c]) => avx512_vector(call, first, [a, b, c]),
                (1, parts) => avx512_vector(call, first, parts),
                (_, &[a]) => avx512_evens(call, first, [evens(a)]),
                (_, &[a, b]) => avx512_evens(call, first, [evens(a), evens(b)]),
                (_, parts) => {
                    let mut masked = [evens((0, 0)); 16];
                    for (masked, &part) in masked.iter_mut().zip(parts) {
                        *masked = evens(part);
                    }
                    avx512_evens(call, first, &masked[..parts.len().min(16)]);
                }
            }
        }
    }
}

/// # Safety
/// See [`Gather`].
#[target_feature(enable = "avx512f")]
unsafe fn avx512_vector(
    call: &Gather<'_, f32>,
    first: usize,
    parts: impl AsRef<[(__mmask16, isize)]>,
) {
    let (mut from, mut to) = (call.from, call.to.wrapping_add(first));
    for _ in 0..call.rows {
        let mut vector = _mm512_setzero_ps();
        for &(mask, at) in parts.as_ref() {
            // SAFETY: masked to the lanes of the piece, which can be read.
            vector = unsafe { _mm512_mask_loadu_ps(vector, mask, from.wrapping_offset(at)) };
        }
        // SAFETY: lanes of a row of the panel.
        unsafe { _mm512_storeu_ps(to, vector) };
        from = from.wrapping_add(call.from_step);
        to = to.wrapping_add(call.to_step);
    }
}

/// A piece whose lanes are every second element: the mask of its lanes, those of the elements in two vectors, and where they
/// begin.
type Evens = (__mmask16, __mmask16, __mmask16, isize);

fn evens((mask, at): (__mmask16, isize)) -> Evens {
    (mask, every_second(mask), every_second(mask >> 8), at)
}

/// The same where lanes are every second element: two vectors, whose even elements are put together.
///
/// # Safety
/// See [`Gather`].
#[target_feature(enable = "avx512f")]
unsafe fn avx512_evens(call: &Gather<'_, f32>, first: usize, parts: impl AsRef<[Evens]>) {
    let evens = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    let (mut from, mut to) = (call.from, call.to.wrapping_add(first));
    for _ in 0..call.rows {
        let mut vector = _mm512_setzero_ps();
        for &(mask, low, high, at) in parts.as_ref() {
            // SAFETY: masked to the elements of the piece, which can be read.
            let (low, high) = unsafe {
                (
                    _mm512_maskz_loadu_ps(low, from.wrapping_offset(at)),
                    _mm512_maskz_loadu_ps(high, from.wrapping_offset(at + 16)),
                )
            };
            let part = _mm512_permutex2var_ps(low, evens, high);
            vector = _mm512_mask_mov_ps(vector, mask, part);
        }
        // SAFETY: lanes of a row of the panel.
        unsafe { _mm512_storeu_ps(to, vector) };
        from = from.wrapping_add(call.from_step);
        to = to.wrapping_add(call.to_step);
    }
}

/// Bit 2·i is bit i, for the lowest eight.
fn every_second(mask: __mmask16) -> __mmask16 {
    let mask = mask & 0xff;
    let mask = (mask | (mask << 4)) & 0x0f0f;
    let mask = (mask | (mask << 2)) & 0x3333;
    (mask | (mask << 1)) & 0x5555
}

/// # Safety
/// See [`Gather`]; the width is a multiple of 8. Needs AVX2.
pub(super) unsafe fn avx2(call: &Gather<'_, f32>) {
    if 1 < call.lane_step {
        // SAFETY: passed on.
        return unsafe { portable(call) };
    }
    for first in (0..call.width).step_by(8) {
        // SAFETY: passed on.
        unsafe { avx2_vector(call, first) };
    }
}

/// # Safety
/// See [`Gather`].
#[target_feature(enable = "avx2")]
unsafe fn avx2_vector(call: &Gather<'_, f32>, first: usize) {
    let mut parts: [(__m256i, isize); 8] = [(_mm256_setzero_si256(), 0); 8];
    let mut count = 0;
    let lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    for piece in call.pieces {
        if let Some(Part { start, end, from }) = part(call, piece, first, 8)
            && let Some(part) = parts.get_mut(count)
        {
            let from_start = _mm256_cmpgt_epi32(lanes, _mm256_set1_epi32(start as i32 - 1));
            let before_end = _mm256_cmpgt_epi32(_mm256_set1_epi32(end as i32), lanes);
            *part = (_mm256_and_si256(from_start, before_end), from);
            count += 1;
        }
    }
    let (mut from, mut to) = (call.from, call.to.wrapping_add(first));
    for _ in 0..call.rows {
        let mut vector = _mm256_setzero_ps();
        for &(mask, at) in &parts[..count] {
            // SAFETY: masked to the lanes of the piece, which can be read.
            let part = unsafe { _mm256_maskload_ps(from.wrapping_offset(at), mask) };
            vector = _mm256_or_ps(vector, part);
        }
        // SAFETY: lanes of a row of the panel.
        unsafe { _mm256_storeu_ps(to, vector) };
        from = from.wrapping_add(call.from_step);
        to = to.wrapping_add(call.to_step);
    }
}
