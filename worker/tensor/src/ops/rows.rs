//! Along the last axis: gather.

use std::ops::RangeInclusive;

use super::{Call, Chain, Forward, Operation, Target};
use crate::{
    error::OpError,
    kernel::Write,
    meta::{DType, Meta},
    real::Real,
};

#[derive(Debug, Clone, Copy)]
pub(super) struct Gather;

impl Operation for Gather {
    fn arity(&self) -> RangeInclusive<usize> {
        2..=2
    }

    fn infer(&self, call: &Call<'_>, out: &mut Meta) -> Result<(), OpError> {
        let (x, index) = (call.inputs[0], call.inputs[1]);
        call.require(x.dtype.is_float(), "x must be of floats")?;
        call.require(index.dtype == DType::I64, "the index must be i64")?;
        call.require(x.rank() == 2 && index.rank() == 1, "x must be [n, c] and the index [n]")?;
        call.require(x.shape[0] == index.shape[0], "x and the index must have equally many rows")?;
        out.set(x.dtype, &index.shape);
        Ok(())
    }

    fn forward<T: Real>(&self, cx: Forward<'_, T>) -> Result<(), OpError> {
        let (x, index) = (cx.inputs[0].floats, cx.inputs[1].ints);
        let classes = cx.inputs[0].meta.shape[1];
        for (row, (&index, y)) in index.iter().zip(cx.out.floats).enumerate() {
            *y = usize::try_from(index)
                .ok()
                .filter(|&column| column < classes)
                .map(|column| x[row * classes + column])
                .ok_or(OpError::IndexOutOfRange { op: "gather", row, index, len: classes })?;
        }
        Ok(())
    }

    /// `dx[row, index[row]] = g[row]`, zero elsewhere.
    fn gradient<T: Real>(&self, _which: usize, chain: &Chain<'_, T>, to: Target<'_, T>) {
        let classes = chain.inputs[0].meta.shape[1];
        if to.mode == Write::Set {
            to.dst.fill(T::ZERO);
        }
        for (row, (&index, &g)) in chain.inputs[1].ints.iter().zip(chain.grad).enumerate() {
            to.dst[row * classes + index as usize] += g;
        }
    }
}
