//! The same numbers in another shape or kind.

use std::ops::RangeInclusive;

use super::{Call, Chain, Forward, Operation, Target};
use crate::{
    error::{Metas, OpError},
    meta::{DType, Dims, Meta, elements},
    real::Real,
};

#[derive(Debug, Clone, Copy)]
pub(super) struct Reshape<'a>(pub(super) &'a Dims);

impl Operation for Reshape<'_> {
    fn arity(&self) -> RangeInclusive<usize> {
        1..=1
    }

    fn infer(&self, call: &Call<'_>, out: &mut Meta) -> Result<(), OpError> {
        let x = call.inputs[0];
        if elements(self.0) != x.len() {
            let inputs = Metas::of(call.inputs);
            return Err(OpError::Reshape { op: call.op, inputs, given: self.0.to_vec() });
        }
        out.set(x.dtype, self.0);
        Ok(())
    }

    fn is_view(&self) -> bool {
        true
    }

    fn passes_on(&self, _inputs: &[&Meta]) -> Option<usize> {
        Some(0)
    }

    fn forward<T: Real>(&self, cx: Forward<'_, T>) -> Result<(), OpError> {
        cx.out.floats.copy_from_slice(cx.inputs[0].floats);
        cx.out.ints.copy_from_slice(cx.inputs[0].ints);
        Ok(())
    }

    fn gradient<T: Real>(&self, _which: usize, chain: &Chain<'_, T>, to: Target<'_, T>) {
        to.write(|i| chain.grad[i]);
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Detach;

impl Operation for Detach {
    fn arity(&self) -> RangeInclusive<usize> {
        1..=1
    }

    fn has_gradient(&self) -> bool {
        false
    }

    fn infer(&self, call: &Call<'_>, out: &mut Meta) -> Result<(), OpError> {
        out.set(call.inputs[0].dtype, &call.inputs[0].shape);
        Ok(())
    }

    fn is_view(&self) -> bool {
        true
    }

    fn forward<T: Real>(&self, cx: Forward<'_, T>) -> Result<(), OpError> {
        cx.out.floats.copy_from_slice(cx.inputs[0].floats);
        cx.out.ints.copy_from_slice(cx.inputs[0].ints);
        Ok(())
    }

    fn gradient<T: Real>(&self, _which: usize, _chain: &Chain<'_, T>, _to: Target<'_, T>) {}
}

#[derive(Debug, Clone, Copy)]
pub(super) struct ToFloat;

impl Operation for ToFloat {
    fn arity(&self) -> RangeInclusive<usize> {
        1..=1
    }

    fn has_gradient(&self) -> bool {
        false
    }

    fn infer(&self, call: &Call<'_>, out: &mut Meta) -> Result<(), OpError> {
        call.require(call.inputs[0].dtype == DType::I64, "the input must be i64")?;
        out.set(DType::F32, &call.inputs[0].shape);
        Ok(())
    }

    fn forward<T: Real>(&self, cx: Forward<'_, T>) -> Result<(), OpError> {
        for (y, &x) in cx.out.floats.iter_mut().zip(cx.inputs[0].ints) {
            *y = T::from_f64(x as f64);
        }
        Ok(())
    }

    fn gradient<T: Real>(&self, _which: usize, _chain: &Chain<'_, T>, _to: Target<'_, T>) {}
}
