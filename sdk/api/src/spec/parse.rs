//! From text to a checked [`JobSpec`]: every refusal names the field, the value and what was expected.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::tagged::{AFTER_PATH, BEFORE_PATH, join};
use crate::JobSpec;

/// One thing wrong with a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct FieldError {
    /// Path of the field, dotted: `train.optimizer.lr`. Empty for the whole.
    pub field: String,
    /// What came and what was expected.
    pub message: String,
}

impl FieldError {
    /// `field`: dotted path.
    pub fn new(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self { field: field.into(), message: message.into() }
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.field.is_empty() {
            f.write_str(&self.message)
        } else {
            write!(f, "{}: {}", self.field, self.message)
        }
    }
}

/// Parses any request type with the field's path in the error and the nearest known name of an unknown field.
///
/// # Errors
/// One [`FieldError`], the first found.
pub fn parse<'de, T: Deserialize<'de>, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<T, FieldError>
where
    D::Error: fmt::Display,
{
    serde_path_to_error::deserialize(deserializer).map_err(|error| {
        let message = first_line(&error.inner().to_string());
        let (path, message) = inner_path(error.path().to_string(), &message);
        let message = match unknown_name(message) {
            Some(hint) => format!("{message}; did you mean `{hint}`?"),
            None => plain_type(message),
        };
        FieldError::new(path, message)
    })
}

/// Errors within a table that one of its fields decides about bring the rest of their path along.
fn inner_path(path: String, message: &str) -> (String, &str) {
    let inner = message.strip_prefix(BEFORE_PATH).and_then(|rest| rest.split_once(AFTER_PATH));
    match inner {
        Some((inner, message)) => (join(&path, inner), message),
        None => (join(&path, ""), message),
    }
}

/// serde names Rust's types; people know numbers.
fn plain_type(message: &str) -> String {
    let Some((found, expected)) = message.rsplit_once(", expected ") else {
        return message.to_owned();
    };
    let expected = match expected {
        "u32" => "a whole number, 0 to 4294967295",
        "u64" | "usize" => "a whole number, 0 or more",
        "i32" | "i64" => "a whole number",
        "f32" | "f64" => "a number",
        "a map" => "a table",
        other => other,
    };
    format!("{found}, expected {expected}")
}

/// TOML's errors draw the line they speak of; only the sentence is wanted here.
fn first_line(message: &str) -> String {
    let plain: Vec<&str> = message
        .lines()
        .filter(|line| !line.starts_with("TOML parse error") && !line.contains('|'))
        .collect();
    if plain.is_empty() { message.to_owned() } else { plain.join(" ").trim().to_owned() }
}

/// serde's "unknown field `x`, expected one of `a`, `b`": the nearest of them, if near.
fn unknown_name(message: &str) -> Option<String> {
    let rest = message
        .strip_prefix("unknown field `")
        .or_else(|| message.strip_prefix("unknown variant `"))?;
    let (got, rest) = rest.split_once('`')?;
    rest.split('`')
        .skip(1)
        .step_by(2)
        .map(|known| (edit_distance(got, known), known))
        .filter(|(distance, known)| *distance <= known.len().max(got.len()) / 2)
        .min()
        .map(|(_, known)| known.to_owned())
}

/// Levenshtein distance in bytes.
fn edit_distance(left: &str, right: &str) -> usize {
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (i, a) in left.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in right.bytes().enumerate() {
            let substituted = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[right.len()]
}

/// A time as people write it: `250ms`, `60s`, `5m`.
///
/// # Errors
/// A message without the field's name.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| bad_duration(text))?;
    let millis = match unit {
        "ms" => Some(number),
        "s" => number.checked_mul(1_000),
        "m" => number.checked_mul(60_000),
        _ => None,
    };
    millis.map(Duration::from_millis).ok_or_else(|| bad_duration(text))
}

fn bad_duration(text: &str) -> String {
    format!("expected a number and a unit (ms, s, m) such as \"60s\", got {text:?}")
}

impl JobSpec {
    /// `timeouts.collective` as a duration. Call on a checked spec.
    pub fn collective_timeout(&self) -> Duration {
        self.timeouts.effective().collective()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RankCount;

    const JOB: &str = r#"
        name = "digits-mlp"
        [model]
        arch = "mlp"
        inputs = 64
        hidden = [128]
        classes = 10
        [data]
        train = "digits/train"
        [loader]
        component = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
        [loss]
        component = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
        [train]
        global_batch = 128
        micro_batch = 32
        epochs = 20
        optimizer = { name = "adamw", lr = 1e-3 }
    "#;

    fn read(text: &str) -> Result<JobSpec, FieldError> {
        parse(toml::Deserializer::parse(text).map_err(|e| FieldError::new("", e.to_string()))?)
    }

    #[test]
    fn a_minimal_job_gets_the_documented_defaults() {
        let spec = read(JOB).unwrap();
        assert_eq!(spec.check(), vec![]);
        assert_eq!((spec.gang.ranks, spec.ddp.bucket_mib), (RankCount::Fixed(1), 25));
        assert_eq!(spec.priority.0, 50);
        assert_eq!(spec.collective_timeout(), Duration::from_secs(60));
    }

    #[test]
    fn an_unknown_field_is_refused_with_its_path_and_the_nearest_name() {
        let error = read(&JOB.replace("global_batch", "globl_batch")).unwrap_err();
        assert!(error.message.contains("did you mean `global_batch`"), "{error}");
        assert!(error.field.starts_with("train"), "{error}");
    }

    #[test]
    fn a_wrong_type_is_refused_with_its_path() {
        let error = read(&JOB.replace("epochs = 20", "epochs = \"many\"")).unwrap_err();
        assert_eq!(error.field, "train.epochs");
        assert!(error.message.contains("expected"), "{error}");
    }

    #[test]
    fn values_out_of_range_are_all_named() {
        let mut spec = read(JOB).unwrap();
        spec.priority = crate::Priority(100);
        spec.train.micro_batch = 1000;
        spec.gang.ranks = RankCount::Fixed(0);
        spec.timeouts.collective = "soon".to_owned();
        spec.trace.first_steps = 10_001;
        let fields: Vec<String> = spec.check().into_iter().map(|error| error.field).collect();
        assert_eq!(
            fields,
            [
                "priority",
                "train.micro_batch",
                "gang.ranks",
                "timeouts.collective",
                "trace.first_steps"
            ]
        );
    }

    #[test]
    fn a_name_holds_no_orders_to_a_terminal() {
        let mut spec = read(JOB).unwrap();
        for bad in ["a\nb", "\u{1b}[31mred", "a\0", "a\u{9b}2J"] {
            spec.name = bad.to_owned();
            let fields: Vec<String> = spec.check().into_iter().map(|error| error.field).collect();
            assert_eq!(fields, ["name"], "{bad:?}");
        }
    }
}
