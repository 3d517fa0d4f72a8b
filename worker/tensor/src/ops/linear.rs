//! Matrix products: the linear layer and the plain product.

use super::{Call, Chain, Operand, Target};
use crate::{
    error::OpError,
    kernel::{Matrix, Write, product, sum_rows},
    meta::Meta,
    real::Real,
};

pub(super) fn infer_linear(call: &Call<'_>, out: &mut Meta) -> Result<(), OpError> {
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

pub(super) fn infer_matmul(call: &Call<'_>, out: &mut Meta) -> Result<(), OpError> {
    let dtype = call.floats()?;
    let (a, b) = (call.inputs[0], call.inputs[1]);
    call.require(a.rank() == 2 && b.rank() == 2, "both must have two axes")?;
    call.require(a.shape[1] == b.shape[0], "the last axis of a must be as long as the first of b")?;
    out.set(dtype, &[a.shape[0], b.shape[1]]);
    Ok(())
}

/// `y = x wᵀ + b`. The bias is laid down first and the product added to it.
pub(super) fn linear<T: Real>(inputs: &[Operand<'_, T>], y: &mut [T]) {
    let (x, w) = (flat_rows(&inputs[0]), matrix(&inputs[1]));
    match inputs.get(2) {
        None => product(y, Write::Set, x, w.transposed()),
        Some(b) => {
            for row in y.chunks_exact_mut(b.floats.len().max(1)) {
                row.copy_from_slice(b.floats);
            }
            product(y, Write::Add, x, w.transposed());
        }
    }
}

/// `dx = g w`, `dw = gᵀ x`, `db` = sum of the rows of `g`.
pub(super) fn linear_gradient<T: Real>(which: usize, chain: &Chain<'_, T>, to: Target<'_, T>) {
    let (x, w) = (flat_rows(&chain.inputs[0]), matrix(&chain.inputs[1]));
    let outputs = chain.inputs[1].meta.shape[0];
    let rows = rows_of(chain.inputs[0].meta);
    let g = Matrix::new(chain.grad, rows, outputs);
    match which {
        0 => product(to.dst, to.mode, g, w),
        1 => product(to.dst, to.mode, g.transposed(), x),
        _ => sum_rows(to.dst, to.mode, rows, |i| chain.grad[i]),
    }
}

pub(super) fn matmul<T: Real>(inputs: &[Operand<'_, T>], y: &mut [T]) {
    product(y, Write::Set, matrix(&inputs[0]), matrix(&inputs[1]));
}

/// `da = g bᵀ`, `db = aᵀ g`.
pub(super) fn matmul_gradient<T: Real>(which: usize, chain: &Chain<'_, T>, to: Target<'_, T>) {
    let (a, b) = (matrix(&chain.inputs[0]), matrix(&chain.inputs[1]));
    let shape = (chain.inputs[0].meta.shape[0], chain.inputs[1].meta.shape[1]);
    let g = Matrix::new(chain.grad, shape.0, shape.1);
    match which {
        0 => product(to.dst, to.mode, g, b.transposed()),
        _ => product(to.dst, to.mode, a.transposed(), g),
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
