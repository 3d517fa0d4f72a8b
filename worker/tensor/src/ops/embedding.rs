//! Rows of a table, by number.

use std::ops::RangeInclusive;

use super::{Call, Chain, Forward, Operation, Target};
use crate::{
    error::OpError,
    kernel::{Write, zip},
    meta::{DType, Meta},
    real::Real,
};

#[derive(Debug, Clone, Copy)]
pub(super) struct Embedding;

impl Operation for Embedding {
    fn arity(&self) -> RangeInclusive<usize> {
        2..=2
    }

    fn infer(&self, call: &Call<'_>, out: &mut Meta) -> Result<(), OpError> {
        let (table, ids) = (call.inputs[0], call.inputs[1]);
        call.require(table.dtype.is_float(), "the table must be of floats")?;
        call.require(table.rank() == 2, "the table must be [v, d]")?;
        call.require(ids.dtype == DType::I64, "the ids must be i64")?;
        out.set(table.dtype, &ids.shape);
        out.shape.push(table.shape[1]);
        Ok(())
    }

    fn forward<T: Real>(&self, cx: Forward<'_, T>) -> Result<(), OpError> {
        let (table, ids) = (cx.inputs[0].floats, cx.inputs[1].ints);
        let (len, d) = (cx.inputs[0].meta.shape[0], cx.inputs[0].meta.shape[1]);
        for (row, &index) in ids.iter().enumerate() {
            let id = usize::try_from(index)
                .ok()
                .filter(|&id| id < len)
                .ok_or(OpError::IndexOutOfRange { op: "embedding", row, index, len })?;
            cx.out.floats[row * d..][..d].copy_from_slice(&table[id * d..][..d]);
        }
        Ok(())
    }

    /// Row i of the table gets the sum of `g[row]` over the rows that are of it, from the first to the last.
    fn gradient<T: Real>(&self, _which: usize, chain: &Chain<'_, T>, to: Target<'_, T>) {
        let d = chain.inputs[0].meta.shape[1];
        if to.mode == Write::Set {
            to.dst.fill(T::ZERO);
        }
        for (row, &id) in chain.inputs[1].ints.iter().enumerate() {
            let dst = &mut to.dst[id as usize * d..][..d];
            zip(dst, Write::Add, [&chain.grad[row * d..]], |[g]| g);
        }
    }
}
