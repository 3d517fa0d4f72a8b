//! Settings that are numbers, and what is said of those that do not fit.

use std::ops::RangeInclusive;

/// A setting outside of what makes sense.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{field} is {value}, expected {expected}")]
pub struct SettingError {
    /// Its name, as the setting's type has it, such as `betas[1]`.
    pub field: String,
    /// What was given.
    pub value: f64,
    /// What would have been taken.
    pub expected: String,
}

impl SettingError {
    pub(crate) fn new(field: &str, value: f64, expected: impl Into<String>) -> Self {
        Self { field: field.to_owned(), value, expected: expected.into() }
    }

    /// The same of a setting that is part of another: `lr_scale` of `groups[2]`.
    pub(crate) fn of(self, whole: &str) -> Self {
        Self { field: format!("{whole}.{}", self.field), ..self }
    }
}

/// Refuses what is outside of `range`, which NaN is.
pub(crate) fn within(
    field: &str,
    value: f64,
    range: RangeInclusive<f64>,
) -> Result<(), SettingError> {
    if range.contains(&value) {
        return Ok(());
    }
    Err(SettingError::new(field, value, format!("{} to {}", range.start(), range.end())))
}

/// 0 ≤ value < 1: the share that a running mean keeps.
pub(crate) fn share(field: &str, value: f64) -> Result<(), SettingError> {
    if (0.0..1.0).contains(&value) {
        return Ok(());
    }
    Err(SettingError::new(field, value, "at least 0 and below 1"))
}

/// A number above 0 that `f32` holds too.
pub(crate) fn positive(field: &str, value: f64, most: f64) -> Result<(), SettingError> {
    let least = f64::from(f32::MIN_POSITIVE);
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(SettingError::new(field, value, format!("above 0 (at least {least:e}) and at most {most}")))
}

/// A count of at least 1.
pub(crate) fn count(field: &str, value: u64) -> Result<(), SettingError> {
    if 0 < value {
        return Ok(());
    }
    Err(SettingError::new(field, value as f64, "at least 1"))
}
