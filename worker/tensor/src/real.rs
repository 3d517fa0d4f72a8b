//! The two kinds of float a tape can run in.

use std::{
    fmt::Debug,
    ops::{Add, AddAssign, Div, Mul, Neg, Sub},
};

use crate::meta::DType;

mod sealed {
    /// The matrix product knows these two only.
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for f64 {}
}

/// `f32` for training, `f64` for checks of gradients and for golden figures.
pub trait Real:
    sealed::Sealed
    + Copy
    + Debug
    + Default
    + PartialEq
    + PartialOrd
    + Send
    + Sync
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
    + AddAssign
    + 'static
{
    const DTYPE: DType;
    const ZERO: Self;
    const ONE: Self;

    /// Rounds to nearest.
    fn from_f64(value: f64) -> Self;
    /// Exact.
    fn to_f64(self) -> f64;
    /// e to the power of it.
    fn exp(self) -> Self;
    /// Natural logarithm.
    fn ln(self) -> Self;
    /// Square root.
    fn sqrt(self) -> Self;
}

impl Real for f32 {
    const DTYPE: DType = DType::F32;
    const ZERO: Self = 0.0;
    const ONE: Self = 1.0;

    #[inline(always)]
    fn from_f64(value: f64) -> Self {
        value as Self
    }

    #[inline(always)]
    fn to_f64(self) -> f64 {
        f64::from(self)
    }

    #[inline(always)]
    fn exp(self) -> Self {
        exp_f32(self)
    }

    #[inline(always)]
    fn ln(self) -> Self {
        Self::ln(self)
    }

    #[inline(always)]
    fn sqrt(self) -> Self {
        Self::sqrt(self)
    }
}

impl Real for f64 {
    const DTYPE: DType = DType::F64;
    const ZERO: Self = 0.0;
    const ONE: Self = 1.0;

    #[inline(always)]
    fn from_f64(value: f64) -> Self {
        value
    }

    #[inline(always)]
    fn to_f64(self) -> f64 {
        self
    }

    #[inline(always)]
    fn exp(self) -> Self {
        Self::exp(self)
    }

    #[inline(always)]
    fn ln(self) -> Self {
        Self::ln(self)
    }

    #[inline(always)]
    fn sqrt(self) -> Self {
        Self::sqrt(self)
    }
}

/// e to the power of `x`, within one unit in the last place (0.68 measured).
///
/// The C library's costs a call per element and picks its code by processor. This one is branch-free,
/// so that loops over it become vector code, and it uses plain products and sums only, so that it
/// gives the same bits on every machine.
///
/// x = n·ln 2 + r with |r| ≤ ln 2 / 2; a polynomial of degree 6 for e^r; 2^n as two factors, so that
/// results run out gently into subnormals and infinity. NaN stays NaN.
///
/// # Source
/// Moshier's Cephes library, `expf`.
#[inline(always)]
fn exp_f32(x: f32) -> f32 {
    /// Adding it pushes the fraction out of the mantissa: rounds to nearest without a library call.
    const ROUND: f32 = 12_582_912.0;
    /// ln 2 in two parts; products of the first with |n| ≤ 152 are exact.
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;

    // e^-105 rounds to 0 and e^89 to infinity.
    let x = x.clamp(-105.0, 89.0);
    let rounded = x * std::f32::consts::LOG2_E + ROUND;
    let n = rounded - ROUND;
    let r = x - n * LN2_HIGH - n * LN2_LOW;
    let mut p = 1.987_569_1e-4_f32;
    p = p * r + 1.398_199_9e-3;
    p = p * r + 8.333_452e-3;
    p = p * r + 4.166_579_6e-2;
    p = p * r + 1.666_666_5e-1;
    p = p * r + 0.5;
    let value = p * (r * r) + r + 1.0;
    let n = (rounded.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32);
    let half = n >> 1;
    value * power_of_two(half) * power_of_two(n.wrapping_sub(half))
}

#[inline(always)]
fn power_of_two(exponent: i32) -> f32 {
    f32::from_bits((exponent.wrapping_add(127) as u32) << 23)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_within_one_unit_of_the_last_place_over_the_whole_range() {
        let mut worst = 0.0_f64;
        for step in 0..2_000_000_u32 {
            let x = -87.0 + step as f32 * (175.6 / 2_000_000.0);
            let exact = f64::from(x).exp();
            let unit = f64::from(f32::EPSILON) * exact;
            worst = worst.max((f64::from(exp_f32(x)) - exact).abs() / unit);
        }
        assert!(worst < 1.0, "{worst} units");
    }

    #[test]
    fn exp_ends_in_zero_and_infinity_and_keeps_nan() {
        assert_eq!(exp_f32(0.0), 1.0);
        assert_eq!(exp_f32(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp_f32(-200.0), 0.0);
        assert_eq!(exp_f32(f32::INFINITY), f32::INFINITY);
        assert_eq!(exp_f32(89.5), f32::INFINITY);
        assert!(exp_f32(f32::NAN).is_nan());
        let subnormal = exp_f32(-100.0);
        assert!(0.0 < subnormal && subnormal < f32::MIN_POSITIVE, "{subnormal}");
    }
}
