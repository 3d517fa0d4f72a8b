//! From text to a checked [`JobSpec`]: every refusal names the field, the value and what was expected.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{Digest, JobSpec, ModelSpec, OptimizerSpec};

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
        let path = error.path().to_string();
        let message = first_line(&error.inner().to_string());
        let message = match unknown_name(&message) {
            Some(hint) => format!("{message}; did you mean `{hint}`?"),
            None => message,
        };
        FieldError::new(if path == "." { String::new() } else { path }, message)
    })
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
        parse_duration(&self.timeouts.collective).unwrap_or(Duration::from_secs(60))
    }

    /// Everything that can be said without looking at components or data. Empty: fine.
    pub fn check(&self) -> Vec<FieldError> {
        let mut check = Check::default();
        check.that((1..=100).contains(&self.name.chars().count()), "name", || {
            format!("expected 1 to 100 characters, got {}", self.name.chars().count())
        });
        // They would rearrange the terminal of whoever lists jobs.
        check.that(!self.name.contains(char::is_control), "name", || {
            format!("expected no control characters, got {:?}", self.name)
        });
        check.model(&self.model);
        check.train(self);
        check.range("ddp.bucket_mib", u64::from(self.ddp.bucket_mib), 1, 1024);
        check.range("ddp.first_bucket_mib", u64::from(self.ddp.first_bucket_mib), 1, 1024);
        check.range("gang.ranks", u64::from(self.gang.ranks), 1, 64);
        check.range("gang.slot.cores", u64::from(self.gang.slot.cores), 1, 1024);
        check.range("gang.slot.memory_mib", u64::from(self.gang.slot.memory_mib), 64, 1 << 20);
        match parse_duration(&self.timeouts.collective) {
            Err(message) => check.add("timeouts.collective", message),
            Ok(time) => check.that(
                (Duration::from_millis(500)..=Duration::from_secs(3600)).contains(&time),
                "timeouts.collective",
                || format!("expected 500ms to 60m, got {:?}", self.timeouts.collective),
            ),
        }
        if let Some(steps) = self.checkpoint.every_steps {
            check.range("checkpoint.every_steps", steps, 1, 1 << 40);
        }
        check.range("checkpoint.keep_last", u64::from(self.checkpoint.keep_last), 1, 100);
        check.range("retry.user", u64::from(self.retry.user), 0, 100);
        check.range("retry.infrastructure", u64::from(self.retry.infrastructure), 0, 100);
        for (guest, field) in [(&self.loader, "loader"), (&self.loss, "loss")] {
            check.range(
                &format!("{field}.limits.memory_mib"),
                guest.limits.memory_mib.into(),
                1,
                4096,
            );
            check.range(&format!("{field}.limits.call_ms"), guest.limits.call_ms, 10, 600_000);
            check.range(
                &format!("{field}.limits.output_mib"),
                guest.limits.output_mib.into(),
                1,
                1024,
            );
            if let Err(error) = guest.component.parse::<Digest>() {
                check.add(&format!("{field}.component"), error.to_string());
            }
        }
        check.that(self.labels.len() <= 32, "labels", || "expected at most 32 pairs".to_owned());
        check.errors
    }
}

#[derive(Default)]
struct Check {
    errors: Vec<FieldError>,
}

impl Check {
    fn add(&mut self, field: &str, message: String) {
        self.errors.push(FieldError::new(field, message));
    }

    fn that(&mut self, holds: bool, field: &str, message: impl FnOnce() -> String) {
        if !holds {
            self.add(field, message());
        }
    }

    fn range(&mut self, field: &str, value: u64, low: u64, high: u64) {
        self.that((low..=high).contains(&value), field, || {
            format!("expected {low} to {high}, got {value}")
        });
    }

    fn model(&mut self, model: &ModelSpec) {
        let ModelSpec::Mlp { inputs, hidden, classes } = model;
        self.range("model.inputs", u64::from(*inputs), 1, 1 << 20);
        self.range("model.classes", u64::from(*classes), 1, 1 << 20);
        self.that(hidden.len() <= 64, "model.hidden", || {
            format!("expected at most 64 layers, got {}", hidden.len())
        });
        for (index, width) in hidden.iter().enumerate() {
            self.range(&format!("model.hidden[{index}]"), u64::from(*width), 1, 1 << 20);
        }
    }

    fn train(&mut self, spec: &JobSpec) {
        let train = &spec.train;
        self.range("train.global_batch", train.global_batch.into(), 1, 1 << 24);
        self.range("train.micro_batch", train.micro_batch.into(), 1, 1 << 24);
        self.that(train.micro_batch <= train.global_batch, "train.micro_batch", || {
            format!(
                "expected at most train.global_batch = {}, got {}",
                train.global_batch, train.micro_batch
            )
        });
        if 0 < train.micro_batch {
            let grains = train.global_batch.div_ceil(train.micro_batch);
            self.that(grains <= 4096, "train.micro_batch", || {
                format!("expected at most 4096 grains in a global batch, got {grains}")
            });
        }
        self.range("train.epochs", train.epochs.into(), 1, 1 << 20);
        if let Some(steps) = train.max_steps {
            self.range("train.max_steps", steps, 1, 1 << 40);
        }
        self.that(train.seed <= i64::MAX.unsigned_abs(), "train.seed", || {
            format!("expected at most {}, got {}", i64::MAX, train.seed)
        });
        match &train.optimizer {
            OptimizerSpec::Sgd { lr, momentum, weight_decay } => {
                self.number("train.optimizer.lr", *lr, f64::MIN_POSITIVE, 1e6);
                self.number("train.optimizer.momentum", *momentum, 0.0, 0.999_999);
                self.number("train.optimizer.weight_decay", *weight_decay, 0.0, 1e3);
            }
            OptimizerSpec::Adamw { lr, betas, eps, weight_decay } => {
                self.number("train.optimizer.lr", *lr, f64::MIN_POSITIVE, 1e6);
                self.number("train.optimizer.betas[0]", betas[0], 0.0, 0.999_999_999);
                self.number("train.optimizer.betas[1]", betas[1], 0.0, 0.999_999_999);
                self.number("train.optimizer.eps", *eps, f64::MIN_POSITIVE, 1.0);
                self.number("train.optimizer.weight_decay", *weight_decay, 0.0, 1e3);
            }
        }
    }

    fn number(&mut self, field: &str, value: f64, low: f64, high: f64) {
        self.that((low..=high).contains(&value), field, || {
            let low = if low == f64::MIN_POSITIVE { "above 0".to_owned() } else { low.to_string() };
            format!("expected {low} to {high}, got {value}")
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!((spec.gang.ranks, spec.ddp.bucket_mib), (1, 25));
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
        spec.train.micro_batch = 1000;
        spec.gang.ranks = 0;
        spec.timeouts.collective = "soon".to_owned();
        let fields: Vec<String> = spec.check().into_iter().map(|error| error.field).collect();
        assert_eq!(fields, ["train.micro_batch", "gang.ranks", "timeouts.collective"]);
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
