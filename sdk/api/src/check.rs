//! The check at submit: what the server asks `lockstep-rank check`, and what it answers.
//!
//! One JSON document on standard input, one on standard output. Exit status 0 whenever an answer was written.

use serde::{Deserialize, Serialize};

use crate::{FieldError, JobSpec};

/// What to check. Paths are of files on this machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckRequest {
    /// The job.
    pub spec: JobSpec,
    /// The loader component.
    pub loader_path: String,
    /// The loss component.
    pub loss_path: String,
    /// Folder that holds the training dataset's files under their dataset paths.
    pub train_dir: String,
    /// Likewise for evaluation.
    pub eval_dir: Option<String>,
    /// The file that `model.init_from` names.
    #[serde(default)]
    pub init_path: Option<String>,
    /// Folder for compiled components.
    pub cache_dir: String,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "verdict", rename_all = "snake_case", deny_unknown_fields)]
pub enum CheckResponse {
    /// It fits.
    Accepted(CheckSummary),
    /// It does not. At least one entry.
    Refused {
        /// Paths are of the job's fields: `loader`, `loss.config`, `model.inputs`.
        errors: Vec<FieldError>,
    },
}

/// What the check found out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckSummary {
    /// Samples of the training split.
    pub train_samples: u64,
    /// Samples of the evaluation split.
    pub eval_samples: Option<u64>,
    /// Trainable numbers.
    pub parameter_count: u64,
    /// Optimizer steps from start to end: epochs × ceil(train_samples / global_batch), or max_steps.
    pub steps_total: u64,
    /// Memory one rank is expected to need, bytes.
    pub rank_memory_bytes: u64,
}
