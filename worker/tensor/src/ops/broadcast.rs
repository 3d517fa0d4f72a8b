//! Element by element, two inputs; the shorter one is repeated.

use super::{Call, Chain, Op, Operand, Target};
use crate::{
    error::OpError,
    kernel::{Write, sum, sum_rows, write},
    meta::Meta,
    real::Real,
};

pub(super) fn infer(call: &Call<'_>, out: &mut Meta) -> Result<(), OpError> {
    let dtype = call.floats()?;
    let (a, b) = (call.inputs[0], call.inputs[1]);
    let longer = if a.shape == b.shape || repeats_in(b, a) {
        a
    } else if repeats_in(a, b) {
        b
    } else {
        return Err(call.refuse(
            "the shapes must be equal, or one a scalar [], or one a row as long as the other's last axis",
        ));
    };
    out.set(dtype, &longer.shape);
    Ok(())
}

fn repeats_in(short: &Meta, long: &Meta) -> bool {
    match short.rank() {
        0 => true,
        1 => 2 <= long.rank() && short.last() == long.last(),
        _ => false,
    }
}

pub(super) fn forward<T: Real>(op: &Op, inputs: &[Operand<'_, T>], out: &mut [T]) {
    let (a, b) = (inputs[0].floats, inputs[1].floats);
    match op {
        Op::Add => combine(out, a, b, |a, b| a + b),
        Op::Sub => combine(out, a, b, |a, b| a - b),
        Op::Mul => combine(out, a, b, |a, b| a * b),
        Op::Div => combine(out, a, b, |a, b| a / b),
        _ => unreachable!("{} does not broadcast", op.name()),
    }
}

fn combine<T: Real>(out: &mut [T], a: &[T], b: &[T], value: impl Fn(T, T) -> T) {
    let len = out.len();
    let (a, b) = (Repeated::new(a, len), Repeated::new(b, len));
    write(out, Write::Set, |i| value(a.at(i), b.at(i)));
}

pub(super) fn gradient<T: Real>(op: &Op, which: usize, chain: &Chain<'_, T>, to: Target<'_, T>) {
    let (g, len) = (chain.grad, chain.grad.len());
    let a = Repeated::new(chain.inputs[0].floats, len);
    let b = Repeated::new(chain.inputs[1].floats, len);
    match (op, which) {
        (Op::Add, _) | (Op::Sub, 0) => collect(to, len, |i| g[i]),
        (Op::Sub, _) => collect(to, len, |i| -g[i]),
        (Op::Mul, 0) => collect(to, len, |i| g[i] * b.at(i)),
        (Op::Mul, _) => collect(to, len, |i| g[i] * a.at(i)),
        (Op::Div, 0) => collect(to, len, |i| g[i] / b.at(i)),
        (Op::Div, _) => collect(to, len, |i| -(g[i] * a.at(i)) / (b.at(i) * b.at(i))),
        _ => unreachable!("{} does not broadcast", op.name()),
    }
}

/// Adds up, over its repetitions, the share of each element of an input.
fn collect<T: Real>(to: Target<'_, T>, len: usize, share: impl Fn(usize) -> T) {
    match to.dst.len() {
        whole if whole == len => to.write(share),
        1 => {
            let total = sum(len, share);
            to.write(|_| total);
        }
        row => sum_rows(to.dst, to.mode, len / row.max(1), share),
    }
}

/// A slice read as if it were repeated to a greater length.
#[derive(Debug, Clone, Copy)]
enum Repeated<'a, T> {
    Whole(&'a [T]),
    Scalar(T),
    Row(&'a [T]),
}

impl<'a, T: Real> Repeated<'a, T> {
    fn new(data: &'a [T], len: usize) -> Self {
        match *data {
            _ if data.len() == len => Self::Whole(data),
            [scalar] => Self::Scalar(scalar),
            _ => Self::Row(data),
        }
    }

    #[inline(always)]
    fn at(&self, i: usize) -> T {
        match self {
            Self::Whole(data) => data[i],
            Self::Scalar(value) => *value,
            Self::Row(data) => data[i % data.len()],
        }
    }
}
