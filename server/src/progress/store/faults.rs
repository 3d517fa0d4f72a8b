//! The table `chaos_fault`: faults that jobs asked for and that have happened.

use chrono::{DateTime, Utc};
use lockstep_api::{AttemptId, Generation, JobId, ProjectId};
use sqlx::{PgConnection, query, query_as};

/// Writes down that a job's fault of that place has happened. It happens once.
pub(crate) async fn insert_fault(
    db: &mut PgConnection,
    (project_id, job, index): (ProjectId, JobId, i32),
    (attempt, generation): (AttemptId, Generation),
    at: DateTime<Utc>,
) -> sqlx::Result<()> {
    query!(
        "INSERT INTO chaos_fault (project_id, job_id, fault_index, attempt_id, generation, injected_at)
         VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING",
        project_id as ProjectId,
        job as JobId,
        index,
        attempt as AttemptId,
        generation as Generation,
        at,
    )
    .execute(db)
    .await
    .map(drop)
}

/// A fault that has happened.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Injected {
    pub(crate) index: i32,
    pub(crate) attempt_id: AttemptId,
    pub(crate) generation: Generation,
    pub(crate) injected_at: DateTime<Utc>,
    /// When the first failure of its group after it was told.
    pub(crate) detected_at: Option<DateTime<Utc>>,
}

/// The faults of a job that have happened.
pub(crate) async fn faults(db: &mut PgConnection, job: JobId) -> sqlx::Result<Vec<Injected>> {
    query_as!(
        Injected,
        r#"
        SELECT fault_index AS index, f.attempt_id AS "attempt_id: AttemptId", f.generation AS "generation: Generation",
               injected_at,
               (SELECT min(e.at) FROM failure AS e
                WHERE e.attempt_id = f.attempt_id AND e.generation = f.generation AND f.injected_at <= e.at)
                   AS detected_at
        FROM chaos_fault AS f
        WHERE f.job_id = $1 ORDER BY fault_index
        "#,
        job as JobId,
    )
    .fetch_all(db)
    .await
}
