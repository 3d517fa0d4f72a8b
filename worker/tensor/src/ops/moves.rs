//! The same numbers in other places: permute, slice, concatenate. Of floats or of integers.

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use super::{
    Call, Chain, Forward, Operand, Operation, Target,
    axes::{Around, each_place, strides},
};
use crate::{
    error::OpError,
    kernel::Write,
    meta::{Dims, MAX_RANK, Meta},
    real::Real,
};

/// Axis i of the result is axis `axes[i]` of x.
#[derive(Debug, Clone, Copy)]
pub(super) struct Permute<'a>(pub(super) &'a Dims);

impl Permute<'_> {
    /// Visits the rows of the result along its last axis: the row's number, where it begins in `x`, and
    /// how far apart its elements are there.
    fn each_row(self, x: &Meta, mut visit: impl FnMut(usize, usize, usize)) {
        if x.is_empty() {
            return;
        }
        let from = strides(&x.shape);
        let shape: Dims = self.0.iter().map(|&axis| x.shape[axis]).collect();
        let from: Dims = self.0.iter().map(|&axis| from[axis]).collect();
        let (outer, step) = match from.split_last() {
            Some((&step, outer)) => (outer, step),
            None => (&[] as &[usize], 1),
        };
        each_place(&shape[..outer.len()], outer, |row, start| visit(row, start, step));
    }

    /// Elements along the last axis of the result.
    fn row_len(self, x: &Meta) -> usize {
        self.0.last().map_or(1, |&axis| x.shape[axis])
    }

    fn copy<E: Copy>(self, x: &Meta, from: &[E], to: &mut [E]) {
        let len = self.row_len(x);
        self.each_row(x, |row, start, step| {
            let to = &mut to[row * len..][..len];
            if step == 1 {
                to.copy_from_slice(&from[start..][..len]);
            } else {
                to.iter_mut().zip(from[start..].iter().step_by(step)).for_each(|(y, x)| *y = *x);
            }
        });
    }
}

impl Operation for Permute<'_> {
    fn arity(&self) -> RangeInclusive<usize> {
        1..=1
    }

    fn infer(&self, call: &Call<'_>, out: &mut Meta) -> Result<(), OpError> {
        let x = call.inputs[0];
        call.require(self.0.len() == x.rank(), "each axis of x must be named once")?;
        let mut seen = [false; MAX_RANK];
        for &axis in self.0 {
            call.require(axis < x.rank() && !seen[axis], "each axis of x must be named once")?;
            seen[axis] = true;
        }
        let shape: Dims = self.0.iter().map(|&axis| x.shape[axis]).collect();
        out.set(x.dtype, &shape);
        Ok(())
    }

    fn forward<T: Real>(&self, cx: Forward<'_, T>) -> Result<(), OpError> {
        let x = &cx.inputs[0];
        if x.meta.dtype.is_float() {
            self.copy(x.meta, x.floats, cx.out.floats);
        } else {
            self.copy(x.meta, x.ints, cx.out.ints);
        }
        Ok(())
    }

    fn gradient<T: Real>(&self, _which: usize, chain: &Chain<'_, T>, to: Target<'_, T>) {
        let x = chain.inputs[0].meta;
        let len = self.row_len(x);
        self.each_row(x, |row, start, step| {
            let g = &chain.grad[row * len..][..len];
            let to_row = to.dst[start..].iter_mut().step_by(step).zip(g);
            match to.mode {
                Write::Set => to_row.for_each(|(dst, &g)| *dst = g),
                Write::Add => to_row.for_each(|(dst, &g)| *dst += g),
            }
        });
    }
}

/// A stretch of one axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slice {
    /// Which axis.
    pub axis: usize,
    /// Its first element that is taken.
    pub start: usize,
    /// How many are taken.
    pub len: usize,
}

/// Where each stretch of `part` lies in `whole`, both around the same axis: first the place in `whole`,
/// then that in `part`, then the length of both.
fn stretches(
    whole: Around,
    part: Around,
    start: usize,
) -> impl Iterator<Item = (usize, usize, usize)> {
    let len = part.len * part.inner;
    (0..part.outer).map(move |i| ((i * whole.len + start) * whole.inner, i * len, len))
}

impl Slice {
    fn copy<E: Copy>(self, x: &Meta, from: &[E], to: &mut [E]) {
        if to.is_empty() {
            return;
        }
        let whole = Around::new(&x.shape, self.axis);
        for (there, here, len) in stretches(whole, self.part(whole), self.start) {
            to[here..][..len].copy_from_slice(&from[there..][..len]);
        }
    }

    fn part(self, whole: Around) -> Around {
        Around { len: self.len, ..whole }
    }
}

impl Operation for Slice {
    fn arity(&self) -> RangeInclusive<usize> {
        1..=1
    }

    fn infer(&self, call: &Call<'_>, out: &mut Meta) -> Result<(), OpError> {
        let x = call.inputs[0];
        call.require(self.axis < x.rank(), "x has no such axis")?;
        let end = self.start.checked_add(self.len);
        call.require(
            end.is_some_and(|end| end <= x.shape[self.axis]),
            "the slice must end within the axis",
        )?;
        out.set(x.dtype, &x.shape);
        out.shape[self.axis] = self.len;
        Ok(())
    }

    fn forward<T: Real>(&self, cx: Forward<'_, T>) -> Result<(), OpError> {
        let x = &cx.inputs[0];
        if x.meta.dtype.is_float() {
            self.copy(x.meta, x.floats, cx.out.floats);
        } else {
            self.copy(x.meta, x.ints, cx.out.ints);
        }
        Ok(())
    }

    /// Zero outside of the slice.
    fn gradient<T: Real>(&self, _which: usize, chain: &Chain<'_, T>, to: Target<'_, T>) {
        if to.mode == Write::Set {
            to.dst.fill(T::ZERO);
        }
        if chain.grad.is_empty() {
            return;
        }
        let whole = Around::new(&chain.inputs[0].meta.shape, self.axis);
        for (there, here, len) in stretches(whole, self.part(whole), self.start) {
            let g = &chain.grad[here..][..len];
            Target { dst: &mut to.dst[there..][..len], mode: to.mode }.write(|i| g[i]);
        }
    }
}

/// One after the other along an axis.
#[derive(Debug, Clone, Copy)]
pub(super) struct Concat(pub(super) usize);

impl Concat {
    /// Copies each input to its place. There is an element in the result.
    fn copy<'a, T: Real + 'a, E: Copy + 'a>(
        self,
        inputs: &[Operand<'a, T>],
        numbers: impl Fn(&Operand<'a, T>) -> &'a [E],
        to: &mut [E],
    ) {
        let (whole, mut start) = (self.whole(inputs), 0);
        for input in inputs.iter().filter(|input| !input.meta.is_empty()) {
            let (part, from) = (Around::new(&input.meta.shape, self.0), numbers(input));
            for (there, here, len) in stretches(whole, part, start) {
                to[there..][..len].copy_from_slice(&from[here..][..len]);
            }
            start += part.len;
        }
    }

    fn whole<T>(self, inputs: &[Operand<'_, T>]) -> Around {
        let len = inputs.iter().map(|input| input.meta.shape[self.0]).sum();
        Around { len, ..Around::new(&inputs[0].meta.shape, self.0) }
    }
}

impl Operation for Concat {
    fn arity(&self) -> RangeInclusive<usize> {
        2..=super::MAX_INPUTS
    }

    fn infer(&self, call: &Call<'_>, out: &mut Meta) -> Result<(), OpError> {
        let (first, axis) = (call.inputs[0], self.0);
        call.require(axis < first.rank(), "the inputs have no such axis")?;
        out.set(first.dtype, &first.shape);
        for input in &call.inputs[1..] {
            call.require(input.dtype == first.dtype, "the inputs must be of one kind")?;
            call.require(
                input.rank() == first.rank()
                    && input.shape[..axis] == first.shape[..axis]
                    && input.shape[axis + 1..] == first.shape[axis + 1..],
                "the other axes must be equally long",
            )?;
            let len = out.shape[axis].checked_add(input.shape[axis]);
            out.shape[axis] = len.ok_or_else(|| call.refuse("the axis would be too long"))?;
        }
        Ok(())
    }

    fn forward<T: Real>(&self, cx: Forward<'_, T>) -> Result<(), OpError> {
        if cx.inputs[0].meta.dtype.is_float() {
            self.copy(cx.inputs, |input| input.floats, cx.out.floats);
        } else {
            self.copy(cx.inputs, |input| input.ints, cx.out.ints);
        }
        Ok(())
    }

    fn gradient<T: Real>(&self, which: usize, chain: &Chain<'_, T>, to: Target<'_, T>) {
        if to.dst.is_empty() {
            return;
        }
        let lengths = chain.inputs[..which].iter().map(|input| input.meta.shape[self.0]);
        let start = lengths.sum();
        let part = Around::new(&chain.inputs[which].meta.shape, self.0);
        for (there, here, len) in stretches(self.whole(chain.inputs), part, start) {
            let g = &chain.grad[there..][..len];
            Target { dst: &mut to.dst[here..][..len], mode: to.mode }.write(|i| g[i]);
        }
    }
}
