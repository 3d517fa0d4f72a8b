//! AVX-512: tiles of 14 rows by two vectors of 16, which leaves 4 of the 32 registers for operands.

use std::arch::x86_64::{
    __m512, __mmask16, _CMP_NLE_UQ, _MM_HINT_T0, _mm_prefetch, _mm256_castsi256_ps, _mm512_add_ps,
    _mm512_castps_si512, _mm512_castps512_ps256, _mm512_cmp_ps_mask, _mm512_extracti64x4_epi64,
    _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_mask_storeu_ps, _mm512_maskz_loadu_ps,
    _mm512_maskz_mov_ps, _mm512_set1_ps, _mm512_setzero_ps, _mm512_storeu_ps,
};

use super::{
    avx512_transpose, gather,
    lanes::{add_up, store},
};
use crate::kernel::{
    Write,
    gemm::{
        Activation,
        element::{Dots, Kernels, LANES},
        tile::{Finish, Tile, TileBias},
    },
};

pub(super) const VECTOR: usize = 16;

/// How far ahead of the sums rows of B are fetched: they come from the second-level cache, where panels of a transform have
/// theirs 2 KiB apart, too far for the processor to see the pattern.
const B_ROWS_AHEAD: usize = 8;
/// The same of a packed A, elements: as many steps ahead as two times B.
const A_AHEAD: usize = 224;

pub(in crate::kernel::gemm) const KERNELS: Kernels<f32> = Kernels {
    rows: 14,
    columns: 2 * VECTOR,
    tile,
    transpose: avx512_transpose::transpose,
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
        let b_ahead = B_ROWS_AHEAD * call.b_step;
        for _ in 0..call.depth {
            let mut row = [_mm512_setzero_ps(); VECTORS];
            for (v, vector) in row.iter_mut().enumerate() {
                *vector = _mm512_loadu_ps(b.add(v * VECTOR));
            }
            for v in 0..VECTORS {
                _mm_prefetch::<_MM_HINT_T0>(b.wrapping_add(b_ahead + v * VECTOR).cast());
            }
            if !ALONG {
                _mm_prefetch::<_MM_HINT_T0>(a.wrapping_add(A_AHEAD).cast());
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
        // Rows by reference here and below: an iterator that owns them may move them over the stack.
        let at = |i: usize, v: usize| call.c.wrapping_add(i * call.c_step + v * VECTOR);
        let masks: [__mmask16; VECTORS] =
            std::array::from_fn(|v| first(call.columns.saturating_sub(v * VECTOR)));
        if call.mode == Write::Add {
            for (i, sums) in sums.iter_mut().enumerate() {
                for (v, sum) in sums.iter_mut().enumerate() {
                    *sum = _mm512_add_ps(_mm512_maskz_loadu_ps(masks[v], at(i, v)), *sum);
                }
            }
        }
        finish(&mut sums, &call.finish, masks);
        let is_whole = call.columns == VECTORS * VECTOR;
        for (i, sums) in sums.iter().enumerate() {
            for (v, &sum) in sums.iter().enumerate() {
                if is_whole {
                    _mm512_storeu_ps(at(i, v), sum);
                } else {
                    _mm512_mask_storeu_ps(at(i, v), masks[v], sum);
                }
            }
        }
    }
}

/// Bias and activation, row by row in registers.
///
/// # Safety
/// See [`Finish`]; needs AVX-512 F. Inlined always, so that the sums never leave their registers: which is why it has no
/// instruction set of its own.
#[inline(always)]
unsafe fn finish<const ROWS: usize, const VECTORS: usize>(
    sums: &mut [[__m512; VECTORS]; ROWS],
    finish: &Finish<f32>,
    masks: [__mmask16; VECTORS],
) {
    // SAFETY: biases are masked to the columns, or there is one for each row.
    unsafe {
        match finish.bias {
            TileBias::None => {}
            TileBias::PerColumn(bias) => {
                let mut row = [_mm512_setzero_ps(); VECTORS];
                for (v, vector) in row.iter_mut().enumerate() {
                    *vector = _mm512_maskz_loadu_ps(masks[v], bias.wrapping_add(v * VECTOR));
                }
                for sums in sums.iter_mut() {
                    for (sum, &bias) in sums.iter_mut().zip(&row) {
                        *sum = _mm512_add_ps(*sum, bias);
                    }
                }
            }
            TileBias::PerRow(bias) => {
                for (i, sums) in sums.iter_mut().enumerate() {
                    let bias = _mm512_set1_ps(*bias.add(i));
                    for sum in sums.iter_mut() {
                        *sum = _mm512_add_ps(*sum, bias);
                    }
                }
            }
        }
        if finish.activation == Activation::Relu {
            for sums in sums.iter_mut() {
                for sum in sums.iter_mut() {
                    // What is not at most 0 stays: NaN, too.
                    let mask = _mm512_cmp_ps_mask::<_CMP_NLE_UQ>(*sum, _mm512_setzero_ps());
                    *sum = _mm512_maskz_mov_ps(mask, *sum);
                }
            }
        }
    }
}

/// A mask of the first `count` of a vector, or of all.
pub(super) fn first(count: usize) -> __mmask16 {
    if VECTOR <= count { !0 } else { (1 << count) - 1 }
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
