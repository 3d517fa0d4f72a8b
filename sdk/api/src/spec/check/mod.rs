//! Ranges, and what settings ask of each other: everything that can be said without components, data or weights.

mod chaos;
mod checkpoint;
mod ddp;
mod gang;
mod model;
mod timeouts;
mod train;

pub use model::MAX_PARAMETERS;

use super::parse::{FieldError, parse_duration};
use crate::{Digest, JobSpec, Priority};

impl JobSpec {
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
        check.range("priority", self.priority.0, 0, Priority::MAX.0.into());
        check.model(&self.model);
        check.train(self);
        check.eval(self);
        check.ddp(self);
        check.gang(self);
        check.timeouts(&self.timeouts);
        check.checkpoint(self);
        check.range("retry.user", self.retry.user, 0, 100);
        check.range("retry.infrastructure", self.retry.infrastructure, 0, 100);
        check.range("trace.first_steps", self.trace.first_steps, 0, MAX_FIRST_STEPS);
        check.range("trace.every_steps", self.trace.every_steps, 0, MAX_STEPS);
        check.guests(self);
        check.chaos(self);
        check.that(self.labels.len() <= 32, "labels", || "expected at most 32 pairs".to_owned());
        check.errors
    }
}

/// Most optimizer steps of a job.
pub const MAX_STEPS: u64 = 1 << 40;
/// Most steps at the start of an attempt that are timed.
const MAX_FIRST_STEPS: u64 = 10_000;
/// What "above 0" means for numbers that the engine holds as f32.
const ABOVE_ZERO: f64 = f32::MIN_POSITIVE as f64;

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

    /// Returns whether it holds.
    fn range(&mut self, field: &str, value: impl Into<u64>, low: u64, high: u64) -> bool {
        let value = value.into();
        let holds = (low..=high).contains(&value);
        self.that(holds, field, || format!("expected {low} to {high}, got {value}"));
        holds
    }

    fn number(&mut self, field: &str, value: f64, low: f64, high: f64) {
        self.that((low..=high).contains(&value), field, || {
            let low = match low {
                ABOVE_ZERO if 0.0 < value && value < low => {
                    format!("{ABOVE_ZERO:.2e} (the least f32)")
                }
                ABOVE_ZERO => "above 0".to_owned(),
                low => low.to_string(),
            };
            format!("expected {low} to {high}, got {value}")
        });
    }

    /// 0 and more, less than 1: dropout, decay, momentum.
    fn share(&mut self, field: &str, value: f64) {
        self.that((0.0..1.0).contains(&value), field, || {
            format!("expected 0 or more and less than 1, got {value}")
        });
    }

    fn guests(&mut self, spec: &JobSpec) {
        for (guest, field) in [(&spec.loader, "loader"), (&spec.loss, "loss")] {
            let limit = |name: &str| format!("{field}.limits.{name}");
            self.range(&limit("memory_mib"), guest.limits.memory_mib, 1, 4096);
            self.range(&limit("call_ms"), guest.limits.call_ms, 10, 600_000);
            self.range(&limit("output_mib"), guest.limits.output_mib, 1, 1024);
            self.digest(&format!("{field}.component"), &guest.component);
        }
    }

    fn digest(&mut self, field: &str, text: &str) {
        if let Err(error) = text.parse::<Digest>() {
            self.add(field, error.to_string());
        }
    }
}
