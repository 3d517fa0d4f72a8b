//! Bytes by digest: chunks make files, files make datasets. A component is a file.

use serde::{Deserialize, Serialize};

use crate::{DatasetId, Digest};

/// Length of every chunk of a file but the last, bytes.
pub const CHUNK_BYTES: usize = 4 << 20;

/// Which of these does the server lack?
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MissingRequest {
    /// At most 4096 digests.
    pub digests: Vec<Digest>,
}

/// These.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct MissingResponse {
    /// The missing ones, in the order asked.
    pub missing: Vec<Digest>,
}

/// A file as a list of chunks. Its digest is that of the whole content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FileManifest {
    /// Digest of the whole content.
    pub digest: Digest,
    /// Length in bytes.
    pub size_bytes: i64,
    /// Every chunk is [`CHUNK_BYTES`] long, the last may be shorter. Empty for an empty file.
    pub chunks: Vec<Digest>,
}

/// One file of a dataset.
#[derive(
    Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, utoipa::ToSchema,
)]
#[serde(deny_unknown_fields)]
pub struct DatasetFile {
    /// Relative, `/` between parts, no `.` or `..`; 1 to 512 bytes.
    pub path: String,
    /// Digest of its content; the file must have been put before.
    pub file: Digest,
    /// Length in bytes.
    pub size_bytes: i64,
}

/// Registers a dataset. The same files give the same digest; registering again changes nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RegisterDataset {
    /// A name to use in jobs, moved to this content if it stood for other content. Absent: by digest only.
    #[serde(default)]
    pub name: Option<String>,
    /// 1 to 10000 files, no path twice.
    pub files: Vec<DatasetFile>,
}

/// A dataset.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct DatasetView {
    /// Its id.
    pub id: DatasetId,
    /// The digest of its manifest: [`dataset_digest`].
    pub digest: Digest,
    /// The name it was last registered under, if any.
    pub name: Option<String>,
    /// Its files, ordered by path.
    pub files: Vec<DatasetFile>,
}

/// The digest of a dataset: SHA-256 over its files ordered by path, one line each: path, tab, digest, newline.
pub fn dataset_digest(files: &[DatasetFile]) -> Digest {
    let mut lines: Vec<String> =
        files.iter().map(|f| format!("{}\t{}\n", f.path, f.file)).collect();
    lines.sort();
    Digest::of(lines.concat().as_bytes())
}
