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
    /// Parameters with settings of their own; of several that match a name, the first holds. Absent: with `adamw`,
    /// parameters of fewer than two axes (biases, norms) are not decayed. `[]`: the same for every parameter.
    #[serde(default)]
    pub groups: Option<Vec<GroupSpec>>,
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
            groups: None,
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

    /// What holds for the parameter `name` of so many axes.
    pub fn param_settings(&self, name: &str, axes: usize) -> ParamSettings {
        let decay = self.optimizer.weight_decay();
        let plain = ParamSettings { lr_scale: 1.0, weight_decay: decay, is_frozen: false };
        match &self.groups {
            Some(groups) => {
                groups.iter().find(|group| group.matches(name)).map_or(plain, |group| {
                    let GroupSpec { r#match: _, lr_scale, weight_decay, frozen } = group;
                    let weight_decay = weight_decay.unwrap_or(decay);
                    ParamSettings { lr_scale: *lr_scale, weight_decay, is_frozen: *frozen }
                })
            }
            None if axes < 2 && matches!(self.optimizer, OptimizerSpec::Adamw(_)) => {
                ParamSettings { weight_decay: 0.0, ..plain }
            }
            None => plain,
        }
    }
}

/// Settings of one parameter.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ParamSettings {
    /// Multiplies the learning rate.
    pub lr_scale: f64,
    /// In place of the optimizer's.
    pub weight_decay: f64,
    /// Whether the parameter stays as it is.
    pub is_frozen: bool,
}

/// Parameters by name, and what is different for them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GroupSpec {
    /// Pattern of names in the state dict: `*` stands for any characters, dots included, `?` for one.
    pub r#match: String,
    /// Multiplies the learning rate.
    #[serde(default = "one_point")]
    pub lr_scale: f64,
    /// In place of the optimizer's. Absent: the optimizer's.
    #[serde(default)]
    pub weight_decay: Option<f64>,
    /// Whether these parameters stay as they are.
    #[serde(default)]
    pub frozen: bool,
}

impl GroupSpec {
    /// Whether `name` is meant.
    pub fn matches(&self, name: &str) -> bool {
        is_match(self.r#match.as_bytes(), name.as_bytes())
    }
}

/// Greedy with one place to come back to: the last `*` takes one more byte whenever the rest does not fit.
fn is_match(pattern: &[u8], name: &[u8]) -> bool {
    let (mut at, mut seen) = (0, 0);
    let mut star = None;
    while seen < name.len() {
        match pattern.get(at) {
            Some(b'*') => {
                star = Some((at + 1, seen));
                at += 1;
            }
            Some(&wanted) if wanted == b'?' || wanted == name[seen] => {
                at += 1;
                seen += 1;
            }
            _ => match star {
                Some((after, from)) => {
                    star = Some((after, from + 1));
                    (at, seen) = (after, from + 1);
                }
                None => return false,
            },
        }
    }
    pattern[at..].iter().all(|&byte| byte == b'*')
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
