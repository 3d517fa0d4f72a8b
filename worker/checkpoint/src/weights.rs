//! A checkpoint's model alone: weights and running statistics, without what goes on training them.

use std::fs;

use camino::Utf8Path;
use lockstep_api::ModelSpec;
use lockstep_api::{EMA_PREFIX, is_training_state};
use lockstep_tensor::Layout;
use serde_json::json;

use crate::file::{fill, io, parse, refuse_other};
use crate::{CheckpointError, Meta, curve};

/// Which weights of a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WeightsOf {
    /// Those after its last step.
    LastStep,
    /// Their running mean.
    Average,
}

/// A model's numbers, to be filled.
#[derive(Debug)]
pub struct WeightsMut<'a> {
    /// Where each parameter lies.
    pub layout: &'a Layout,
    /// `[layout.len()]`
    pub weights: &'a mut [f32],
    /// Where each running statistic lies.
    pub buffer_layout: &'a Layout,
    /// `[buffer_layout.len()]`
    pub buffers: &'a mut [f32],
}

/// Fills `state` from the checkpoint at `path` of a job with that model. Returns its metadata.
///
/// # Errors
/// Any; `Settings` names the first field in which the models differ. `state` is then unchanged but for `Tensor`,
/// where it may be half filled.
pub fn load_weights(
    path: &Utf8Path,
    model: &ModelSpec,
    which: WeightsOf,
    state: &mut WeightsMut<'_>,
) -> Result<Meta, CheckpointError> {
    let bytes = fs::read(path).map_err(io("read", path))?;
    let (tensors, meta) = parse(path, &bytes)?;
    curve::compare(&json!({ "model": meta.settings["model"] }), &json!({ "model": model }))?;
    refuse_other(&tensors, |name| {
        let is_model_s = |layout: &Layout| layout.id(name).is_some();
        let is_training_s = is_training_state(name);
        is_training_s || is_model_s(state.layout) || is_model_s(state.buffer_layout)
    })?;
    let prefix = match which {
        WeightsOf::LastStep => "",
        WeightsOf::Average => EMA_PREFIX,
    };
    fill(&tensors, state.layout, prefix, state.weights)?;
    fill(&tensors, state.buffer_layout, "", state.buffers)?;
    Ok(meta)
}
