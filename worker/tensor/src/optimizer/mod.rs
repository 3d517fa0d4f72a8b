//! How gradients become new weights: one fused pass over the arenas.
//!
//! An [`Optimizer`] is the rule and its settings, a [`ParamGroup`] says where something else holds, and
//! an [`UpdatePlan`], made of both and a layout, does the steps.

mod plan;
mod step;

mod group;
mod rules;

mod lamb;

mod clip;
mod pieces;

pub use clip::Clip;
pub use group::{GroupUpdate, ParamGroup};
pub use pieces::PIECE_LEN;
pub use plan::{PlanError, Segment, UpdatePlan};
pub use step::{StepError, StepFactors, StepReport};

use crate::{
    real::Real,
    setting::{SettingError, positive, share, within},
};

/// An update rule and its settings. Same rules and rounding order as PyTorch's where it has them.
///
/// In the formulas all lines run once per element, in this order, in the weights' own precision;
/// numbers that are the same for all elements are computed in `f64` and rounded once. t counts steps
/// from 1, and
///
/// ```text
/// g  = grad · grad_scale, clipped
/// lr = lr · lr_factor · lr_scale of the parameter
/// ```
///
/// `weight_decay` is that of the parameter: its group's, or the rule's. AdamW, LAMB and Lion by
/// default do not decay parameters with fewer than two axes, which are biases and norms.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Optimizer {
    /// Stochastic gradient descent:
    ///
    /// ```text
    /// g += weight_decay · w
    /// v  = g                                    at t = 1
    /// v  = momentum · v + (1 - dampening) · g   afterwards
    /// w -= lr · v
    /// w -= lr · (g + momentum · v)              in place of it, if nesterov
    /// ```
    ///
    /// Without momentum there is no v, and `w -= lr · g`. Nesterov's form wants momentum and no
    /// dampening.
    Sgd { lr: f64, momentum: f64, dampening: f64, nesterov: bool, weight_decay: f64 },
    /// Adam, with the decay as a part of the gradient:
    ///
    /// ```text
    /// g += weight_decay · w
    /// m += (1 - β1) · (g - m)
    /// v  = β2 · v + (1 - β2) · g²
    /// w -= lr / (1 - β1ᵗ) · (m / (√v / √(1 - β2ᵗ) + eps))
    /// ```
    ///
    /// With `amsgrad` the last line takes the greatest v so far, which is a third moment.
    Adam { lr: f64, betas: (f64, f64), eps: f64, weight_decay: f64, amsgrad: bool },
    /// Adam with decoupled weight decay:
    ///
    /// ```text
    /// m += (1 - β1) · (g - m)
    /// v  = β2 · v + (1 - β2) · g²
    /// w  = w · (1 - lr · weight_decay) - lr / (1 - β1ᵗ) · (m / (√v / √(1 - β2ᵗ) + eps))
    /// ```
    AdamW { lr: f64, betas: (f64, f64), eps: f64, weight_decay: f64 },
    /// RMSprop, not centred:
    ///
    /// ```text
    /// g += weight_decay · w
    /// v  = alpha · v + (1 - alpha) · g²
    /// b  = momentum · b + g / (√v + eps)
    /// w -= lr · b
    /// ```
    ///
    /// Without momentum there is no b, and `w -= lr · (g / (√v + eps))`.
    RmsProp { lr: f64, alpha: f64, eps: f64, momentum: f64, weight_decay: f64 },
    /// Adagrad:
    ///
    /// ```text
    /// g += weight_decay · w
    /// s += g²
    /// w -= lr · (g / (√s + eps))
    /// ```
    Adagrad { lr: f64, eps: f64, weight_decay: f64 },
    /// LAMB: Adam whose step is as long as the parameter, for large batches. ‖·‖ is over one parameter.
    ///
    /// ```text
    /// m += (1 - β1) · (g - m)
    /// v  = β2 · v + (1 - β2) · g²
    /// u  = (m · 1/(1 - β1ᵗ)) / (√v · 1/√(1 - β2ᵗ) + eps) + weight_decay · w
    /// r  = ‖w‖ / ‖u‖     1 if one of them is 0, or without weight decay
    /// w -= lr · r · u
    /// ```
    ///
    /// # Source
    /// You et al., "Large batch optimization for deep learning", 2020, with φ(x) = x; that parameters
    /// without decay are not adapted is from the authors' program.
    Lamb { lr: f64, betas: (f64, f64), eps: f64, weight_decay: f64 },
    /// Lion:
    ///
    /// ```text
    /// u = sign(β1 · m + (1 - β1) · g)     sign(0) = 0
    /// w = w · (1 - lr · weight_decay) - lr · u
    /// m = β2 · m + (1 - β2) · g
    /// ```
    ///
    /// # Source
    /// Chen et al., "Symbolic discovery of optimization algorithms", 2023.
    Lion { lr: f64, betas: (f64, f64), weight_decay: f64 },
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

/// Greatest learning rate, and factor of one.
pub(crate) const MAX_LR: f64 = 1e6;
/// Greatest weight decay.
const MAX_DECAY: f64 = 1e3;

impl Optimizer {
    /// Names of the moments it keeps, each as long as the arena.
    pub fn moment_names(&self) -> &'static [&'static str] {
        match self {
            Self::Sgd { momentum, .. } if *momentum == 0.0 => &[],
            Self::Sgd { .. } => &["momentum"],
            Self::Adam { amsgrad: true, .. } => &["m", "v", "v_max"],
            Self::Adam { .. } | Self::AdamW { .. } | Self::Lamb { .. } => &["m", "v"],
            Self::RmsProp { momentum, .. } if *momentum == 0.0 => &["v"],
            Self::RmsProp { .. } => &["v", "momentum"],
            Self::Adagrad { .. } => &["sum"],
            Self::Lion { .. } => &["m"],
        }
    }

    /// The state before the first step of a model with so many elements.
    pub fn state<T: Real>(&self, len: usize) -> OptimizerState<T> {
        let moment = |name: &&str| ((*name).to_owned(), vec![T::ZERO; len]);
        OptimizerState { step: 0, moments: self.moment_names().iter().map(moment).collect() }
    }

    /// Whether a state, from a checkpoint for example, is one that [`UpdatePlan::step`] accepts.
    pub fn check_state<T>(&self, state: &OptimizerState<T>, len: usize) -> Result<(), StateError> {
        let given = || state.moments.iter().map(|(name, _)| name.as_str());
        if !given().eq(self.moment_names().iter().copied()) {
            return Err(self.other_moments(state));
        }
        match state.moments.iter().find(|(_, values)| values.len() != len) {
            None => Ok(()),
            Some((name, values)) => {
                let (name, given) = (name.clone(), values.len());
                Err(StateError::Length { name, expected: len, given })
            }
        }
    }

    fn other_moments<T>(&self, state: &OptimizerState<T>) -> StateError {
        let expected = self.moment_names().iter().map(|&name| name.to_owned()).collect();
        let given = state.moments.iter().map(|(name, _)| name.clone()).collect();
        StateError::Moments { expected, given }
    }

    /// Refuses settings outside of what makes sense, by name.
    pub fn check(&self) -> Result<(), SettingError> {
        within("lr", self.lr(), 0.0..=MAX_LR)?;
        check_decay(self.weight_decay())?;
        match *self {
            Self::Sgd { momentum, dampening, nesterov, .. } => {
                share("momentum", momentum)?;
                within("dampening", dampening, 0.0..=1.0)?;
                if nesterov && momentum == 0.0 {
                    return Err(SettingError::new("momentum", momentum, "above 0 with nesterov"));
                }
                if nesterov && dampening != 0.0 {
                    return Err(SettingError::new("dampening", dampening, "0 with nesterov"));
                }
                Ok(())
            }
            Self::Adam { betas, eps, .. }
            | Self::AdamW { betas, eps, .. }
            | Self::Lamb { betas, eps, .. } => {
                check_betas(betas)?;
                positive("eps", eps, 1.0)
            }
            Self::RmsProp { alpha, eps, momentum, .. } => {
                share("alpha", alpha)?;
                positive("eps", eps, 1.0)?;
                share("momentum", momentum)
            }
            Self::Adagrad { eps, .. } => positive("eps", eps, 1.0),
            Self::Lion { betas, .. } => check_betas(betas),
        }
    }

    fn lr(&self) -> f64 {
        match *self {
            Self::Sgd { lr, .. }
            | Self::Adam { lr, .. }
            | Self::AdamW { lr, .. }
            | Self::RmsProp { lr, .. }
            | Self::Adagrad { lr, .. }
            | Self::Lamb { lr, .. }
            | Self::Lion { lr, .. } => lr,
        }
    }

    fn weight_decay(&self) -> f64 {
        match *self {
            Self::Sgd { weight_decay, .. }
            | Self::Adam { weight_decay, .. }
            | Self::AdamW { weight_decay, .. }
            | Self::RmsProp { weight_decay, .. }
            | Self::Adagrad { weight_decay, .. }
            | Self::Lamb { weight_decay, .. }
            | Self::Lion { weight_decay, .. } => weight_decay,
        }
    }

    /// Decay of a parameter that no group gives another one.
    fn default_decay(&self, axes: usize) -> f64 {
        match self {
            Self::AdamW { .. } | Self::Lamb { .. } | Self::Lion { .. } if axes < 2 => 0.0,
            _ => self.weight_decay(),
        }
    }
}

fn check_decay(weight_decay: f64) -> Result<(), SettingError> {
    within("weight_decay", weight_decay, 0.0..=MAX_DECAY)
}

fn check_betas(betas: (f64, f64)) -> Result<(), SettingError> {
    share("betas[0]", betas.0)?;
    share("betas[1]", betas.1)
}
