//! Batch normalisation, by the batch's own statistics and by given ones.
//!
//! # Source
//! Ioffe and Szegedy, Batch Normalization, 2015.

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use super::{
    Call, Chain, Forward, Operation, Target, relu,
    unary::{ElementWise, Relu},
};
use crate::{
    error::OpError,
    kernel::{Kernel, Sums, Threads, Write, sum_columns, vectorized, zip},
    meta::{Meta, elements},
    real::Real,
};

/// Settings of a batch normalisation.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct BatchNorm {
    /// Added to the variance; 0 or more.
    pub eps: f64,
    /// Whether the result is `max(…, 0)`.
    pub relu: bool,
}

impl Operation for BatchNorm {
    fn arity(&self) -> RangeInclusive<usize> {
        3..=4
    }

    fn infer(&self, call: &Call<'_>, out: &mut Meta) -> Result<(), OpError> {
        self.check(call, 3)?;
        let x = call.inputs[0];
        let values = x.shape[0].saturating_mul(elements(&x.shape[2..]));
        call.require(2 <= values, "each channel must have two values or more")?;
        out.set(x.dtype, &x.shape);
        Ok(())
    }

    /// Mean, inverse deviation and biased variance of each channel.
    fn saved_len(&self, inputs: &[&Meta], _out: &Meta) -> usize {
        3 * inputs[0].shape[1]
    }

    /// `y = (x - mean) / √(variance + eps) · weight + bias + residual`, at least 0 if `relu`. The
    /// variance is the mean of `(x - mean)²`, in a second pass.
    fn forward<T: Real>(&self, cx: Forward<'_, T>) -> Result<(), OpError> {
        let (places, x) = (Places::of(cx.inputs[0].meta), cx.inputs[0].floats);
        places.statistics(x, cx.saved, cx.out.floats, cx.threads);
        let (mean, rest) = cx.saved.split_at_mut(places.channels);
        let (inverse, variance) = rest.split_at_mut(places.channels);
        for (inverse, variance) in inverse.iter_mut().zip(&*variance) {
            *inverse = T::from_f64(1.0 / (variance.to_f64() + self.eps).sqrt());
        }
        let (weight, bias) = (cx.inputs[1].floats, cx.inputs[2].floats);
        let residual = cx.inputs.get(3).map(|residual| residual.floats);
        let affine = |c: usize| (mean[c], weight[c] * inverse[c], bias[c]);
        self.normalise(&places, (x, residual), cx.out.floats, cx.threads, affine);
        Ok(())
    }

    fn prepared_len(&self, inputs: &[&Meta], _out: &Meta) -> usize {
        2 * inputs[0].shape[1]
    }

    /// With a residual: to that before the ReLU, which is the residual's.
    fn rewrite_gradient<T: Real>(&self, chain: &Chain<'_, T>, grad: &mut [T]) {
        if self.relu && has_residual(chain.inputs.len()) {
            relu::stop_gradient(grad, chain.output, chain.threads);
        }
    }

    fn passes_on(&self, inputs: &[&Meta]) -> Option<usize> {
        has_residual(inputs.len()).then_some(RESIDUAL)
    }

    fn prepare<T: Real>(&self, chain: &Chain<'_, T>, prepared: &mut [T]) {
        self.before_rewrite(chain).sum_gradients(chain, chain.saved, prepared);
    }

    /// With g the gradient where `relu` lets it through and m values per channel:
    /// `dx = weight / σ · (g - Σg/m - (x - mean) / σ² · Σg(x - mean)/m)`, `dweight = Σg(x - mean) / σ`,
    /// `dbias = Σg`, `dresidual = g`.
    fn gradient<T: Real>(&self, which: usize, chain: &Chain<'_, T>, to: Target<'_, T>) {
        let places = Places::of(chain.inputs[0].meta);
        let (mean, rest) = chain.saved.split_at(places.channels);
        let inverse = &rest[..places.channels];
        let (sums, products) =
            (|c: usize| chain.prepared[2 * c], |c: usize| chain.prepared[2 * c + 1]);
        let weight = chain.inputs[1].floats;
        let values = T::from_f64(places.values() as f64);
        match which {
            0 => self.before_rewrite(chain).pass_on(&places, chain, to, |c| {
                let factor = weight[c] * inverse[c];
                let (mean, shift) = (mean[c], sums(c) / values);
                let slope = products(c) / values * inverse[c] * inverse[c];
                move |g, x| factor * (g - shift - (x - mean) * slope)
            }),
            1 => to.write(|c| products(c) * inverse[c]),
            2 => to.write(sums),
            _ => to.write(|i| chain.grad[i]),
        }
    }
}

/// The place of the residual.
const RESIDUAL: usize = 3;

fn has_residual(inputs: usize) -> bool {
    RESIDUAL < inputs
}

/// Batch normalisation by given statistics.
#[derive(Debug, Clone, Copy)]
pub(super) struct Inference(pub(super) BatchNorm);

impl Operation for Inference {
    fn arity(&self) -> RangeInclusive<usize> {
        5..=6
    }

    fn infer(&self, call: &Call<'_>, out: &mut Meta) -> Result<(), OpError> {
        self.0.check(call, 5)?;
        let x = call.inputs[0];
        out.set(x.dtype, &x.shape);
        Ok(())
    }

    /// `y = (x - mean) / √(variance + eps) · weight + bias + residual`, at least 0 if `relu`.
    fn forward<T: Real>(&self, cx: Forward<'_, T>) -> Result<(), OpError> {
        let places = Places::of(cx.inputs[0].meta);
        let [x, weight, bias, mean, variance] = std::array::from_fn(|i| cx.inputs[i].floats);
        let residual = cx.inputs.get(5).map(|residual| residual.floats);
        let affine = |c: usize| (mean[c], weight[c] * self.inverse(variance[c]), bias[c]);
        self.0.normalise(&places, (x, residual), cx.out.floats, cx.threads, affine);
        Ok(())
    }

    fn prepared_len(&self, inputs: &[&Meta], _out: &Meta) -> usize {
        2 * inputs[0].shape[1]
    }

    fn prepare<T: Real>(&self, chain: &Chain<'_, T>, prepared: &mut [T]) {
        self.0.sum_gradients(chain, chain.inputs[3].floats, prepared);
    }

    /// With g the gradient where `relu` lets it through and σ = √(variance + eps): `dx = weight / σ · g`,
    /// `dweight = Σg(x - mean) / σ`, `dbias = Σg`, `dmean = -weight / σ · Σg`,
    /// `dvariance = -weight / 2σ³ · Σg(x - mean)`, `dresidual = g`.
    fn gradient<T: Real>(&self, which: usize, chain: &Chain<'_, T>, to: Target<'_, T>) {
        let places = Places::of(chain.inputs[0].meta);
        let (weight, variance) = (chain.inputs[1].floats, chain.inputs[4].floats);
        let (sums, products) =
            (|c: usize| chain.prepared[2 * c], |c: usize| chain.prepared[2 * c + 1]);
        let inverse = |c: usize| self.inverse(variance[c]);
        match which {
            0 => self.0.pass_on(&places, chain, to, |c| {
                let factor = weight[c] * inverse(c);
                move |g, _| factor * g
            }),
            1 => to.write(|c| products(c) * inverse(c)),
            2 => to.write(&sums),
            3 => to.write(|c| -(weight[c] * inverse(c) * sums(c))),
            4 => to.write(|c| {
                let cube = inverse(c) * inverse(c) * inverse(c);
                -(T::from_f64(0.5) * weight[c] * cube * products(c))
            }),
            _ => self.0.pass_on(&places, chain, to, |_| |g, _| g),
        }
    }
}

impl Inference {
    fn inverse<T: Real>(&self, variance: T) -> T {
        T::from_f64(1.0 / (variance.to_f64() + self.0.eps).sqrt())
    }
}

/// Elements that are worth a thread's while.
const CHUNK: usize = 1 << 14;

/// How a tensor of `[images, channels, ..]` lies in memory: runs of `inner` elements of one channel.
#[derive(Debug, Clone, Copy)]
struct Places {
    images: usize,
    channels: usize,
    inner: usize,
}

impl Places {
    fn of(x: &Meta) -> Self {
        Self { images: x.shape[0], channels: x.shape[1], inner: elements(&x.shape[2..]) }
    }

    /// Values of each channel.
    fn values(&self) -> usize {
        self.images * self.inner
    }

    /// The runs of a channel, from image to image.
    #[inline(always)]
    fn runs(self, channel: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
        (0..self.images).map(move |image| {
            let start = (image * self.channels + channel) * self.inner;
            start..start + self.inner
        })
    }

    /// Runs of a stretch that is worth a thread's while.
    fn runs_at_once(&self) -> usize {
        (CHUNK / self.inner.max(1)).max(1)
    }

    /// Calls `work` with the channel, the place and the elements of `dst` of each run.
    fn each_run<T: Real>(
        &self,
        dst: &mut [T],
        threads: &Threads,
        work: impl Fn(usize, std::ops::Range<usize>, &mut [T]) + Sync + Send,
    ) {
        let (inner, at_once) = (self.inner.max(1), self.runs_at_once());
        threads.for_each_chunk(dst, at_once * inner, |index, dst| {
            let first = index * at_once;
            let mut channel = first % self.channels;
            for (place, dst) in dst.chunks_exact_mut(inner).enumerate() {
                let start = (first + place) * inner;
                work(channel, start..start + inner, dst);
                channel = if channel + 1 == self.channels { 0 } else { channel + 1 };
            }
        });
    }

    /// Channels that are worth it together.
    fn channels_at_once(&self) -> usize {
        (CHUNK / self.values().max(1)).max(1)
    }

    /// Mean and variance of each channel, at the beginning and the end of `saved`. `scratch` is as long as `x`.
    fn statistics<T: Real>(&self, x: &[T], saved: &mut [T], scratch: &mut [T], threads: &Threads) {
        let values = self.values() as f64;
        let (mean, rest) = saved.split_at_mut(self.channels);
        let variance = &mut rest[self.channels..];
        let share = |sum: T| T::from_f64(sum.to_f64() / values);
        if self.inner == 1 {
            sum_columns(threads, mean, Write::Set, [x], |_| |[x]: [T; 1]| x);
            mean.iter_mut().for_each(|mean| *mean = share(*mean));
            column_sums(variance, [x], mean, |[x], mean| [(x - mean) * (x - mean)]);
            variance.iter_mut().for_each(|variance| *variance = share(*variance));
            return;
        }
        // Both of a channel side by side, so that a thread has them at once: each channel has two values or more.
        let both = &mut scratch[..2 * self.channels];
        let at_once = self.channels_at_once();
        threads.for_each_chunk(both, 2 * at_once, |index, both| {
            for (place, both) in both.chunks_exact_mut(2).enumerate() {
                let channel = index * at_once + place;
                let mut sum = Sums::new();
                self.runs(channel).for_each(|run| sum.add([&x[run]], |[x]| [x]));
                let mean = T::from_f64(sum.totals()[0] / values);
                let mut squares = Sums::new();
                for run in self.runs(channel) {
                    squares.add([&x[run]], |[x]| [(x - mean) * (x - mean)]);
                }
                both.copy_from_slice(&[mean, T::from_f64(squares.totals()[0] / values)]);
            }
        });
        for (channel, both) in both.chunks_exact(2).enumerate() {
            (mean[channel], variance[channel]) = (both[0], both[1]);
        }
    }
}

/// [`zip`], without its call where there is next to nothing to do: for runs of one element.
#[inline(always)]
fn each<T: Real, const N: usize>(
    dst: &mut [T],
    mode: Write,
    from: [&[T]; N],
    value: impl Fn([T; N]) -> T,
) {
    const SHORT: usize = 8;
    if SHORT <= dst.len() {
        return zip(dst, mode, from, value);
    }
    for (place, dst) in dst.iter_mut().enumerate() {
        let value = value(from.map(|slice| slice[place]));
        *dst = if mode == Write::Set { value } else { *dst + value };
    }
}

/// Sums over the rows of a matrix with as many columns as `centre`, `N` for each column and side by side in `dst`,
/// of `value(elements of several matrices at the same place, centre of the column)`.
///
/// # Determinism
/// 64 rows at a time are added from the first to the last, and these sums likewise, in `f64`.
fn column_sums<T: Real, const M: usize, const N: usize>(
    dst: &mut [T],
    from: [&[T]; M],
    centre: &[T],
    value: impl Fn([T; M], T) -> [T; N],
) {
    vectorized(ColumnSums { dst, from, centre, value });
}

struct ColumnSums<'a, T, F, const M: usize> {
    dst: &'a mut [T],
    from: [&'a [T]; M],
    centre: &'a [T],
    value: F,
}

impl<T: Real, F: Fn([T; M], T) -> [T; N], const M: usize, const N: usize> Kernel
    for ColumnSums<'_, T, F, M>
{
    type Output = ();

    #[inline(always)]
    fn run(self) {
        /// Columns whose sums stay in the nearest cache.
        const WIDTH: usize = 64;
        const ROWS: usize = 64;
        let columns = self.centre.len();
        let rows = self.from[0].len().checked_div(columns).unwrap_or(0);
        for (tile, centre) in self.centre.chunks(WIDTH).enumerate() {
            let width = centre.len();
            let mut totals = [[0.0_f64; WIDTH]; N];
            for first in (0..rows).step_by(ROWS) {
                let mut block = [[T::ZERO; WIDTH]; N];
                for row in first..rows.min(first + ROWS) {
                    let start = row * columns + tile * WIDTH;
                    let from = self.from.map(|slice| &slice[start..][..width]);
                    for column in 0..width {
                        let values = (self.value)(from.map(|row| row[column]), centre[column]);
                        for (sums, value) in block.iter_mut().zip(values) {
                            sums[column] += value;
                        }
                    }
                }
                for (totals, sums) in totals.iter_mut().zip(&block) {
                    for (total, sum) in totals.iter_mut().zip(sums) {
                        *total += sum.to_f64();
                    }
                }
            }
            let dst = &mut self.dst[tile * WIDTH * N..];
            for (column, dst) in dst.chunks_exact_mut(N).take(width).enumerate() {
                for (dst, totals) in dst.iter_mut().zip(&totals) {
                    *dst = T::from_f64(totals[column]);
                }
            }
        }
    }
}

impl BatchNorm {
    /// What both forms ask of their inputs, `required` of which come before the residual.
    fn check(&self, call: &Call<'_>, required: usize) -> Result<(), OpError> {
        call.floats()?;
        let x = call.inputs[0];
        call.require(0.0 <= self.eps, "eps must be 0 or more")?;
        call.require(2 <= x.rank(), "x must be [n, c, ..]")?;
        let per_channel = call.inputs[1..required].iter().all(|input| input.shape == x.shape[1..2]);
        call.require(per_channel, "all inputs between x and the residual must be [c]")?;
        let residual = call.inputs.get(required);
        let fits = residual.is_none_or(|residual| residual.shape == x.shape);
        call.require(fits, "the residual must have the shape of x")
    }

    /// As it is for a gradient that was rewritten.
    fn before_rewrite<T>(&self, chain: &Chain<'_, T>) -> Self {
        Self { relu: self.relu && !has_residual(chain.inputs.len()), ..*self }
    }

    /// `y = (x - mean) · factor + shift + residual`, with the three of each channel from `affine`.
    fn normalise<T: Real>(
        &self,
        places: &Places,
        (x, residual): (&[T], Option<&[T]>),
        y: &mut [T],
        threads: &Threads,
        affine: impl Fn(usize) -> (T, T, T) + Sync + Send,
    ) {
        let relu = self.relu;
        let finish = |y: T| if relu { Relu.value(y) } else { y };
        places.each_run(y, threads, |channel, run, y| {
            let (mean, factor, shift) = affine(channel);
            let x = &x[run.clone()];
            match residual {
                None => each(y, Write::Set, [x], |[x]| finish((x - mean) * factor + shift)),
                Some(residual) => each(y, Write::Set, [x, &residual[run]], |[x, r]| {
                    finish((x - mean) * factor + shift + r)
                }),
            }
        });
    }

    /// Of each channel Σg and Σg(x - mean), side by side, where `relu` lets g through.
    fn sum_gradients<T: Real>(&self, chain: &Chain<'_, T>, mean: &[T], prepared: &mut [T]) {
        let places = Places::of(chain.inputs[0].meta);
        let mean = &mean[..places.channels];
        let (g, x, y) = (chain.grad, chain.inputs[0].floats, chain.output);
        let through = |[g, x, y]: [T; 3], mean: T| {
            let g = Relu.chain(g, x, y);
            [g, g * (x - mean)]
        };
        let all = |[g, x]: [T; 2], mean: T| [g, g * (x - mean)];
        match (places.inner == 1, self.relu) {
            (true, true) => return column_sums(prepared, [g, x, y], mean, through),
            (true, false) => return column_sums(prepared, [g, x], mean, all),
            (false, _) => {}
        }
        let at_once = places.channels_at_once();
        chain.threads.for_each_chunk(prepared, 2 * at_once, |index, prepared| {
            for (place, prepared) in prepared.chunks_exact_mut(2).enumerate() {
                let channel = index * at_once + place;
                let mean = mean[channel];
                let mut both = Sums::new();
                for run in places.runs(channel) {
                    let (g, x) = (&g[run.clone()], &x[run.clone()]);
                    if self.relu {
                        both.add([g, x, &y[run]], |from| through(from, mean));
                    } else {
                        both.add([g, x], |from| all(from, mean));
                    }
                }
                prepared.copy_from_slice(&both.totals().map(T::from_f64));
            }
        });
    }

    /// Writes `share` of the channel to each element's g and x, where `relu` lets g through.
    fn pass_on<T: Real, F: Fn(T, T) -> T>(
        &self,
        places: &Places,
        chain: &Chain<'_, T>,
        to: Target<'_, T>,
        share: impl Fn(usize) -> F + Sync + Send,
    ) {
        let Target { dst, mode } = to;
        let (x, y) = (chain.inputs[0].floats, chain.output);
        places.each_run(dst, chain.threads, |channel, run, dst| {
            let share = share(channel);
            let (g, x) = (&chain.grad[run.clone()], &x[run.clone()]);
            if self.relu {
                each(dst, mode, [g, x, &y[run]], |[g, x, y]| share(Relu.chain(g, x, y), x));
            } else {
                each(dst, mode, [g, x], |[g, x]| share(g, x));
            }
        });
    }
}
