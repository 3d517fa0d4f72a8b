//! Batch normalisation, by the batch's own statistics and by given ones.
//!
//! # Source
//! Ioffe and Szegedy, Batch Normalization, 2015.

mod columns;
mod inference;
mod places;

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

pub(super) use self::inference::Inference;
use self::places::Places;
use super::{
    Call, Chain, Forward, Operation, Target, relu,
    unary::{ElementWise, Relu},
};
use crate::{
    error::OpError,
    kernel::{Threads, Write, zip},
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

    /// Mean, inverse deviation and biased variance of each channel; then how many values a channel has.
    fn saved_len(&self, inputs: &[&Meta], _out: &Meta) -> usize {
        3 * inputs[0].shape[1] + 1
    }

    /// `y = (x - mean) / √(variance + eps) · weight + bias + residual`, at least 0 if `relu`. The
    /// variance is the mean of `(x - mean)²`, in a second pass. With peers both are of everybody's batches together.
    fn forward<T: Real>(&self, cx: Forward<'_, T>) -> Result<(), OpError> {
        let (places, x) = (Places::of(cx.inputs[0].meta), cx.inputs[0].floats);
        let scratch = &mut *cx.out.floats;
        let values = match cx.peers {
            None => {
                places.statistics(x, &mut cx.saved[..3 * places.channels], scratch, cx.threads);
                places.values() as f64
            }
            Some(peers) => {
                let saved = &mut cx.saved[..3 * places.channels];
                places.joint_statistics(x, saved, scratch, (cx.threads, peers))
            }
        };
        let (mean, rest) = cx.saved.split_at_mut(places.channels);
        let (inverse, rest) = rest.split_at_mut(places.channels);
        let (variance, count) = rest.split_at_mut(places.channels);
        count[0] = T::from_f64(values);
        for (inverse, variance) in inverse.iter_mut().zip(&*variance) {
            *inverse = T::from_f64(1.0 / (variance.to_f64() + self.eps).sqrt());
        }
        let (weight, bias) = (cx.inputs[1].floats, cx.inputs[2].floats);
        let residual = cx.inputs.get(3).map(|residual| residual.floats);
        let affine = |c: usize| (mean[c], weight[c] * inverse[c], bias[c]);
        self.normalise(&places, (x, residual), cx.out.floats, cx.threads, affine);
        Ok(())
    }

    /// This batch's two sums of each channel, then everybody's.
    fn prepared_len(&self, inputs: &[&Meta], _out: &Meta) -> usize {
        4 * inputs[0].shape[1]
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
        let (own, all) = prepared.split_at_mut(prepared.len() / 2);
        self.before_rewrite(chain).sum_gradients(chain, chain.saved, own);
        match chain.peers {
            None => all.copy_from_slice(own),
            Some(peers) => {
                let mut totals: Vec<f64> = own.iter().map(|sum| sum.to_f64()).collect();
                peers.sum(&mut totals);
                all.iter_mut().zip(totals).for_each(|(all, total)| *all = T::from_f64(total));
            }
        }
    }

    /// With g the gradient where `relu` lets it through and m values per channel:
    /// `dx = weight / σ · (g - Σg/m - (x - mean) / σ² · Σg(x - mean)/m)`, `dweight = Σg(x - mean) / σ`,
    /// `dbias = Σg`, `dresidual = g`. With peers the sums in `dx` are everybody's; those of weight and bias are this
    /// batch's part, like every gradient.
    fn gradient<T: Real>(&self, which: usize, chain: &Chain<'_, T>, to: Target<'_, T>) {
        let places = Places::of(chain.inputs[0].meta);
        let (mean, rest) = chain.saved.split_at(places.channels);
        let (inverse, values) = (&rest[..places.channels], rest[2 * places.channels]);
        let (own, all) = chain.prepared.split_at(chain.prepared.len() / 2);
        let weight = chain.inputs[1].floats;
        match which {
            0 => {
                let (sums, products) = side_by_side(all);
                self.before_rewrite(chain).pass_on(&places, chain, to, |c| {
                    let factor = weight[c] * inverse[c];
                    let (mean, shift) = (mean[c], sums(c) / values);
                    let slope = products(c) / values * inverse[c] * inverse[c];
                    move |g, x| factor * (g - shift - (x - mean) * slope)
                });
            }
            1 => to.write(|c| side_by_side(own).1(c) * inverse[c]),
            2 => to.write(side_by_side(own).0),
            _ => to.write(|i| chain.grad[i]),
        }
    }
}

/// The place of the residual.
const RESIDUAL: usize = 3;

fn has_residual(inputs: usize) -> bool {
    RESIDUAL < inputs
}

/// Two numbers of each channel.
fn side_by_side<T: Copy>(pairs: &[T]) -> (impl Fn(usize) -> T, impl Fn(usize) -> T) {
    (|c: usize| pairs[2 * c], |c: usize| pairs[2 * c + 1])
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
        if self.relu {
            places.sum_channels(prepared, [g, x, y], mean, chain.threads, through);
        } else {
            places.sum_channels(prepared, [g, x], mean, chain.threads, all);
        }
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
