//! Batch normalisation, by the batch's own statistics and by given ones.
//!
//! # Source
//! Ioffe and Szegedy, Batch Normalization, 2015.

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use super::{
    Call, Chain, Forward, Operation, Target,
    unary::{ElementWise, Relu},
};
use crate::{
    error::OpError,
    kernel::{Sums, Write, zip},
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
        let (mean, rest) = cx.saved.split_at_mut(places.channels);
        let (inverse, variance) = rest.split_at_mut(places.channels);
        let values = places.values() as f64;
        for channel in 0..places.channels {
            let mut sum = Sums::new();
            places.runs(channel, |at| sum.add([&x[at..][..places.inner]], |[x]| [x]));
            let centre = T::from_f64(sum.totals()[0] / values);
            let mut squares = Sums::new();
            places.runs(channel, |at| {
                squares.add([&x[at..][..places.inner]], |[x]| [(x - centre) * (x - centre)]);
            });
            let spread = squares.totals()[0] / values;
            mean[channel] = centre;
            inverse[channel] = T::from_f64(1.0 / (spread + self.eps).sqrt());
            variance[channel] = T::from_f64(spread);
        }
        let (weight, bias) = (cx.inputs[1].floats, cx.inputs[2].floats);
        let residual = cx.inputs.get(3).map(|residual| residual.floats);
        self.normalise(&places, x, residual, cx.out.floats, |c| {
            (mean[c], weight[c] * inverse[c], bias[c])
        });
        Ok(())
    }

    fn prepared_len(&self, inputs: &[&Meta], _out: &Meta) -> usize {
        2 * inputs[0].shape[1]
    }

    fn prepare<T: Real>(&self, chain: &Chain<'_, T>, prepared: &mut [T]) {
        self.sum_gradients(chain, chain.saved, prepared);
    }

    /// With g the gradient where `relu` lets it through and m values per channel:
    /// `dx = weight / σ · (g - Σg/m - (x - mean) / σ² · Σg(x - mean)/m)`, `dweight = Σg(x - mean) / σ`,
    /// `dbias = Σg`, `dresidual = g`.
    fn gradient<T: Real>(&self, which: usize, chain: &Chain<'_, T>, to: Target<'_, T>) {
        let places = Places::of(chain.inputs[0].meta);
        let (mean, rest) = chain.saved.split_at(places.channels);
        let inverse = &rest[..places.channels];
        let (sums, products) = chain.prepared.split_at(places.channels);
        let weight = chain.inputs[1].floats;
        let values = T::from_f64(places.values() as f64);
        match which {
            0 => self.pass_on(&places, chain, to, |c| {
                let factor = weight[c] * inverse[c];
                let (mean, shift) = (mean[c], sums[c] / values);
                let slope = products[c] / values * inverse[c] * inverse[c];
                move |g, x| factor * (g - shift - (x - mean) * slope)
            }),
            1 => to.write(|c| products[c] * inverse[c]),
            2 => to.write(|c| sums[c]),
            _ => self.pass_on(&places, chain, to, |_| |g, _| g),
        }
    }
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
        self.0.normalise(&places, x, residual, cx.out.floats, |c| {
            (mean[c], weight[c] * self.inverse(variance[c]), bias[c])
        });
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
        let (sums, products) = chain.prepared.split_at(places.channels);
        let inverse = |c: usize| self.inverse(variance[c]);
        match which {
            0 => self.0.pass_on(&places, chain, to, |c| {
                let factor = weight[c] * inverse(c);
                move |g, _| factor * g
            }),
            1 => to.write(|c| products[c] * inverse(c)),
            2 => to.write(|c| sums[c]),
            3 => to.write(|c| -(weight[c] * inverse(c) * sums[c])),
            4 => to.write(|c| {
                let cube = inverse(c) * inverse(c) * inverse(c);
                -(T::from_f64(0.5) * weight[c] * cube * products[c])
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

    /// Calls `run` with the start of each run of a channel.
    #[inline(always)]
    fn runs(&self, channel: usize, mut run: impl FnMut(usize)) {
        for image in 0..self.images {
            run((image * self.channels + channel) * self.inner);
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

    /// `y = (x - mean) · factor + shift + residual`, with the three of each channel from `affine`.
    fn normalise<T: Real>(
        &self,
        places: &Places,
        x: &[T],
        residual: Option<&[T]>,
        y: &mut [T],
        affine: impl Fn(usize) -> (T, T, T),
    ) {
        let inner = places.inner.max(1);
        let relu = self.relu;
        let finish = |y: T| if relu { Relu.value(y) } else { y };
        for (run, y) in y.chunks_exact_mut(inner).enumerate() {
            let (mean, factor, shift) = affine(run % places.channels);
            let x = &x[run * inner..];
            match residual {
                None => zip(y, Write::Set, [x], |[x]| finish((x - mean) * factor + shift)),
                Some(residual) => zip(y, Write::Set, [x, &residual[run * inner..]], |[x, r]| {
                    finish((x - mean) * factor + shift + r)
                }),
            }
        }
    }

    /// Of each channel Σg, and behind them Σg(x - mean), where `relu` lets g through.
    fn sum_gradients<'a, T: Real>(&self, chain: &Chain<'a, T>, mean: &[T], prepared: &mut [T]) {
        let places = Places::of(chain.inputs[0].meta);
        let (sums, products) = prepared.split_at_mut(places.channels);
        let run = |slice: &'a [T], at: usize| &slice[at..][..places.inner];
        for channel in 0..places.channels {
            let mean = mean[channel];
            let mut both = Sums::new();
            places.runs(channel, |at| {
                let (g, x) = (run(chain.grad, at), run(chain.inputs[0].floats, at));
                if self.relu {
                    both.add([g, x, run(chain.output, at)], |[g, x, y]| {
                        let g = Relu.chain(g, x, y);
                        [g, g * (x - mean)]
                    });
                } else {
                    both.add([g, x], |[g, x]| [g, g * (x - mean)]);
                }
            });
            let [sum, product] = both.totals();
            (sums[channel], products[channel]) = (T::from_f64(sum), T::from_f64(product));
        }
    }

    /// Writes `share` of the channel to each element's g and x, where `relu` lets g through.
    fn pass_on<T: Real, F: Fn(T, T) -> T>(
        &self,
        places: &Places,
        chain: &Chain<'_, T>,
        to: Target<'_, T>,
        share: impl Fn(usize) -> F,
    ) {
        let inner = places.inner.max(1);
        let (x, y) = (chain.inputs[0].floats, chain.output);
        for (run, dst) in to.dst.chunks_exact_mut(inner).enumerate() {
            let share = share(run % places.channels);
            let at = run * inner;
            let (g, x) = (&chain.grad[at..], &x[at..]);
            if self.relu {
                let y = &y[at..];
                zip(dst, to.mode, [g, x, y], |[g, x, y]| share(Relu.chain(g, x, y), x));
            } else {
                zip(dst, to.mode, [g, x], |[g, x]| share(g, x));
            }
        }
    }
}
