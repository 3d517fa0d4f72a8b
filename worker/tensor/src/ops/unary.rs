//! Element by element, one input.

use std::ops::RangeInclusive;

use super::{Call, Chain, Forward, Operation, Target};
use crate::{
    error::OpError,
    kernel::{map, zip},
    meta::Meta,
    real::Real,
};

/// `y = value(x)`, with the derivative known from input and output.
pub(super) trait ElementWise {
    fn value<T: Real>(&self, x: T) -> T;

    /// The gradient of `x` from that of `y`.
    fn chain<T: Real>(&self, grad: T, x: T, y: T) -> T;

    /// What its settings break, if they do.
    fn broken_rule(&self) -> Option<&'static str> {
        None
    }
}

impl<E: ElementWise> Operation for E {
    fn arity(&self) -> RangeInclusive<usize> {
        1..=1
    }

    fn infer(&self, call: &Call<'_>, out: &mut Meta) -> Result<(), OpError> {
        let dtype = call.floats()?;
        if let Some(rule) = self.broken_rule() {
            return Err(call.refuse(rule));
        }
        out.set(dtype, &call.inputs[0].shape);
        Ok(())
    }

    fn forward<T: Real>(&self, cx: Forward<'_, T>) -> Result<(), OpError> {
        map(cx.out.floats, cx.inputs[0].floats, |x| self.value(x));
        Ok(())
    }

    fn gradient<T: Real>(&self, _which: usize, chain: &Chain<'_, T>, to: Target<'_, T>) {
        let (x, y) = (chain.inputs[0].floats, chain.output);
        zip(to.dst, to.mode, [chain.grad, x, y], |[g, x, y]| self.chain(g, x, y));
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Neg;

impl ElementWise for Neg {
    fn value<T: Real>(&self, x: T) -> T {
        -x
    }

    fn chain<T: Real>(&self, grad: T, _x: T, _y: T) -> T {
        -grad
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Scale(pub(super) f64);

impl ElementWise for Scale {
    fn value<T: Real>(&self, x: T) -> T {
        x * T::from_f64(self.0)
    }

    fn chain<T: Real>(&self, grad: T, _x: T, _y: T) -> T {
        grad * T::from_f64(self.0)
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Exp;

impl ElementWise for Exp {
    fn value<T: Real>(&self, x: T) -> T {
        x.exp()
    }

    fn chain<T: Real>(&self, grad: T, _x: T, y: T) -> T {
        grad * y
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Log;

impl ElementWise for Log {
    fn value<T: Real>(&self, x: T) -> T {
        x.ln()
    }

    fn chain<T: Real>(&self, grad: T, x: T, _y: T) -> T {
        grad / x
    }
}

/// Written so that NaN comes through: a diverged run must not look healthy.
#[derive(Debug, Clone, Copy)]
pub(super) struct Relu;

impl ElementWise for Relu {
    #[inline(always)]
    fn value<T: Real>(&self, x: T) -> T {
        if x <= T::ZERO { T::ZERO } else { x }
    }

    #[inline(always)]
    fn chain<T: Real>(&self, grad: T, _x: T, y: T) -> T {
        if y <= T::ZERO { T::ZERO } else { grad }
    }
}

/// `x Φ(x)`, Φ the distribution function of the normal distribution.
///
/// # Source
/// Hendrycks and Gimpel, Gaussian Error Linear Units, 2016.
#[derive(Debug, Clone, Copy)]
pub(super) struct Gelu;

impl ElementWise for Gelu {
    #[inline(always)]
    fn value<T: Real>(&self, x: T) -> T {
        x * normal(x)
    }

    #[inline(always)]
    fn chain<T: Real>(&self, grad: T, x: T, _y: T) -> T {
        const DENSITY: f64 = 0.398_942_280_401_432_7; // 1/√(2π)
        let half = T::from_f64(0.5);
        let density = (-(x * x * half)).exp() * T::from_f64(DENSITY);
        grad * (normal(x) + x * density)
    }
}

/// Φ(x) = (1 + erf(x/√2)) / 2.
#[inline(always)]
fn normal<T: Real>(x: T) -> T {
    let half = T::from_f64(0.5);
    half + half * (x * T::from_f64(std::f64::consts::FRAC_1_SQRT_2)).erf()
}

/// `x/2 (1 + tanh(√(2/π) (x + 0.044715 x³)))`.
///
/// # Source
/// Hendrycks and Gimpel, Gaussian Error Linear Units, 2016.
#[derive(Debug, Clone, Copy)]
pub(super) struct GeluTanh;

const ROOT: f64 = 0.797_884_560_802_865_4; // √(2/π)
const CUBIC: f64 = 0.044_715;

impl ElementWise for GeluTanh {
    #[inline(always)]
    fn value<T: Real>(&self, x: T) -> T {
        let inner = T::from_f64(ROOT) * (x + T::from_f64(CUBIC) * x * x * x);
        T::from_f64(0.5) * x * (T::ONE + inner.tanh())
    }

    #[inline(always)]
    fn chain<T: Real>(&self, grad: T, x: T, _y: T) -> T {
        let (root, cubic) = (T::from_f64(ROOT), T::from_f64(CUBIC));
        let tanh = (root * (x + cubic * x * x * x)).tanh();
        let slope = root * (T::ONE + T::from_f64(3.0 * CUBIC) * x * x);
        grad * T::from_f64(0.5) * (T::ONE + tanh + x * (T::ONE - tanh * tanh) * slope)
    }
}
