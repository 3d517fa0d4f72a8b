//! Softmax of rows of scores, and its gradient.

use crate::{
    kernel::{Kernel, max, sums},
    real::Real,
};

/// Rows of scores of consecutive queries.
#[derive(Debug)]
pub(super) struct Scores<'a, T> {
    pub(super) rows: &'a mut [T],
    /// From one row to the next.
    pub(super) stride: usize,
    /// How many elements of a row there are, of the keys that one of the queries attends to.
    pub(super) seen: usize,
    pub(super) scale: T,
}

/// `row = softmax(scale · row)` over the first `len(row)` keys that the mask leaves, zeros elsewhere and where
/// that is nothing. NaN spreads over its row.
#[derive(Debug)]
pub(super) struct Softmax<'a, T, L> {
    pub(super) scores: Scores<'a, T>,
    pub(super) len: L,
    /// 0 for keys that are not attended to.
    pub(super) mask: Option<&'a [i64]>,
}

impl<T: Real, L: Fn(usize) -> usize> Kernel for Softmax<'_, T, L> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Scores { rows, stride, seen, scale } = self.scores;
        for (index, row) in rows.chunks_mut(stride).enumerate() {
            let (row, len) = (&mut row[..seen], (self.len)(index));
            if let Some(mask) = self.mask.map(|mask| &mask[..len]) {
                if mask.iter().all(|&attend| attend == 0) {
                    row.fill(T::ZERO);
                    continue;
                }
                let lowest = T::from_f64(f64::NEG_INFINITY);
                for (x, &attend) in row.iter_mut().zip(mask) {
                    *x = if attend == 0 { lowest } else { *x };
                }
            }
            let max = max(&row[..len]);
            // All of them, so that causal attention does not leave part of a vector over in every row.
            for x in row.iter_mut() {
                *x = ((*x - max) * scale).exp();
            }
            let (row, unseen) = row.split_at_mut(len);
            unseen.fill(T::ZERO);
            let [sum] = sums([&*row], |[x]| [x]);
            let factor = T::from_f64(1.0 / sum);
            for x in row {
                *x = *x * factor;
            }
        }
    }
}

/// `row = p ∘ (row - Σ row ∘ p) · scale`, with `p` from the softmax, laid out like the scores.
#[derive(Debug)]
pub(super) struct SoftmaxGradient<'a, T, L> {
    pub(super) scores: Scores<'a, T>,
    pub(super) len: L,
    pub(super) p: &'a [T],
}

impl<T: Real, L: Fn(usize) -> usize> Kernel for SoftmaxGradient<'_, T, L> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Scores { rows, stride, seen, scale } = self.scores;
        for (index, row) in rows.chunks_mut(stride).enumerate() {
            let (row, unseen) = row[..seen].split_at_mut((self.len)(index));
            let p = &self.p[index * stride..][..row.len()];
            let [dot] = sums([&*row, p], |[x, p]| [x * p]);
            let dot = T::from_f64(dot);
            for (x, &p) in row.iter_mut().zip(p) {
                *x = p * (*x - dot) * scale;
            }
            unseen.fill(T::ZERO);
        }
    }
}
