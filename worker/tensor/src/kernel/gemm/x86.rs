//! The innermost loops in f32 for AVX2 with FMA and for AVX-512. Both round once per multiply-add and add in the same
//! order, so they give the same bits.
#![expect(unsafe_code, reason = "vector instructions on pointers that the callers vouch for")]

mod avx2;
mod avx512;
mod avx512_transpose;
mod gather;
mod lanes;

pub(super) use avx2::KERNELS as AVX2;
pub(super) use avx512::KERNELS as AVX512;
