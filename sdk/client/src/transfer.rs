//! From local files to chunks, files and datasets on the server. Only what the server lacks travels.

use std::collections::HashSet;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};

use bytes::Bytes;
use camino::{Utf8Path, Utf8PathBuf};
use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use lockstep_api::{CHUNK_BYTES, DatasetFile, DatasetView, Digest, FileManifest, RegisterDataset};
use sha2::{Digest as _, Sha256};

use crate::{Client, ClientError};

/// Most files of a dataset.
pub const MAX_DATASET_FILES: usize = 10_000;
/// Most digests of one question.
const MISSING_BATCH: usize = 4096;
/// Chunks under way at once.
const PARALLEL_CHUNKS: usize = 4;
/// Files hashed or uploaded at once.
const PARALLEL_FILES: usize = 8;
/// How deep folders of a dataset may nest.
const MAX_DEPTH: usize = 32;

/// The manifest of bytes in memory.
pub fn manifest_of_bytes(bytes: &[u8]) -> FileManifest {
    FileManifest {
        digest: Digest::of(bytes),
        size_bytes: signed(bytes.len() as u64),
        chunks: bytes.chunks(CHUNK_BYTES).map(Digest::of).collect(),
    }
}

/// The manifest of a file. Reads it once, a chunk at a time; blocks.
///
/// # Errors
/// When the file cannot be read.
pub fn manifest_of_file(path: &Utf8Path) -> Result<FileManifest, ClientError> {
    let mut file = File::open(path).map_err(ClientError::file("open", path))?;
    let mut whole = Sha256::new();
    let mut size_bytes = 0;
    let mut chunks = Vec::new();
    loop {
        let chunk = read_chunk(&mut file).map_err(ClientError::file("read", path))?;
        if chunk.is_empty() {
            let digest = Digest::from_sha256(whole.finalize().into());
            return Ok(FileManifest { digest, size_bytes: signed(size_bytes), chunks });
        }
        whole.update(&chunk);
        size_bytes += chunk.len() as u64;
        chunks.push(Digest::of(&chunk));
    }
}

fn signed(length: u64) -> i64 {
    i64::try_from(length).expect("no file is longer than 2^63 bytes")
}

/// The next [`CHUNK_BYTES`], or fewer at the end.
fn read_chunk(file: &mut File) -> std::io::Result<Vec<u8>> {
    let mut chunk = Vec::new();
    file.take(CHUNK_BYTES as u64).read_to_end(&mut chunk)?;
    Ok(chunk)
}

fn read_chunk_at(path: &Utf8Path, index: usize) -> Result<Vec<u8>, ClientError> {
    let mut file = File::open(path).map_err(ClientError::file("open", path))?;
    file.seek(SeekFrom::Start(index as u64 * CHUNK_BYTES as u64))
        .and_then(|_| read_chunk(&mut file))
        .map_err(ClientError::file("read", path))
}

/// Runs blocking work on a thread made for it.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(value) => value,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

impl Client {
    /// Stores bytes as a file.
    pub async fn upload_bytes(&self, bytes: Bytes) -> Result<FileManifest, ClientError> {
        let manifest = manifest_of_bytes(&bytes);
        if self.missing_files(vec![manifest.digest.clone()]).await?.is_empty() {
            return Ok(manifest);
        }
        let missing = self.missing_of(&manifest.chunks).await?;
        for (digest, chunk) in manifest.chunks.iter().zip(bytes.chunks(CHUNK_BYTES)) {
            if missing.contains(digest) {
                self.put_chunk(digest, bytes.slice_ref(chunk)).await?;
            }
        }
        self.put_file(&manifest).await?;
        Ok(manifest)
    }

    /// Stores a file.
    pub async fn upload_file(&self, path: &Utf8Path) -> Result<FileManifest, ClientError> {
        let owned = path.to_owned();
        let manifest = blocking(move || manifest_of_file(&owned)).await?;
        if !self.missing_files(vec![manifest.digest.clone()]).await?.is_empty() {
            self.put_chunks_and_file(path, &manifest).await?;
        }
        Ok(manifest)
    }

    /// Stores a folder, or a single file, as a dataset and registers it, under `name` if one is given.
    ///
    /// Files and folders whose names begin with a dot are left out.
    ///
    /// # Errors
    /// More than [`MAX_DATASET_FILES`] files or none, a name that is no UTF-8, a link to a folder.
    pub async fn upload_dataset(
        &self,
        path: &Utf8Path,
        name: Option<&str>,
    ) -> Result<DatasetView, ClientError> {
        let root = path.to_owned();
        let found = blocking(move || list_files(&root)).await?;
        let mut hashed: Vec<(DatasetFile, FileManifest, Utf8PathBuf)> = stream::iter(found)
            .map(|(relative, full)| async move {
                let to_hash = full.clone();
                let manifest = blocking(move || manifest_of_file(&to_hash)).await?;
                let (file, size_bytes) = (manifest.digest.clone(), manifest.size_bytes);
                let entry = DatasetFile { path: relative, file, size_bytes };
                Ok::<_, ClientError>((entry, manifest, full))
            })
            .buffer_unordered(PARALLEL_FILES)
            .try_collect()
            .await?;
        hashed.sort_by(|a, b| a.0.path.cmp(&b.0.path));
        let mut missing = Vec::new();
        for batch in hashed.chunks(MISSING_BATCH) {
            let digests = batch.iter().map(|(_, manifest, _)| manifest.digest.clone()).collect();
            missing.extend(self.missing_files(digests).await?);
        }
        let missing: HashSet<Digest> = missing.into_iter().collect();
        let to_put: Vec<(FileManifest, Utf8PathBuf)> = hashed
            .iter()
            .filter(|(_, manifest, _)| missing.contains(&manifest.digest))
            .map(|(_, manifest, full)| (manifest.clone(), full.clone()))
            .collect();
        stream::iter(to_put.into_iter().map(Ok))
            .try_for_each_concurrent(PARALLEL_FILES, |(manifest, full)| async move {
                self.put_chunks_and_file(&full, &manifest).await
            })
            .await?;
        let files = hashed.into_iter().map(|(entry, _, _)| entry).collect();
        self.register_dataset(&RegisterDataset { name: name.map(str::to_owned), files }).await
    }

    async fn missing_of(&self, chunks: &[Digest]) -> Result<HashSet<Digest>, ClientError> {
        let mut missing = HashSet::new();
        for batch in chunks.chunks(MISSING_BATCH) {
            missing.extend(self.missing_chunks(batch.to_vec()).await?);
        }
        Ok(missing)
    }

    async fn put_chunks_and_file(
        &self,
        path: &Utf8Path,
        manifest: &FileManifest,
    ) -> Result<(), ClientError> {
        let missing = self.missing_of(&manifest.chunks).await?;
        let chunks = manifest.chunks.iter().cloned().enumerate();
        let to_put: Vec<(usize, Digest)> = chunks.filter(|(_, it)| missing.contains(it)).collect();
        stream::iter(to_put.into_iter().map(Ok))
            .try_for_each_concurrent(PARALLEL_CHUNKS, |(index, digest)| async move {
                let bytes = verified_chunk(path, index, &digest).await?;
                self.put_chunk(&digest, bytes).await
            })
            .await?;
        self.put_file(manifest).await
    }
}

/// Reads chunk `index` of a file again; the file may have changed since it was hashed.
///
/// # Errors
/// [`ClientError::DigestMismatch`] when it did.
pub async fn verified_chunk(
    path: &Utf8Path,
    index: usize,
    expected: &Digest,
) -> Result<Bytes, ClientError> {
    let (owned, expected) = (path.to_owned(), expected.clone());
    blocking(move || {
        let bytes = read_chunk_at(&owned, index)?;
        let got = Digest::of(&bytes);
        if got == expected {
            Ok(bytes.into())
        } else {
            let what = format!("chunk {index} of {owned}, which changed while it was read,");
            Err(ClientError::DigestMismatch { what, expected, got })
        }
    })
    .await
}

/// `(path within the dataset, path on disk)` of every file, ordered by the former.
fn list_files(root: &Utf8Path) -> Result<Vec<(String, Utf8PathBuf)>, ClientError> {
    let metadata = std::fs::metadata(root).map_err(ClientError::file("read", root))?;
    if metadata.is_file() {
        let name = root.file_name().unwrap_or("data").to_owned();
        return Ok(vec![(name, root.to_owned())]);
    }
    let mut files = Vec::new();
    let mut folders = vec![(String::new(), root.to_owned(), 0)];
    while let Some((prefix, folder, depth)) = folders.pop() {
        let unsuitable = |path: &Utf8Path, reason: &str| {
            Err(ClientError::Unsuitable { path: path.to_owned(), reason: reason.to_owned() })
        };
        if MAX_DEPTH < depth {
            return unsuitable(&folder, "expected at most 32 folders within each other");
        }
        let entries = folder.read_dir_utf8().map_err(ClientError::file("list", &folder))?;
        for entry in entries {
            let entry = entry.map_err(ClientError::file("list", &folder))?;
            let (name, path) = (entry.file_name(), entry.path());
            if name.starts_with('.') {
                continue;
            }
            let kind = entry.file_type().map_err(ClientError::file("read", path))?;
            let target = std::fs::metadata(path).map_err(ClientError::file("read", path))?;
            let relative = format!("{prefix}{name}");
            if target.is_file() {
                files.push((relative, path.to_owned()));
            } else if kind.is_dir() {
                folders.push((format!("{relative}/"), path.to_owned(), depth + 1));
            } else {
                return unsuitable(
                    path,
                    "expected a file or a folder, not a link to a folder or a device",
                );
            }
            if MAX_DATASET_FILES < files.len() {
                return unsuitable(root, "expected at most 10000 files");
            }
        }
    }
    if files.is_empty() {
        let reason =
            "expected at least one file (names with a leading dot are left out)".to_owned();
        return Err(ClientError::Unsuitable { path: root.to_owned(), reason });
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder() -> (tempfile::TempDir, Utf8PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = Utf8PathBuf::try_from(folder.path().to_owned()).unwrap();
        (folder, path)
    }

    #[test]
    fn a_file_and_its_bytes_have_the_same_manifest_at_every_length_around_a_chunk() {
        let (_keep, folder) = folder();
        for length in [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1] {
            let bytes: Vec<u8> = (0..length).map(|i| (i % 251) as u8).collect();
            let path = folder.join("file");
            std::fs::write(&path, &bytes).unwrap();
            let manifest = manifest_of_file(&path).unwrap();
            assert_eq!(manifest, manifest_of_bytes(&bytes), "{length}");
            assert_eq!(manifest.chunks.len(), length.div_ceil(CHUNK_BYTES));
        }
    }

    #[test]
    fn a_dataset_lists_files_below_folders_in_order_and_leaves_hidden_ones_out() {
        let (_keep, folder) = folder();
        std::fs::create_dir_all(folder.join("b/c")).unwrap();
        for name in ["z.csv", "b/c/d", "b/a", ".hidden"] {
            std::fs::write(folder.join(name), name).unwrap();
        }
        let paths: Vec<String> = list_files(&folder).unwrap().into_iter().map(|it| it.0).collect();
        assert_eq!(paths, ["b/a", "b/c/d", "z.csv"]);
        let single: Vec<String> =
            list_files(&folder.join("z.csv")).unwrap().into_iter().map(|it| it.0).collect();
        assert_eq!(single, ["z.csv"]);
    }

    #[test]
    fn an_empty_folder_and_a_link_to_a_folder_are_refused() {
        let (_keep, folder) = folder();
        assert!(list_files(&folder).unwrap_err().to_string().contains("at least one file"));
        std::os::unix::fs::symlink(&folder, folder.join("loop")).unwrap();
        assert!(list_files(&folder).unwrap_err().to_string().contains("not a link to a folder"));
    }
}
