//! Bounds on gradients, as a factor and a bound that the update's own pass applies.

use super::pieces::cut;
use super::{Segment, UpdatePlan, step::StepError};
use crate::{
    real::Real,
    setting::{SettingError, positive},
};

/// How gradients are bounded before they are used.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Clip {
    /// Not at all.
    #[default]
    None,
    /// All are multiplied by min(1, max / (norm + 1e-6)), where norm is the Euclidean norm of all
    /// gradients that are used, after `grad_scale`. PyTorch's `clip_grad_norm_`.
    GlobalNorm {
        /// Above 0.
        max: f64,
    },
    /// Each element, after `grad_scale`, is brought into -bound..=bound. PyTorch's `clip_grad_value_`.
    Value {
        /// Above 0.
        bound: f64,
    },
}

/// What becomes of a gradient's element: a product, then a bound.
#[derive(Debug, Clone, Copy)]
pub(super) struct GradMap<T> {
    pub(super) scale: T,
    /// Infinite if there is none.
    pub(super) bound: T,
}

impl<T: Real> GradMap<T> {
    #[inline(always)]
    pub(super) fn apply(self, grad: T) -> T {
        let grad = grad * self.scale;
        // NaN passes both.
        let grad = if self.bound < grad { self.bound } else { grad };
        if grad < -self.bound { -self.bound } else { grad }
    }
}

impl Clip {
    pub(super) fn check(&self) -> Result<(), SettingError> {
        match *self {
            Self::None => Ok(()),
            Self::GlobalNorm { max } => positive("clip.max", max, 1e30),
            Self::Value { bound } => positive("clip.bound", bound, 1e30),
        }
    }
}

impl UpdatePlan {
    /// The Euclidean norm of all gradients that are used, after `grad_scale` and before clipping.
    ///
    /// # Determinism
    /// Squares and sums in `f64`. Segments are cut into pieces of [`super::PIECE_LEN`] elements; element
    /// i of a piece goes to its partial sum i mod 8, these are added in pairs, and the pieces' sums in
    /// arena order.
    pub fn grad_norm<T: Real>(&self, grads: &[T], grad_scale: f64) -> Result<f64, StepError> {
        self.check_len("gradients", grads.len())?;
        let squares = |segment: &Segment| -> f64 {
            cut(segment.range.clone()).map(|piece| sum_of_squares(&grads[piece])).sum()
        };
        let squares = self.segments.iter().fold(0.0, |sum, segment| sum + squares(segment));
        Ok(squares.sqrt() * grad_scale)
    }
}

fn sum_of_squares<T: Real>(values: &[T]) -> f64 {
    let mut lanes = [0.0_f64; 8];
    let (whole, rest) = values.as_chunks::<8>();
    for chunk in whole {
        add_squares(&mut lanes, chunk);
    }
    add_squares(&mut lanes, rest);
    add_lanes(lanes)
}

#[inline(always)]
pub(super) fn add_squares<T: Real>(lanes: &mut [f64; 8], values: &[T]) {
    for (lane, value) in lanes.iter_mut().zip(values) {
        let value = value.to_f64();
        *lane += value * value;
    }
}

pub(super) fn add_lanes([a, b, c, d, e, f, g, h]: [f64; 8]) -> f64 {
    ((a + e) + (c + g)) + ((b + f) + (d + h))
}
