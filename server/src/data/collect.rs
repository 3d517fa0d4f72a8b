//! Lets go of files and chunks that nothing refers to any more.
//!
//! Rows are locked first and looked at again by a later statement: who refers to a chunk holds it
//! ([`super::store::hold_chunks`]) until its commit, so the second look sees every reference, and a chunk that is
//! let go is missing for whoever asks afterwards.

use chrono::{DateTime, Utc};
use lockstep_api::{Digest, ProjectId};
use sqlx::{PgConnection, query, query_scalar};

use super::store::objects;

/// Deletes those of `files` that neither a checkpoint nor a dataset refers to and that no unfinished job begins with,
/// and the chunks that no other file has. Objects of such chunks are removed after the commit ([`super::reconcile`]).
pub(crate) async fn collect_files(
    db: &mut PgConnection,
    project: ProjectId,
    files: &[Digest],
    now: DateTime<Utc>,
) -> sqlx::Result<()> {
    let files: Vec<String> = files.iter().map(|digest| digest.as_str().to_owned()).collect();
    // Chunks before files, the order of those who make files.
    let chunks: Vec<String> = query_scalar!(
        "SELECT chunks FROM file WHERE project_id = $1 AND digest = ANY($2)",
        project as ProjectId,
        &files,
    )
    .fetch_all(&mut *db)
    .await?
    .concat();
    query!(
        "SELECT digest FROM chunk WHERE project_id = $1 AND digest = ANY($2) ORDER BY digest FOR UPDATE",
        project as ProjectId,
        &chunks,
    )
    .fetch_all(&mut *db)
    .await?;
    query!(
        "SELECT digest FROM file WHERE project_id = $1 AND digest = ANY($2) ORDER BY digest FOR UPDATE",
        project as ProjectId,
        &files,
    )
    .fetch_all(&mut *db)
    .await?;
    query!(
        "DELETE FROM file
         WHERE project_id = $1 AND digest = ANY($2)
           AND NOT EXISTS (SELECT FROM checkpoint AS c WHERE c.project_id = $1 AND c.file_digest = file.digest)
           AND NOT EXISTS (SELECT FROM dataset_file AS d WHERE d.project_id = $1 AND d.file_digest = file.digest)
           AND NOT EXISTS (
               SELECT FROM job AS j
               WHERE j.project_id = $1 AND j.ended_at IS NULL AND j.spec->'model'->>'init_from' = file.digest
           )",
        project as ProjectId,
        &files,
    )
    .execute(&mut *db)
    .await?;
    let gone = query_scalar!(
        "DELETE FROM chunk
         WHERE project_id = $1 AND digest = ANY($2)
           AND NOT EXISTS (SELECT FROM file AS f WHERE f.project_id = $1 AND chunk.digest = ANY(f.chunks))
         RETURNING object_url",
        project as ProjectId,
        &chunks,
    )
    .fetch_all(&mut *db)
    .await?;
    let objects: Vec<String> = gone.into_iter().flatten().collect();
    objects::let_go(db, project, &objects, now).await
}
