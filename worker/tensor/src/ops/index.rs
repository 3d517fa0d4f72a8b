//! Elements picked by numbers: gather and scatter-add along an axis, and a choice of two.

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use super::{
    Call, Chain, Forward, Operation, Target,
    axes::{Around, each_place, strides},
};
use crate::{
    error::OpError,
    kernel::Write,
    meta::{DType, Dims, MAX_RANK, Meta},
    real::Real,
};

/// A place along an axis of that length, or which number does not name one.
fn checked(op: &'static str, row: usize, index: i64, len: usize) -> Result<usize, OpError> {
    let place = usize::try_from(index).ok().filter(|&place| place < len);
    place.ok_or(OpError::IndexOutOfRange { op, row, index, len })
}

/// `y[.., i, ..] = x[.., index[.., i, ..], ..]` along an axis; the index may be shorter along the others.
#[derive(Debug, Clone, Copy)]
pub(super) struct GatherAxis(pub(super) usize);

impl GatherAxis {
    const NAME: &'static str = "gather_axis";

    /// Visits the places of the index with that of element 0 of the line of x they pick from. Neither is
    /// empty.
    fn each(self, x: &Meta, index: &Meta, visit: impl FnMut(usize, usize)) {
        let mut from: Dims = strides(&x.shape);
        from[self.0] = 0;
        each_place(&index.shape, &from, visit);
    }

    /// From one element of such a line to the next.
    fn step(self, x: &Meta) -> usize {
        Around::new(&x.shape, self.0).inner
    }
}

impl Operation for GatherAxis {
    fn arity(&self) -> RangeInclusive<usize> {
        2..=2
    }

    fn infer(&self, call: &Call<'_>, out: &mut Meta) -> Result<(), OpError> {
        let (x, index) = (call.inputs[0], call.inputs[1]);
        call.require(x.dtype.is_float(), "x must be of floats")?;
        call.require(index.dtype == DType::I64, "the index must be i64")?;
        call.require(x.rank() <= MAX_RANK, "there are at most 8 axes")?;
        call.require(self.0 < x.rank(), "x has no such axis")?;
        call.require(x.rank() == index.rank(), "x and the index must have equally many axes")?;
        let fits = |axis: usize| axis == self.0 || index.shape[axis] <= x.shape[axis];
        call.require(
            (0..x.rank()).all(fits),
            "the index must not be longer than x along the other axes",
        )?;
        out.set(x.dtype, &index.shape);
        Ok(())
    }

    fn forward<T: Real>(&self, cx: Forward<'_, T>) -> Result<(), OpError> {
        let (x, index, y) = (&cx.inputs[0], &cx.inputs[1], cx.out.floats);
        let len = x.meta.shape[self.0];
        for (row, &index) in index.ints.iter().enumerate() {
            checked(Self::NAME, row, index, len)?;
        }
        // With an index within the axis, and lengths that fit, x is not empty either.
        if !y.is_empty() {
            let step = self.step(x.meta);
            self.each(x.meta, index.meta, |place, line| {
                y[place] = x.floats[line + index.ints[place] as usize * step];
            });
        }
        Ok(())
    }

    /// `dx[index] += g`, in the order of the index; zero elsewhere.
    fn gradient<T: Real>(&self, _which: usize, chain: &Chain<'_, T>, to: Target<'_, T>) {
        if to.mode == Write::Set {
            to.dst.fill(T::ZERO);
        }
        if chain.grad.is_empty() {
            return;
        }
        let (x, index) = (chain.inputs[0].meta, &chain.inputs[1]);
        let step = self.step(x);
        self.each(x, index.meta, |place, line| {
            to.dst[line + index.ints[place] as usize * step] += chain.grad[place];
        });
    }
}

/// Where the sums of [`super::Op::ScatterAdd`] lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScatterAdd {
    /// The axis along which elements move.
    pub axis: usize,
    /// Its length in the result.
    pub len: usize,
}

impl ScatterAdd {
    const NAME: &'static str = "scatter_add";

    /// Visits the elements of `x` with the places they go to. Neither side is empty.
    fn each(self, x: &Meta, index: &[i64], mut visit: impl FnMut(usize, usize)) {
        let around = Around::new(&x.shape, self.axis);
        let lines = index.chunks_exact(around.inner).enumerate();
        for (line, index) in lines {
            let outer = line / around.len * self.len;
            for (i, &to) in index.iter().enumerate() {
                visit(line * around.inner + i, (outer + to as usize) * around.inner + i);
            }
        }
    }
}

impl Operation for ScatterAdd {
    fn arity(&self) -> RangeInclusive<usize> {
        2..=2
    }

    fn infer(&self, call: &Call<'_>, out: &mut Meta) -> Result<(), OpError> {
        let (x, index) = (call.inputs[0], call.inputs[1]);
        call.require(x.dtype.is_float(), "x must be of floats")?;
        call.require(index.dtype == DType::I64, "the index must be i64")?;
        call.require(self.axis < x.rank(), "x has no such axis")?;
        call.require(x.shape == index.shape, "x and the index must be of one shape")?;
        out.set(x.dtype, &x.shape);
        out.shape[self.axis] = self.len;
        Ok(())
    }

    /// In the order of `x`.
    fn forward<T: Real>(&self, cx: Forward<'_, T>) -> Result<(), OpError> {
        let (x, index, y) = (&cx.inputs[0], &cx.inputs[1], cx.out.floats);
        for (row, &index) in index.ints.iter().enumerate() {
            checked(Self::NAME, row, index, self.len)?;
        }
        y.fill(T::ZERO);
        if !x.floats.is_empty() {
            self.each(x.meta, index.ints, |from, to| y[to] += x.floats[from]);
        }
        Ok(())
    }

    /// `dx = g[index]`.
    fn gradient<T: Real>(&self, _which: usize, chain: &Chain<'_, T>, to: Target<'_, T>) {
        if to.dst.is_empty() {
            return;
        }
        let (x, index) = (&chain.inputs[0], chain.inputs[1].ints);
        self.each(x.meta, index, |from, place| match to.mode {
            Write::Set => to.dst[from] = chain.grad[place],
            Write::Add => to.dst[from] += chain.grad[place],
        });
    }
}

/// The second input where the first is not 0, and the third elsewhere.
#[derive(Debug, Clone, Copy)]
pub(super) struct Where;

impl Operation for Where {
    fn arity(&self) -> RangeInclusive<usize> {
        3..=3
    }

    fn infer(&self, call: &Call<'_>, out: &mut Meta) -> Result<(), OpError> {
        let (condition, a, b) = (call.inputs[0], call.inputs[1], call.inputs[2]);
        call.require(condition.dtype == DType::I64, "the condition must be i64")?;
        call.require(
            a.dtype.is_float() && a.dtype == b.dtype,
            "a and b must be floats of one kind",
        )?;
        call.require(
            condition.shape == a.shape && a.shape == b.shape,
            "the condition, a and b must be of one shape",
        )?;
        out.set(a.dtype, &a.shape);
        Ok(())
    }

    fn forward<T: Real>(&self, cx: Forward<'_, T>) -> Result<(), OpError> {
        let [condition, a, b] = [0, 1, 2].map(|i| &cx.inputs[i]);
        let pairs = a.floats.iter().zip(b.floats);
        for ((y, &condition), (&a, &b)) in cx.out.floats.iter_mut().zip(condition.ints).zip(pairs) {
            *y = if condition == 0 { b } else { a };
        }
        Ok(())
    }

    fn gradient<T: Real>(&self, which: usize, chain: &Chain<'_, T>, to: Target<'_, T>) {
        let condition = chain.inputs[0].ints;
        to.write(|i| {
            let is_taken = (condition[i] == 0) == (which == 2);
            if is_taken { chain.grad[i] } else { T::ZERO }
        });
    }
}
