//! Reads a file's chunks back from where they are stored and hashes them, before anyone is told that the file is there.

use lockstep_api::{Digest, FileManifest, ProjectId};
use sha2::{Digest as _, Sha256};

use super::check::chunk_bytes;
use super::chunks;
use crate::app::App;
use crate::problem::Problem;

/// What reading back found.
#[must_use]
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Readback {
    /// The bytes are what the manifest says.
    Whole,
    /// This chunk is not there.
    Missing(Digest),
    /// The bytes are others: the field of the manifest, and what was expected.
    Differs(&'static str, String),
}

/// Reads a file back whose manifest satisfies [`super::check::manifest`]. One short transaction a chunk.
pub(crate) async fn read_back(
    app: &App,
    project: ProjectId,
    file: &FileManifest,
) -> Result<Readback, Problem> {
    let mut whole = Sha256::new();
    for (index, digest) in file.chunks.iter().enumerate() {
        let Some(chunk) = chunks::read(app, project, digest).await? else {
            return Ok(Readback::Missing(digest.clone()));
        };
        let (expected, got) = (chunk_bytes(file, index), chunk.len());
        if expected != got {
            let message = format!("chunk {index} has {got} bytes, expected {expected}");
            return Ok(Readback::Differs("chunks", message));
        }
        let (hash, chunk_digest);
        (hash, chunk_digest) = hashed(whole, chunk).await?;
        whole = hash;
        if chunk_digest != *digest {
            return Err(Problem::internal(format!(
                "chunk {digest} holds other bytes: the chunk store is damaged"
            )));
        }
    }
    let got = Digest::from_sha256(whole.finalize().into());
    if got == file.digest {
        return Ok(Readback::Whole);
    }
    Ok(Readback::Differs("digest", format!("the chunks make {got}, expected {}", file.digest)))
}

/// Hashing 4 MiB takes milliseconds, too long between two awaits.
async fn hashed(mut whole: Sha256, chunk: bytes::Bytes) -> Result<(Sha256, Digest), Problem> {
    let work = move || {
        whole.update(&chunk);
        (whole, Digest::of(&chunk))
    };
    tokio::task::spawn_blocking(work).await.map_err(Problem::internal)
}

/// Refuses an empty chunk and one whose bytes have another digest.
pub(crate) async fn verify(digest: &Digest, bytes: &bytes::Bytes) -> Result<(), Problem> {
    if bytes.is_empty() {
        return Err(Problem::field(
            "body",
            "expected at least one byte: an empty file has no chunks",
        ));
    }
    let got = digest_of(bytes.clone()).await?;
    if got == *digest {
        return Ok(());
    }
    Err(Problem::field("digest", format!("the body's digest is {got}, expected {digest}")))
}

/// The digest of a chunk, off the async threads.
async fn digest_of(bytes: bytes::Bytes) -> Result<Digest, Problem> {
    tokio::task::spawn_blocking(move || Digest::of(&bytes)).await.map_err(Problem::internal)
}
