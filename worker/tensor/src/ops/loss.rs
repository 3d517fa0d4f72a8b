//! Losses, one for each row or element; a sum or mean makes them one number.

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use super::{
    Call, Chain, Forward, Operation, Target,
    broadcast::{Pairwise, Share, Value},
};
use crate::{
    error::OpError,
    kernel::{Write, evaluate, exponential_sum, exponentials, max, rows_of_piece, sums, zip},
    meta::{DType, Meta},
    real::Real,
};

/// Settings of a cross-entropy.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct CrossEntropy {
    /// Share of the target that is spread evenly over all classes, from 0 to 1.
    pub label_smoothing: f64,
    /// Rows with this target have loss 0 and no gradient.
    pub ignore_index: Option<i64>,
}

impl Operation for CrossEntropy {
    fn arity(&self) -> RangeInclusive<usize> {
        2..=2
    }

    fn infer(&self, call: &Call<'_>, out: &mut Meta) -> Result<(), OpError> {
        let (x, target) = (call.inputs[0], call.inputs[1]);
        call.require(x.dtype.is_float(), "x must be of floats")?;
        call.require(target.dtype == DType::I64, "the target must be i64")?;
        call.require(x.rank() == 2 && target.rank() == 1, "x must be [n, c], the target [n]")?;
        call.require(x.shape[0] == target.shape[0], "x and the target must have as many rows")?;
        call.require(0 < x.shape[1], "there must be a class")?;
        let share = 0.0..=1.0;
        call.require(share.contains(&self.label_smoothing), "label_smoothing must be in 0..=1")?;
        out.set(x.dtype, &target.shape);
        Ok(())
    }

    /// The row's maximum m and L = ln Σ e^(x - m), in turn.
    fn saved_len(&self, _inputs: &[&Meta], out: &Meta) -> usize {
        2 * out.len()
    }

    /// With ε the smoothing and c classes: `(1 - ε)(L - (x[t] - m)) + ε (L - Σ(x - m)/c)`.
    ///
    /// # Source
    /// Szegedy et al., Rethinking the Inception Architecture, 2016, for the smoothing.
    fn forward<T: Real>(&self, cx: Forward<'_, T>) -> Result<(), OpError> {
        let (x, targets) = (cx.inputs[0].floats, cx.inputs[1].ints);
        let classes = cx.inputs[0].meta.shape[1];
        for (row, &index) in targets.iter().enumerate() {
            let is_class = usize::try_from(index).is_ok_and(|target| target < classes);
            if Some(index) != self.ignore_index && !is_class {
                let (op, len) = ("cross_entropy", classes);
                return Err(OpError::IndexOutOfRange { op, row, index, len });
            }
        }
        let rows = rows_of_piece(classes);
        cx.threads.for_each_pair((cx.out.floats, cx.saved), (rows, 2 * rows), |piece, y, saved| {
            let places = (piece * rows..).zip(y).zip(saved.chunks_exact_mut(2));
            for ((row, loss), saved) in places {
                saved.fill(T::ZERO);
                *loss = T::ZERO;
                if Some(targets[row]) != self.ignore_index {
                    let x = &x[row * classes..][..classes];
                    (*loss, saved[0], saved[1]) = self.row(x, targets[row] as usize);
                }
            }
        });
        Ok(())
    }

    /// `dx = g (e^(x - m - L) - ε/c)`, and at the target `(1 - ε) g` less.
    fn gradient<T: Real>(&self, _which: usize, chain: &Chain<'_, T>, to: Target<'_, T>) {
        let (x, targets) = (chain.inputs[0].floats, chain.inputs[1].ints);
        let classes = chain.inputs[0].meta.shape[1];
        let even = T::from_f64(self.label_smoothing / classes as f64);
        let hit = T::from_f64(1.0 - self.label_smoothing);
        let rows = rows_of_piece(classes);
        chain.threads.for_each_chunk(to.dst, rows * classes, |piece, dst| {
            for (row, dst) in (piece * rows..).zip(dst.chunks_exact_mut(classes)) {
                let (x, target, g) = (&x[row * classes..], targets[row], chain.grad[row]);
                if Some(target) == self.ignore_index {
                    if to.mode == Write::Set {
                        dst.fill(T::ZERO);
                    }
                    continue;
                }
                let (max, log) = (chain.saved[2 * row], chain.saved[2 * row + 1]);
                exponentials(
                    classes,
                    |at, e| zip(e, Write::Set, [&x[at..]], |[x]| (x - max) - log),
                    |at, e| zip(&mut dst[at..][..e.len()], to.mode, [e], |[e]| g * (e - even)),
                );
                dst[target as usize] += -(g * hit);
            }
        });
    }
}

impl CrossEntropy {
    /// Loss, maximum and the logarithm of the sum of a row.
    fn row<T: Real>(&self, x: &[T], target: usize) -> (T, T, T) {
        let (max, classes) = (max(x), x.len() as f64);
        let sum = exponential_sum(x, max);
        let log = sum.ln();
        let hit = log - (x[target] - max).to_f64();
        let loss = if self.label_smoothing == 0.0 {
            hit
        } else {
            let [rest] = sums([x], |[x]| [x - max]);
            (1.0 - self.label_smoothing) * hit + self.label_smoothing * (log - rest / classes)
        };
        (T::from_f64(loss), max, T::from_f64(log))
    }
}

/// A pairwise function of two tensors of one shape.
#[derive(Debug, Clone, Copy)]
pub(super) struct ElementLoss<P>(pub(super) P);

impl<P: Pairwise> Operation for ElementLoss<P> {
    fn arity(&self) -> RangeInclusive<usize> {
        2..=2
    }

    fn infer(&self, call: &Call<'_>, out: &mut Meta) -> Result<(), OpError> {
        let dtype = call.floats()?;
        let (x, target) = (call.inputs[0], call.inputs[1]);
        call.require(x.shape == target.shape, "the shapes must be equal")?;
        out.set(dtype, &x.shape);
        Ok(())
    }

    fn forward<T: Real>(&self, cx: Forward<'_, T>) -> Result<(), OpError> {
        let (x, target) = (cx.inputs[0].floats, cx.inputs[1].floats);
        evaluate(cx.threads, cx.out.floats, Write::Set, [x, target], &Value(&self.0));
        Ok(())
    }

    fn gradient<T: Real>(&self, which: usize, chain: &Chain<'_, T>, to: Target<'_, T>) {
        let (x, target) = (chain.inputs[0].floats, chain.inputs[1].floats);
        let from = [chain.grad, x, target];
        evaluate(chain.threads, to.dst, to.mode, from, &Share(&self.0, which));
    }
}

/// `(x - t)²`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Squared;

impl Pairwise for Squared {
    #[inline(always)]
    fn value<T: Real>(&self, x: T, t: T) -> T {
        (x - t) * (x - t)
    }

    #[inline(always)]
    fn chain<T: Real>(&self, which: usize, grad: T, x: T, t: T) -> T {
        let slope = grad * ((x - t) + (x - t));
        if which == 0 { slope } else { -slope }
    }
}

/// `-t ln σ(x) - (1 - t) ln(1 - σ(x))`, computed as `(1 - t) x - min(x, 0) + ln(1 + e^-|x|)`, in
/// which nothing overflows or cancels.
#[derive(Debug, Clone, Copy)]
pub(super) struct BceWithLogits;

impl Pairwise for BceWithLogits {
    #[inline(always)]
    fn value<T: Real>(&self, x: T, t: T) -> T {
        let low = if x < T::ZERO { x } else { T::ZERO };
        (T::ONE - t) * x - low + away_from_zero(x).exp().ln_1p_unit()
    }

    /// `dx = g (σ(x) - t)`, `dt = -g x`.
    #[inline(always)]
    fn chain<T: Real>(&self, which: usize, grad: T, x: T, t: T) -> T {
        let e = away_from_zero(x).exp();
        let sigmoid = (if x < T::ZERO { e } else { T::ONE }) / (T::ONE + e);
        if which == 0 { grad * (sigmoid - t) } else { -(grad * x) }
    }
}

/// -|x|.
#[inline(always)]
fn away_from_zero<T: Real>(x: T) -> T {
    if x < T::ZERO { x } else { -x }
}

/// `t (ln t - x)`, x being the logarithm of a probability; 0 where t is 0.
#[derive(Debug, Clone, Copy)]
pub(super) struct KlDiv;

impl Pairwise for KlDiv {
    #[inline(always)]
    fn value<T: Real>(&self, x: T, t: T) -> T {
        if t == T::ZERO { T::ZERO } else { t * (t.ln() - x) }
    }

    /// `dx = -g t`, `dt = g (ln t + 1 - x)`; 0 where t is 0.
    #[inline(always)]
    fn chain<T: Real>(&self, which: usize, grad: T, x: T, t: T) -> T {
        match which {
            0 => -(grad * t),
            _ if t == T::ZERO => T::ZERO,
            _ => grad * (t.ln() + T::ONE - x),
        }
    }
}
