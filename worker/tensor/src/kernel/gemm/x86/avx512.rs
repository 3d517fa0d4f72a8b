//! AVX-512: tiles of 14 rows by two vectors of 16, which leaves 4 of the 32 registers for operands.

use std::arch::x86_64::{
    __m512, __mmask16, _MM_HINT_T0, _mm_prefetch, _mm256_castsi256_ps, _mm512_add_ps,
    _mm512_castpd_ps, _mm512_castps_pd, _mm512_castps_si512, _mm512_castps512_ps256,
    _mm512_extracti64x4_epi64, _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_mask_storeu_ps,
    _mm512_maskz_loadu_ps, _mm512_set1_ps, _mm512_setzero_ps, _mm512_shuffle_f32x4,
    _mm512_storeu_ps, _mm512_unpackhi_pd, _mm512_unpackhi_ps, _mm512_unpacklo_pd,
    _mm512_unpacklo_ps,
};

use super::{
    gather,
    lanes::{add_up, store},
};
use crate::kernel::{
    Write,
    gemm::element::{Dots, Kernels, LANES, Tile, Transpose},
};

const VECTOR: usize = 16;

pub(in crate::kernel::gemm) const KERNELS: Kernels<f32> = Kernels {
    rows: 14,
    columns: 2 * VECTOR,
    tile,
    transpose,
    dots_of: [[12, 2], [8, 3]],
    dots,
    gather: gather::avx512,
};

/// # Safety
/// See [`Tile`]; needs AVX-512 F and VL.
unsafe fn tile(call: &Tile<f32>) {
    macro_rules! by_rows {
        ($vectors:literal $along:literal: $($rows:literal)+) => {
            match call.rows {
                // SAFETY: passed on.
                $($rows => unsafe { tile_of::<$rows, $vectors, $along>(call) },)+
                _ => unreachable!("tile of {} rows", call.rows),
            }
        };
    }
    match (call.columns <= VECTOR, call.a_stride.is_some()) {
        (true, false) => by_rows!(1 false: 1 2 3 4 5 6 7 8 9 10 11 12 13 14),
        (true, true) => by_rows!(1 true: 1 2 3 4 5 6 7 8 9 10 11 12 13 14),
        (false, false) => by_rows!(2 false: 1 2 3 4 5 6 7 8 9 10 11 12 13 14),
        (false, true) => by_rows!(2 true: 1 2 3 4 5 6 7 8 9 10 11 12 13 14),
    }
}

/// # Safety
/// See [`Tile`].
#[target_feature(enable = "avx512f,avx512vl")]
unsafe fn tile_of<const ROWS: usize, const VECTORS: usize, const ALONG: bool>(call: &Tile<f32>) {
    // SAFETY: every address lies in the operands as `Tile` describes them; the last vector of a row of C
    // is masked to its columns.
    unsafe {
        for i in 0..ROWS {
            for v in 0..VECTORS {
                let c = call.c.wrapping_add(i * call.c_step + v * VECTOR);
                _mm_prefetch::<_MM_HINT_T0>(c.cast());
            }
        }
        let mut sums = [[_mm512_setzero_ps(); VECTORS]; ROWS];
        let (mut a, mut b) = (call.a, call.b);
        let stride = call.a_stride.unwrap_or(1);
        for _ in 0..call.depth {
            let mut row = [_mm512_setzero_ps(); VECTORS];
            for (v, vector) in row.iter_mut().enumerate() {
                *vector = _mm512_loadu_ps(b.add(v * VECTOR));
            }
            for (i, sums) in sums.iter_mut().enumerate() {
                let each = _mm512_set1_ps(*a.add(if ALONG { i * stride } else { i }));
                for (sum, &vector) in sums.iter_mut().zip(&row) {
                    *sum = _mm512_fmadd_ps(each, vector, *sum);
                }
            }
            a = a.wrapping_add(if ALONG { 1 } else { ROWS });
            b = b.wrapping_add(call.b_step);
        }
        let masks: [__mmask16; VECTORS] =
            std::array::from_fn(|v| first(call.columns.saturating_sub(v * VECTOR)));
        for (i, sums) in sums.into_iter().enumerate() {
            for (v, mut sum) in sums.into_iter().enumerate() {
                let c = call.c.add(i * call.c_step + v * VECTOR);
                if call.mode == Write::Add {
                    sum = _mm512_add_ps(_mm512_maskz_loadu_ps(masks[v], c), sum);
                }
                _mm512_mask_storeu_ps(c, masks[v], sum);
            }
        }
    }
}

/// A mask of the first `count` of a vector, or of all.
fn first(count: usize) -> __mmask16 {
    if VECTOR <= count { !0 } else { (1 << count) - 1 }
}

/// # Safety
/// See [`Transpose`]; needs AVX-512 F and VL.
unsafe fn transpose(call: &Transpose<f32>) {
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

/// # Safety
/// See [`Dots`]; needs AVX-512 F and VL.
unsafe fn dots(call: &Dots<f32>) {
    macro_rules! by_shorts {
        ($longs:literal: $($shorts:literal)+) => {
            match call.counts[0] {
                // SAFETY: passed on.
                $($shorts => unsafe { dots_of::<$shorts, $longs>(call) },)+
                _ => unreachable!("{} short vectors", call.counts[0]),
            }
        };
    }
    match call.counts[1] {
        1 => by_shorts!(1: 1 2 3 4 5 6 7 8 9 10 11 12),
        2 => by_shorts!(2: 1 2 3 4 5 6 7 8 9 10 11 12),
        3 => by_shorts!(3: 1 2 3 4 5 6 7 8),
        longs => unreachable!("{longs} long vectors"),
    }
}

/// # Safety
/// See [`Dots`].
#[target_feature(enable = "avx512f,avx512vl,avx2,fma")]
unsafe fn dots_of<const SHORTS: usize, const LONGS: usize>(call: &Dots<f32>) {
    let mut sums = [[_mm512_setzero_ps(); LONGS]; SHORTS];
    let mut add = |k: usize, mask: Option<__mmask16>| {
        let load = |from: *const f32| {
            // SAFETY: in bounds of a vector, or masked to what is left of it.
            unsafe {
                match mask {
                    None => _mm512_loadu_ps(from),
                    Some(mask) => _mm512_maskz_loadu_ps(mask, from),
                }
            }
        };
        let mut longs = [_mm512_setzero_ps(); LONGS];
        for (j, long) in longs.iter_mut().enumerate() {
            *long = load(call.long.wrapping_add(j * call.long_stride + k));
        }
        for (i, sums) in sums.iter_mut().enumerate() {
            // SAFETY: a whole vector for every begun one of the long vectors.
            let short = unsafe { _mm512_loadu_ps(call.short.add(k * SHORTS + i * LANES)) };
            for (sum, &long) in sums.iter_mut().zip(&longs) {
                *sum = _mm512_fmadd_ps(short, long, *sum);
            }
        }
    };
    let whole = call.depth - call.depth % LANES;
    for k in (0..whole).step_by(LANES) {
        add(k, None);
    }
    if whole < call.depth {
        add(whole, Some(first(call.depth - whole)));
    }
    let sums = sums.map(|sums| {
        sums.map(|sum| {
            let high = _mm512_extracti64x4_epi64::<1>(_mm512_castps_si512(sum));
            add_up(_mm512_castps512_ps256(sum), _mm256_castsi256_ps(high))
        })
    });
    // SAFETY: the caller vouches for the result.
    unsafe { store(sums, call.to, call.strides, call.mode) };
}
