//! When the state is saved, and which checkpoints are kept.

use super::{Check, MAX_STEPS};
use crate::{EVAL_PREFIX, JobSpec};

/// Most of the newest checkpoints of a job.
const MAX_LAST: u64 = 100;
/// Most of its best ones.
const MAX_BEST: u64 = 20;
/// Longest name of a metric, bytes.
const MAX_METRIC_BYTES: usize = 64;

impl Check {
    pub(super) fn checkpoint(&mut self, spec: &JobSpec) {
        let checkpoint = &spec.checkpoint;
        if let Some(steps) = checkpoint.every_steps {
            self.range("checkpoint.every_steps", steps, 1, MAX_STEPS);
        }
        self.range("checkpoint.keep_last", checkpoint.keep_last, 1, MAX_LAST);
        self.range("checkpoint.keep_best", checkpoint.keep_best, 0, MAX_BEST);
        self.that(
            checkpoint.keep_best == 0 || spec.data.eval.is_some(),
            "checkpoint.keep_best",
            || format!("expected 0 without data.eval, got {}", checkpoint.keep_best),
        );
        let metric = &checkpoint.best.metric;
        let is_measured = metric.len() <= MAX_METRIC_BYTES
            && metric.strip_prefix(EVAL_PREFIX).is_some_and(|name| !name.is_empty())
            && !metric.contains(char::is_control);
        self.that(is_measured, "checkpoint.best.metric", || {
            format!(
                "expected the name of an evaluation's value, \"{EVAL_PREFIX}…\", of at most {MAX_METRIC_BYTES} bytes, \
                 got {metric:?}"
            )
        });
    }
}
