//! Everything to one scalar.

use std::ops::RangeInclusive;

use super::{Call, Chain, Forward, Operation, Target};
use crate::{error::OpError, kernel::sum, meta::Meta, real::Real};

#[derive(Debug, Clone, Copy)]
pub(super) struct Sum;

impl Operation for Sum {
    fn arity(&self) -> RangeInclusive<usize> {
        1..=1
    }

    fn infer(&self, call: &Call<'_>, out: &mut Meta) -> Result<(), OpError> {
        let dtype = call.floats()?;
        out.set(dtype, &[]);
        Ok(())
    }

    fn forward<T: Real>(&self, cx: Forward<'_, T>) -> Result<(), OpError> {
        cx.out.floats[0] = sum_of(cx.inputs[0].floats);
        Ok(())
    }

    fn gradient<T: Real>(&self, _which: usize, chain: &Chain<'_, T>, to: Target<'_, T>) {
        to.write(|_| chain.grad[0]);
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Mean;

impl Operation for Mean {
    fn arity(&self) -> RangeInclusive<usize> {
        1..=1
    }

    fn infer(&self, call: &Call<'_>, out: &mut Meta) -> Result<(), OpError> {
        let dtype = call.floats()?;
        call.require(!call.inputs[0].is_empty(), "there is no element to take the mean of")?;
        out.set(dtype, &[]);
        Ok(())
    }

    fn forward<T: Real>(&self, cx: Forward<'_, T>) -> Result<(), OpError> {
        let x = cx.inputs[0].floats;
        cx.out.floats[0] = sum_of(x) / T::from_f64(x.len() as f64);
        Ok(())
    }

    fn gradient<T: Real>(&self, _which: usize, chain: &Chain<'_, T>, to: Target<'_, T>) {
        let share = chain.grad[0] / T::from_f64(to.dst.len() as f64);
        to.write(|_| share);
    }
}

fn sum_of<T: Real>(x: &[T]) -> T {
    sum(x.len(), |i| x[i])
}
