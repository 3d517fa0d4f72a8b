//! Everything to one scalar.

use super::{Call, Chain, Op, Target};
use crate::{error::OpError, kernel, meta::Meta, real::Real};

pub(super) fn infer(call: &Call<'_>, out: &mut Meta) -> Result<(), OpError> {
    let dtype = call.floats()?;
    let empty = *call.op == Op::Mean && call.inputs[0].is_empty();
    call.require(!empty, "there is no element to take the mean of")?;
    out.set(dtype, &[]);
    Ok(())
}

pub(super) fn sum_of<T: Real>(x: &[T]) -> T {
    kernel::sum(x.len(), |i| x[i])
}

pub(super) fn mean_of<T: Real>(x: &[T]) -> T {
    sum_of(x) / T::from_f64(x.len() as f64)
}

pub(super) fn gradient<T: Real>(op: &Op, chain: &Chain<'_, T>, to: Target<'_, T>) {
    let len = T::from_f64(to.dst.len() as f64);
    let share = if *op == Op::Mean { chain.grad[0] / len } else { chain.grad[0] };
    to.write(|_| share);
}
