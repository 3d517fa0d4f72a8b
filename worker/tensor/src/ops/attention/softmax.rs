//! Softmax of one row of scores, and its gradient.

use crate::real::Real;

const LANES: usize = 16;

/// `row = softmax(scale · row)` over what the mask leaves; zeros if that is nothing. NaN spreads.
#[inline(always)]
pub(super) fn softmax<T: Real>(row: &mut [T], mask: Option<&[i64]>, scale: T) {
    let lowest = T::from_f64(f64::NEG_INFINITY);
    let greater = |a: T, b: T| if a < b { b } else { a };
    if let Some(mask) = mask {
        let mask = &mask[..row.len()];
        let kept = |x: T, attend: i64| if attend == 0 { lowest } else { x };
        let max = lanes(row.len(), lowest, |i| kept(row[i], mask[i]), greater);
        for (x, &attend) in row.iter_mut().zip(mask) {
            let exp = ((*x - max) * scale).exp();
            *x = if attend == 0 { T::ZERO } else { exp };
        }
    } else {
        let max = lanes(row.len(), lowest, |i| row[i], greater);
        for x in row.iter_mut() {
            *x = ((*x - max) * scale).exp();
        }
    }
    let total = lanes(row.len(), T::ZERO, |i| row[i], |a, b| a + b);
    // The greatest element's share is 1: only a row that attends to nothing sums to 0.
    let factor = if total == T::ZERO { T::ZERO } else { T::ONE / total };
    for x in row.iter_mut() {
        *x = *x * factor;
    }
}

/// `row = p ∘ (row - Σ row ∘ p) · scale`.
#[inline(always)]
pub(super) fn softmax_gradient<T: Real>(row: &mut [T], p: &[T], scale: T) {
    let dot = lanes(row.len(), T::ZERO, |i| row[i] * p[i], |a, b| a + b);
    for (x, &p) in row.iter_mut().zip(p) {
        *x = p * (*x - dot) * scale;
    }
}

/// Joins `value(0..len)` in an order that vectorises.
///
/// # Determinism
/// Element i goes to partial result i mod [`LANES`], and these are joined in pairs, whatever the machine.
#[inline(always)]
fn lanes<T: Real>(len: usize, start: T, value: impl Fn(usize) -> T, join: impl Fn(T, T) -> T) -> T {
    let mut lanes = [start; LANES];
    let whole = len - len % LANES;
    for first in (0..whole).step_by(LANES) {
        for (lane, partial) in lanes.iter_mut().enumerate() {
            *partial = join(*partial, value(first + lane));
        }
    }
    for i in whole..len {
        lanes[i - whole] = join(lanes[i - whole], value(i));
    }
    let mut half = LANES / 2;
    while 0 < half {
        for lane in 0..half {
            lanes[lane] = join(lanes[lane], lanes[lane + half]);
        }
        half /= 2;
    }
    lanes[0]
}
