//! Kinds of numbers that collectives work on, and how each is added up.
#![expect(unsafe_code, reason = "reads and writes other ranks' mapped numbers by pointer")]

use std::ptr;

use half::slice::{HalfBitsSliceExt as _, HalfFloatSliceExt as _};
use half::{bf16, f16};

use crate::reduce::CHUNK_LEN;

/// Kind of a number in an arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// 32-bit float.
    F32,
    /// 64-bit float.
    F64,
    /// 64-bit signed integer; sums wrap around.
    I64,
    /// The upper half of a 32-bit float. Added up in f32, rounded once, to nearest even.
    Bf16,
    /// 16-bit float. Added up in f32, rounded once, to nearest even.
    F16,
}

impl Dtype {
    /// Bytes of one.
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F64 | Self::I64 => 8,
            Self::Bf16 | Self::F16 => 2,
        }
    }

    /// As people write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::I64 => "i64",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
        }
    }
}

/// How two numbers become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Combine {
    /// Their sum.
    Sum,
    /// The greater; not a number if either is none.
    Max,
}

/// Room for partial results, by kind of accumulator.
#[derive(Debug, Default)]
pub(crate) struct Stacks {
    f32: Vec<f32>,
    f64: Vec<f64>,
    i64: Vec<i64>,
}

/// A number and what it is accumulated in.
pub(crate) trait Element: Copy + 'static {
    type Acc: Copy + Default + 'static;

    fn stack(stacks: &mut Stacks) -> &mut Vec<Self::Acc>;

    /// Reads `into.len()` numbers, at most [`CHUNK_LEN`].
    ///
    /// # Safety
    /// `from` points at so many readable numbers that nobody writes meanwhile.
    unsafe fn widen(from: *const Self, into: &mut [Self::Acc]);

    /// Combines `into.len()` numbers, at most [`CHUNK_LEN`], into `into`.
    ///
    /// # Safety
    /// As for [`Element::widen`].
    unsafe fn fold(combine: Combine, from: *const Self, into: &mut [Self::Acc]);

    /// Writes `from.len()` numbers, at most [`CHUNK_LEN`].
    ///
    /// # Safety
    /// `to` points at so many writable numbers that nobody else touches meanwhile.
    unsafe fn narrow(from: &[Self::Acc], to: *mut Self);

    fn join(combine: Combine, into: &mut [Self::Acc], from: &[Self::Acc]);

    fn divide(values: &mut [Self::Acc], by: usize);

    /// Whether all of them are finite once narrowed.
    fn are_finite(values: &[Self::Acc]) -> bool;

    /// Whether what follows, the same for one number, is done in vectors.
    const IS_FUSED: bool;

    fn up(self) -> Self::Acc;

    fn plus(one: Self::Acc, other: Self::Acc) -> Self::Acc;

    fn greater(one: Self::Acc, other: Self::Acc) -> Self::Acc;

    fn over(value: Self::Acc, divisor: usize) -> Self::Acc;

    /// Whether it is not finite once narrowed.
    fn is_bad(value: Self::Acc) -> bool;

    /// Of what is not bad.
    fn down(value: Self::Acc) -> Self;
}

/// The greater, or not a number; branch-free, so that it is done in vectors.
macro_rules! greater {
    ($a:expr, $b:expr) => {{
        let (a, b) = ($a, $b);
        if a > b || a.is_nan() { a } else { b }
    }};
}

macro_rules! float_arithmetic {
    ($float:ty) => {
        fn join(combine: Combine, into: &mut [$float], from: &[$float]) {
            let pairs = into.iter_mut().zip(from);
            match combine {
                Combine::Sum => pairs.for_each(|(into, from)| *into += *from),
                Combine::Max => pairs.for_each(|(into, from)| *into = greater!(*into, *from)),
            }
        }

        fn divide(values: &mut [$float], by: usize) {
            values.iter_mut().for_each(|value| *value /= by as $float);
        }

        #[inline(always)]
        fn plus(one: $float, other: $float) -> $float {
            one + other
        }

        #[inline(always)]
        fn greater(one: $float, other: $float) -> $float {
            greater!(one, other)
        }

        #[inline(always)]
        fn over(value: $float, divisor: usize) -> $float {
            value / divisor as $float
        }
    };
}

macro_rules! plain_float {
    ($float:ident, $bits:ty, $exponent:expr) => {
        impl Element for $float {
            type Acc = $float;

            fn stack(stacks: &mut Stacks) -> &mut Vec<$float> {
                &mut stacks.$float
            }

            unsafe fn widen(from: *const $float, into: &mut [$float]) {
                // SAFETY: the caller vouches for `from`; `into` is private.
                unsafe { ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) };
            }

            unsafe fn fold(combine: Combine, from: *const $float, into: &mut [$float]) {
                for (index, into) in into.iter_mut().enumerate() {
                    // SAFETY: `index` is below the length that the caller vouched for; read by
                    // pointer, once, so that no reference to shared numbers is made.
                    let from = unsafe { *from.add(index) };
                    *into = match combine {
                        Combine::Sum => *into + from,
                        Combine::Max => greater!(*into, from),
                    };
                }
            }

            unsafe fn narrow(from: &[$float], to: *mut $float) {
                // SAFETY: the caller vouches for `to`; `from` is private.
                unsafe { ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) };
            }

            float_arithmetic!($float);

            fn are_finite(values: &[$float]) -> bool {
                !values.iter().fold(false, |any, value| any | Self::is_bad(*value))
            }

            const IS_FUSED: bool = true;

            #[inline(always)]
            fn up(self) -> $float {
                self
            }

            #[inline(always)]
            fn is_bad(value: $float) -> bool {
                const EXPONENT: $bits = $exponent;
                value.to_bits() & EXPONENT == EXPONENT
            }

            #[inline(always)]
            fn down(value: $float) -> $float {
                value
            }
        }
    };
}

plain_float!(f32, u32, 0x7f80_0000);
plain_float!(f64, u64, 0x7ff0_0000_0000_0000);

impl Element for i64 {
    type Acc = i64;

    fn stack(stacks: &mut Stacks) -> &mut Vec<i64> {
        &mut stacks.i64
    }

    unsafe fn widen(from: *const i64, into: &mut [i64]) {
        // SAFETY: the caller vouches for `from`; `into` is private.
        unsafe { ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) };
    }

    unsafe fn fold(combine: Combine, from: *const i64, into: &mut [i64]) {
        for (index, into) in into.iter_mut().enumerate() {
            // SAFETY: `index` is below the length that the caller vouched for.
            let from = unsafe { *from.add(index) };
            *into = match combine {
                Combine::Sum => into.wrapping_add(from),
                Combine::Max => (*into).max(from),
            };
        }
    }

    unsafe fn narrow(from: &[i64], to: *mut i64) {
        // SAFETY: the caller vouches for `to`; `from` is private.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) };
    }

    fn join(combine: Combine, into: &mut [i64], from: &[i64]) {
        let pairs = into.iter_mut().zip(from);
        match combine {
            Combine::Sum => pairs.for_each(|(into, from)| *into = into.wrapping_add(*from)),
            Combine::Max => pairs.for_each(|(into, from)| *into = (*into).max(*from)),
        }
    }

    /// Never asked for: a mean of integers is none.
    fn divide(values: &mut [i64], by: usize) {
        values.iter_mut().for_each(|value| *value /= i64::try_from(by).unwrap_or(i64::MAX));
    }

    fn are_finite(_: &[i64]) -> bool {
        true
    }

    const IS_FUSED: bool = true;

    #[inline(always)]
    fn up(self) -> i64 {
        self
    }

    #[inline(always)]
    fn plus(one: i64, other: i64) -> i64 {
        one.wrapping_add(other)
    }

    #[inline(always)]
    fn greater(one: i64, other: i64) -> i64 {
        one.max(other)
    }

    fn over(value: i64, divisor: usize) -> i64 {
        value / i64::try_from(divisor).unwrap_or(i64::MAX)
    }

    #[inline(always)]
    fn is_bad(_: i64) -> bool {
        false
    }

    #[inline(always)]
    fn down(value: i64) -> i64 {
        value
    }
}

macro_rules! half_float {
    ($half:ident, $least_infinite:expr, $is_fused:expr, $up:expr, $down:expr) => {
        impl Element for $half {
            type Acc = f32;

            fn stack(stacks: &mut Stacks) -> &mut Vec<f32> {
                &mut stacks.f32
            }

            unsafe fn widen(from: *const $half, into: &mut [f32]) {
                let mut bits = [0_u16; CHUNK_LEN];
                let bits = &mut bits[..into.len()];
                // SAFETY: the caller vouches for `from`; `bits` is private.
                unsafe { ptr::copy_nonoverlapping(from.cast(), bits.as_mut_ptr(), bits.len()) };
                bits.reinterpret_cast::<$half>().convert_to_f32_slice(into);
            }

            unsafe fn fold(combine: Combine, from: *const $half, into: &mut [f32]) {
                let mut wide = [0.0; CHUNK_LEN];
                let wide = &mut wide[..into.len()];
                // SAFETY: the caller vouches for `from`.
                unsafe { Self::widen(from, wide) };
                Self::join(combine, into, wide);
            }

            unsafe fn narrow(from: &[f32], to: *mut $half) {
                let mut bits = [0_u16; CHUNK_LEN];
                let bits = &mut bits[..from.len()];
                bits.reinterpret_cast_mut::<$half>().convert_from_f32_slice(from);
                // SAFETY: the caller vouches for `to`; `bits` is private.
                unsafe { ptr::copy_nonoverlapping(bits.as_ptr(), to.cast(), bits.len()) };
            }

            float_arithmetic!(f32);

            fn are_finite(values: &[f32]) -> bool {
                !values.iter().fold(false, |any, value| any | Self::is_bad(*value))
            }

            const IS_FUSED: bool = $is_fused;

            #[inline(always)]
            fn up(self) -> f32 {
                $up(self)
            }

            #[inline(always)]
            fn is_bad(value: f32) -> bool {
                // From here on rounding makes it infinite.
                const LEAST_INFINITE: f32 = $least_infinite;
                value.is_nan() | (LEAST_INFINITE <= value.abs())
            }

            #[inline(always)]
            fn down(value: f32) -> $half {
                $down(value)
            }
        }
    };
}

half_float!(f16, 65520.0, false, f16::to_f32, f16::from_f32);
half_float!(bf16, f32::from_bits(0x7f7f_8000), true, wide_of, nearest_even);

/// Without the library's look at what is not a number, so that it is done in vectors.
#[inline(always)]
fn wide_of(value: bf16) -> f32 {
    f32::from_bits(u32::from(value.to_bits()) << 16)
}

/// The nearest, of two the even one. `value` is a number and not so great that rounding makes it
/// infinite.
#[inline(always)]
fn nearest_even(value: f32) -> bf16 {
    let bits = value.to_bits();
    let rounded = bits + 0x7fff + (bits >> 16 & 1);
    bf16::from_bits((rounded >> 16) as u16)
}
