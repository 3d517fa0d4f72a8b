//! Element by element, one input.

use super::{Call, Chain, Op, Target};
use crate::{error::OpError, kernel::Write, meta::Meta, real::Real};

/// Same shape as the input. Detach takes i64 too.
pub(super) fn infer(call: &Call<'_>, out: &mut Meta) -> Result<(), OpError> {
    let dtype = match call.op {
        Op::Detach => call.inputs[0].dtype,
        _ => call.floats()?,
    };
    out.set(dtype, &call.inputs[0].shape);
    Ok(())
}

pub(super) fn forward<T: Real>(op: &Op, x: &[T], y: &mut [T]) {
    match op {
        Op::Neg => map(y, x, |x| -x),
        Op::Scale(factor) => {
            let factor = T::from_f64(*factor);
            map(y, x, |x| x * factor);
        }
        Op::Exp => map(y, x, T::exp),
        Op::Log => map(y, x, T::ln),
        // Written so that NaN comes through: a diverged run must not look healthy.
        Op::Relu => map(y, x, |x| if x <= T::ZERO { T::ZERO } else { x }),
        _ => unreachable!("{} is not element by element", op.name()),
    }
}

fn map<T: Real>(y: &mut [T], x: &[T], value: impl Fn(T) -> T) {
    for (y, &x) in y.iter_mut().zip(x) {
        *y = value(x);
    }
}

pub(super) fn gradient<T: Real>(op: &Op, chain: &Chain<'_, T>, to: Target<'_, T>) {
    let (x, y) = (chain.inputs[0].floats, chain.output);
    match op {
        Op::Neg => zip(to, chain.grad, x, |g, _| -g),
        Op::Scale(factor) => {
            let factor = T::from_f64(*factor);
            zip(to, chain.grad, x, |g, _| g * factor);
        }
        Op::Exp => zip(to, chain.grad, y, |g, y| g * y),
        Op::Log => zip(to, chain.grad, x, |g, x| g / x),
        Op::Relu => zip(to, chain.grad, x, |g, x| if x <= T::ZERO { T::ZERO } else { g }),
        _ => unreachable!("{} is not element by element", op.name()),
    }
}

fn zip<T: Real>(to: Target<'_, T>, g: &[T], v: &[T], value: impl Fn(T, T) -> T) {
    let each = to.dst.iter_mut().zip(g.iter().zip(v));
    match to.mode {
        Write::Set => each.for_each(|(d, (&g, &v))| *d = value(g, v)),
        Write::Add => each.for_each(|(d, (&g, &v))| *d += value(g, v)),
    }
}
