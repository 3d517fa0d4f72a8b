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

impl<T: Real> Scores<'_, T> {
    /// Each row's number, where it begins, and the row: first its own `len` keys, then the rest.
    #[inline(always)]
    fn each(&mut self, len: impl Fn(usize) -> usize, mut visit: impl FnMut(usize, &mut [T])) {
        for (index, row) in self.rows.chunks_mut(self.stride).enumerate() {
            let (row, unseen) = row[..self.seen].split_at_mut(len(index));
            visit(index * self.stride, row);
            unseen.fill(T::ZERO);
        }
    }
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
    fn run(mut self) {
        let (scale, mask) = (self.scores.scale, self.mask);
        self.scores.each(self.len, |_, row| {
            if let Some(mask) = mask.map(|mask| &mask[..row.len()]) {
                if mask.iter().all(|&attend| attend == 0) {
                    return row.fill(T::ZERO);
                }
                let lowest = T::from_f64(f64::NEG_INFINITY);
                row.iter_mut().zip(mask).for_each(|(x, &m)| *x = if m == 0 { lowest } else { *x });
            }
            let max = max(row);
            row.iter_mut().for_each(|x| *x = ((*x - max) * scale).exp());
            let [sum] = sums([&*row], |[x]| [x]);
            let factor = T::from_f64(1.0 / sum);
            row.iter_mut().for_each(|x| *x = *x * factor);
        });
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
    fn run(mut self) {
        let (scale, p) = (self.scores.scale, self.p);
        self.scores.each(self.len, |start, row| {
            let p = &p[start..][..row.len()];
            let [dot] = sums([&*row, p], |[x, p]| [x * p]);
            let dot = T::from_f64(dot);
            row.iter_mut().zip(p).for_each(|(x, &p)| *x = p * (*x - dot) * scale);
        });
    }
}
