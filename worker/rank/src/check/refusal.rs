//! Which field of the job a failed dry run is about, and what was expected there.

use lockstep_api::{ArchSpec, FieldError, JobSpec};
use lockstep_models::KINDS;
use lockstep_sandbox::{GuestError, GuestErrorKind};
use lockstep_service::chain;

use crate::grain::GrainError;
use crate::guest::ComponentError;
use crate::loss::LossError;

pub(super) fn component_error(error: &ComponentError) -> FieldError {
    FieldError::new(format!("{}.component", error.guest), chain(&error.source))
}

/// The field that a guest's error is about: its own, or that of what it complains of.
pub(super) fn guest_error(guest: &str, split: &str, error: &GuestError) -> FieldError {
    let field = match error {
        GuestError::Guest { kind: GuestErrorKind::Config, .. } => format!("{guest}.config"),
        GuestError::Guest { kind: GuestErrorKind::Data | GuestErrorKind::Sample, .. } => {
            format!("data.{split}")
        }
        GuestError::TimeLimit { .. } => format!("{guest}.limits.call_ms"),
        GuestError::MemoryLimit { .. } => format!("{guest}.limits.memory_mib"),
        GuestError::OutputLimit { .. } => format!("{guest}.limits.output_mib"),
        GuestError::Guest { kind: GuestErrorKind::Internal, .. }
        | GuestError::Trap { .. }
        | GuestError::StackOverflow { .. }
        | GuestError::Shape { .. }
        | GuestError::Operation { .. }
        | GuestError::NonFinite { .. }
        | GuestError::Host(_) => guest.to_owned(),
    };
    FieldError::new(field, chain(error))
}

pub(super) fn grain_error(spec: &JobSpec, split: &str, error: &GrainError) -> FieldError {
    match error {
        GrainError::Input(found) => match (&spec.model.arch, found.axis) {
            (ArchSpec::Mlp(mlp), Some(0)) => {
                let length = found.found.shape.last().copied().unwrap_or(0);
                let message = format!(
                    "expected {length}, because the loader's tensor `{}` is {}; found {}",
                    found.name, found.found, mlp.inputs
                );
                FieldError::new("model.inputs", message)
            }
            _ => FieldError::new("loader", error.to_string()),
        },
        GrainError::NoInput { .. } => FieldError::new("loader", error.to_string()),
        GrainError::Label { sample, label, classes } => {
            let message = format!(
                "expected more than {label}, because sample {sample} of split {split:?} has label {label}; \
                 found {classes} (labels 0 to {})",
                classes - 1
            );
            FieldError::new(classes_field(spec), message)
        }
        GrainError::Token { sample, input, token, vocabulary } => {
            let field = if input == KINDS { "model.type_vocab_size" } else { "model.vocab_size" };
            let message = format!(
                "expected more than {token}, because sample {sample} of split {split:?} has {token} in `{input}`; \
                 found {vocabulary} (0 to {})",
                vocabulary - 1
            );
            FieldError::new(field, message)
        }
        GrainError::Model(_) => FieldError::new("model", chain(error)),
        GrainError::Loss(LossError::Guest(error)) => guest_error("loss", split, error),
        GrainError::Loss(LossError::Memory { .. }) => {
            FieldError::new("gang.slot.memory_mib", error.to_string())
        }
        GrainError::Loss(LossError::Operation(_) | LossError::Metrics { .. }) => {
            FieldError::new("loss", chain(error))
        }
    }
}

/// Where the job says how many classes there are.
fn classes_field(spec: &JobSpec) -> String {
    match &spec.model.arch {
        ArchSpec::Layers(it) => format!("model.layers[{}]", it.layers.len().saturating_sub(1)),
        ArchSpec::Gpt2(_) => "model.vocab_size".to_owned(),
        _ => "model.classes".to_owned(),
    }
}
