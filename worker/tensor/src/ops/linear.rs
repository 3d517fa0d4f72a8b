//! The linear layer.

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use super::{
    Call, Chain, Forward, Operand, Operation, Target,
    unary::{ElementWise as _, Gelu, GeluTanh, Relu, Smooth},
};
use crate::{
    error::OpError,
    kernel::{
        Bias, Epilogue, Kernel, Matrix, MatrixMut, PIECE, Product, Scratch, Threads, Write, gemm,
        sum_columns, vectorized, zip_on,
    },
    meta::{Meta, elements},
    real::Real,
};

/// What a layer applies to its result while it is hot in the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// Nothing.
    #[default]
    None,
    /// `max(x, 0)`.
    Relu,
    /// `x Φ(x)` with Φ the normal distribution's function, exactly.
    Gelu,
    /// GELU by its tanh approximation, as GPT-2 has it.
    GeluTanh,
}

/// How the weights of a layer lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Weights {
    /// `[out, in]`.
    OutIn,
    /// `[in, out]`.
    InOut,
}

/// The linear layer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Linear(pub(super) Activation, pub(super) Weights);

impl Linear {
    /// Whether forward keeps the derivative of the activation, for backward.
    fn keeps_slope(self) -> bool {
        match self.0 {
            Activation::None | Activation::Relu => false,
            Activation::Gelu | Activation::GeluTanh => true,
        }
    }

    /// Lengths of input and output, by the shape of the weights.
    fn lengths(self, w: &Meta) -> (usize, usize) {
        match self.1 {
            Weights::OutIn => (w.shape[1], w.shape[0]),
            Weights::InOut => (w.shape[0], w.shape[1]),
        }
    }

    /// The weights as `[out, in]`.
    fn out_in<'a, T: Real>(self, w: &Operand<'a, T>) -> Matrix<'a, T> {
        match self.1 {
            Weights::OutIn => matrix(w),
            Weights::InOut => matrix(w).transposed(),
        }
    }
}

impl Operation for Linear {
    fn arity(&self) -> RangeInclusive<usize> {
        2..=3
    }

    fn infer(&self, call: &Call<'_>, out: &mut Meta) -> Result<(), OpError> {
        let dtype = call.floats()?;
        let (x, w) = (call.inputs[0], call.inputs[1]);
        call.require(2 <= x.rank(), "x must have two axes or more")?;
        call.require(w.rank() == 2, "w must have two axes")?;
        let (inputs, outputs) = self.lengths(w);
        call.require(x.last() == Some(inputs), "the last axis of x must be as long as w's input")?;
        if let Some(b) = call.inputs.get(2) {
            call.require(b.shape == [outputs], "b must be as long as w's output")?;
        }
        out.set(dtype, &x.shape);
        if let Some(last) = out.shape.last_mut() {
            *last = outputs;
        }
        Ok(())
    }

    fn saved_len(&self, _inputs: &[&Meta], out: &Meta) -> usize {
        if self.keeps_slope() { out.len() } else { 0 }
    }

    /// `y = act(x wᵀ + b)`, the sum of a product first, then the bias.
    fn forward<T: Real>(&self, cx: Forward<'_, T>) -> Result<(), OpError> {
        let (x, w) = (flat_rows(&cx.inputs[0]), self.out_in(&cx.inputs[1]));
        let (_, outputs) = self.lengths(cx.inputs[1].meta);
        let bias = cx.inputs.get(2).map_or(Bias::None, |b| Bias::PerColumn(b.floats));
        let activation = match self.0 {
            Activation::Relu => gemm::Activation::Relu,
            Activation::None | Activation::Gelu | Activation::GeluTanh => {
                gemm::Activation::Identity
            }
        };
        let y = if self.keeps_slope() { &mut *cx.saved } else { &mut *cx.out.floats };
        let y = MatrixMut::new(y, rows_of(cx.inputs[0].meta), outputs);
        let product = Product::new(x, w.transposed()).then(Epilogue { bias, activation });
        Scratch::with_local(|scratch| product.run(y, cx.threads, scratch));
        match self.0 {
            Activation::None | Activation::Relu => {}
            Activation::Gelu => activate(cx.threads, Gelu, cx.out.floats, cx.saved),
            Activation::GeluTanh => activate(cx.threads, GeluTanh, cx.out.floats, cx.saved),
        }
        Ok(())
    }

    fn prepared_len(&self, _inputs: &[&Meta], out: &Meta) -> usize {
        if self.0 == Activation::None { 0 } else { out.len() }
    }

    /// The gradient before the activation.
    fn prepare<T: Real>(&self, chain: &Chain<'_, T>, prepared: &mut [T]) {
        let (g, y, slope) = (chain.grad, chain.output, chain.saved);
        match self.0 {
            Activation::None => {}
            Activation::Relu => {
                let value = |[g, y]: [T; 2]| Relu.chain(g, y, y);
                zip_on(chain.threads, prepared, Write::Set, [g, y], value);
            }
            Activation::Gelu | Activation::GeluTanh => {
                let value = |[g, slope]: [T; 2]| g * slope;
                zip_on(chain.threads, prepared, Write::Set, [g, slope], value);
            }
        }
    }

    /// `dx = g w`, `dw = gᵀ x` (or its transpose), `db` = sum of the rows of `g`.
    fn gradient<T: Real>(&self, which: usize, chain: &Chain<'_, T>, to: Target<'_, T>) {
        let (x, w) = (flat_rows(&chain.inputs[0]), self.out_in(&chain.inputs[1]));
        let (_, outputs) = self.lengths(chain.inputs[1].meta);
        let rows = rows_of(chain.inputs[0].meta);
        let grad = if self.0 == Activation::None { chain.grad } else { chain.prepared };
        let g = Matrix::new(grad, rows, outputs);
        let (a, b) = match (which, self.1) {
            (0, _) => (g, w),
            (1, Weights::OutIn) => (g.transposed(), x),
            (1, Weights::InOut) => (x.transposed(), g),
            _ => return sum_columns(chain.threads, to.dst, to.mode, [grad], |_| |[g]| g),
        };
        let dst = MatrixMut::new(to.dst, a.rows(), b.columns());
        let product = Product::new(a, b).mode(to.mode);
        Scratch::with_local(|scratch| product.run(dst, chain.threads, scratch));
    }
}

/// Writes the function of `z`, and its derivative over `z`.
fn activate<T: Real>(threads: &Threads, function: impl Smooth, y: &mut [T], z: &mut [T]) {
    threads.for_each_pair((y, z), (PIECE, PIECE), |_, y, z| {
        vectorized(Activate { y, z, function: &function });
    });
}

struct Activate<'a, T, F> {
    y: &'a mut [T],
    z: &'a mut [T],
    function: &'a F,
}

impl<T: Real, F: Smooth> Kernel for Activate<'_, T, F> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for (y, z) in self.y.iter_mut().zip(self.z) {
            (*y, *z) = self.function.with_slope(*z);
        }
    }
}

fn matrix<'a, T: Real>(operand: &Operand<'a, T>) -> Matrix<'a, T> {
    Matrix::new(operand.floats, operand.meta.shape[0], operand.meta.shape[1])
}

/// All axes but the last as one.
fn flat_rows<'a, T: Real>(x: &Operand<'a, T>) -> Matrix<'a, T> {
    Matrix::new(x.floats, rows_of(x.meta), x.meta.last().unwrap_or(1))
}

fn rows_of(x: &Meta) -> usize {
    elements(&x.shape[..x.rank() - 1])
}
