//! What metrics are made of: argmax and equal. No gradients.

use super::{Call, Operand};
use crate::{
    error::OpError,
    meta::{DType, Meta},
    real::Real,
};

pub(super) fn infer_argmax(call: &Call<'_>, out: &mut Meta) -> Result<(), OpError> {
    call.floats()?;
    let x = call.inputs[0];
    call.require(x.last().is_some_and(|c| 0 < c), "the last axis must have an element")?;
    out.set(DType::I64, &x.shape[..x.rank() - 1]);
    Ok(())
}

pub(super) fn argmax<T: Real>(x: &Operand<'_, T>, y: &mut [i64]) {
    let columns = x.meta.last().unwrap_or(1);
    for (row, y) in x.floats.chunks_exact(columns).zip(y) {
        let mut best = 0;
        for (column, value) in row.iter().enumerate() {
            let greatest = row[best];
            if is_number(greatest) && (greatest < *value || !is_number(*value)) {
                best = column;
            }
        }
        *y = best as i64;
    }
}

fn is_number<T: Real>(value: T) -> bool {
    value.partial_cmp(&value).is_some()
}

pub(super) fn infer_equal(call: &Call<'_>, out: &mut Meta) -> Result<(), OpError> {
    let (a, b) = (call.inputs[0], call.inputs[1]);
    call.require(a.dtype == b.dtype, "both must be of one kind")?;
    call.require(a.shape == b.shape, "the shapes must be equal")?;
    let dtype = if a.dtype.is_float() { a.dtype } else { DType::F32 };
    out.set(dtype, &a.shape);
    Ok(())
}

pub(super) fn equal<T: Real>(inputs: &[Operand<'_, T>], y: &mut [T]) {
    let (a, b) = (&inputs[0], &inputs[1]);
    match a.meta.dtype {
        DType::F32 | DType::F64 => one_where_equal(a.floats, b.floats, y),
        DType::I64 => one_where_equal(a.ints, b.ints, y),
    }
}

fn one_where_equal<E: PartialEq, T: Real>(a: &[E], b: &[E], y: &mut [T]) {
    for (y, (a, b)) in y.iter_mut().zip(a.iter().zip(b)) {
        *y = if a == b { T::ONE } else { T::ZERO };
    }
}
