//! The linear layer.

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use super::{
    Call, Chain, Forward, Operand, Operation, Target,
    unary::{ElementWise, Gelu, GeluTanh, Relu},
};
use crate::{
    error::OpError,
    kernel::{Matrix, Write, map, product, sum_rows, zip},
    meta::Meta,
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

/// The linear layer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Linear(pub(super) Activation);

impl Linear {
    /// Whether backward needs the numbers before the activation.
    fn keeps_input_of_activation(self) -> bool {
        match self.0 {
            Activation::None | Activation::Relu => false,
            Activation::Gelu | Activation::GeluTanh => true,
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
        call.require(w.rank() == 2, "w must be [out, in]")?;
        call.require(x.last() == w.last(), "the last axes of x and w must be equally long")?;
        if let Some(b) = call.inputs.get(2) {
            call.require(b.shape == w.shape[..1], "b must be as long as the first axis of w")?;
        }
        out.set(dtype, &x.shape);
        if let Some(last) = out.shape.last_mut() {
            *last = w.shape[0];
        }
        Ok(())
    }

    fn saved_len(&self, _inputs: &[&Meta], out: &Meta) -> usize {
        if self.keeps_input_of_activation() { out.len() } else { 0 }
    }

    /// `y = act(x wᵀ + b)`. The bias is laid down first and the product added to it.
    fn forward<T: Real>(&self, cx: Forward<'_, T>) -> Result<(), OpError> {
        let (x, w) = (flat_rows(&cx.inputs[0]), matrix(&cx.inputs[1]));
        let y = if self.keeps_input_of_activation() { &mut *cx.saved } else { &mut *cx.out.floats };
        match cx.inputs.get(2) {
            None => product(y, Write::Set, x, w.transposed()),
            Some(b) => {
                for row in y.chunks_exact_mut(b.floats.len().max(1)) {
                    row.copy_from_slice(b.floats);
                }
                product(y, Write::Add, x, w.transposed());
            }
        }
        let (y, z) = (cx.out.floats, &*cx.saved);
        match self.0 {
            Activation::None => {}
            Activation::Relu => y.iter_mut().for_each(|y| *y = Relu.value(*y)),
            Activation::Gelu => map(y, z, |z| Gelu.value(z)),
            Activation::GeluTanh => map(y, z, |z| GeluTanh.value(z)),
        }
        Ok(())
    }

    fn prepared_len(&self, _inputs: &[&Meta], out: &Meta) -> usize {
        if self.0 == Activation::None { 0 } else { out.len() }
    }

    /// The gradient before the activation.
    fn prepare<T: Real>(&self, chain: &Chain<'_, T>, prepared: &mut [T]) {
        let (g, y, z) = (chain.grad, chain.output, chain.saved);
        match self.0 {
            Activation::None => {}
            Activation::Relu => zip(prepared, Write::Set, [g, y], |[g, y]| Relu.chain(g, y, y)),
            Activation::Gelu => zip(prepared, Write::Set, [g, z], |[g, z]| Gelu.chain(g, z, z)),
            Activation::GeluTanh => {
                zip(prepared, Write::Set, [g, z], |[g, z]| GeluTanh.chain(g, z, z));
            }
        }
    }

    /// `dx = g w`, `dw = gᵀ x`, `db` = sum of the rows of `g`.
    fn gradient<T: Real>(&self, which: usize, chain: &Chain<'_, T>, to: Target<'_, T>) {
        let (x, w) = (flat_rows(&chain.inputs[0]), matrix(&chain.inputs[1]));
        let outputs = chain.inputs[1].meta.shape[0];
        let rows = rows_of(chain.inputs[0].meta);
        let grad = if self.0 == Activation::None { chain.grad } else { chain.prepared };
        let g = Matrix::new(grad, rows, outputs);
        match which {
            0 => product(to.dst, to.mode, g, w),
            1 => product(to.dst, to.mode, g.transposed(), x),
            _ => sum_rows(to.dst, to.mode, rows, |i| grad[i]),
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
    x.shape[..x.rank() - 1].iter().product()
}
