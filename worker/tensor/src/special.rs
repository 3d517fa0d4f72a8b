//! Functions of `f32` whose loops become vector code: branch-free, made of plain sums and products, so
//! that they give the same bits on every machine.

/// e to the power of `x`, within one unit in the last place (0.68 measured).
///
/// The C library's costs a call per element and picks its code by processor.
///
/// x = n·ln 2 + r with |r| ≤ ln 2 / 2; a polynomial of degree 6 for e^r; 2^n as two factors, so that
/// results run out gently into subnormals and infinity. NaN stays NaN.
///
/// # Source
/// Moshier's Cephes library, `expf`.
#[inline(always)]
pub(crate) fn exp_f32(x: f32) -> f32 {
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

/// Hyperbolic tangent, within 2 units in the last place.
///
/// A polynomial for |x| < 0.625, found by least squares that were reweighted until the relative
/// error was even (0.1 units); 1 - 2 / (e^2|x| + 1) beyond. NaN stays NaN.
#[inline(always)]
pub(crate) fn tanh_f32(x: f32) -> f32 {
    let size = x.abs();
    let far = 1.0 - 2.0 / (exp_f32(size + size) + 1.0);
    let s = x * x;
    let mut p = -5.666_979_6e-3_f32;
    p = p * s + 2.060_617_9e-2;
    p = p * s - 5.373_000_7e-2;
    p = p * s + 1.333_133_1e-1;
    p = p * s - 3.333_327_8e-1;
    let near = x + x * (s * p);
    if size < 0.625 { near.copysign(x) } else { far.copysign(x) }
}

/// The normal distribution's Φ(x) = (1 + erf(x/√2)) / 2 and e^(-x²/2), with one exponential for both.
///
/// For |x| < 1.315 a polynomial in x² for erf. Beyond, Φ(-|x|) = e^(-x²/2) · t · P(t) with t = 1 / (1 + c|x|) and P of degree 7,
/// and Φ(|x|) is 1 less that. Both were found by least squares that were reweighted until the relative error was even (9.4e-8 up
/// to |x| = 14 for the second). Rounding included, Φ is off by less than 1.1e-7, and by less than 8e-7 of itself for
/// x > -5, 5e-6 for x > -12.9, where f32 ends. NaN stays NaN.
#[inline(always)]
pub(crate) fn normal_f32(x: f32) -> (f32, f32) {
    let s = x * x * 0.5;
    let z = x * std::f32::consts::FRAC_1_SQRT_2;
    let mut p = -5.953_940_6e-4_f32;
    p = p * s + 4.985_988e-3;
    p = p * s - 2.676_176e-2;
    p = p * s + 1.128_168_4e-1;
    p = p * s - 3.761_248e-1;
    p = p * s + 1.283_791_2e-1;
    let near = 0.5 + z * (0.5 + 0.5 * p);
    let t = 1.0 / (1.0 + 0.305 * x.abs());
    let mut p = 3.669_911_6e-2_f32;
    p = p * t - 1.529_88e-1;
    p = p * t + 1.857_163_8e-1;
    p = p * t - 3.797_636e-2;
    p = p * t + 1.210_214_4e-1;
    p = p * t + 1.034_209_4e-1;
    p = p * t + 1.224_668_1e-1;
    p = p * t + 1.216_397_4e-1;
    let bell = exp_f32(-s);
    let tail = p * t * bell;
    let far = if 0.0 <= x { 1.0 - tail } else { tail };
    (if x.abs() < 1.315 { near } else { far }, bell)
}

/// Natural logarithm of 1 + `x` for 0 ≤ x ≤ 1, within 2 units in the last place. NaN stays NaN.
///
/// ln (1 + x) = 2 artanh s with s = x / (2 + x) ≤ 1/3, by the series of artanh up to s¹⁵; what is left
/// out is below s¹⁶ / 17, a fortieth of a unit.
#[inline(always)]
pub(crate) fn ln_1p_unit_f32(x: f32) -> f32 {
    let s = x / (2.0 + x);
    let z = s * s;
    let mut p = 1.0 / 15.0_f32;
    p = p * z + 1.0 / 13.0;
    p = p * z + 1.0 / 11.0;
    p = p * z + 1.0 / 9.0;
    p = p * z + 1.0 / 7.0;
    p = p * z + 1.0 / 5.0;
    p = p * z + 1.0 / 3.0;
    let double = s + s;
    double + double * (z * p)
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

    fn worst_units(from: f32, to: f32, ours: fn(f32) -> f32, truth: fn(f64) -> f64) -> f64 {
        let mut worst = 0.0_f64;
        for step in 0..1_000_000_u32 {
            let x = from + (to - from) * (step as f32 / 1e6);
            let exact = truth(f64::from(x));
            // The distance of the neighbouring floats at the exact value.
            let unit = f64::from((exact as f32).abs().next_up() - (exact as f32).abs());
            worst = worst.max((f64::from(ours(x)) - exact).abs() / unit);
        }
        worst
    }

    #[test]
    fn tanh_is_within_two_units_of_the_last_place() {
        let worst = worst_units(-10.0, 10.0, tanh_f32, f64::tanh);
        assert!(worst < 2.0, "{worst} units");
        assert_eq!((tanh_f32(100.0), tanh_f32(f32::NEG_INFINITY)), (1.0, -1.0));
        assert!(tanh_f32(f32::NAN).is_nan());
        assert_eq!(tanh_f32(-0.0).to_bits(), (-0.0_f32).to_bits());
    }

    #[test]
    fn the_normal_distribution_is_within_its_bounds() {
        let (mut worst, mut near, mut far) = (0.0_f64, 0.0_f64, 0.0_f64);
        for step in 0..2_000_000_u32 {
            let x = -14.0 + step as f32 * (28.0 / 2e6);
            let exact = 0.5 * libm::erfc(-f64::from(x) * std::f64::consts::FRAC_1_SQRT_2);
            let error = (f64::from(normal_f32(x).0) - exact).abs();
            worst = worst.max(error);
            if -5.0 < x {
                near = near.max(error / exact);
            } else if -12.9 < x {
                far = far.max(error / exact);
            }
        }
        assert!(worst < 1.1e-7 && near < 8e-7 && far < 5e-6, "{worst}, {near}, {far}");
        assert_eq!(normal_f32(f32::INFINITY), (1.0, 0.0));
        assert_eq!(normal_f32(f32::NEG_INFINITY), (0.0, 0.0));
        assert_eq!(normal_f32(0.0).1, 1.0);
        assert!(normal_f32(f32::NAN).0.is_nan() && normal_f32(f32::NAN).1.is_nan());
    }

    #[test]
    fn ln_1p_is_within_two_units_of_the_last_place_from_0_to_1() {
        for (from, to) in [(0.0, 1e-6), (0.0, 1.0)] {
            let worst = worst_units(from, to, ln_1p_unit_f32, f64::ln_1p);
            assert!(worst < 2.0, "{worst} units");
        }
        assert_eq!(ln_1p_unit_f32(1.0), std::f32::consts::LN_2);
        assert_eq!(ln_1p_unit_f32(1e-30), 1e-30);
        assert!(ln_1p_unit_f32(f32::NAN).is_nan());
    }
}
