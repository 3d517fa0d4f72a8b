//! The job as its owner writes it: one set of fields for the job file (TOML) and the REST body (JSON).
//!
//! In a job file, `component`, `train`, `eval` and `init_from` may be paths beginning with `./`, `../` or `/`,
//! relative to the file; the client uploads them and puts digests in their place. Over REST they are
//! digests (`sha256:…`) or, for data, the name of a registered dataset.

mod chaos;
mod check;
mod checkpoint;
mod count;
mod ddp;
mod layers;
mod model;
mod optimizer;
mod parse;
mod priority;
mod ranks;
mod schedule;
mod shapes;
mod tagged;
mod timeouts;
mod trace;
mod train;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::DeviceKind;

pub use chaos::*;
pub use check::{MAX_PARAMETERS, MAX_STEPS};
pub use checkpoint::*;
pub use ddp::*;
pub use layers::*;
pub use model::*;
pub use optimizer::*;
pub use parse::*;
pub use priority::*;
pub use ranks::*;
pub use schedule::*;
pub use shapes::LayerMisfit;
pub use timeouts::*;
pub use trace::*;
pub use train::*;

/// A job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct JobSpec {
    /// For people; need not be unique. 1 to 100 characters.
    pub name: String,
    /// Who goes first: 0 to 99, more before less. Only admins may ask for more than the default.
    #[serde(default)]
    pub priority: Priority,
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
    /// When to evaluate, and what is measured besides the loss.
    #[serde(default)]
    pub eval: EvalSpec,
    /// Data-parallel reduction.
    #[serde(default)]
    pub ddp: DdpSpec,
    /// How many ranks on what.
    #[serde(default)]
    pub gang: GangSpec,
    /// The one time limit that the others are derived from.
    #[serde(default)]
    pub timeouts: TimeoutSpec,
    /// When the state is saved, and which checkpoints are kept.
    #[serde(default)]
    pub checkpoint: CheckpointSpec,
    /// What a failure costs.
    #[serde(default)]
    pub retry: RetrySpec,
    /// Of which steps a timeline is kept.
    #[serde(default)]
    pub trace: TraceSpec,
    /// Faults that happen on purpose. Only admins may ask for them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub chaos: Vec<FaultSpec>,
    /// Free text for the owner's own use: at most 32 pairs.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
}

/// Datasets: a registered name, or the digest of a dataset.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DataSpec {
    /// Read with the split name `train`.
    pub train: String,
    /// Read with the split name `eval`, as often as `eval.every_epochs` says. Absent: no evaluation.
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

/// The gang.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct GangSpec {
    /// World size, or between which sizes it may change.
    pub ranks: RankCount,
    /// What each rank runs on.
    pub slot: SlotSpec,
}

impl Default for GangSpec {
    fn default() -> Self {
        Self { ranks: RankCount::Fixed(1), slot: SlotSpec::default() }
    }
}

/// What one rank runs on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SlotSpec {
    /// Kind of device.
    pub device: DeviceKind,
    /// Processor cores.
    pub cores: u32,
    /// Memory, MiB.
    pub memory_mib: u32,
}

impl Default for SlotSpec {
    fn default() -> Self {
        Self { device: DeviceKind::Cpu, cores: 1, memory_mib: 512 }
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
