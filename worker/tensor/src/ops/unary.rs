//! Element by element, one input.

use std::ops::RangeInclusive;

use super::{Call, Chain, Forward, Operation, Target};
use crate::{
    error::OpError,
    kernel::{Lanewise, Write, evaluate},
    meta::Meta,
    real::Real,
};

/// `y = value(x)`, with the derivative known from input and output. Methods are `#[inline(always)]`: see
/// [`Lanewise`].
pub(super) trait ElementWise: Sync {
    fn value<T: Real>(&self, x: T) -> T;

    /// The gradient of `x` from that of `y`.
    fn chain<T: Real>(&self, grad: T, x: T, y: T) -> T;

    /// What its settings break, if they do.
    fn broken_rule(&self) -> Option<&'static str> {
        None
    }
}

/// The rule for a number that is fixed when an operation is recorded.
pub(super) fn finite(number: f64, rule: &'static str) -> Option<&'static str> {
    (!number.is_finite()).then_some(rule)
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
        evaluate(cx.threads, cx.out.floats, Write::Set, [cx.inputs[0].floats], &Value(self));
        Ok(())
    }

    fn gradient<T: Real>(&self, _which: usize, chain: &Chain<'_, T>, to: Target<'_, T>) {
        let (x, y) = (chain.inputs[0].floats, chain.output);
        evaluate(chain.threads, to.dst, to.mode, [chain.grad, x, y], &Slope(self));
    }
}

struct Value<'a, E>(&'a E);

impl<T: Real, E: ElementWise> Lanewise<T, 1> for Value<'_, E> {
    #[inline(always)]
    fn of(&self, [x]: [T; 1]) -> T {
        self.0.value(x)
    }
}

struct Slope<'a, E>(&'a E);

impl<T: Real, E: ElementWise> Lanewise<T, 3> for Slope<'_, E> {
    #[inline(always)]
    fn of(&self, [grad, x, y]: [T; 3]) -> T {
        self.0.chain(grad, x, y)
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Neg;

impl ElementWise for Neg {
    #[inline(always)]
    fn value<T: Real>(&self, x: T) -> T {
        -x
    }

    #[inline(always)]
    fn chain<T: Real>(&self, grad: T, _x: T, _y: T) -> T {
        -grad
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Scale(pub(super) f64);

impl ElementWise for Scale {
    #[inline(always)]
    fn value<T: Real>(&self, x: T) -> T {
        x * T::from_f64(self.0)
    }

    #[inline(always)]
    fn chain<T: Real>(&self, grad: T, _x: T, _y: T) -> T {
        grad * T::from_f64(self.0)
    }

    fn broken_rule(&self) -> Option<&'static str> {
        finite(self.0, "the factor must be finite")
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Exp;

impl ElementWise for Exp {
    #[inline(always)]
    fn value<T: Real>(&self, x: T) -> T {
        x.exp()
    }

    #[inline(always)]
    fn chain<T: Real>(&self, grad: T, _x: T, y: T) -> T {
        grad * y
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Log;

impl ElementWise for Log {
    #[inline(always)]
    fn value<T: Real>(&self, x: T) -> T {
        x.ln()
    }

    #[inline(always)]
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

/// A function whose derivative comes cheaper with its value than alone.
pub(super) trait Smooth: Sync {
    /// Value and derivative.
    fn with_slope<T: Real>(&self, x: T) -> (T, T);
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
        x * x.normal().0
    }

    #[inline(always)]
    fn chain<T: Real>(&self, grad: T, x: T, _y: T) -> T {
        grad * self.with_slope(x).1
    }
}

impl Smooth for Gelu {
    /// `x Φ(x)` and `Φ(x) + x φ(x)`.
    #[inline(always)]
    fn with_slope<T: Real>(&self, x: T) -> (T, T) {
        const DENSITY: f64 = 0.398_942_280_401_432_7; // 1/√(2π)
        let (share, bell) = x.normal();
        (x * share, share + x * (bell * T::from_f64(DENSITY)))
    }
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
        grad * self.with_slope(x).1
    }
}

impl Smooth for GeluTanh {
    #[inline(always)]
    fn with_slope<T: Real>(&self, x: T) -> (T, T) {
        let (root, cubic, half) = (T::from_f64(ROOT), T::from_f64(CUBIC), T::from_f64(0.5));
        let tanh = (root * (x + cubic * x * x * x)).tanh();
        let slope = root * (T::ONE + T::from_f64(3.0 * CUBIC) * x * x);
        let slope = half * (T::ONE + tanh + x * (T::ONE - tanh * tanh) * slope);
        (half * x * (T::ONE + tanh), slope)
    }
}
