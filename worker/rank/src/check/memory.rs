//! What a rank needs, and whether the slot and the check itself have it.

use lockstep_api::{FieldError, JobSpec, Reduction};
use lockstep_models::Model;
use lockstep_sandbox::Batch;
use lockstep_service::chain;
use lockstep_tensor::Meta;
use rustix::process::{Resource, getrlimit};

use super::mode;
use crate::grain::meta;
use crate::update;

/// Program, runtime, stacks, compiled guests: what a rank needs before its first number.
const BASE_BYTES: u64 = 64 << 20;
const F32_BYTES: u64 = 4;

/// What the model's training needs: weights, gradients, moments, one grain, partial sums, the mean of the weights, all
/// grains' batch statistics (a table and two copies that are summed), a copy of the state for a checkpoint and that file
/// read back. The two guests' ceilings are left out: those are limits, not needs; what the loss's graph computes comes on
/// top.
///
/// # Errors
/// A model whose needs cannot be told, or more than the slot or this process have.
pub(super) fn of_model(spec: &JobSpec, model: &Model, batch: &Batch) -> Result<u64, FieldError> {
    let parameters = model.layout().len() as u64;
    let moments = update::optimizer(&spec.train.optimizer).moment_names().len();
    let grains = spec.train.global_batch.div_ceil(spec.train.micro_batch) as usize;
    let more_sums = match spec.ddp.reduction {
        Reduction::Fast => 0,
        Reduction::FixedTree => {
            // Neither the smallest gang nor the largest needs the most for certain.
            let sizes = spec.gang.ranks.min() as usize..=spec.gang.ranks.max() as usize;
            let most = sizes.map(|world| lockstep_ddp::slots_needed(world, grains)).max();
            most.unwrap_or(1).saturating_sub(1) as u64
        }
    };
    let inputs = inputs(spec, model, batch);
    let estimate = model
        .memory_estimate(&inputs, moments, mode(spec))
        .map_err(|error| FieldError::new("model", chain(&error)))?;
    let average = u64::from(spec.train.ema.is_some());
    let file = 1 + moments as u64 + average;
    let copies = more_sums.saturating_add(average + 2 * file);
    let numbers = parameters.saturating_mul(copies).saturating_mul(F32_BYTES);
    let statistics = match spec.ddp.reduction {
        Reduction::Fast => 0,
        Reduction::FixedTree => (model.buffers().len() * grains * size_of::<f64>()) as u64,
    };
    let bytes = [numbers, 3 * statistics, BASE_BYTES];
    let bytes = bytes.into_iter().fold(estimate.total(), u64::saturating_add);
    fits_slot(spec, model, bytes)?;
    let here = estimate.total().saturating_add(BASE_BYTES);
    match getrlimit(Resource::Data).current {
        Some(most) if most < here => {
            let message = format!(
                "expected one whose first grain can be tried in {} MiB, found {estimate}",
                most >> 20
            );
            Err(FieldError::new("model", message))
        }
        _ => Ok(bytes),
    }
}

/// Of a grain as the loader makes it; as the job says if that does not fit the model, which is refused later.
fn inputs(spec: &JobSpec, model: &Model, batch: &Batch) -> Vec<(&'static str, Meta)> {
    let samples = spec.train.micro_batch as usize;
    let mut found = Vec::new();
    for input in model.inputs() {
        match batch.tensors.iter().find(|tensor| tensor.name == input.name).map(meta) {
            Some(mut meta)
                if input.check(&meta, meta.shape.first().copied().unwrap_or(0)).is_ok() =>
            {
                meta.shape[0] = samples;
                found.push((input.name, meta));
            }
            None if !input.is_required => {}
            Some(_) | None => return model.typical_inputs(samples),
        }
    }
    found
}

/// That the slot has so many bytes.
pub(super) fn fits_slot(spec: &JobSpec, model: &Model, bytes: u64) -> Result<(), FieldError> {
    if bytes <= u64::from(spec.gang.slot.memory_mib) << 20 {
        return Ok(());
    }
    let message = format!(
        "expected at least {} for {} parameters and micro_batch {}, found {}",
        bytes.div_ceil(1 << 20),
        model.layout().len(),
        spec.train.micro_batch,
        spec.gang.slot.memory_mib
    );
    Err(FieldError::new("gang.slot.memory_mib", message))
}
