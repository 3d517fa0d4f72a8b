//! What metrics are made of: argmax and equal. No gradients.

use std::ops::RangeInclusive;

use super::{Call, Chain, Forward, Operation, Target};
use crate::{
    error::OpError,
    meta::{DType, Meta},
    real::Real,
};

#[derive(Debug, Clone, Copy)]
pub(super) struct ArgMax;

impl Operation for ArgMax {
    fn arity(&self) -> RangeInclusive<usize> {
        1..=1
    }

    fn has_gradient(&self) -> bool {
        false
    }

    fn infer(&self, call: &Call<'_>, out: &mut Meta) -> Result<(), OpError> {
        call.floats()?;
        let x = call.inputs[0];
        call.require(x.last().is_some_and(|c| 0 < c), "the last axis must have an element")?;
        out.set(DType::I64, &x.shape[..x.rank() - 1]);
        Ok(())
    }

    fn forward<T: Real>(&self, cx: Forward<'_, T>) -> Result<(), OpError> {
        let x = &cx.inputs[0];
        let columns = x.meta.last().unwrap_or(1);
        for (row, y) in x.floats.chunks_exact(columns).zip(cx.out.ints) {
            let mut best = 0;
            for (column, value) in row.iter().enumerate() {
                let greatest = row[best];
                if is_number(greatest) && (greatest < *value || !is_number(*value)) {
                    best = column;
                }
            }
            *y = best as i64;
        }
        Ok(())
    }

    fn gradient<T: Real>(&self, _which: usize, _chain: &Chain<'_, T>, _to: Target<'_, T>) {}
}

fn is_number<T: Real>(value: T) -> bool {
    value.partial_cmp(&value).is_some()
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Equal;

impl Operation for Equal {
    fn arity(&self) -> RangeInclusive<usize> {
        2..=2
    }

    fn has_gradient(&self) -> bool {
        false
    }

    fn infer(&self, call: &Call<'_>, out: &mut Meta) -> Result<(), OpError> {
        let (a, b) = (call.inputs[0], call.inputs[1]);
        call.require(a.dtype == b.dtype, "both must be of one kind")?;
        call.require(a.shape == b.shape, "the shapes must be equal")?;
        let dtype = if a.dtype.is_float() { a.dtype } else { DType::F32 };
        out.set(dtype, &a.shape);
        Ok(())
    }

    fn forward<T: Real>(&self, cx: Forward<'_, T>) -> Result<(), OpError> {
        let (a, b) = (&cx.inputs[0], &cx.inputs[1]);
        match a.meta.dtype {
            DType::F32 | DType::F64 => one_where_equal(a.floats, b.floats, cx.out.floats),
            DType::I64 => one_where_equal(a.ints, b.ints, cx.out.floats),
        }
        Ok(())
    }

    fn gradient<T: Real>(&self, _which: usize, _chain: &Chain<'_, T>, _to: Target<'_, T>) {}
}

fn one_where_equal<E: PartialEq, T: Real>(a: &[E], b: &[E], y: &mut [T]) {
    for (y, (a, b)) in y.iter_mut().zip(a.iter().zip(b)) {
        *y = if a == b { T::ONE } else { T::ZERO };
    }
}
