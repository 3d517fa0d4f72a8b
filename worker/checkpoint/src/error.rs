//! What can go wrong with a checkpoint file.

use camino::Utf8PathBuf;
use safetensors::SafeTensorError;

/// Every variant names the file or the tensor at fault.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// A system call failed.
    #[error("cannot {action} {path}")]
    Io {
        /// `write`, `read`, …
        action: &'static str,
        /// The file.
        path: Utf8PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is no safetensors file.
    #[error("{path} is not a safetensors file")]
    Format {
        /// The file.
        path: Utf8PathBuf,
        /// Why.
        source: SafeTensorError,
    },
    /// The bytes on disk are not those that were written.
    #[error("{path} reads back differently from what was written: {what}")]
    ReadBack {
        /// The file.
        path: Utf8PathBuf,
        /// The first difference.
        what: String,
    },
    /// The file's metadata is missing or malformed.
    #[error("{path} has no readable `lockstep` metadata: {message}")]
    Meta {
        /// The file.
        path: Utf8PathBuf,
        /// What is wrong.
        message: String,
    },
    /// Written by another version of the format.
    #[error("{path} has format version {found}, expected {}", super::FORMAT_VERSION)]
    Version {
        /// The file.
        path: Utf8PathBuf,
        /// Its version.
        found: u64,
    },
    /// A tensor is missing, too many, or of another shape or dtype.
    #[error("tensor `{name}`: expected {expected}, found {found}")]
    Tensor {
        /// Its name.
        name: String,
        /// Shape and dtype as the job has them, or `nothing`.
        expected: String,
        /// As the file has them, or `nothing`.
        found: String,
    },
    /// What is in memory after a restore is not what was saved.
    #[error("`{part}` restored from {path} has the digest {found}, saved was {expected}")]
    Restored {
        /// The file.
        path: Utf8PathBuf,
        /// `weights`, `buffers`, `optimizer.<moment>`, …
        part: String,
        /// As it was saved, or `nothing`.
        expected: String,
        /// As it was restored.
        found: String,
    },
    /// The job is not the one that the checkpoint is of.
    #[error("`{field}` differs: the checkpoint was made with {checkpoint}, the job has {job}")]
    Settings {
        /// Path of the first differing field.
        field: String,
        /// Its value in the file.
        checkpoint: String,
        /// Its value in the job.
        job: String,
    },
}
