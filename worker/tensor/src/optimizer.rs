//! How gradients become new weights: one fused pass over the arenas.

use crate::real::Real;

/// An update rule and its settings. Same rules and rounding order as PyTorch's.
///
/// In the formulas g = grad · grad_scale, t counts from 1, and all lines run once per element.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Optimizer {
    /// Stochastic gradient descent:
    ///
    /// ```text
    /// g += weight_decay · w
    /// v  = g                  at t = 1
    /// v  = momentum · v + g   afterwards
    /// w -= lr · v
    /// ```
    ///
    /// Without momentum there is no v, and `w -= lr · g`.
    Sgd { lr: f64, momentum: f64, weight_decay: f64 },
    /// Adam with decoupled weight decay:
    ///
    /// ```text
    /// w *= 1 - lr · weight_decay
    /// m += (1 - β1) · (g - m)
    /// v  = β2 · v + (1 - β2) · g²
    /// w -= lr / (1 - β1ᵗ) · m / (√v / √(1 - β2ᵗ) + eps)
    /// ```
    AdamW { lr: f64, betas: (f64, f64), eps: f64, weight_decay: f64 },
}

/// What an optimizer remembers between steps. Flat, in arena order.
#[derive(Debug, Clone, PartialEq)]
pub struct OptimizerState<T = f32> {
    /// Steps taken.
    pub step: u64,
    /// By name, in the order of [`Optimizer::moment_names`].
    pub moments: Vec<(String, Vec<T>)>,
}

/// A state that is not this optimizer's for this model.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    #[error("the optimizer keeps {expected:?}, the state has {given:?}")]
    Moments { expected: Vec<String>, given: Vec<String> },
    #[error("moment {name:?} has {given} elements, the model {expected}")]
    Length { name: String, expected: usize, given: usize },
}

impl Optimizer {
    /// Names of the moments it keeps, each as long as the arena.
    pub fn moment_names(&self) -> &'static [&'static str] {
        match self {
            Self::Sgd { momentum, .. } if *momentum == 0.0 => &[],
            Self::Sgd { .. } => &["momentum"],
            Self::AdamW { .. } => &["m", "v"],
        }
    }

    /// The state before the first step of a model with so many elements.
    pub fn state<T: Real>(&self, len: usize) -> OptimizerState<T> {
        let moment = |name: &&str| ((*name).to_owned(), vec![T::ZERO; len]);
        OptimizerState { step: 0, moments: self.moment_names().iter().map(moment).collect() }
    }

    /// Whether a state, from a checkpoint for example, is one that [`Optimizer::step`] accepts.
    pub fn check_state<T>(&self, state: &OptimizerState<T>, len: usize) -> Result<(), StateError> {
        let given = || state.moments.iter().map(|(name, _)| name.as_str());
        if !given().eq(self.moment_names().iter().copied()) {
            let expected = self.moment_names().iter().map(|&name| name.to_owned()).collect();
            let given = given().map(str::to_owned).collect();
            return Err(StateError::Moments { expected, given });
        }
        match state.moments.iter().find(|(_, values)| values.len() != len) {
            None => Ok(()),
            Some((name, values)) => {
                let (name, given) = (name.clone(), values.len());
                Err(StateError::Length { name, expected: len, given })
            }
        }
    }

    /// One update of all weights, in place. `grad_scale` turns summed gradients into their mean.
    ///
    /// # Panics
    /// If the lengths differ or [`Optimizer::check_state`] refuses the state.
    pub fn step<T: Real>(
        &self,
        weights: &mut [T],
        grads: &[T],
        grad_scale: T,
        state: &mut OptimizerState<T>,
    ) {
        let len = weights.len();
        assert!(grads.len() == len, "{} gradients for {len} weights", grads.len());
        if let Err(reason) = self.check_state(state, len) {
            panic!("{reason}");
        }
        state.step += 1;
        let first = state.step == 1;
        let grads = grads.iter().map(|&grad| grad * grad_scale);
        match (*self, state.moments.as_mut_slice()) {
            (Self::Sgd { lr, momentum, weight_decay }, moments) => {
                let rule = Sgd {
                    lr: T::from_f64(lr),
                    momentum: T::from_f64(if first { 0.0 } else { momentum }),
                    weight_decay: T::from_f64(weight_decay),
                };
                match moments {
                    [(_, velocity)] => rule.step_with_momentum(weights, grads, velocity),
                    _ => rule.step(weights, grads),
                }
            }
            (Self::AdamW { lr, betas, eps, weight_decay }, [(_, m), (_, v)]) => {
                let t = state.step as f64;
                let (correction1, correction2) = (1.0 - betas.0.powf(t), 1.0 - betas.1.powf(t));
                let rule = AdamW {
                    keep: T::from_f64(1.0 - lr * weight_decay),
                    new1: T::from_f64(1.0 - betas.0),
                    old2: T::from_f64(betas.1),
                    new2: T::from_f64(1.0 - betas.1),
                    step_size: T::from_f64(lr / correction1),
                    root: T::from_f64(correction2.sqrt()),
                    eps: T::from_f64(eps),
                };
                rule.step(weights, grads, m, v);
            }
            (Self::AdamW { .. }, _) => unreachable!("check_state saw two moments"),
        }
    }
}

/// Settings of SGD in the weights' own precision.
#[derive(Debug, Clone, Copy)]
struct Sgd<T> {
    lr: T,
    /// 0 at the first step, which makes the buffer the gradient itself.
    momentum: T,
    weight_decay: T,
}

impl<T: Real> Sgd<T> {
    fn step(self, weights: &mut [T], grads: impl Iterator<Item = T>) {
        for (w, g) in weights.iter_mut().zip(grads) {
            *w = *w - self.lr * (g + self.weight_decay * *w);
        }
    }

    fn step_with_momentum(
        self,
        weights: &mut [T],
        grads: impl Iterator<Item = T>,
        velocity: &mut [T],
    ) {
        for ((w, g), v) in weights.iter_mut().zip(grads).zip(velocity) {
            *v = self.momentum * *v + (g + self.weight_decay * *w);
            *w = *w - self.lr * *v;
        }
    }
}

/// Settings of AdamW in the weights' own precision, with this step's corrections.
#[derive(Debug, Clone, Copy)]
struct AdamW<T> {
    keep: T,
    new1: T,
    old2: T,
    new2: T,
    step_size: T,
    root: T,
    eps: T,
}

impl<T: Real> AdamW<T> {
    fn step(self, weights: &mut [T], grads: impl Iterator<Item = T>, m: &mut [T], v: &mut [T]) {
        for (((w, g), m), v) in weights.iter_mut().zip(grads).zip(m).zip(v) {
            *m += self.new1 * (g - *m);
            *v = self.old2 * *v + self.new2 * (g * g);
            let denominator = v.sqrt() / self.root + self.eps;
            *w = *w * self.keep - self.step_size * (*m / denominator);
        }
    }
}
