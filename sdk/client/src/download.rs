//! From the server to a local file: whole and verified, or not there at all.

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;

use camino::{Utf8Path, Utf8PathBuf};
use lockstep_api::{CheckpointView, Digest};
use reqwest::Method;
use sha2::{Digest as _, Sha256};

use crate::transfer::blocking;
use crate::{Client, ClientError, retry};

/// A file that was fetched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Downloaded {
    /// Where it lies.
    pub path: Utf8PathBuf,
    /// Length.
    pub size_bytes: u64,
    /// Digest of its content, as verified.
    pub digest: Digest,
}

impl Client {
    /// Fetches a checkpoint's file to `path`, in place of what lies there.
    ///
    /// It is written under a temporary name beside `path`, verified, and moved there when it is complete.
    ///
    /// # Errors
    /// [`ClientError::DigestMismatch`] when the bytes are not those of the checkpoint.
    pub async fn download_checkpoint(
        &self,
        checkpoint: &CheckpointView,
        path: &Utf8Path,
    ) -> Result<Downloaded, ClientError> {
        retry::run(self.options.retry, || self.download_once(checkpoint, path)).await
    }

    async fn download_once(
        &self,
        checkpoint: &CheckpointView,
        path: &Utf8Path,
    ) -> Result<Downloaded, ClientError> {
        let id = checkpoint.id.to_string();
        let call = self.call(Method::GET, &["v1", "checkpoints", &id, "file"]).timeout(None);
        let url = call.url.to_string();
        let silence = self.options.stream_silence;
        let broken = || ClientError::StreamBroken { url: url.clone() };
        let mut response =
            tokio::time::timeout(silence, self.send(&call)).await.map_err(|_| broken())??;
        let folder = match path.parent() {
            Some(folder) if !folder.as_str().is_empty() => folder.to_owned(),
            _ => Utf8PathBuf::from("."),
        };
        // A user's file like any other: what the umask leaves.
        let mode = std::fs::Permissions::from_mode(0o666);
        let file =
            tempfile::Builder::new().prefix(".lockstep-").permissions(mode).tempfile_in(&folder);
        let mut file = file.map_err(ClientError::file("make a file in", &folder))?;
        let mut hash = Sha256::new();
        let mut size_bytes = 0;
        loop {
            let chunk = tokio::time::timeout(silence, response.chunk()).await;
            let chunk = chunk.map_err(|_| broken())?.map_err(|source| {
                ClientError::Unreachable { url: url.clone(), source: source.without_url() }
            })?;
            let Some(chunk) = chunk else { break };
            hash.update(&chunk);
            size_bytes += chunk.len() as u64;
            file.write_all(&chunk).map_err(ClientError::file("write", path))?;
        }
        let digest = Digest::from_sha256(hash.finalize().into());
        if digest != checkpoint.file {
            let what = format!("checkpoint {id} as received ({size_bytes} bytes)");
            let expected = checkpoint.file.clone();
            return Err(ClientError::DigestMismatch { what, expected, got: digest });
        }
        let target = path.to_owned();
        blocking(move || keep(file, &target)).await?;
        Ok(Downloaded { path: path.to_owned(), size_bytes, digest })
    }
}

/// Moves the finished file to its place so that it survives a crash.
fn keep(file: tempfile::NamedTempFile, path: &Utf8Path) -> Result<(), ClientError> {
    file.as_file().sync_all().map_err(ClientError::file("write", path))?;
    file.persist(path).map_err(|error| error.error).map_err(ClientError::file("write", path))?;
    Ok(())
}
