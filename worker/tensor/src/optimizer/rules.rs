//! Update rules of one element. Settings are in the weights' own precision, for this step and segment.

use crate::real::Real;

/// One element's update with so many moments. The formulas are [`super::Optimizer`]'s.
pub(super) trait Rule<T, const M: usize>: Copy + Send + Sync {
    /// Weight, gradient and moments before; weight and moments after.
    fn update(self, w: T, g: T, moments: [T; M]) -> (T, [T; M]);
}

/// SGD without momentum.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sgd<T> {
    pub(super) lr: T,
    pub(super) weight_decay: T,
}

impl<T: Real> Rule<T, 0> for Sgd<T> {
    #[inline(always)]
    fn update(self, w: T, g: T, []: [T; 0]) -> (T, [T; 0]) {
        (w - self.lr * (g + self.weight_decay * w), [])
    }
}

/// SGD with momentum, Nesterov's or not.
#[derive(Debug, Clone, Copy)]
pub(super) struct Momentum<T, const NESTEROV: bool> {
    pub(super) lr: T,
    pub(super) momentum: T,
    /// Factor of the old buffer. 0 at the first step, which makes the buffer the gradient itself.
    pub(super) old: T,
    /// Factor of the gradient: 1 - dampening, 1 at the first step.
    pub(super) new: T,
    pub(super) weight_decay: T,
}

impl<T: Real, const NESTEROV: bool> Rule<T, 1> for Momentum<T, NESTEROV> {
    #[inline(always)]
    fn update(self, w: T, g: T, [v]: [T; 1]) -> (T, [T; 1]) {
        let g = g + self.weight_decay * w;
        let v = self.old * v + self.new * g;
        let direction = if NESTEROV { g + self.momentum * v } else { v };
        (w - self.lr * direction, [v])
    }
}

/// Adam and AdamW.
#[derive(Debug, Clone, Copy)]
pub(super) struct Adam<T> {
    /// Decay that is added to the gradient; 0 in AdamW.
    pub(super) coupled: T,
    /// What decoupled decay leaves of the weight; 1 in Adam.
    pub(super) keep: T,
    pub(super) means: Means<T>,
    pub(super) step_size: T,
    /// √(1 - β2ᵗ)
    pub(super) root: T,
    pub(super) eps: T,
}

/// Running means of g and g².
#[derive(Debug, Clone, Copy)]
pub(super) struct Means<T> {
    pub(super) new1: T,
    pub(super) old2: T,
    pub(super) new2: T,
}

impl<T: Real> Means<T> {
    pub(super) fn new(betas: (f64, f64)) -> Self {
        Self {
            new1: T::from_f64(1.0 - betas.0),
            old2: T::from_f64(betas.1),
            new2: T::from_f64(1.0 - betas.1),
        }
    }

    #[inline(always)]
    pub(super) fn update(self, g: T, m: T, v: T) -> (T, T) {
        (m + self.new1 * (g - m), self.old2 * v + self.new2 * (g * g))
    }
}

impl<T: Real> Adam<T> {
    #[inline(always)]
    fn weight(self, w: T, m: T, v: T) -> T {
        let denominator = v.sqrt() / self.root + self.eps;
        w * self.keep - self.step_size * (m / denominator)
    }
}

impl<T: Real> Rule<T, 2> for Adam<T> {
    #[inline(always)]
    fn update(self, w: T, g: T, [m, v]: [T; 2]) -> (T, [T; 2]) {
        let (m, v) = self.means.update(g + self.coupled * w, m, v);
        (self.weight(w, m, v), [m, v])
    }
}

/// AMSGrad: the third moment is the greatest v.
impl<T: Real> Rule<T, 3> for Adam<T> {
    #[inline(always)]
    fn update(self, w: T, g: T, [m, v, v_max]: [T; 3]) -> (T, [T; 3]) {
        let (m, v) = self.means.update(g + self.coupled * w, m, v);
        let v_max = if v <= v_max { v_max } else { v };
        (self.weight(w, m, v_max), [m, v, v_max])
    }
}

/// RMSprop; one moment without momentum, two with it.
#[derive(Debug, Clone, Copy)]
pub(super) struct RmsProp<T> {
    pub(super) lr: T,
    pub(super) alpha: T,
    /// 1 - alpha
    pub(super) new: T,
    pub(super) eps: T,
    pub(super) momentum: T,
    pub(super) weight_decay: T,
}

impl<T: Real> RmsProp<T> {
    #[inline(always)]
    fn normalised(self, w: T, g: T, v: T) -> (T, T) {
        let g = g + self.weight_decay * w;
        let v = self.alpha * v + self.new * (g * g);
        (g / (v.sqrt() + self.eps), v)
    }
}

impl<T: Real> Rule<T, 1> for RmsProp<T> {
    #[inline(always)]
    fn update(self, w: T, g: T, [v]: [T; 1]) -> (T, [T; 1]) {
        let (direction, v) = self.normalised(w, g, v);
        (w - self.lr * direction, [v])
    }
}

impl<T: Real> Rule<T, 2> for RmsProp<T> {
    #[inline(always)]
    fn update(self, w: T, g: T, [v, buffer]: [T; 2]) -> (T, [T; 2]) {
        let (direction, v) = self.normalised(w, g, v);
        let buffer = self.momentum * buffer + direction;
        (w - self.lr * buffer, [v, buffer])
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Adagrad<T> {
    pub(super) lr: T,
    pub(super) eps: T,
    pub(super) weight_decay: T,
}

impl<T: Real> Rule<T, 1> for Adagrad<T> {
    #[inline(always)]
    fn update(self, w: T, g: T, [sum]: [T; 1]) -> (T, [T; 1]) {
        let g = g + self.weight_decay * w;
        let sum = sum + g * g;
        (w - self.lr * (g / (sum.sqrt() + self.eps)), [sum])
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Lion<T> {
    pub(super) lr: T,
    /// What decay leaves of the weight.
    pub(super) keep: T,
    /// (β1, 1 - β1): what the direction is made of.
    pub(super) direction: (T, T),
    /// (β2, 1 - β2): what the moment is made of.
    pub(super) moment: (T, T),
}

impl<T: Real> Rule<T, 1> for Lion<T> {
    #[inline(always)]
    fn update(self, w: T, g: T, [m]: [T; 1]) -> (T, [T; 1]) {
        let direction = sign(self.direction.0 * m + self.direction.1 * g);
        let m = self.moment.0 * m + self.moment.1 * g;
        (w * self.keep - self.lr * direction, [m])
    }
}

/// -1, 0 or 1; NaN stays NaN.
#[inline(always)]
fn sign<T: Real>(x: T) -> T {
    let positive = if T::ZERO < x { T::ONE } else { T::ZERO };
    let negative = if x < T::ZERO { T::ONE } else { T::ZERO };
    // Neither: 0 or NaN.
    if positive == negative { x } else { positive - negative }
}
