//! When the state is saved, and which checkpoints are kept.

use serde::{Deserialize, Serialize};

/// When the state is saved, and which checkpoints are kept: the newest, the best, and those that someone has pinned.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CheckpointSpec {
    /// Every so many optimizer steps; one is always made at the end. Absent: only at the end.
    pub every_steps: Option<u64>,
    /// How many of the newest to keep. 1 to 100.
    pub keep_last: u32,
    /// How many of the best to keep, which may be among the newest. 0 to 20. Above 0 it wants `data.eval`.
    pub keep_best: u32,
    /// Which ones are the best.
    pub best: BestSpec,
}

impl Default for CheckpointSpec {
    fn default() -> Self {
        Self { every_steps: None, keep_last: 2, keep_best: 0, best: BestSpec::default() }
    }
}

/// What a checkpoint is judged by: a value of the evaluation after the same step. One without a finite value is not
/// among the best; of equals the older is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct BestSpec {
    /// `eval/loss`, `eval/accuracy`, …
    pub metric: String,
    /// Whether less or more of it is better.
    pub mode: BestMode,
}

impl Default for BestSpec {
    fn default() -> Self {
        Self { metric: format!("{EVAL_PREFIX}loss"), mode: BestMode::Min }
    }
}

/// What the names of an evaluation's values begin with.
pub const EVAL_PREFIX: &str = "eval/";

/// Which of two values is better.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum BestMode {
    /// The smaller one.
    #[default]
    Min,
    /// The larger one.
    Max,
}
