//! AVX-512: lanes that lie along memory, by blocks of 16 x 16.

use std::arch::x86_64::{
    __m512, _mm512_castpd_ps, _mm512_castps_pd, _mm512_loadu_ps, _mm512_mask_storeu_ps,
    _mm512_maskz_loadu_ps, _mm512_setzero_ps, _mm512_shuffle_f32x4, _mm512_storeu_ps,
    _mm512_unpackhi_pd, _mm512_unpackhi_ps, _mm512_unpacklo_pd, _mm512_unpacklo_ps,
};

use super::avx512::{VECTOR, first};
use crate::kernel::gemm::element::Transpose;

/// # Safety
/// See [`Transpose`]; needs AVX-512 F and VL.
pub(super) unsafe fn transpose(call: &Transpose<f32>) {
    for lane in (0..call.lanes).step_by(VECTOR) {
        // SAFETY: these lanes are among the call's.
        unsafe { transpose_lanes(call, lane) };
    }
}

/// Up to 16 lanes from `lane` on, by blocks of 16 x 16. Missing lanes are read as the last one.
///
/// # Safety
/// See [`Transpose`].
#[target_feature(enable = "avx512f,avx512vl")]
unsafe fn transpose_lanes(call: &Transpose<f32>, lane: usize) {
    let lanes = (call.lanes - lane).min(VECTOR);
    let from: [*const f32; VECTOR] = std::array::from_fn(|l| {
        call.from.wrapping_add((lane + l.min(lanes - 1)) * call.lane_stride)
    });
    let whole = call.depth - call.depth % VECTOR;
    for k in (0..whole).step_by(VECTOR) {
        let mut block = [_mm512_setzero_ps(); VECTOR];
        for (vector, from) in block.iter_mut().zip(from) {
            // SAFETY: a whole vector of each lane is there.
            *vector = unsafe { _mm512_loadu_ps(from.add(k)) };
        }
        let block = transposed(block);
        // A whole vector reaches into the next row of a narrow panel, which is written next.
        let last = (k + VECTOR - 1) * call.width + lane;
        let is_room = last + VECTOR <= call.depth * call.width;
        if is_room && (lane == 0 || lane + VECTOR <= call.width) {
            for (i, vector) in block.into_iter().enumerate() {
                // SAFETY: rows of the panel, in bounds by the condition.
                unsafe { _mm512_storeu_ps(call.to.add((k + i) * call.width + lane), vector) };
            }
        } else {
            // SAFETY: these rows of the panel.
            unsafe { store_rows(call, block, k, VECTOR, lane, lanes) };
        }
    }
    let rest = call.depth - whole;
    if 0 < rest {
        let mask = first(rest);
        let mut block = [_mm512_setzero_ps(); VECTOR];
        for (vector, from) in block.iter_mut().zip(from) {
            // SAFETY: masked to what is left of each lane.
            *vector = unsafe { _mm512_maskz_loadu_ps(mask, from.add(whole)) };
        }
        let block = transposed(block);
        // SAFETY: these rows of the panel.
        unsafe { store_rows(call, block, whole, rest, lane, lanes) };
    }
}

/// Writes the first `count` vectors to rows of the panel from `k` on, masked to the lanes.
///
/// # Safety
/// The rows and lanes are the panel's.
#[target_feature(enable = "avx512f,avx512vl")]
unsafe fn store_rows(
    call: &Transpose<f32>,
    block: [__m512; VECTOR],
    k: usize,
    count: usize,
    lane: usize,
    lanes: usize,
) {
    for (i, vector) in block.into_iter().enumerate().take(count) {
        let to = call.to.wrapping_add((k + i) * call.width + lane);
        // SAFETY: masked to the lanes.
        unsafe { _mm512_mask_storeu_ps(to, first(lanes), vector) };
    }
}

/// Row i of the answer is column i of the rows given.
#[target_feature(enable = "avx512f")]
#[inline]
fn transposed(rows: [__m512; VECTOR]) -> [__m512; VECTOR] {
    let mut t = rows;
    // Pairs of floats, then of pairs, within quarters of the vectors.
    for i in (0..VECTOR).step_by(2) {
        t[i] = _mm512_unpacklo_ps(rows[i], rows[i + 1]);
        t[i + 1] = _mm512_unpackhi_ps(rows[i], rows[i + 1]);
    }
    let mut u = t;
    for i in (0..VECTOR).step_by(4) {
        let [a, b, c, d] =
            [t[i], t[i + 1], t[i + 2], t[i + 3]].map(|vector| _mm512_castps_pd(vector));
        u[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, c));
        u[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, c));
        u[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(b, d));
        u[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(b, d));
    }
    // Quarter q of u[4 g + c] holds rows 4 g .. 4 g + 4 of column 4 q + c: transpose the quarters.
    for c in 0..4 {
        let low = _mm512_shuffle_f32x4::<0b10_00_10_00>(u[c], u[4 + c]);
        let low_odd = _mm512_shuffle_f32x4::<0b11_01_11_01>(u[c], u[4 + c]);
        let high = _mm512_shuffle_f32x4::<0b10_00_10_00>(u[8 + c], u[12 + c]);
        let high_odd = _mm512_shuffle_f32x4::<0b11_01_11_01>(u[8 + c], u[12 + c]);
        t[c] = _mm512_shuffle_f32x4::<0b10_00_10_00>(low, high);
        t[8 + c] = _mm512_shuffle_f32x4::<0b11_01_11_01>(low, high);
        t[4 + c] = _mm512_shuffle_f32x4::<0b10_00_10_00>(low_odd, high_odd);
        t[12 + c] = _mm512_shuffle_f32x4::<0b11_01_11_01>(low_odd, high_odd);
    }
    t
}
