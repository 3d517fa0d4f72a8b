//! Normalisation of rows, and the running statistics of batch normalisation.

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use super::{Call, Chain, Forward, Operation, Target};
use crate::{
    error::OpError,
    kernel::{Write, rows_of_piece, sum_columns, sums, zip},
    meta::Meta,
    real::Real,
};

/// Settings of a layer norm.
///
/// # Source
/// Ba, Kiros and Hinton, Layer Normalization, 2016.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LayerNorm {
    /// Added to the variance; 0 or more.
    pub eps: f64,
}

impl Operation for LayerNorm {
    fn arity(&self) -> RangeInclusive<usize> {
        3..=3
    }

    fn infer(&self, call: &Call<'_>, out: &mut Meta) -> Result<(), OpError> {
        infer(call, self.eps, out)
    }

    /// Mean and inverse deviation of each row, in turn.
    fn saved_len(&self, inputs: &[&Meta], out: &Meta) -> usize {
        2 * (out.len() / width(inputs[0]))
    }

    /// `y = (x - mean) / σ · weight + bias` with σ = √(variance + eps); the variance is the mean of
    /// `(x - mean)²`, in a second pass.
    fn forward<T: Real>(&self, cx: Forward<'_, T>) -> Result<(), OpError> {
        let d = width(cx.inputs[0].meta);
        let [x, weight, bias] = std::array::from_fn(|i| cx.inputs[i].floats);
        let rows = rows_of_piece(d);
        let lens = (rows * d, 2 * rows);
        cx.threads.for_each_pair((cx.out.floats, cx.saved), lens, |piece, y, saved| {
            let places = (piece * rows..).zip(saved.chunks_exact_mut(2));
            for (y, (row, saved)) in y.chunks_exact_mut(d).zip(places) {
                let x = &x[row * d..][..d];
                let [sum] = sums([x], |[x]| [x]);
                let mean = T::from_f64(sum / d as f64);
                let [squares] = sums([x], |[x]| [(x - mean) * (x - mean)]);
                let inverse = T::from_f64(1.0 / (squares / d as f64 + self.eps).sqrt());
                saved.copy_from_slice(&[mean, inverse]);
                zip(y, Write::Set, [x, weight, bias], |[x, w, b]| (x - mean) * inverse * w + b);
            }
        });
        Ok(())
    }

    /// With h = g · weight: `dx = (h - Σh/d - (x - mean) / σ² · Σh(x - mean)/d) / σ`,
    /// `dweight` = sum of `g (x - mean) / σ` over the rows, `dbias` = sum of g.
    fn gradient<T: Real>(&self, which: usize, chain: &Chain<'_, T>, to: Target<'_, T>) {
        let d = width(chain.inputs[0].meta);
        let (x, weight) = (chain.inputs[0].floats, chain.inputs[1].floats);
        let (g, saved) = (chain.grad, chain.saved);
        match which {
            0 => {
                let rows = rows_of_piece(d);
                chain.threads.for_each_chunk(to.dst, rows * d, |piece, dst| {
                    for (row, dst) in (piece * rows..).zip(dst.chunks_exact_mut(d)) {
                        let [x, g] = [x, g].map(|slice| &slice[row * d..][..d]);
                        let (mean, inverse) = (saved[2 * row], saved[2 * row + 1]);
                        let [sum, product] = sums([x, g, weight], |[x, g, w]| {
                            let h = g * w;
                            [h, h * (x - mean)]
                        });
                        let shift = T::from_f64(sum / d as f64);
                        let slope = T::from_f64(product / d as f64) * inverse * inverse;
                        zip(dst, to.mode, [x, g, weight], |[x, g, w]| {
                            (g * w - shift - (x - mean) * slope) * inverse
                        });
                    }
                });
            }
            1 => sum_columns(chain.threads, to.dst, to.mode, [x, g], |row| {
                let (mean, inverse) = (saved[2 * row], saved[2 * row + 1]);
                move |[x, g]| g * ((x - mean) * inverse)
            }),
            _ => sum_columns(chain.threads, to.dst, to.mode, [g], |_| |[g]| g),
        }
    }
}

/// Settings of an RMS norm.
///
/// # Source
/// Zhang and Sennrich, Root Mean Square Layer Normalization, 2019.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct RmsNorm {
    /// Added to the mean of the squares; 0 or more.
    pub eps: f64,
}

impl Operation for RmsNorm {
    fn arity(&self) -> RangeInclusive<usize> {
        2..=2
    }

    fn infer(&self, call: &Call<'_>, out: &mut Meta) -> Result<(), OpError> {
        infer(call, self.eps, out)
    }

    /// 1/ρ of each row.
    fn saved_len(&self, inputs: &[&Meta], out: &Meta) -> usize {
        out.len() / width(inputs[0])
    }

    /// `y = x / ρ · weight` with ρ = √(Σx²/d + eps).
    fn forward<T: Real>(&self, cx: Forward<'_, T>) -> Result<(), OpError> {
        let d = width(cx.inputs[0].meta);
        let (x, weight) = (cx.inputs[0].floats, cx.inputs[1].floats);
        let rows = rows_of_piece(d);
        cx.threads.for_each_pair((cx.out.floats, cx.saved), (rows * d, rows), |piece, y, saved| {
            for (y, (row, saved)) in y.chunks_exact_mut(d).zip((piece * rows..).zip(saved)) {
                let x = &x[row * d..][..d];
                let [squares] = sums([x], |[x]| [x * x]);
                let inverse = T::from_f64(1.0 / (squares / d as f64 + self.eps).sqrt());
                *saved = inverse;
                zip(y, Write::Set, [x, weight], |[x, w]| x * inverse * w);
            }
        });
        Ok(())
    }

    /// With h = g · weight: `dx = (h - x / ρ² · Σhx/d) / ρ`, `dweight` = sum of `g x / ρ` over the rows.
    fn gradient<T: Real>(&self, which: usize, chain: &Chain<'_, T>, to: Target<'_, T>) {
        let d = width(chain.inputs[0].meta);
        let (x, weight) = (chain.inputs[0].floats, chain.inputs[1].floats);
        let (g, saved) = (chain.grad, chain.saved);
        if which == 1 {
            return sum_columns(chain.threads, to.dst, to.mode, [x, g], |row| {
                let inverse = saved[row];
                move |[x, g]| g * (x * inverse)
            });
        }
        let rows = rows_of_piece(d);
        chain.threads.for_each_chunk(to.dst, rows * d, |piece, dst| {
            for (row, dst) in (piece * rows..).zip(dst.chunks_exact_mut(d)) {
                let ([x, g], inverse) = ([x, g].map(|slice| &slice[row * d..][..d]), saved[row]);
                let [product] = sums([x, g, weight], |[x, g, w]| [g * w * x]);
                let slope = T::from_f64(product / d as f64) * inverse * inverse;
                zip(dst, to.mode, [x, g, weight], |[x, g, w]| (g * w - x * slope) * inverse);
            }
        });
    }
}

/// The mean and the unbiased variance of each channel of one batch, `[c]` each.
///
/// `saved` is what [`Op::BatchNorm`](crate::Op::BatchNorm) kept, as `Tape::saved` gives it. The variance is the batch's
/// times count / (count - 1), as PyTorch takes it into the running one; of one value it is 0.
pub fn batch_statistics<T: Real>(saved: &[T], [mean, variance]: [&mut [f64]; 2]) {
    let channels = mean.len();
    let count = saved.get(3 * channels).map_or(0.0, |count| count.to_f64());
    let unbiased = count / (count - 1.0).max(1.0);
    for (to, &from) in mean.iter_mut().zip(saved) {
        *to = from.to_f64();
    }
    for (to, &from) in variance.iter_mut().zip(saved.get(2 * channels..).unwrap_or_default()) {
        *to = from.to_f64() * unbiased;
    }
}

/// `running = (1 - momentum) · running + momentum · batch`, element by element.
pub fn update_running<T: Real>(running: &mut [T], batch: &[f64], momentum: f64) {
    for (running, batch) in running.iter_mut().zip(batch) {
        *running = T::from_f64((1.0 - momentum) * running.to_f64() + momentum * batch);
    }
}

/// `x[.., d]` and one or two of `[d]`.
fn infer(call: &Call<'_>, eps: f64, out: &mut Meta) -> Result<(), OpError> {
    let dtype = call.floats()?;
    let x = call.inputs[0];
    call.require(0.0 <= eps, "eps must be 0 or more")?;
    call.require(x.last().is_some_and(|d| 0 < d), "the last axis must have an element")?;
    let fits = call.inputs[1..].iter().all(|input| input.shape == x.shape[x.rank() - 1..]);
    call.require(fits, "all inputs but x must be as long as its last axis")?;
    out.set(dtype, &x.shape);
    Ok(())
}

fn width(x: &Meta) -> usize {
    x.last().unwrap_or(1)
}
