//! Element by element, two inputs; axes of length 1 and missing ones are repeated.

use std::ops::RangeInclusive;

use super::{Call, Chain, Forward, Operation, Target};
use crate::{
    error::OpError,
    kernel::{Lanewise, Threads, Write, evaluate, sum, write},
    meta::{Dims, MAX_RANK, Meta},
    real::Real,
};

/// `y = value(a, b)`, with the derivatives known from the inputs. Methods are `#[inline(always)]`: see
/// [`Lanewise`].
pub(super) trait Pairwise: Sync {
    fn value<T: Real>(&self, a: T, b: T) -> T;

    /// One element's share in the gradient of input `which`.
    fn chain<T: Real>(&self, which: usize, grad: T, a: T, b: T) -> T;
}

/// A pairwise function with its shapes and loops.
#[derive(Debug, Clone, Copy)]
pub(super) struct Binary<P>(pub(super) P);

impl<P: Pairwise> Operation for Binary<P> {
    fn arity(&self) -> RangeInclusive<usize> {
        2..=2
    }

    fn infer(&self, call: &Call<'_>, out: &mut Meta) -> Result<(), OpError> {
        let dtype = call.floats()?;
        let (a, b) = (call.inputs[0], call.inputs[1]);
        let rank = a.rank().max(b.rank());
        call.require(rank <= MAX_RANK, "there are at most 8 axes")?;
        let mut shape = Dims::new();
        for axis in 0..rank {
            shape.push(match (length(&a.shape, rank, axis), length(&b.shape, rank, axis)) {
                (a, b) if a == b => a,
                (1, b) => b,
                (a, 1) => a,
                _ => {
                    return Err(call.refuse(
                        "aligned at the last axis, lengths must be equal, or one of them 1 or missing",
                    ));
                }
            });
        }
        out.set(dtype, &shape);
        Ok(())
    }

    fn forward<T: Real>(&self, cx: Forward<'_, T>) -> Result<(), OpError> {
        let (a, b) = (&cx.inputs[0], &cx.inputs[1]);
        let repeat = Repeat::pair(&a.meta.shape, &b.meta.shape);
        if let [Repeat::Whole, Repeat::Whole] = repeat {
            let from = [a.floats, b.floats];
            evaluate(cx.threads, cx.out.floats, Write::Set, from, &Value(&self.0));
            return Ok(());
        }
        if let [Repeat::Whole, Repeat::Rows] = repeat {
            let (a, row) = (a.floats, b.floats);
            let value = &Value(&self.0);
            cx.threads.for_each_chunk(cx.out.floats, row.len(), |index, y| {
                evaluate(&Threads::single(), y, Write::Set, [&a[index * row.len()..], row], value);
            });
            return Ok(());
        }
        let (a, b) = (Repeated::new(a.floats, &repeat[0]), Repeated::new(b.floats, &repeat[1]));
        write(cx.out.floats, Write::Set, |i| self.0.value(a.at(i), b.at(i)));
        Ok(())
    }

    fn gradient<T: Real>(&self, which: usize, chain: &Chain<'_, T>, to: Target<'_, T>) {
        let (a, b) = (&chain.inputs[0], &chain.inputs[1]);
        let repeat = Repeat::pair(&a.meta.shape, &b.meta.shape);
        if let [Repeat::Whole, Repeat::Whole] = repeat {
            let from = [chain.grad, a.floats, b.floats];
            return evaluate(chain.threads, to.dst, to.mode, from, &Share(&self.0, which));
        }
        let (a, b) = (Repeated::new(a.floats, &repeat[0]), Repeated::new(b.floats, &repeat[1]));
        let share = |i: usize| self.0.chain(which, chain.grad[i], a.at(i), b.at(i));
        match &repeat[which] {
            Repeat::Whole => to.write(share),
            Repeat::Scalar => {
                let total = sum(chain.grad.len(), share);
                to.write(|_| total);
            }
            Repeat::Rows => {
                let columns = to.dst.len();
                let rows = chain.grad.len() / columns.max(1);
                if rows == 0 && to.mode == Write::Set {
                    to.dst.fill(T::ZERO);
                }
                for row in 0..rows {
                    let (mode, start) =
                        (if row == 0 { to.mode } else { Write::Add }, row * columns);
                    match (a.row(start), b.row(start)) {
                        (Some(a), Some(b)) => {
                            let from = [&chain.grad[start..], a, b];
                            evaluate(chain.threads, to.dst, mode, from, &Share(&self.0, which));
                        }
                        _ => write(to.dst, mode, |column| share(start + column)),
                    }
                }
            }
            Repeat::Axes(axes) => {
                let repeats = chain.grad.len() / to.dst.len().max(1);
                to.write(|j| sum(repeats, |r| share(axes.place(j, r))));
            }
        }
    }
}

pub(super) struct Value<'a, P>(pub(super) &'a P);

impl<T: Real, P: Pairwise> Lanewise<T, 2> for Value<'_, P> {
    #[inline(always)]
    fn of(&self, [a, b]: [T; 2]) -> T {
        self.0.value(a, b)
    }
}

/// One element's share in the gradient of the input of that number.
pub(super) struct Share<'a, P>(pub(super) &'a P, pub(super) usize);

impl<T: Real, P: Pairwise> Lanewise<T, 3> for Share<'_, P> {
    #[inline(always)]
    fn of(&self, [grad, a, b]: [T; 3]) -> T {
        self.0.chain(self.1, grad, a, b)
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Add;

impl Pairwise for Add {
    #[inline(always)]
    fn value<T: Real>(&self, a: T, b: T) -> T {
        a + b
    }

    #[inline(always)]
    fn chain<T: Real>(&self, _which: usize, grad: T, _a: T, _b: T) -> T {
        grad
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Sub;

impl Pairwise for Sub {
    #[inline(always)]
    fn value<T: Real>(&self, a: T, b: T) -> T {
        a - b
    }

    #[inline(always)]
    fn chain<T: Real>(&self, which: usize, grad: T, _a: T, _b: T) -> T {
        if which == 0 { grad } else { -grad }
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Mul;

impl Pairwise for Mul {
    #[inline(always)]
    fn value<T: Real>(&self, a: T, b: T) -> T {
        a * b
    }

    #[inline(always)]
    fn chain<T: Real>(&self, which: usize, grad: T, a: T, b: T) -> T {
        if which == 0 { grad * b } else { grad * a }
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Div;

impl Pairwise for Div {
    #[inline(always)]
    fn value<T: Real>(&self, a: T, b: T) -> T {
        a / b
    }

    #[inline(always)]
    fn chain<T: Real>(&self, which: usize, grad: T, a: T, b: T) -> T {
        if which == 0 { grad / b } else { -(grad * a) / (b * b) }
    }
}

/// Length of `axis` of the result in a shape that is aligned at the last axis.
fn length(shape: &[usize], rank: usize, axis: usize) -> usize {
    (axis + shape.len()).checked_sub(rank).map_or(1, |axis| shape[axis])
}

/// How an input is repeated to fill the result.
#[derive(Debug)]
enum Repeat {
    Whole,
    Scalar,
    /// Its elements are those of the last axes.
    Rows,
    Axes(Axes),
}

impl Repeat {
    fn pair(a: &[usize], b: &[usize]) -> [Self; 2] {
        let rank = a.len().max(b.len());
        let lengths = (0..rank).map(|axis| {
            let (a, b) = (length(a, rank, axis), length(b, rank, axis));
            if a == 1 { b } else { a }
        });
        let whole: Dims = lengths.collect();
        [Self::new(a, &whole), Self::new(b, &whole)]
    }

    fn new(shape: &[usize], whole: &[usize]) -> Self {
        let rank = whole.len();
        let repeated = |axis: usize| length(shape, rank, axis) != whole[axis];
        let first_kept = (0..rank).find(|&axis| !repeated(axis) && whole[axis] != 1);
        match first_kept {
            _ if !(0..rank).any(repeated) => Self::Whole,
            None => Self::Scalar,
            Some(first) if !(first..rank).any(repeated) => Self::Rows,
            Some(_) => Self::Axes(Axes::new(whole, repeated)),
        }
    }
}

/// The axes of the result: its length, and whether the input is repeated along it.
#[derive(Debug)]
struct Axes(arrayvec::ArrayVec<(usize, bool), MAX_RANK>);

impl Axes {
    fn new(whole: &[usize], repeated: impl Fn(usize) -> bool) -> Self {
        Self(whole.iter().enumerate().map(|(axis, &length)| (length, repeated(axis))).collect())
    }

    /// The input's element at place `i` of the result.
    fn source(&self, i: usize) -> usize {
        let (mut rest, mut stride, mut place) = (i, 1, 0);
        for &(length, is_repeated) in self.0.iter().rev() {
            if !is_repeated {
                place += rest % length * stride;
                stride *= length;
            }
            rest /= length;
        }
        place
    }

    /// The place in the result of repetition `r` of the input's element `j`.
    fn place(&self, mut j: usize, mut r: usize) -> usize {
        let (mut stride, mut place) = (1, 0);
        for &(length, is_repeated) in self.0.iter().rev() {
            let rest = if is_repeated { &mut r } else { &mut j };
            place += *rest % length * stride;
            *rest /= length;
            stride *= length;
        }
        place
    }
}

/// A slice read as if it were repeated.
#[derive(Debug, Clone, Copy)]
enum Repeated<'a, T> {
    Whole(&'a [T]),
    Scalar(T),
    Rows(&'a [T]),
    Axes(&'a [T], &'a Axes),
}

impl<'a, T: Real> Repeated<'a, T> {
    fn new(data: &'a [T], repeat: &'a Repeat) -> Self {
        match repeat {
            Repeat::Whole => Self::Whole(data),
            Repeat::Scalar => Self::Scalar(data.first().copied().unwrap_or(T::ZERO)),
            Repeat::Rows => Self::Rows(data),
            Repeat::Axes(axes) => Self::Axes(data, axes),
        }
    }

    /// What lies at the places from `start` on, as long as a row of what is repeated by rows.
    fn row(&self, start: usize) -> Option<&'a [T]> {
        match self {
            Self::Whole(data) => Some(&data[start..]),
            Self::Rows(data) => Some(data),
            Self::Scalar(_) | Self::Axes(..) => None,
        }
    }

    #[inline(always)]
    fn at(&self, i: usize) -> T {
        match self {
            Self::Whole(data) => data[i],
            Self::Scalar(value) => *value,
            Self::Rows(data) => data[i % data.len()],
            Self::Axes(data, axes) => data[axes.source(i)],
        }
    }
}
