//! The same numbers in another shape or kind.

use super::Call;
use crate::{
    error::{Metas, OpError},
    meta::{DType, Meta, elements},
    real::Real,
};

pub(super) fn infer_reshape(
    call: &Call<'_>,
    shape: &[usize],
    out: &mut Meta,
) -> Result<(), OpError> {
    let x = call.inputs[0];
    if elements(shape) != x.len() {
        let inputs = Metas::of(call.inputs);
        return Err(OpError::Reshape { op: call.op.name(), inputs, given: shape.to_vec() });
    }
    out.set(x.dtype, shape);
    Ok(())
}

pub(super) fn infer_to_float(call: &Call<'_>, out: &mut Meta) -> Result<(), OpError> {
    call.require(call.inputs[0].dtype == DType::I64, "the input must be i64")?;
    out.set(DType::F32, &call.inputs[0].shape);
    Ok(())
}

pub(super) fn to_float<T: Real>(x: &[i64], y: &mut [T]) {
    for (y, &x) in y.iter_mut().zip(x) {
        *y = T::from_f64(x as f64);
    }
}
