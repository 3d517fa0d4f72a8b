//! The end of a scalar product: 16 partial sums to one, in a fixed tree.

use std::arch::x86_64::{
    __m256, _mm_add_ps, _mm_add_ss, _mm_cvtss_f32, _mm_movehl_ps, _mm_shuffle_ps, _mm256_add_ps,
    _mm256_castps256_ps128, _mm256_extractf128_ps,
};

use crate::kernel::{Write, gemm::element::put};

/// Sum l + sum l+8, then + l+4, + l+2, + l+1.
#[target_feature(enable = "avx2,fma")]
#[inline]
pub(super) fn add_up(low: __m256, high: __m256) -> f32 {
    let eight = _mm256_add_ps(low, high);
    let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
    let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
}

/// # Safety
/// `to` may be read and written at all (i·strides\[0\] + j·strides\[1\]).
#[inline(always)]
pub(super) unsafe fn store<const SHORTS: usize, const LONGS: usize>(
    sums: [[f32; LONGS]; SHORTS],
    to: *mut f32,
    strides: [usize; 2],
    mode: Write,
) {
    for (i, sums) in sums.into_iter().enumerate() {
        for (j, sum) in sums.into_iter().enumerate() {
            // SAFETY: the caller vouches for it.
            unsafe { put(to.add(i * strides[0] + j * strides[1]), sum, mode) };
        }
    }
}
