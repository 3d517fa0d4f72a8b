//! A job's whole state as one safetensors file: written aside, read back, resumed.
//!
//! Tensors: `<parameter>`, `<buffer>`, `optimizer.<moment>.<parameter>`, where a mean of the weights is kept
//! `ema.<parameter>`, and where a communication hook has a state `hook.shared` and `hook.leftovers`; all f32, so that any
//! safetensors reader opens the weights by their names. The metadata key `lockstep` holds a [`Meta`] as JSON. The same
//! state gives the same bytes, so a checkpoint's digest says whether two states are equal.

mod curve;
mod error;
mod file;
mod proof;
mod weights;

pub use curve::curve_settings;
pub use error::CheckpointError;
pub use file::{load, save};
pub use weights::{WeightsMut, WeightsOf, load_weights};

use std::collections::BTreeMap;

use lockstep_api::{Digest, Step};
use lockstep_tensor::{Layout, LossScaleState, OptimizerState};
use serde::{Deserialize, Serialize};

/// Written into every file; a reader refuses others.
pub const FORMAT_VERSION: u32 = 1;

/// What is not a tensor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Meta {
    /// [`FORMAT_VERSION`].
    pub version: u32,
    /// Optimizer steps done.
    pub step: Step,
    /// Pass over the data that the next step is in.
    pub data_epoch: i64,
    /// Position within it that the next step begins at.
    pub next_position: i64,
    /// Samples of the training split: positions mean nothing without it.
    pub samples_per_epoch: i64,
    /// The optimizer's own count of steps.
    pub optimizer_step: u64,
    /// With f16.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_scale: Option<LossScaleState>,
    /// The job's settings that decide its curve, from [`curve_settings`].
    pub settings: serde_json::Value,
    /// The SHA-256 of each part of the state: `weights`, `buffers`, `optimizer.<moment>`, `ema`, `hook.<part>`. Computed by
    /// [`save`] and compared by [`load`] with what it has restored; what stands here before is not looked at.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub digests: BTreeMap<String, Digest>,
}

/// Weights and optimizer state, flat, in the order of the arena.
#[derive(Debug)]
pub struct State<'a> {
    /// Where each parameter lies.
    pub layout: &'a Layout,
    /// `[layout.len()]`
    pub weights: &'a [f32],
    /// Where each running statistic lies.
    pub buffer_layout: &'a Layout,
    /// `[buffer_layout.len()]`
    pub buffers: &'a [f32],
    /// The running mean of the weights, `[layout.len()]`, if one is kept.
    pub average: Option<&'a [f32]>,
    /// What a communication hook carries from step to step, if one does: what all ranks have alike, and what all of
    /// them together have left over.
    pub hook: Option<[&'a [f32]; 2]>,
    /// Each moment `[layout.len()]`.
    pub optimizer: &'a OptimizerState,
}

/// Likewise, to be filled.
#[derive(Debug)]
pub struct StateMut<'a> {
    /// Where each parameter lies.
    pub layout: &'a Layout,
    /// `[layout.len()]`
    pub weights: &'a mut [f32],
    /// Where each running statistic lies.
    pub buffer_layout: &'a Layout,
    /// `[buffer_layout.len()]`
    pub buffers: &'a mut [f32],
    /// `[layout.len()]`, if a mean of the weights is kept.
    pub average: Option<&'a mut [f32]>,
    /// Of any length, if a communication hook is to go on from it.
    pub hook: Option<&'a mut [Vec<f32>; 2]>,
    /// Each moment `[layout.len()]`; which there are, the optimizer says.
    pub optimizer: &'a mut OptimizerState,
}
