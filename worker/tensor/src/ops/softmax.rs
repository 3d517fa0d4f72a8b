//! Softmax and its logarithm, over the last axis.

use std::ops::RangeInclusive;

use super::{Call, Chain, Forward, Operation, Target};
use crate::{
    error::OpError,
    kernel::{Write, exp_each, exponential_sum, exponentials, max, rows_of_piece, sums, zip},
    meta::Meta,
    real::Real,
};

#[derive(Debug, Clone, Copy)]
pub(super) struct Softmax;

impl Operation for Softmax {
    fn arity(&self) -> RangeInclusive<usize> {
        1..=1
    }

    fn infer(&self, call: &Call<'_>, out: &mut Meta) -> Result<(), OpError> {
        infer(call, out)
    }

    /// `y = e^(x - m) / Σ e^(x - m)` with m the row's maximum. A row with NaN becomes NaN.
    fn forward<T: Real>(&self, cx: Forward<'_, T>) -> Result<(), OpError> {
        let classes = cx.inputs[0].meta.last().unwrap_or(1);
        let x = cx.inputs[0].floats;
        let rows = rows_of_piece(classes);
        cx.threads.for_each_chunk(cx.out.floats, rows * classes, |piece, y| {
            for (row, y) in (piece * rows..).zip(y.chunks_exact_mut(classes)) {
                let x = &x[row * classes..][..classes];
                let max = max(x);
                zip(y, Write::Set, [x], |[x]| x - max);
                exp_each(y);
                let [sum] = sums([&*y], |[y]| [y]);
                let factor = T::from_f64(1.0 / sum);
                y.iter_mut().for_each(|y| *y = *y * factor);
            }
        });
        Ok(())
    }

    /// `dx = y (g - Σ g y)`.
    fn gradient<T: Real>(&self, _which: usize, chain: &Chain<'_, T>, to: Target<'_, T>) {
        let classes = chain.inputs[0].meta.last().unwrap_or(1);
        let (rows, y, g) = (rows_of_piece(classes), chain.output, chain.grad);
        chain.threads.for_each_chunk(to.dst, rows * classes, |piece, dst| {
            for (row, dst) in (piece * rows..).zip(dst.chunks_exact_mut(classes)) {
                let [y, g] = [y, g].map(|slice| &slice[row * classes..][..classes]);
                let [total] = sums([y, g], |[y, g]| [y * g]);
                let total = T::from_f64(total);
                zip(dst, to.mode, [y, g], |[y, g]| y * (g - total));
            }
        });
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct LogSoftmax;

impl Operation for LogSoftmax {
    fn arity(&self) -> RangeInclusive<usize> {
        1..=1
    }

    fn infer(&self, call: &Call<'_>, out: &mut Meta) -> Result<(), OpError> {
        infer(call, out)
    }

    /// `y = x - m - ln Σ e^(x - m)` with m the row's maximum. A row with NaN becomes NaN.
    fn forward<T: Real>(&self, cx: Forward<'_, T>) -> Result<(), OpError> {
        let classes = cx.inputs[0].meta.last().unwrap_or(1);
        let x = cx.inputs[0].floats;
        let rows = rows_of_piece(classes);
        cx.threads.for_each_chunk(cx.out.floats, rows * classes, |piece, y| {
            for (row, y) in (piece * rows..).zip(y.chunks_exact_mut(classes)) {
                let x = &x[row * classes..][..classes];
                let max = max(x);
                let log = T::from_f64(exponential_sum(x, max).ln());
                zip(y, Write::Set, [x], |[x]| (x - max) - log);
            }
        });
        Ok(())
    }

    /// `dx = g - e^y Σ g`.
    fn gradient<T: Real>(&self, _which: usize, chain: &Chain<'_, T>, to: Target<'_, T>) {
        let classes = chain.inputs[0].meta.last().unwrap_or(1);
        let (rows, y, g) = (rows_of_piece(classes), chain.output, chain.grad);
        chain.threads.for_each_chunk(to.dst, rows * classes, |piece, dst| {
            for (row, dst) in (piece * rows..).zip(dst.chunks_exact_mut(classes)) {
                let [y, g] = [y, g].map(|slice| &slice[row * classes..][..classes]);
                let [total] = sums([g], |[g]| [g]);
                let total = T::from_f64(total);
                exponentials(
                    classes,
                    |at, e| e.copy_from_slice(&y[at..][..e.len()]),
                    |at, e| {
                        let dst = &mut dst[at..][..e.len()];
                        zip(dst, to.mode, [e, &g[at..]], |[e, g]| g - e * total);
                    },
                );
            }
        });
    }
}

fn infer(call: &Call<'_>, out: &mut Meta) -> Result<(), OpError> {
    let dtype = call.floats()?;
    let x = call.inputs[0];
    call.require(x.last().is_some_and(|c| 0 < c), "the last axis must have an element")?;
    out.set(dtype, &x.shape);
    Ok(())
}
