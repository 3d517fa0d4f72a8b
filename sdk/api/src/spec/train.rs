//! How a model is trained and evaluated.

use serde::{Deserialize, Serialize};

use super::{OptimizerSpec, ScheduleSpec};

/// Batches, length, optimizer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TrainSpec {
    /// Samples of one optimizer step, over all ranks.
    pub global_batch: u32,
    /// Samples of one grain: what one rank sees at once. The last of a batch may be shorter.
    pub micro_batch: u32,
    /// Passes over the data.
    pub epochs: u32,
    /// Stop after so many optimizer steps, if that comes first.
    #[serde(default)]
    pub max_steps: Option<u64>,
    /// Seeds initial weights, order of samples, dropout, and each sample's own randomness.
    #[serde(default)]
    pub seed: u64,
    /// How a gradient becomes a step.
    pub optimizer: OptimizerSpec,
    /// Parameters with settings of their own; of several that match a name, the first holds. For the others, and for
    /// groups without a `weight_decay`: with `adamw`, `lamb` and `lion` parameters of fewer than two axes (biases,
    /// norms) are not decayed.
    #[serde(default)]
    pub groups: Vec<GroupSpec>,
    /// The course of the learning rate.
    #[serde(default)]
    pub schedule: ScheduleSpec,
    /// Scale the gradient down to this norm over all parameters, if it is longer. Not with `clip_value`.
    #[serde(default)]
    pub clip_norm: Option<f64>,
    /// Cut each element of the gradient to ± this. Not with `clip_norm`.
    #[serde(default)]
    pub clip_value: Option<f64>,
    /// Keep a running mean of the weights.
    #[serde(default)]
    pub ema: Option<EmaSpec>,
    /// What forward and backward compute in. Weights and moments are f32 in any case.
    #[serde(default)]
    pub precision: Precision,
    /// Scaling of the loss, with `precision = "f16"` only. Absent: its defaults.
    #[serde(default)]
    pub loss_scale: Option<LossScaleSpec>,
    /// Keep the inputs of blocks only and compute the rest again in backward: less memory, a third more work.
    #[serde(default)]
    pub activation_checkpointing: bool,
    /// Compute threads of a rank; at most `gang.slot.cores`. They change no result.
    #[serde(default = "one")]
    pub threads: u32,
}

fn one() -> u32 {
    1
}

impl TrainSpec {
    /// With the defaults of everything else.
    pub fn new(global_batch: u32, micro_batch: u32, epochs: u32, optimizer: OptimizerSpec) -> Self {
        Self {
            global_batch,
            micro_batch,
            epochs,
            max_steps: None,
            seed: 0,
            optimizer,
            groups: Vec::new(),
            schedule: ScheduleSpec::default(),
            clip_norm: None,
            clip_value: None,
            ema: None,
            precision: Precision::F32,
            loss_scale: None,
            activation_checkpointing: false,
            threads: 1,
        }
    }
}

/// Parameters by name, and what is different for them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GroupSpec {
    /// Pattern of names in the state dict: `*` stands for any characters, dots included, and for none.
    pub r#match: String,
    /// Multiplies the learning rate.
    #[serde(default = "one_point")]
    pub lr_scale: f64,
    /// In place of the optimizer's. Absent: as if in no group.
    #[serde(default)]
    pub weight_decay: Option<f64>,
    /// Whether these parameters stay as they are.
    #[serde(default)]
    pub frozen: bool,
}

fn one_point() -> f64 {
    1.0
}

/// An exponential moving average of the weights: e = decay·e + (1 − decay)·w after each step, e = w at the start.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct EmaSpec {
    /// 0 ≤ decay < 1.
    pub decay: f64,
}

impl Default for EmaSpec {
    fn default() -> Self {
        Self { decay: 0.999 }
    }
}

/// What forward and backward compute in.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Precision {
    /// f32.
    #[default]
    F32,
    /// bf16 products with f32 sums; norms, softmax and losses in f32.
    Bf16,
    /// f16 products likewise, with a scaled loss.
    F16,
}

/// Dynamic scaling of an f16 loss, with PyTorch's defaults. A step whose gradient is not finite is left out and the
/// scale multiplied by `backoff_factor`; after `growth_interval` good steps in a row by `growth_factor`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LossScaleSpec {
    /// The scale at the start.
    pub initial: f64,
    /// Steps.
    pub growth_interval: u64,
    /// Above 1.
    pub growth_factor: f64,
    /// Below 1.
    pub backoff_factor: f64,
}

impl Default for LossScaleSpec {
    fn default() -> Self {
        Self { initial: 65536.0, growth_interval: 2000, growth_factor: 2.0, backoff_factor: 0.5 }
    }
}

/// What is measured on `data.eval`, exact over all samples whatever the batches and ranks. `eval/loss` and what the
/// loss guest measures are reported in any case.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct EvalSpec {
    /// After every so many passes over the training data, and at the end.
    pub every_epochs: u32,
    /// Measured by the engine from `logits` and labels, reported as `eval/accuracy`, ….
    pub metrics: Vec<EvalMetric>,
    /// The tensor of the batch that holds labels: i64, the shape of `logits` without its last axis.
    pub labels: String,
    /// Labels with this value are not counted.
    pub ignore_index: i64,
    /// Whether the running mean of the weights is evaluated instead of the weights. Wants `train.ema`.
    pub use_ema: bool,
}

impl Default for EvalSpec {
    fn default() -> Self {
        Self {
            every_epochs: 1,
            metrics: Vec::new(),
            labels: "y".to_owned(),
            ignore_index: -100,
            use_ema: false,
        }
    }
}

/// A measure that the engine computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EvalMetric {
    /// Share of labels that have the largest logit; of equals the first counts.
    Accuracy,
    /// Share of labels among the five largest logits.
    Top5,
    /// exp of the mean cross entropy, natural logarithm, without label smoothing.
    Perplexity,
}
