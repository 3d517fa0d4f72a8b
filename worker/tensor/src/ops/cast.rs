//! Floats rounded to what a narrower kind can hold.

use serde::{Deserialize, Serialize};

use super::unary::ElementWise;
use crate::real::Real;

/// A float of 16 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Half {
    /// 8 bits of exponent, 7 of fraction: the upper half of an f32.
    Bf16,
    /// 5 bits of exponent, 10 of fraction: IEEE 754's binary16.
    F16,
}

/// Bits of an f64's fraction.
const FRACTION: i64 = 52;
const BIAS: i64 = 1023;

impl Half {
    /// Bits of the fraction, exponent of the least normal number, exponent of the greatest number.
    fn format(self) -> (i64, i64, i64) {
        match self {
            Self::Bf16 => (7, -126, 127),
            Self::F16 => (10, -14, 15),
        }
    }

    /// To the nearest number of this kind, to the even one of two; what is too large becomes infinite.
    ///
    /// A number of the size of 1.5 · 2⁵² units of the result's last place is added and taken off
    /// again: the sum has no room for anything smaller.
    #[inline(always)]
    fn round(self, x: f64) -> f64 {
        let (fraction, least, greatest) = self.format();
        let exponent = ((x.to_bits() >> FRACTION) & 0x7ff) as i64 - BIAS;
        let unit = exponent.clamp(least, greatest + 1) - fraction;
        let room = f64::from_bits(((unit + FRACTION + BIAS) as u64) << FRACTION) * 1.5;
        let rounded = (x.abs() + room) - room;
        let limit = f64::from_bits(((greatest + 1 + BIAS) as u64) << FRACTION);
        let size = if limit <= rounded { f64::INFINITY } else { rounded };
        size.copysign(x)
    }
}

/// Rounds values, and their gradients on the way back.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cast(pub(super) Half);

impl ElementWise for Cast {
    #[inline(always)]
    fn value<T: Real>(&self, x: T) -> T {
        T::from_f64(self.0.round(x.to_f64()))
    }

    #[inline(always)]
    fn chain<T: Real>(&self, grad: T, _x: T, _y: T) -> T {
        self.value(grad)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers of a kind, from 0 up, by their definition; infinity follows the last.
    fn all(kind: Half) -> Vec<f64> {
        let (fraction, least, greatest) = kind.format();
        let ones = 1_i64 << fraction;
        let of = |exponent: i64, significand: i64| {
            significand as f64 * 2.0_f64.powi((exponent - fraction) as i32)
        };
        let subnormal = (0..ones).map(|i| of(least, i));
        let normal = (least..=greatest).flat_map(|e| (ones..2 * ones).map(move |i| of(e, i)));
        subnormal.chain(normal).collect()
    }

    #[test]
    fn every_number_of_a_kind_stays_and_the_middle_of_two_goes_to_the_even_one() {
        for kind in [Half::Bf16, Half::F16] {
            let mut numbers = all(kind);
            let last = numbers[numbers.len() - 1];
            // Where the next number would be, infinity begins to be nearer.
            numbers.push(last + (last - numbers[numbers.len() - 2]));
            for (i, pair) in numbers.windows(2).enumerate() {
                let (low, middle, high) = (pair[0], (pair[0] + pair[1]) / 2.0, pair[1]);
                let high = if last < high { f64::INFINITY } else { high };
                let even = if i % 2 == 0 { low } else { high };
                for (x, expected) in [
                    (low, low),
                    (middle, even),
                    (middle.next_down(), low),
                    (middle.next_up(), high),
                ] {
                    assert_eq!(kind.round(x), expected, "{kind:?} {x:e}");
                    assert_eq!(kind.round(-x), -expected, "{kind:?} {x:e}");
                }
            }
        }
    }

    #[test]
    fn infinity_and_nan_and_the_sign_of_zero_stay() {
        for kind in [Half::Bf16, Half::F16] {
            assert_eq!(kind.round(f64::INFINITY), f64::INFINITY);
            assert_eq!(kind.round(-1e300), f64::NEG_INFINITY);
            assert!(kind.round(f64::NAN).is_nan());
            assert!(kind.round(-0.0).is_sign_negative());
            assert_eq!(kind.round(5e-324), 0.0);
        }
        assert_eq!((Half::F16.round(65519.9), Half::F16.round(65520.0)), (65504.0, f64::INFINITY));
        assert_eq!(
            (Half::Bf16.round(1.0 + 1.0 / 256.0), Half::Bf16.round(3.4e38)),
            (1.0, f64::INFINITY)
        );
    }
}
