//! The form with given statistics.

use std::ops::RangeInclusive;

use super::{BatchNorm, places::Places, side_by_side};
use crate::{
    error::OpError,
    meta::Meta,
    ops::{Call, Chain, Forward, Operation, Target},
    real::Real,
};

/// Batch normalisation by given statistics.
#[derive(Debug, Clone, Copy)]
pub(in crate::ops) struct Inference(pub(in crate::ops) BatchNorm);

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
        let (sums, products) = side_by_side(chain.prepared);
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
