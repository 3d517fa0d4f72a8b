//! The bytes of chunks, wherever they lie.

use bytes::Bytes;
use lockstep_api::{Digest, ProjectId};
use sqlx::PgConnection;

use crate::app::App;
use crate::chunk_store::ChunkStore;
use crate::data::store::objects::{self, Claim};
use crate::data::store::{self, StoredChunk};
use crate::problem::Problem;

/// Bytes that are about to become a chunk.
#[derive(Debug)]
pub(crate) enum Placed {
    /// They go into the row.
    Row(Bytes),
    /// They are an announced object with this URL.
    Object(String),
    /// The chunk is there already.
    Before,
}

/// Puts the bytes of a chunk, whose digest was checked, where chunks go. Not in a transaction: it may take as long as a call
/// to the chunk store takes.
pub(crate) async fn place(
    app: &App,
    project: ProjectId,
    digest: &Digest,
    bytes: Bytes,
) -> Result<Placed, Problem> {
    let ChunkStore::Objects(store) = &app.chunks else { return Ok(Placed::Row(bytes)) };
    let url = store.new_url(project, digest, app.random.bytes());
    let mut tx = app.db.project(project).await?;
    if store::missing_chunks(&mut tx, project, std::slice::from_ref(digest)).await?.is_empty() {
        tx.rollback().await?;
        return Ok(Placed::Before);
    }
    objects::announce(&mut tx, project, &url, app.clock.now()).await?;
    tx.commit().await?;
    store.put(&url, bytes).await?;
    Ok(Placed::Object(url))
}

/// Makes a chunk of placed bytes. Again: changes nothing.
pub(crate) async fn record(
    app: &App,
    db: &mut PgConnection,
    project: ProjectId,
    digest: &Digest,
    placed: Placed,
) -> Result<(), Problem> {
    let now = app.clock.now();
    match placed {
        Placed::Row(bytes) => Ok(store::put_chunk(db, project, digest, &bytes, now).await?),
        Placed::Before => Ok(()),
        Placed::Object(url) => {
            match objects::put_chunk(db, project, digest.as_str(), &url, now).await? {
                Claim::Held => Ok(()),
                Claim::TooLate => {
                    Err(Problem::Unavailable("storing the chunk took too long".to_owned()))
                }
            }
        }
    }
}

/// The bytes of a chunk of the project, if it has it. One short transaction, and a call to the chunk store outside of it.
pub(crate) async fn read(
    app: &App,
    project: ProjectId,
    digest: &Digest,
) -> Result<Option<Bytes>, Problem> {
    let mut tx = app.db.project(project).await?;
    let stored = store::find_chunk(&mut tx, project, digest).await?;
    tx.rollback().await?;
    match stored {
        Some(stored) => fetch(app, stored).await.map(Some),
        None => Ok(None),
    }
}

/// The bytes of a chunk that was found.
pub(crate) async fn fetch(app: &App, stored: StoredChunk) -> Result<Bytes, Problem> {
    match stored {
        StoredChunk::Row(bytes) => Ok(bytes.into()),
        StoredChunk::Object(url) => Ok(app.chunks.get(&url).await?),
    }
}
