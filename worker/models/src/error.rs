//! Why there is no such model.

use lockstep_tensor::LayoutError;

/// A model that cannot be built.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ModelError {
    /// A size or setting is out of its range, or does not go with another.
    #[error("{field}: expected {expected}, got {found}")]
    Field {
        /// Path in the job: `model.n_head`.
        field: String,
        /// What would do.
        expected: String,
        /// As the job has it.
        found: String,
    },
    /// A layer of a list does not fit what comes into it.
    #[error("{field}: {message}")]
    Layer {
        /// Path in the job: `model.layers[2].conv2d.kernel`.
        field: String,
        /// What was expected there and what was found.
        message: String,
    },
    /// There are more numbers than an arena holds.
    #[error("model: {0}")]
    Layout(#[from] LayoutError),
}

impl ModelError {
    /// What is wrong with [`Self::field`].
    pub fn message(&self) -> String {
        match self {
            Self::Field { expected, found, .. } => format!("expected {expected}, got {found}"),
            Self::Layer { message, .. } => message.clone(),
            Self::Layout(error) => error.to_string(),
        }
    }

    /// The path of the field at fault.
    pub fn field(&self) -> &str {
        match self {
            Self::Field { field, .. } | Self::Layer { field, .. } => field,
            Self::Layout(_) => "model",
        }
    }
}

/// That a size is 1 or more; what it is.
pub(crate) fn size(field: &str, value: u32) -> Result<usize, ModelError> {
    match value {
        0 => Err(refuse(field, "1 or more", value)),
        value => Ok(value as usize),
    }
}

/// That `part` divides `whole`, and both are sizes.
pub(crate) fn divisor(
    [part_field, whole_field]: [&str; 2],
    part: u32,
    whole: u32,
) -> Result<usize, ModelError> {
    let (heads, width) = (size(part_field, part)?, size(whole_field, whole)?);
    if width.is_multiple_of(heads) {
        return Ok(heads);
    }
    Err(refuse(part_field, format!("a divisor of model.{whole_field} = {whole}"), part))
}

/// That `p` is the probability of a dropout.
pub(crate) fn probability(field: &str, p: f64) -> Result<f64, ModelError> {
    if (0.0..1.0).contains(&p) { Ok(p) } else { Err(refuse(field, "0 or more and less than 1", p)) }
}

/// That `eps` may be added to a variance.
pub(crate) fn epsilon(field: &str, eps: f64) -> Result<f64, ModelError> {
    let holds = (f64::MIN_POSITIVE..=1.0).contains(&eps);
    if holds { Ok(eps) } else { Err(refuse(field, "more than 0 and at most 1", eps)) }
}

/// Of `model.FIELD`.
pub(crate) fn refuse(field: &str, expected: impl Into<String>, found: impl ToString) -> ModelError {
    ModelError::Field {
        field: format!("model.{field}"),
        expected: expected.into(),
        found: found.to_string(),
    }
}
