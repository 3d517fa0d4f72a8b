//! Optimizers, with PyTorch's settings and defaults. g: gradient, w: weight, t: step from 1.

use serde::{Deserialize, Deserializer, Serialize, de::Error};

use super::tagged::Table;

/// The optimizer.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
#[serde(tag = "name", rename_all = "snake_case")]
pub enum OptimizerSpec {
    /// Stochastic gradient descent. v = momentum·v + (1 − dampening)·(g + weight_decay·w); w −= lr·v.
    Sgd(SgdSpec),
    /// Adam; weight decay is added to the gradient.
    Adam(AdamSpec),
    /// Adam with decoupled weight decay.
    Adamw(AdamwSpec),
    /// Adam's step, scaled for each parameter by the ratio of the weights' norm to the step's.
    Lamb(LambSpec),
    /// The sign of an interpolated momentum, with decoupled weight decay.
    Lion(LionSpec),
    /// g divided by the root of its running mean square.
    Rmsprop(RmspropSpec),
    /// g divided by the root of its sum of squares.
    Adagrad(AdagradSpec),
}

/// Names of optimizers, in the order of [`OptimizerSpec`].
pub const OPTIMIZERS: [&str; 7] = ["sgd", "adam", "adamw", "lamb", "lion", "rmsprop", "adagrad"];

impl<'de> Deserialize<'de> for OptimizerSpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut table = Table::read(deserializer)?;
        let name: String = table.tag("name")?;
        match name.as_str() {
            "sgd" => Ok(Self::Sgd(table.rest()?)),
            "adam" => Ok(Self::Adam(table.rest()?)),
            "adamw" => Ok(Self::Adamw(table.rest()?)),
            "lamb" => Ok(Self::Lamb(table.rest()?)),
            "lion" => Ok(Self::Lion(table.rest()?)),
            "rmsprop" => Ok(Self::Rmsprop(table.rest()?)),
            "adagrad" => Ok(Self::Adagrad(table.rest()?)),
            other => Err(D::Error::unknown_variant(other, &OPTIMIZERS)),
        }
    }
}

impl OptimizerSpec {
    /// The learning rate before schedule and groups.
    pub fn lr(&self) -> f64 {
        match self {
            Self::Sgd(it) => it.lr,
            Self::Adam(it) => it.lr,
            Self::Adamw(it) => it.lr,
            Self::Lamb(it) => it.lr,
            Self::Lion(it) => it.lr,
            Self::Rmsprop(it) => it.lr,
            Self::Adagrad(it) => it.lr,
        }
    }

    /// The weight decay of parameters that no group gives another.
    pub fn weight_decay(&self) -> f64 {
        match self {
            Self::Sgd(it) => it.weight_decay,
            Self::Adam(it) => it.weight_decay,
            Self::Adamw(it) => it.weight_decay,
            Self::Lamb(it) => it.weight_decay,
            Self::Lion(it) => it.weight_decay,
            Self::Rmsprop(it) => it.weight_decay,
            Self::Adagrad(it) => it.weight_decay,
        }
    }
}

/// Stochastic gradient descent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct SgdSpec {
    /// Learning rate.
    pub lr: f64,
    /// 0 ≤ momentum < 1.
    #[serde(default)]
    pub momentum: f64,
    /// Share of the gradient that is kept out of the momentum, 0 to 1; not of the first one.
    #[serde(default)]
    pub dampening: f64,
    /// Nesterov's look ahead: w −= lr·(g + momentum·v). Wants a momentum and no dampening.
    #[serde(default)]
    pub nesterov: bool,
    /// Added to the gradient.
    #[serde(default)]
    pub weight_decay: f64,
}

/// Adam.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct AdamSpec {
    /// Learning rate.
    pub lr: f64,
    /// Decay of the running means of g and g².
    #[serde(default = "adam_betas")]
    pub betas: [f64; 2],
    /// Added to the root.
    #[serde(default = "default_1e8")]
    pub eps: f64,
    /// Added to the gradient: g + weight_decay·w.
    #[serde(default)]
    pub weight_decay: f64,
    /// Whether the root is of the largest mean of g² so far.
    #[serde(default)]
    pub amsgrad: bool,
}

/// Adam with decoupled weight decay.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct AdamwSpec {
    /// Learning rate.
    pub lr: f64,
    /// Decay of the running means of g and g².
    #[serde(default = "adam_betas")]
    pub betas: [f64; 2],
    /// Added to the root.
    #[serde(default = "default_1e8")]
    pub eps: f64,
    /// w −= lr·weight_decay·w, apart from the gradient.
    #[serde(default = "default_decay")]
    pub weight_decay: f64,
}

/// LAMB (You et al. 2020), with Apex's defaults; PyTorch has none.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct LambSpec {
    /// Learning rate.
    pub lr: f64,
    /// Decay of the running means of g and g².
    #[serde(default = "adam_betas")]
    pub betas: [f64; 2],
    /// Added to the root.
    #[serde(default = "default_1e6")]
    pub eps: f64,
    /// Added to the step before it is scaled: weight_decay·w.
    #[serde(default = "default_decay")]
    pub weight_decay: f64,
}

/// Lion (Chen et al. 2023), with its authors' defaults; PyTorch has none.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct LionSpec {
    /// Learning rate.
    pub lr: f64,
    /// Share of the momentum in the step, decay of the momentum.
    #[serde(default = "lion_betas")]
    pub betas: [f64; 2],
    /// w −= lr·weight_decay·w, apart from the gradient.
    #[serde(default)]
    pub weight_decay: f64,
}

/// RMSprop.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct RmspropSpec {
    /// Learning rate.
    pub lr: f64,
    /// Decay of the running mean of g².
    #[serde(default = "default_alpha")]
    pub alpha: f64,
    /// Added to the root.
    #[serde(default = "default_1e8")]
    pub eps: f64,
    /// Added to the gradient.
    #[serde(default)]
    pub weight_decay: f64,
    /// 0 ≤ momentum < 1.
    #[serde(default)]
    pub momentum: f64,
}

/// Adagrad.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct AdagradSpec {
    /// Learning rate.
    pub lr: f64,
    /// Added to the gradient.
    #[serde(default)]
    pub weight_decay: f64,
    /// Added to the root.
    #[serde(default = "default_1e10")]
    pub eps: f64,
}

fn adam_betas() -> [f64; 2] {
    [0.9, 0.999]
}
fn lion_betas() -> [f64; 2] {
    [0.9, 0.99]
}
fn default_1e6() -> f64 {
    1e-6
}
fn default_1e8() -> f64 {
    1e-8
}
fn default_1e10() -> f64 {
    1e-10
}
fn default_decay() -> f64 {
    0.01
}
fn default_alpha() -> f64 {
    0.99
}
