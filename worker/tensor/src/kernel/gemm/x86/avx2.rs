//! AVX2 with FMA: tiles of 6 rows by two vectors of 8, which leaves 4 of the 16 registers for operands.

use std::arch::x86_64::{
    __m256, __m256i, _CMP_NLE_UQ, _mm256_add_ps, _mm256_and_ps, _mm256_broadcast_ss,
    _mm256_castpd_ps, _mm256_castps_pd, _mm256_cmp_ps, _mm256_fmadd_ps, _mm256_loadu_ps,
    _mm256_loadu_si256, _mm256_maskload_ps, _mm256_maskstore_ps, _mm256_permute2f128_ps,
    _mm256_setzero_ps, _mm256_storeu_ps, _mm256_unpackhi_pd, _mm256_unpackhi_ps,
    _mm256_unpacklo_pd, _mm256_unpacklo_ps,
};

use super::{
    gather,
    lanes::{add_up, store},
};
use crate::kernel::{
    Write,
    gemm::{
        Activation,
        element::{self, Dots, Kernels, LANES, Transpose},
        tile::{Finish, Tile, TileBias},
    },
};

const VECTOR: usize = 8;

pub(in crate::kernel::gemm) const KERNELS: Kernels<f32> = Kernels {
    rows: 6,
    columns: 2 * VECTOR,
    tile,
    transpose,
    dots_of: [[2, 3]; 2],
    dots,
    gather: gather::avx2,
};

/// # Safety
/// See [`Tile`]; needs AVX2 and FMA.
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
        (true, false) => by_rows!(1 false: 1 2 3 4 5 6),
        (true, true) => by_rows!(1 true: 1 2 3 4 5 6),
        (false, false) => by_rows!(2 false: 1 2 3 4 5 6),
        (false, true) => by_rows!(2 true: 1 2 3 4 5 6),
    }
}

/// # Safety
/// See [`Tile`].
#[target_feature(enable = "avx2,fma")]
unsafe fn tile_of<const ROWS: usize, const VECTORS: usize, const ALONG: bool>(call: &Tile<f32>) {
    // SAFETY: every address lies in the operands as `Tile` describes them; the last vector of a row of C
    // is masked to its columns.
    unsafe {
        let mut sums = [[_mm256_setzero_ps(); VECTORS]; ROWS];
        let (mut a, mut b) = (call.a, call.b);
        let stride = call.a_stride.unwrap_or(1);
        for _ in 0..call.depth {
            let mut row = [_mm256_setzero_ps(); VECTORS];
            for (v, vector) in row.iter_mut().enumerate() {
                *vector = _mm256_loadu_ps(b.add(v * VECTOR));
            }
            for (i, sums) in sums.iter_mut().enumerate() {
                let each = _mm256_broadcast_ss(&*a.add(if ALONG { i * stride } else { i }));
                for (sum, &vector) in sums.iter_mut().zip(&row) {
                    *sum = _mm256_fmadd_ps(each, vector, *sum);
                }
            }
            a = a.wrapping_add(if ALONG { 1 } else { ROWS });
            b = b.wrapping_add(call.b_step);
        }
        // By reference, see `avx512`.
        let at = |i: usize, v: usize| call.c.wrapping_add(i * call.c_step + v * VECTOR);
        let masks: [__m256i; VECTORS] =
            std::array::from_fn(|v| first(call.columns.saturating_sub(v * VECTOR)));
        if call.mode == Write::Add {
            for (i, sums) in sums.iter_mut().enumerate() {
                for (v, sum) in sums.iter_mut().enumerate() {
                    *sum = _mm256_add_ps(_mm256_maskload_ps(at(i, v), masks[v]), *sum);
                }
            }
        }
        finish(&mut sums, &call.finish, masks);
        let is_whole = call.columns == VECTORS * VECTOR;
        for (i, sums) in sums.iter().enumerate() {
            for (v, &sum) in sums.iter().enumerate() {
                if is_whole {
                    _mm256_storeu_ps(at(i, v), sum);
                } else {
                    _mm256_maskstore_ps(at(i, v), masks[v], sum);
                }
            }
        }
    }
}

/// Bias and activation, as `avx512` does it.
///
/// # Safety
/// See [`Finish`]; needs AVX2.
#[inline(always)]
unsafe fn finish<const ROWS: usize, const VECTORS: usize>(
    sums: &mut [[__m256; VECTORS]; ROWS],
    finish: &Finish<f32>,
    masks: [__m256i; VECTORS],
) {
    // SAFETY: biases are masked to the columns, or there is one for each row.
    unsafe {
        match finish.bias {
            TileBias::None => {}
            TileBias::PerColumn(bias) => {
                let mut row = [_mm256_setzero_ps(); VECTORS];
                for (v, vector) in row.iter_mut().enumerate() {
                    *vector = _mm256_maskload_ps(bias.wrapping_add(v * VECTOR), masks[v]);
                }
                for sums in sums.iter_mut() {
                    for (sum, &bias) in sums.iter_mut().zip(&row) {
                        *sum = _mm256_add_ps(*sum, bias);
                    }
                }
            }
            TileBias::PerRow(bias) => {
                for (i, sums) in sums.iter_mut().enumerate() {
                    let bias = _mm256_broadcast_ss(&*bias.add(i));
                    for sum in sums.iter_mut() {
                        *sum = _mm256_add_ps(*sum, bias);
                    }
                }
            }
        }
        if finish.activation == Activation::Relu {
            for sums in sums.iter_mut() {
                for sum in sums.iter_mut() {
                    // What is not at most 0 stays: NaN, too.
                    let mask = _mm256_cmp_ps::<_CMP_NLE_UQ>(*sum, _mm256_setzero_ps());
                    *sum = _mm256_and_ps(mask, *sum);
                }
            }
        }
    }
}

/// A mask of the first `count` of a vector, or of all.
#[target_feature(enable = "avx2")]
#[inline]
fn first(count: usize) -> __m256i {
    const ONES_THEN_ZEROS: [i32; 2 * VECTOR] =
        [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];
    let from = &ONES_THEN_ZEROS[VECTOR - count.min(VECTOR)..][..VECTOR];
    // SAFETY: eight numbers.
    unsafe { _mm256_loadu_si256(from.as_ptr().cast()) }
}

/// Whole blocks of 8 x 8 in vectors, the rest one by one.
///
/// # Safety
/// See [`Transpose`]; needs AVX2.
#[target_feature(enable = "avx2")]
unsafe fn transpose_blocks(call: &Transpose<f32>) {
    let (lanes, depth) = (call.lanes - call.lanes % VECTOR, call.depth - call.depth % VECTOR);
    for lane in (0..lanes).step_by(VECTOR) {
        for k in (0..depth).step_by(VECTOR) {
            let mut block = [_mm256_setzero_ps(); VECTOR];
            for (l, vector) in block.iter_mut().enumerate() {
                // SAFETY: a whole block is there.
                *vector =
                    unsafe { _mm256_loadu_ps(call.from.add((lane + l) * call.lane_stride + k)) };
            }
            for (i, vector) in transposed(block).into_iter().enumerate() {
                // SAFETY: as above.
                unsafe { _mm256_storeu_ps(call.to.add((k + i) * call.width + lane), vector) };
            }
        }
    }
    let part = |lane: usize, lanes: usize, k: usize, depth: usize| Transpose {
        from: call.from.wrapping_add(lane * call.lane_stride + k),
        lane_stride: call.lane_stride,
        lanes,
        depth,
        to: call.to.wrapping_add(k * call.width + lane),
        width: call.width,
    };
    // SAFETY: parts of the call.
    unsafe {
        element::transpose(&part(0, lanes, depth, call.depth - depth));
        element::transpose(&part(lanes, call.lanes - lanes, 0, call.depth));
    }
}

/// # Safety
/// See [`Transpose`]; needs AVX2.
unsafe fn transpose(call: &Transpose<f32>) {
    // SAFETY: passed on.
    unsafe { transpose_blocks(call) };
}

/// Row i of the answer is column i of the rows given.
#[target_feature(enable = "avx2")]
#[inline]
fn transposed(rows: [__m256; VECTOR]) -> [__m256; VECTOR] {
    let mut t = rows;
    for i in (0..VECTOR).step_by(2) {
        t[i] = _mm256_unpacklo_ps(rows[i], rows[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(rows[i], rows[i + 1]);
    }
    let mut u = t;
    for i in (0..VECTOR).step_by(4) {
        let [a, b, c, d] =
            [t[i], t[i + 1], t[i + 2], t[i + 3]].map(|vector| _mm256_castps_pd(vector));
        u[i] = _mm256_castpd_ps(_mm256_unpacklo_pd(a, c));
        u[i + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(a, c));
        u[i + 2] = _mm256_castpd_ps(_mm256_unpacklo_pd(b, d));
        u[i + 3] = _mm256_castpd_ps(_mm256_unpackhi_pd(b, d));
    }
    for c in 0..4 {
        t[c] = _mm256_permute2f128_ps::<0x20>(u[c], u[4 + c]);
        t[4 + c] = _mm256_permute2f128_ps::<0x31>(u[c], u[4 + c]);
    }
    t
}

/// # Safety
/// See [`Dots`]; needs AVX2 and FMA.
unsafe fn dots(call: &Dots<f32>) {
    match call.counts {
        // SAFETY: passed on.
        [1, 1] => unsafe { dots_of::<1, 1>(call) },
        // SAFETY: passed on.
        [1, 2] => unsafe { dots_of::<1, 2>(call) },
        // SAFETY: passed on.
        [1, 3] => unsafe { dots_of::<1, 3>(call) },
        // SAFETY: passed on.
        [2, 1] => unsafe { dots_of::<2, 1>(call) },
        // SAFETY: passed on.
        [2, 2] => unsafe { dots_of::<2, 2>(call) },
        // SAFETY: passed on.
        [2, 3] => unsafe { dots_of::<2, 3>(call) },
        counts => unreachable!("products of {counts:?} vectors"),
    }
}

/// The 16 partial sums are two vectors.
///
/// # Safety
/// See [`Dots`].
#[target_feature(enable = "avx2,fma")]
unsafe fn dots_of<const SHORTS: usize, const LONGS: usize>(call: &Dots<f32>) {
    let mut sums = [[[_mm256_setzero_ps(); 2]; LONGS]; SHORTS];
    let mut add = |k: usize, masks: Option<[__m256i; 2]>| {
        for half in 0..2 {
            let load = |from: *const f32| {
                let from = from.wrapping_add(half * VECTOR);
                // SAFETY: in bounds of a vector, or masked to what is left of it.
                unsafe {
                    match masks {
                        None => _mm256_loadu_ps(from),
                        Some(masks) => _mm256_maskload_ps(from, masks[half]),
                    }
                }
            };
            let mut longs = [_mm256_setzero_ps(); LONGS];
            for (j, long) in longs.iter_mut().enumerate() {
                *long = load(call.long.wrapping_add(j * call.long_stride + k));
            }
            for (i, sums) in sums.iter_mut().enumerate() {
                // SAFETY: two whole vectors for every begun 16 of the long vectors.
                let short = unsafe {
                    _mm256_loadu_ps(call.short.add(k * SHORTS + i * LANES + half * VECTOR))
                };
                for (sum, &long) in sums.iter_mut().zip(&longs) {
                    sum[half] = _mm256_fmadd_ps(short, long, sum[half]);
                }
            }
        }
    };
    let whole = call.depth - call.depth % LANES;
    for k in (0..whole).step_by(LANES) {
        add(k, None);
    }
    if whole < call.depth {
        let left = call.depth - whole;
        add(whole, Some([first(left), first(left.saturating_sub(VECTOR))]));
    }
    let sums = sums.map(|sums| sums.map(|[low, high]| add_up(low, high)));
    // SAFETY: the caller vouches for the result.
    unsafe { store(sums, call.to, call.strides, call.mode) };
}
