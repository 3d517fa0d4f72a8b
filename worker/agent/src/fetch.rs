//! From the server into the cache, and from the cache to where an attempt wants it.

use std::io::{self, Write as _};

use camino::{Utf8Path, Utf8PathBuf};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use lockstep_api::{CHUNK_BYTES, DatasetFile, Digest, Fence, FileManifest};
use lockstep_client::{Client, ClientError};
use sha2::{Digest as _, Sha256};

use crate::cache::Cache;
use crate::folder::WorkFolder;
use crate::node::blocking;

/// Chunks of one file under way at once.
const PARALLEL_CHUNKS: usize = 4;
/// Files under way at once.
const PARALLEL_FILES: usize = 8;
/// A file may be dropped from a crowded cache between its arrival and its use; then it is fetched again.
const ATTEMPTS: usize = 3;

/// Why a file is not there.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FetchError {
    /// The server.
    #[error("cannot fetch {what}")]
    Server {
        /// Which file.
        what: String,
        /// Why.
        source: ClientError,
    },
    /// Bytes that do not fit their description.
    #[error("{what}: {reason}")]
    Damaged {
        /// Which file.
        what: String,
        /// What was expected.
        reason: String,
    },
    /// The disk.
    #[error("cannot write {what}")]
    Disk {
        /// Which file.
        what: String,
        /// Why.
        source: std::io::Error,
    },
}

/// A dataset's path that leaves its folder or cannot be a file's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("dataset path {path:?}: expected parts without `.` and `..`, separated by single `/`")]
pub(crate) struct PathError {
    path: String,
}

/// Fetches for one attempt.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fetcher<'a> {
    pub(crate) client: &'a Client,
    pub(crate) cache: &'a std::sync::Arc<Cache>,
    pub(crate) fence: Fence,
    /// Everything is placed in it.
    pub(crate) folder: &'a WorkFolder,
}

/// Where to get a file's list of chunks.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Source<'a> {
    /// Ask the server.
    Digest(&'a Digest),
    /// It is known already.
    Manifest(&'a FileManifest),
}

impl Fetcher<'_> {
    /// Puts the file at `target`, with the content that its digest says, now. `what` names it for people.
    pub(crate) async fn place(
        &self,
        source: Source<'_>,
        target: &Utf8Path,
        what: &str,
    ) -> Result<(), FetchError> {
        self.place_by(Cache::link_verified, source, target, what).await
    }

    async fn place_by(
        &self,
        link: fn(&Cache, &Digest, &Utf8Path) -> io::Result<bool>,
        source: Source<'_>,
        target: &Utf8Path,
        what: &str,
    ) -> Result<(), FetchError> {
        let digest = match source {
            Source::Digest(digest) => digest,
            Source::Manifest(manifest) => &manifest.digest,
        };
        for _ in 0..ATTEMPTS {
            let (cache, to_link, to) = (self.cache.clone(), digest.clone(), target.to_owned());
            let linked = self.folder.blocking(move || link(&cache, &to_link, &to)).await;
            if linked.map_err(|source| FetchError::Disk { what: what.to_owned(), source })? {
                return Ok(());
            }
            match source {
                Source::Manifest(manifest) => self.fetch(manifest, what).await?,
                Source::Digest(digest) => {
                    let manifest = self.client.agent_file(self.fence, digest).await;
                    let manifest = manifest
                        .map_err(|source| FetchError::Server { what: what.to_owned(), source })?;
                    self.fetch(&manifest, what).await?;
                }
            }
        }
        let reason = format!("dropped from the cache {ATTEMPTS} times before it could be used");
        Err(FetchError::Damaged { what: what.to_owned(), reason })
    }

    /// Lays out a dataset's files below `folder`.
    pub(crate) async fn place_dataset(
        &self,
        files: &[DatasetFile],
        folder: &Utf8Path,
    ) -> Result<(), FetchError> {
        let disk = |source| FetchError::Disk { what: folder.to_string(), source };
        let mut targets = Vec::with_capacity(files.len());
        let mut folders = std::collections::BTreeSet::from([folder.to_owned()]);
        for file in files {
            let relative = relative_path(&file.path).map_err(|error| FetchError::Damaged {
                what: "the dataset".to_owned(),
                reason: error.to_string(),
            })?;
            let target = folder.join(relative);
            folders.extend(target.parent().map(Utf8Path::to_owned));
            targets.push((file.file.clone(), format!("dataset file {:?}", file.path), target));
        }
        self.folder
            .blocking(move || folders.iter().try_for_each(std::fs::create_dir_all))
            .await
            .map_err(disk)?;
        stream::iter(targets.into_iter().map(Ok))
            .try_for_each_concurrent(PARALLEL_FILES, |(digest, what, target)| async move {
                // There may be more than can be read again for every attempt.
                self.place_by(Cache::link, Source::Digest(&digest), &target, &what).await
            })
            .await
    }

    async fn fetch(&self, manifest: &FileManifest, what: &str) -> Result<(), FetchError> {
        let disk = |source| FetchError::Disk { what: what.to_owned(), source };
        let damaged = |reason: String| FetchError::Damaged { what: what.to_owned(), reason };
        let FileManifest { digest, size_bytes, chunks } = manifest;
        let size_bytes = u64::try_from(*size_bytes).unwrap_or(0);
        if size_bytes.div_ceil(CHUNK_BYTES as u64) != chunks.len() as u64 {
            return Err(damaged(format!("{size_bytes} bytes do not make {} chunks", chunks.len())));
        }
        let cache = self.cache.clone();
        let mut file = blocking(move || cache.new_file()).await.map_err(disk)?;
        let mut hash = Sha256::new();
        let mut left = size_bytes;
        let arriving = stream::iter(chunks.clone())
            .map(|chunk| async move { self.client.agent_chunk(self.fence, &chunk).await })
            .buffered(PARALLEL_CHUNKS)
            .map_err(|source| FetchError::Server { what: what.to_owned(), source });
        let mut arriving = std::pin::pin!(arriving);
        while let Some(chunk) = arriving.try_next().await? {
            let expected = left.min(CHUNK_BYTES as u64);
            if chunk.len() as u64 != expected {
                return Err(damaged(format!(
                    "expected a chunk of {expected} bytes, got {}",
                    chunk.len()
                )));
            }
            left -= expected;
            (hash, file) = blocking(move || {
                hash.update(&chunk);
                file.write_all(&chunk).map(|()| (hash, file))
            })
            .await
            .map_err(disk)?;
        }
        let got = Digest::from_sha256(hash.finalize().into());
        if got != *digest {
            return Err(damaged(format!("expected digest {digest}, got {got}")));
        }
        let (cache, digest) = (self.cache.clone(), digest.clone());
        blocking(move || cache.insert(&digest, file)).await.map_err(disk)
    }
}

/// The path as it may be joined to a folder.
fn relative_path(path: &str) -> Result<&Utf8Path, PathError> {
    let is_part = |part: &str| !matches!(part, "" | "." | "..") && !part.contains('\0');
    if path.split('/').all(is_part) {
        Ok(Utf8Path::new(path))
    } else {
        Err(PathError { path: path.chars().take(100).collect() })
    }
}

/// Moves a file into the cache under its digest, or removes it. Blocks.
pub(crate) fn adopt(cache: &Cache, digest: &Digest, path: &Utf8PathBuf) -> std::io::Result<()> {
    let kept = tempfile::TempPath::try_from_path(path.clone().into_std_path_buf())?;
    let file = std::fs::File::open(path)?;
    cache.insert(digest, tempfile::NamedTempFile::from_parts(file, kept))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dataset_path_stays_within_its_folder() {
        for path in ["a", "a/b.csv", "..a/b..", "a b/ü"] {
            assert_eq!(relative_path(path).unwrap(), path);
        }
        for path in ["", "/a", "a/", "a//b", "../a", "a/../b", "./a", "a/.", "a\0b"] {
            assert!(relative_path(path).is_err(), "{path:?}");
        }
    }
}
