//! Along some of the axes: sum, mean and greatest element.

use std::ops::RangeInclusive;

use arrayvec::ArrayVec;
use serde::{Deserialize, Serialize};

use super::{Call, Chain, Forward, Operation, Target};
use crate::{
    error::OpError,
    kernel::{Write, sum},
    meta::{Dims, MAX_RANK, Meta},
    real::Real,
};

/// Axes that go, and what becomes of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Axes {
    /// In any order, each once; at least one.
    pub axes: Dims,
    /// Whether they stay, with length 1.
    pub keep: bool,
}

impl Axes {
    fn infer(&self, call: &Call<'_>, out: &mut Meta) -> Result<(), OpError> {
        let dtype = call.floats()?;
        let x = call.inputs[0];
        call.require(x.rank() <= MAX_RANK, "there are at most 8 axes")?;
        call.require(!self.axes.is_empty(), "there must be an axis to reduce")?;
        let mut seen = [false; MAX_RANK];
        for &axis in &self.axes {
            call.require(axis < x.rank(), "x has no such axis")?;
            call.require(!seen[axis], "an axis can be reduced once only")?;
            seen[axis] = true;
        }
        let kept = (0..x.rank()).filter(|axis| self.keep || !seen[*axis]);
        let shape: Dims = kept.map(|axis| if seen[axis] { 1 } else { x.shape[axis] }).collect();
        out.set(dtype, &shape);
        Ok(())
    }

    /// The same, if something lies along the axes.
    fn infer_of_some(&self, call: &Call<'_>, out: &mut Meta) -> Result<(), OpError> {
        self.infer(call, out)?;
        let x = call.inputs[0];
        let has_some = self.axes.iter().all(|&axis| x.shape[axis] != 0);
        call.require(has_some, "the reduced axes must have an element")
    }

    fn split(&self, x: &Meta) -> Split {
        Split::new(&x.shape, |axis| self.axes.contains(&axis))
    }
}

/// A shape with neighbours of one fate made one: lengths with whether they go, outermost first.
#[derive(Debug)]
struct Split(ArrayVec<(usize, bool), MAX_RANK>);

impl Split {
    fn new(shape: &[usize], goes: impl Fn(usize) -> bool) -> Self {
        let mut groups = ArrayVec::<(usize, bool), MAX_RANK>::new();
        for (axis, &length) in shape.iter().enumerate() {
            match groups.last_mut() {
                Some((len, fate)) if *fate == goes(axis) => *len = len.saturating_mul(length),
                _ => groups.push((length, goes(axis))),
            }
        }
        Self(groups)
    }

    /// The innermost group.
    fn inner(&self) -> (usize, bool) {
        self.0.last().copied().unwrap_or((1, false))
    }

    /// How many elements go into one, leaving out the innermost group.
    fn outer_reduced(&self) -> usize {
        let outer = self.0.split_last().map_or(&[] as &[_], |(_, outer)| outer);
        outer.iter().filter(|(_, goes)| *goes).map(|(length, _)| length).product()
    }

    /// How many elements go into one.
    fn reduced(&self) -> usize {
        self.0.iter().filter(|(_, goes)| *goes).map(|(length, _)| length).product()
    }

    /// Where element `reduced` of those that make up result `kept` lies.
    fn place(&self, mut kept: usize, mut reduced: usize) -> usize {
        let (mut stride, mut place) = (1, 0);
        for &(length, goes) in self.0.iter().rev() {
            let rest = if goes { &mut reduced } else { &mut kept };
            place += *rest % length * stride;
            *rest /= length;
            stride *= length;
        }
        place
    }
}

/// Sums divided by `divisor`, in f64: rows along the innermost group one after the other, each by
/// [`sum`] where that group goes.
fn total<T: Real>(split: &Split, x: &[T], y: &mut [T], divisor: f64) {
    /// Sums that are made side by side.
    const SIDE: usize = 64;

    if x.is_empty() {
        y.fill(T::ZERO);
        return;
    }
    let ((inner, inner_goes), outer) = (split.inner(), split.outer_reduced());
    if inner_goes {
        for (kept, y) in y.iter_mut().enumerate() {
            let mut total = 0.0;
            for row in 0..outer {
                let row = &x[split.place(kept, row * inner)..][..inner];
                total += sum(inner, |i| row[i]).to_f64();
            }
            *y = T::from_f64(total / divisor);
        }
        return;
    }
    for (kept, y) in y.chunks_exact_mut(inner).enumerate() {
        for (part, y) in y.chunks_mut(SIDE).enumerate() {
            let mut totals = [0.0_f64; SIDE];
            for row in 0..outer {
                let start = split.place(kept * inner, row) + part * SIDE;
                for (total, x) in totals.iter_mut().zip(&x[start..][..y.len()]) {
                    *total += x.to_f64();
                }
            }
            for (y, total) in y.iter_mut().zip(totals) {
                *y = T::from_f64(total / divisor);
            }
        }
    }
}

/// Each element receives its result's gradient divided by `divisor`.
fn spread<T: Real>(split: &Split, g: &[T], to: Target<'_, T>, divisor: T) {
    if to.dst.is_empty() {
        return;
    }
    let ((inner, inner_goes), outer) = (split.inner(), split.outer_reduced());
    let across = if inner_goes { 1 } else { inner };
    for (kept, g) in g.chunks_exact(across).enumerate() {
        for row in 0..outer {
            let reduced = if inner_goes { row * inner } else { row };
            let dst = &mut to.dst[split.place(kept * across, reduced)..][..inner];
            let to = Target { dst, mode: to.mode };
            if inner_goes {
                let share = g[0] / divisor;
                to.write(|_| share);
            } else {
                to.write(|i| g[i] / divisor);
            }
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct SumAxes<'a>(pub(super) &'a Axes);

impl Operation for SumAxes<'_> {
    fn arity(&self) -> RangeInclusive<usize> {
        1..=1
    }

    fn infer(&self, call: &Call<'_>, out: &mut Meta) -> Result<(), OpError> {
        self.0.infer(call, out)
    }

    fn forward<T: Real>(&self, cx: Forward<'_, T>) -> Result<(), OpError> {
        let x = &cx.inputs[0];
        total(&self.0.split(x.meta), x.floats, cx.out.floats, 1.0);
        Ok(())
    }

    fn gradient<T: Real>(&self, _which: usize, chain: &Chain<'_, T>, to: Target<'_, T>) {
        spread(&self.0.split(chain.inputs[0].meta), chain.grad, to, T::ONE);
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct MeanAxes<'a>(pub(super) &'a Axes);

impl MeanAxes<'_> {
    fn count(self, x: &Meta) -> f64 {
        self.0.axes.iter().map(|&axis| x.shape[axis] as f64).product()
    }
}

impl Operation for MeanAxes<'_> {
    fn arity(&self) -> RangeInclusive<usize> {
        1..=1
    }

    fn infer(&self, call: &Call<'_>, out: &mut Meta) -> Result<(), OpError> {
        self.0.infer_of_some(call, out)
    }

    fn forward<T: Real>(&self, cx: Forward<'_, T>) -> Result<(), OpError> {
        let x = &cx.inputs[0];
        total(&self.0.split(x.meta), x.floats, cx.out.floats, self.count(x.meta));
        Ok(())
    }

    fn gradient<T: Real>(&self, _which: usize, chain: &Chain<'_, T>, to: Target<'_, T>) {
        let x = chain.inputs[0].meta;
        spread(&self.0.split(x), chain.grad, to, T::from_f64(self.count(x)));
    }
}

/// NaN counts as greatest. The gradient goes to the first of equals, in row-major order.
#[derive(Debug, Clone, Copy)]
pub(super) struct MaxAxes<'a>(pub(super) &'a Axes);

impl Operation for MaxAxes<'_> {
    fn arity(&self) -> RangeInclusive<usize> {
        1..=1
    }

    fn infer(&self, call: &Call<'_>, out: &mut Meta) -> Result<(), OpError> {
        self.0.infer_of_some(call, out)
    }

    fn forward<T: Real>(&self, cx: Forward<'_, T>) -> Result<(), OpError> {
        let (x, y) = (&cx.inputs[0], cx.out.floats);
        if y.is_empty() {
            return Ok(());
        }
        let split = self.0.split(x.meta);
        let reduced = split.reduced();
        for (kept, y) in y.iter_mut().enumerate() {
            *y = T::from_f64(f64::NEG_INFINITY);
            for place in (0..reduced).map(|i| split.place(kept, i)) {
                *y = greater(*y, x.floats[place]);
            }
        }
        Ok(())
    }

    fn gradient<T: Real>(&self, _which: usize, chain: &Chain<'_, T>, to: Target<'_, T>) {
        if to.mode == Write::Set {
            to.dst.fill(T::ZERO);
        }
        if to.dst.is_empty() {
            return;
        }
        let x = &chain.inputs[0];
        let split = self.0.split(x.meta);
        let reduced = split.reduced();
        for (kept, (&y, &g)) in chain.output.iter().zip(chain.grad).enumerate() {
            let mut places = (0..reduced).map(|i| split.place(kept, i));
            if let Some(place) = places.find(|&place| is_same(x.floats[place], y)) {
                to.dst[place] += g;
            }
        }
    }
}

/// Of equals the one that was there; NaN before all.
fn greater<T: Real>(was: T, x: T) -> T {
    if was < x || x.partial_cmp(&x).is_none() { x } else { was }
}

fn is_same<T: Real>(a: T, b: T) -> bool {
    a == b || (a.partial_cmp(&a).is_none() && b.partial_cmp(&b).is_none())
}
