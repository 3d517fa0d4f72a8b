//! The job as its owner writes it: one set of fields for the job file (TOML) and the REST body (JSON).
//!
//! In a job file, `component`, `train` and `eval` may be paths beginning with `./`, `../` or `/`,
//! relative to the file; the client uploads them and puts digests in their place. Over REST they are
//! digests (`sha256:…`) or, for data, the name of a registered dataset.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::DeviceKind;

/// A job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct JobSpec {
    /// For people; need not be unique. 1 to 100 characters.
    pub name: String,
    /// What is trained.
    pub model: ModelSpec,
    /// What it is trained on.
    pub data: DataSpec,
    /// The guest that makes tensors of samples.
    pub loader: GuestSpec,
    /// The guest that makes a loss of outputs and batch.
    pub loss: LossSpec,
    /// Batches, length, optimizer.
    pub train: TrainSpec,
    /// Data-parallel reduction.
    #[serde(default)]
    pub ddp: DdpSpec,
    /// How many ranks on what.
    #[serde(default)]
    pub gang: GangSpec,
    /// The one time limit that the others are derived from.
    #[serde(default)]
    pub timeouts: TimeoutSpec,
    /// When to keep the state.
    #[serde(default)]
    pub checkpoint: CheckpointSpec,
    /// What a failure costs.
    #[serde(default)]
    pub retry: RetrySpec,
    /// Free text for the owner's own use: at most 32 pairs.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
}

/// The model, by architecture.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(tag = "arch", rename_all = "snake_case", deny_unknown_fields)]
pub enum ModelSpec {
    /// Linear layers with ReLU between them. Input `x`: f32 `[batch, inputs]`; output `logits`: f32 `[batch, classes]`.
    Mlp {
        /// Length of one sample.
        inputs: u32,
        /// Width of each hidden layer; may be empty.
        #[serde(default)]
        hidden: Vec<u32>,
        /// Length of the output.
        classes: u32,
    },
}

/// Datasets: a registered name, or the digest of a dataset.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DataSpec {
    /// Read with the split name `train`.
    pub train: String,
    /// Read with the split name `eval`, after each data epoch and at the end. Absent: no evaluation.
    #[serde(default)]
    pub eval: Option<String>,
}

/// A guest component and its settings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GuestSpec {
    /// Digest of the component.
    pub component: String,
    /// Handed to the guest as JSON text.
    #[serde(default = "empty_config")]
    #[schema(value_type = Object)]
    pub config: Value,
    /// What the guest may use.
    #[serde(default)]
    pub limits: GuestLimits,
}

/// The loss guest: a kept graph, or bytes in and gradients out. Which one, its exports say.
pub type LossSpec = GuestSpec;

/// Ceilings of one guest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct GuestLimits {
    /// Linear memory, MiB. 1 to 4096.
    pub memory_mib: u32,
    /// Time of one call, milliseconds. 10 to 600000.
    pub call_ms: u64,
    /// Bytes one call may hand out, MiB. 1 to 1024.
    pub output_mib: u32,
}

impl Default for GuestLimits {
    fn default() -> Self {
        Self { memory_mib: 256, call_ms: 10_000, output_mib: 128 }
    }
}

fn empty_config() -> Value {
    Value::Object(serde_json::Map::new())
}

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
    /// Seeds initial weights, order of samples, and each sample's own randomness.
    #[serde(default)]
    pub seed: u64,
    /// How a gradient becomes a step.
    pub optimizer: OptimizerSpec,
}

/// The optimizer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(tag = "name", rename_all = "snake_case", deny_unknown_fields)]
pub enum OptimizerSpec {
    /// Stochastic gradient descent. v = momentum·v + (g + weight_decay·w); w −= lr·v.
    Sgd {
        /// Learning rate.
        lr: f64,
        /// 0 ≤ momentum < 1.
        #[serde(default)]
        momentum: f64,
        /// Added to the gradient.
        #[serde(default)]
        weight_decay: f64,
    },
    /// Adam with decoupled weight decay.
    Adamw {
        /// Learning rate.
        lr: f64,
        /// Decay of the running means of g and g².
        #[serde(default = "adam_betas")]
        betas: [f64; 2],
        /// Added to the root.
        #[serde(default = "adam_eps")]
        eps: f64,
        /// w −= lr·weight_decay·w, apart from the gradient.
        #[serde(default = "adamw_decay")]
        weight_decay: f64,
    },
}

fn adam_betas() -> [f64; 2] {
    [0.9, 0.999]
}
fn adam_eps() -> f64 {
    1e-8
}
fn adamw_decay() -> f64 {
    0.01
}

/// Data-parallel reduction.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DdpSpec {
    /// Ceiling of a bucket, MiB.
    pub bucket_mib: u32,
    /// Ceiling of the first bucket, MiB, so that communication starts early.
    pub first_bucket_mib: u32,
    /// In which order gradients are added.
    pub reduction: Reduction,
}

impl Default for DdpSpec {
    fn default() -> Self {
        Self { bucket_mib: 25, first_bucket_mib: 1, reduction: Reduction::Fast }
    }
}

/// In which order gradients are added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Reduction {
    /// Each rank adds up its grains, then ranks in order. Same world, same bits.
    Fast,
    /// Grains along a fixed binary tree: same bits for any number of ranks.
    FixedTree,
}

/// The gang.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct GangSpec {
    /// World size. 1 to 64.
    pub ranks: u32,
    /// What each rank runs on.
    pub slot: SlotSpec,
}

impl Default for GangSpec {
    fn default() -> Self {
        Self { ranks: 1, slot: SlotSpec::default() }
    }
}

/// What one rank runs on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SlotSpec {
    /// Kind of device.
    pub device: DeviceKind,
    /// Processor cores. Of the first release: 1.
    pub cores: u32,
    /// Memory, MiB.
    pub memory_mib: u32,
}

impl Default for SlotSpec {
    fn default() -> Self {
        Self { device: DeviceKind::Cpu, cores: 1, memory_mib: 512 }
    }
}

/// Time limits. All others are ratios of `collective`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TimeoutSpec {
    /// Longest wait for a collective: a number and a unit (`ms`, `s`, `m`). 500ms to 60m.
    pub collective: String,
}

impl Default for TimeoutSpec {
    fn default() -> Self {
        Self { collective: "60s".to_owned() }
    }
}

/// When to keep the state.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CheckpointSpec {
    /// Every so many optimizer steps; one is always made at the end. Absent: only at the end.
    pub every_steps: Option<u64>,
    /// How many to keep.
    pub keep_last: u32,
}

impl Default for CheckpointSpec {
    fn default() -> Self {
        Self { every_steps: None, keep_last: 2 }
    }
}

/// Budgets of retries, for the whole life of the job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RetrySpec {
    /// Attempts that may be lost to the job's own faults.
    pub user: u32,
    /// Attempts that may be lost to machines and links.
    pub infrastructure: u32,
}

impl Default for RetrySpec {
    fn default() -> Self {
        Self { user: 0, infrastructure: 3 }
    }
}
