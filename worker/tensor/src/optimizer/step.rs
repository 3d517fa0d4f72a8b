//! One step: from settings to the rules' numbers, then over the arenas.

use super::{
    Clip, MAX_LR, Optimizer, OptimizerState, Segment, StateError, UpdatePlan,
    clip::GradMap,
    lamb::Lamb,
    pieces::{Arenas, Elementwise, update},
    rules::{Adagrad, Adam, Lion, Means, Momentum, RmsProp, Rule, Sgd},
};
use crate::{
    real::Real,
    setting::{SettingError, within},
};

/// What differs from step to step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepFactors {
    /// Factor of the learning rate: the schedule's.
    pub lr_factor: f64,
    /// Turns summed gradients into their mean, and takes the loss scale out.
    pub grad_scale: f64,
}

/// What a step found out.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct StepReport {
    /// [`UpdatePlan::grad_norm`], if it was needed: with [`Clip::GlobalNorm`].
    pub grad_norm: Option<f64>,
}

/// A step that was not taken. Weights and state are as they were.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum StepError {
    #[error("{given} {what} for {expected} weights")]
    Length { what: &'static str, given: usize, expected: usize },
    #[error("{given} weights, the layout has {expected}")]
    Weights { given: usize, expected: usize },
    #[error("the norm of the gradients is {norm}")]
    NonFinite { norm: f64 },
    #[error(transparent)]
    State(#[from] StateError),
    #[error(transparent)]
    Setting(#[from] SettingError),
}

impl UpdatePlan {
    /// One update of all weights that are not frozen, in place: one pass over the arenas, after one
    /// over the gradients if their norm is clipped. The gradients are not changed. That they are finite
    /// is the caller's care; where the norm is formed, one that is not finite is refused.
    pub fn step<T: Real>(
        &self,
        weights: &mut [T],
        grads: &[T],
        factors: StepFactors,
        state: &mut OptimizerState<T>,
    ) -> Result<StepReport, StepError> {
        T::update(self, weights, grads, factors, state)
    }

    pub(crate) fn update<T: Real>(
        &self,
        weights: &mut [T],
        grads: &[T],
        factors: StepFactors,
        state: &mut OptimizerState<T>,
    ) -> Result<StepReport, StepError> {
        if weights.len() != self.len {
            return Err(StepError::Weights { given: weights.len(), expected: self.len });
        }
        self.check_len("gradients", grads.len())?;
        self.check_state(state)?;
        let StepFactors { lr_factor, grad_scale } = factors;
        within("lr_factor", lr_factor, 0.0..=MAX_LR)?;
        let rounded = T::from_f64(grad_scale).to_f64();
        if !(0.0 < rounded && rounded.is_finite()) {
            let expected = format!("above 0 and finite as {}", T::DTYPE);
            return Err(SettingError::new("grad_scale", grad_scale, expected).into());
        }

        let (grad, grad_norm) = self.grad_map(grads, grad_scale)?;
        let step = state.step.saturating_add(1);
        let now = Now { plan: self, lr: self.optimizer.lr() * lr_factor, step, grad };
        now.update(Memory { weights, grads, state })?;
        state.step = step;
        Ok(StepReport { grad_norm })
    }

    pub(super) fn check_len(&self, what: &'static str, given: usize) -> Result<(), StepError> {
        if given == self.len {
            return Ok(());
        }
        Err(StepError::Length { what, given, expected: self.len })
    }

    fn grad_map<T: Real>(
        &self,
        grads: &[T],
        grad_scale: f64,
    ) -> Result<(GradMap<T>, Option<f64>), StepError> {
        let map = |scale, bound| GradMap { scale: T::from_f64(scale), bound: T::from_f64(bound) };
        match self.clip {
            Clip::None => Ok((map(grad_scale, f64::INFINITY), None)),
            Clip::Value { bound } => Ok((map(grad_scale, bound), None)),
            Clip::GlobalNorm { max } => {
                let norm = self.grad_norm(grads, grad_scale)?;
                if !norm.is_finite() {
                    return Err(StepError::NonFinite { norm });
                }
                let factor = (max / (norm + 1e-6)).min(1.0);
                Ok((map(grad_scale * factor, f64::INFINITY), Some(norm)))
            }
        }
    }
}

/// What a step reads and writes, whole.
struct Memory<'a, T> {
    weights: &'a mut [T],
    grads: &'a [T],
    state: &'a mut OptimizerState<T>,
}

/// One step's numbers.
struct Now<'a, T> {
    plan: &'a UpdatePlan,
    /// Before the segments' own factors.
    lr: f64,
    /// From 1.
    step: u64,
    grad: GradMap<T>,
}

impl<T: Real> Now<'_, T> {
    fn update(&self, memory: Memory<'_, T>) -> Result<(), StateError> {
        let real = T::from_f64;
        match self.plan.optimizer {
            Optimizer::Sgd { momentum: 0.0, .. } => self
                .run(memory, |s| Sgd { lr: real(self.lr(s)), weight_decay: real(s.weight_decay) }),
            Optimizer::Sgd { momentum, dampening, nesterov: true, .. } => {
                self.run(memory, |s| self.momentum::<true>(s, momentum, dampening))
            }
            Optimizer::Sgd { momentum, dampening, nesterov: false, .. } => {
                self.run(memory, |s| self.momentum::<false>(s, momentum, dampening))
            }
            Optimizer::Adam { betas, eps, amsgrad, .. } => {
                let coupled = |s: &Segment| real(s.weight_decay);
                let rule = |s: &Segment| Adam { coupled: coupled(s), ..self.adam(s, betas, eps) };
                if amsgrad {
                    self.run::<3, _>(memory, rule)
                } else {
                    self.run::<2, _>(memory, rule)
                }
            }
            Optimizer::AdamW { betas, eps, .. } => self.run::<2, _>(memory, |s| Adam {
                keep: real(self.keep(s)),
                ..self.adam(s, betas, eps)
            }),
            Optimizer::RmsProp { alpha, eps, momentum, .. } => {
                let rule = |s: &Segment| RmsProp {
                    lr: real(self.lr(s)),
                    alpha: real(alpha),
                    new: real(1.0 - alpha),
                    eps: real(eps),
                    momentum: real(momentum),
                    weight_decay: real(s.weight_decay),
                };
                let has_momentum = momentum != 0.0;
                if has_momentum {
                    self.run::<2, _>(memory, rule)
                } else {
                    self.run::<1, _>(memory, rule)
                }
            }
            Optimizer::Adagrad { eps, .. } => self.run(memory, |s| Adagrad {
                lr: real(self.lr(s)),
                eps: real(eps),
                weight_decay: real(s.weight_decay),
            }),
            Optimizer::Lion { betas, .. } => self.run(memory, |s| Lion {
                lr: real(self.lr(s)),
                keep: real(self.keep(s)),
                direction: (real(betas.0), real(1.0 - betas.0)),
                moment: (real(betas.1), real(1.0 - betas.1)),
            }),
            Optimizer::Lamb { betas, eps, .. } => {
                let (correction1, correction2) = self.corrections(betas);
                let corrections = (real(1.0 / correction1), real(1.0 / correction2.sqrt()));
                let rule = Lamb { means: Means::new(betas), corrections, eps: real(eps) };
                for (segment, arenas) in self.arenas(memory)?.segments(&self.plan.segments) {
                    rule.update(arenas, segment, self.grad, self.lr(segment));
                }
                Ok(())
            }
        }
    }

    /// Updates everything by the rule that is made for each segment.
    fn run<const M: usize, R: Rule<T, M>>(
        &self,
        memory: Memory<'_, T>,
        rule: impl Fn(&Segment) -> R,
    ) -> Result<(), StateError>
    where
        for<'a> [&'a mut [T]; M]: Elementwise<T, M>,
    {
        update(self.arenas(memory)?, &self.plan.segments, self.grad, rule);
        Ok(())
    }

    fn arenas<'a, const M: usize>(
        &self,
        Memory { weights, grads, state }: Memory<'a, T>,
    ) -> Result<Arenas<'a, T, M>, StateError> {
        if state.moments.len() != M {
            return Err(self.plan.optimizer.other_moments(state));
        }
        let mut moments = state.moments.iter_mut();
        let moments = std::array::from_fn(|_| {
            moments.next().map_or(Default::default(), |(_, values)| values.as_mut_slice())
        });
        Ok(Arenas { weights, grads, moments })
    }

    fn lr(&self, segment: &Segment) -> f64 {
        self.lr * segment.lr_scale
    }

    /// What decoupled decay leaves of a weight.
    fn keep(&self, segment: &Segment) -> f64 {
        1.0 - self.lr(segment) * segment.weight_decay
    }

    fn corrections(&self, betas: (f64, f64)) -> (f64, f64) {
        let t = self.step as f64;
        (1.0 - betas.0.powf(t), 1.0 - betas.1.powf(t))
    }

    fn momentum<const NESTEROV: bool>(
        &self,
        segment: &Segment,
        momentum: f64,
        dampening: f64,
    ) -> Momentum<T, NESTEROV> {
        let (old, new) = if self.step == 1 { (0.0, 1.0) } else { (momentum, 1.0 - dampening) };
        Momentum {
            lr: T::from_f64(self.lr(segment)),
            momentum: T::from_f64(momentum),
            old: T::from_f64(old),
            new: T::from_f64(new),
            weight_decay: T::from_f64(segment.weight_decay),
        }
    }

    /// Without decay.
    fn adam(&self, segment: &Segment, betas: (f64, f64), eps: f64) -> Adam<T> {
        let (correction1, correction2) = self.corrections(betas);
        Adam {
            coupled: T::ZERO,
            keep: T::ONE,
            means: Means::new(betas),
            step_size: T::from_f64(self.lr(segment) / correction1),
            root: T::from_f64(correction2.sqrt()),
            eps: T::from_f64(eps),
        }
    }
}
