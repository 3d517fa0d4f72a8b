//! LAMB: the one rule whose step depends on more than its own element.

use super::{
    Segment,
    clip::{GradMap, add_lanes, add_squares},
    pieces::{Arenas, for_each},
    rules::Means,
};
use crate::real::Real;

/// Settings for this step. The formula is [`super::Optimizer::Lamb`]'s.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lamb<T> {
    pub(super) means: Means<T>,
    /// 1 / (1 - β1ᵗ) and 1 / √(1 - β2ᵗ): products in the place of quotients, two of three of which would
    /// cost as much as the rest of the pass.
    pub(super) corrections: (T, T),
    pub(super) eps: T,
}

impl<T: Real> Lamb<T> {
    /// Updates a parameter: a pass for the moments and both norms, a pass for the weights. `lr` is
    /// that of the segment.
    ///
    /// # Determinism
    /// Norms are formed as [`super::UpdatePlan::grad_norm`] says.
    pub(super) fn update(
        self,
        mut arenas: Arenas<'_, T, 2>,
        segment: &Segment,
        grad: GradMap<T>,
        lr: f64,
    ) {
        let decay = T::from_f64(segment.weight_decay);
        let (mut of_weights, mut of_steps) = (0.0, 0.0);
        for piece in arenas.reborrow().pieces() {
            let (weights, steps) = self.update_moments(piece, grad, decay);
            of_weights += weights;
            of_steps += steps;
        }
        let adapts = segment.weight_decay != 0.0 && 0.0 < of_weights && 0.0 < of_steps;
        let ratio = if adapts { of_weights.sqrt() / of_steps.sqrt() } else { 1.0 };
        let lr = T::from_f64(lr * ratio);
        for_each(arenas.pieces(), |Arenas { weights, moments: [m, v], .. }| {
            self.update_weights(weights, m, v, decay, lr);
        });
    }

    /// Direction and length of a step, up to the learning rate.
    #[inline(always)]
    fn direction(self, w: T, m: T, v: T, decay: T) -> T {
        let (correction1, correction2) = self.corrections;
        (m * correction1) / (v.sqrt() * correction2 + self.eps) + decay * w
    }

    /// Returns the sums of the squares of w and of u.
    fn update_moments(self, piece: Arenas<'_, T, 2>, grad: GradMap<T>, decay: T) -> (f64, f64) {
        let Arenas { weights, grads, moments: [m, v] } = piece;
        let (mut of_weights, mut of_steps) = ([0.0; 8], [0.0; 8]);
        let inputs = weights.chunks(8).zip(grads.chunks(8));
        for ((w, g), (m, v)) in inputs.zip(m.chunks_mut(8).zip(v.chunks_mut(8))) {
            let mut steps = [T::ZERO; 8];
            for ((((&w, &g), m), v), step) in w.iter().zip(g).zip(m).zip(v).zip(&mut steps) {
                (*m, *v) = self.means.update(grad.apply(g), *m, *v);
                *step = self.direction(w, *m, *v, decay);
            }
            add_squares(&mut of_weights, w);
            add_squares(&mut of_steps, &steps);
        }
        (add_lanes(of_weights), add_lanes(of_steps))
    }

    fn update_weights(self, weights: &mut [T], m: &[T], v: &[T], decay: T, lr: T) {
        for ((w, &m), &v) in weights.iter_mut().zip(m).zip(v) {
            *w = *w - lr * self.direction(*w, m, v, decay);
        }
    }
}
