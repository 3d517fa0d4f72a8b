//! Which checkpoints attempts resume from. One that has not ended holds its own: whoever of its ranks comes late reads the
//! same file as the others.

use lockstep_api::{CheckpointId, JobId};
use sqlx::{PgConnection, query, query_scalar};

/// How many jobs one look finds.
const JOBS_LOOKED_AT: i64 = 100;

/// The checkpoints that unfinished attempts of a job resume from.
pub(crate) async fn resumed_from(
    db: &mut PgConnection,
    job: JobId,
) -> sqlx::Result<Vec<CheckpointId>> {
    query_scalar!(
        r#"SELECT resume_checkpoint_id AS "id!: CheckpointId" FROM attempt
           WHERE job_id = $1 AND state <> 'ended' AND resume_checkpoint_id IS NOT NULL"#,
        job as JobId,
    )
    .fetch_all(db)
    .await
}

/// Jobs of which an attempt has ended that still holds the checkpoint it resumed from.
pub(crate) async fn ended_holding(db: &mut PgConnection) -> sqlx::Result<Vec<JobId>> {
    query_scalar!(
        r#"SELECT DISTINCT job_id AS "job_id: JobId" FROM attempt
           WHERE state = 'ended' AND resume_checkpoint_id IS NOT NULL ORDER BY job_id LIMIT $1"#,
        JOBS_LOOKED_AT,
    )
    .fetch_all(db)
    .await
}

/// Attempts of a job that have ended hold no checkpoint any more. The job's row is locked.
pub(crate) async fn let_go(db: &mut PgConnection, job: JobId) -> sqlx::Result<()> {
    query!(
        "UPDATE attempt SET resume_checkpoint_id = NULL
         WHERE job_id = $1 AND state = 'ended' AND resume_checkpoint_id IS NOT NULL",
        job as JobId,
    )
    .execute(db)
    .await
    .map(drop)
}
