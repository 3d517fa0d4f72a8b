//! More functions element by element: powers, sigmoids, bounds.

use serde::{Deserialize, Serialize};

use super::unary::{ElementWise, finite};
use crate::real::Real;

#[derive(Debug, Clone, Copy)]
pub(super) struct AddScalar(pub(super) f64);

impl ElementWise for AddScalar {
    #[inline(always)]
    fn value<T: Real>(&self, x: T) -> T {
        x + T::from_f64(self.0)
    }

    #[inline(always)]
    fn chain<T: Real>(&self, grad: T, _x: T, _y: T) -> T {
        grad
    }

    fn broken_rule(&self) -> Option<&'static str> {
        finite(self.0, "the term must be finite")
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Sqrt;

impl ElementWise for Sqrt {
    #[inline(always)]
    fn value<T: Real>(&self, x: T) -> T {
        x.sqrt()
    }

    #[inline(always)]
    fn chain<T: Real>(&self, grad: T, _x: T, y: T) -> T {
        grad / (y + y)
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Abs;

impl ElementWise for Abs {
    #[inline(always)]
    fn value<T: Real>(&self, x: T) -> T {
        if x <= T::ZERO { T::ZERO - x } else { x }
    }

    #[inline(always)]
    fn chain<T: Real>(&self, grad: T, x: T, _y: T) -> T {
        if x < T::ZERO {
            -grad
        } else if x == T::ZERO {
            T::ZERO
        } else {
            grad
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Tanh;

impl ElementWise for Tanh {
    #[inline(always)]
    fn value<T: Real>(&self, x: T) -> T {
        x.tanh()
    }

    #[inline(always)]
    fn chain<T: Real>(&self, grad: T, _x: T, y: T) -> T {
        grad * (T::ONE - y * y)
    }
}

/// 1 / (1 + e^-x). It runs out into 0 and 1 where e^-x does into infinity and 0.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sigmoid;

impl ElementWise for Sigmoid {
    #[inline(always)]
    fn value<T: Real>(&self, x: T) -> T {
        T::ONE / (T::ONE + (-x).exp())
    }

    #[inline(always)]
    fn chain<T: Real>(&self, grad: T, _x: T, y: T) -> T {
        grad * y * (T::ONE - y)
    }
}

/// x times the sigmoid of x.
///
/// # Source
/// Elfwing, Uchibe and Doya, "Sigmoid-weighted linear units for neural network function approximation
/// in reinforcement learning", 2017.
#[derive(Debug, Clone, Copy)]
pub(super) struct Silu;

impl ElementWise for Silu {
    #[inline(always)]
    fn value<T: Real>(&self, x: T) -> T {
        x * Sigmoid.value(x)
    }

    #[inline(always)]
    fn chain<T: Real>(&self, grad: T, x: T, _y: T) -> T {
        let s = Sigmoid.value(x);
        grad * s * (T::ONE + x * (T::ONE - s))
    }
}

/// x to a fixed power. A power of 0 is 1 everywhere, and flat.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pow(pub(super) f64);

impl ElementWise for Pow {
    #[inline(always)]
    fn value<T: Real>(&self, x: T) -> T {
        power(x, self.0)
    }

    #[inline(always)]
    fn chain<T: Real>(&self, grad: T, x: T, _y: T) -> T {
        if self.0 == 0.0 {
            return T::ZERO;
        }
        grad * (T::from_f64(self.0) * power(x, self.0 - 1.0))
    }

    fn broken_rule(&self) -> Option<&'static str> {
        finite(self.0, "the exponent must be finite")
    }
}

/// Through f64, so that f32 results are the same on every machine; the usual powers without it.
#[inline(always)]
fn power<T: Real>(x: T, exponent: f64) -> T {
    if exponent == 1.0 {
        x
    } else if exponent == 2.0 {
        x * x
    } else if exponent == 3.0 {
        x * x * x
    } else if exponent == -1.0 {
        T::ONE / x
    } else {
        T::from_f64(libm::pow(x.to_f64(), exponent))
    }
}

/// Bounds, the least first.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Clamp {
    /// What is less becomes this.
    pub min: f64,
    /// What is more becomes this.
    pub max: f64,
}

impl ElementWise for Clamp {
    #[inline(always)]
    fn value<T: Real>(&self, x: T) -> T {
        let (min, max) = (T::from_f64(self.min), T::from_f64(self.max));
        if x < min {
            min
        } else if max < x {
            max
        } else {
            x
        }
    }

    #[inline(always)]
    fn chain<T: Real>(&self, grad: T, x: T, _y: T) -> T {
        let (min, max) = (T::from_f64(self.min), T::from_f64(self.max));
        if min <= x && x <= max { grad } else { T::ZERO }
    }

    fn broken_rule(&self) -> Option<&'static str> {
        let is_ordered = self.min <= self.max;
        (!is_ordered).then_some("min must be at most max")
    }
}
