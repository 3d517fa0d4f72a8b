//! The two kinds of float a tape can run in.

use std::{
    fmt::Debug,
    ops::{Add, AddAssign, Div, Mul, Neg, Sub},
};

use crate::{meta::DType, special};

mod sealed {
    /// The matrix product knows these two only.
    pub trait Sealed: crate::kernel::Element + crate::compiled::Compiled {}
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
    /// Natural logarithm of 1 + itself, for 0 ≤ itself ≤ 1.
    fn ln_1p_unit(self) -> Self;
    /// Square root.
    fn sqrt(self) -> Self;
    /// Hyperbolic tangent.
    fn tanh(self) -> Self;
    /// Φ of it and e^(-it²/2), with Φ(x) = (1 + erf(x/√2)) / 2 the normal distribution.
    fn normal(self) -> (Self, Self);
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
        special::exp_f32(self)
    }

    #[inline(always)]
    fn ln(self) -> Self {
        Self::ln(self)
    }

    #[inline(always)]
    fn ln_1p_unit(self) -> Self {
        special::ln_1p_unit_f32(self)
    }

    fn sqrt(self) -> Self {
        Self::sqrt(self)
    }

    #[inline(always)]
    fn tanh(self) -> Self {
        special::tanh_f32(self)
    }

    #[inline(always)]
    fn normal(self) -> (Self, Self) {
        special::normal_f32(self)
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

    fn ln_1p_unit(self) -> Self {
        self.ln_1p()
    }

    #[inline(always)]
    fn sqrt(self) -> Self {
        Self::sqrt(self)
    }

    #[inline(always)]
    fn tanh(self) -> Self {
        Self::tanh(self)
    }

    #[inline(always)]
    fn normal(self) -> (Self, Self) {
        let share = 0.5 * libm::erfc(-self * std::f64::consts::FRAC_1_SQRT_2);
        (share, Self::exp(-0.5 * self * self))
    }
}
