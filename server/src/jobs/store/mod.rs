//! Everything the database knows of jobs. No other module names the tables `job` and `idempotency_key`.

pub(crate) mod lifecycle;

use chrono::{DateTime, Utc};
use lockstep_api::{Generation, JobId, JobSpec, JobState, PrincipalId, ProjectId};
use sqlx::types::Json;
use sqlx::{PgConnection, query, query_as, query_scalar};

use super::cursor::Cursor;

/// A job as it is kept.
#[derive(Debug, Clone)]
pub(crate) struct Job {
    pub(crate) id: JobId,
    pub(crate) principal_id: PrincipalId,
    pub(crate) name: String,
    pub(crate) state: JobState,
    pub(crate) spec: Json<JobSpec>,
    pub(crate) generation: Generation,
    pub(crate) waiting: Option<String>,
    pub(crate) ended_because: Option<String>,
    pub(crate) steps_total: i64,
    pub(crate) created_at: DateTime<Utc>,
    pub(crate) ended_at: Option<DateTime<Utc>>,
}

/// A job to be.
#[derive(Debug)]
pub(crate) struct NewJob<'a> {
    pub(crate) id: JobId,
    pub(crate) project_id: ProjectId,
    pub(crate) principal_id: PrincipalId,
    /// Components and datasets are digests.
    pub(crate) spec: &'a JobSpec,
    pub(crate) samples_per_epoch: i64,
    pub(crate) steps_total: i64,
    pub(crate) created_at: DateTime<Utc>,
}

/// Queues a job.
pub(crate) async fn insert(db: &mut PgConnection, job: &NewJob<'_>) -> sqlx::Result<()> {
    let number = |count: u32| i32::try_from(count).unwrap_or(i32::MAX);
    query!(
        "INSERT INTO job (job_id, project_id, principal_id, name, state, spec, ranks, samples_per_epoch, steps_total,
                          user_retries, infrastructure_retries, created_at, priority)
         VALUES ($1, $2, $3, $4, 'queued', $5, $6, $7, $8, $9, $10, $11, $12)",
        job.id as JobId,
        job.project_id as ProjectId,
        job.principal_id as PrincipalId,
        job.spec.name,
        Json(job.spec) as _,
        number(job.spec.gang.ranks.max()),
        job.samples_per_epoch,
        job.steps_total,
        number(job.spec.retry.user),
        number(job.spec.retry.infrastructure),
        job.created_at,
        number(job.spec.priority.0),
    )
    .execute(db)
    .await
    .map(drop)
}

/// One job of the project.
pub(crate) async fn find(
    db: &mut PgConnection,
    project: ProjectId,
    id: JobId,
) -> sqlx::Result<Option<Job>> {
    query_as!(
        Job,
        r#"
        SELECT
            job_id       AS "id: JobId",
            principal_id AS "principal_id: PrincipalId",
            name,
            state        AS "state: JobState",
            spec         AS "spec: Json<JobSpec>",
            generation   AS "generation: Generation",
            waiting,
            ended_because,
            steps_total,
            created_at,
            ended_at
        FROM job
        WHERE project_id = $1 AND job_id = $2
        "#,
        project as ProjectId,
        id as JobId,
    )
    .fetch_optional(db)
    .await
}

/// Where a job of the project stands.
pub(crate) async fn find_state(
    db: &mut PgConnection,
    project: ProjectId,
    id: JobId,
) -> sqlx::Result<Option<JobState>> {
    query_scalar!(
        r#"SELECT state AS "state: JobState" FROM job WHERE project_id = $1 AND job_id = $2"#,
        project as ProjectId,
        id as JobId,
    )
    .fetch_optional(db)
    .await
}

/// Jobs of the project, newest first, after `cursor`.
pub(crate) async fn list(
    db: &mut PgConnection,
    project: ProjectId,
    state: Option<JobState>,
    cursor: Option<Cursor>,
    limit: i64,
) -> sqlx::Result<Vec<Job>> {
    query_as!(
        Job,
        r#"
        SELECT
            job_id       AS "id: JobId",
            principal_id AS "principal_id: PrincipalId",
            name,
            state        AS "state: JobState",
            spec         AS "spec: Json<JobSpec>",
            generation   AS "generation: Generation",
            waiting,
            ended_because,
            steps_total,
            created_at,
            ended_at
        FROM job
        WHERE project_id = $1
          AND ($2::job_state IS NULL OR state = $2)
          AND ($3::timestamptz IS NULL OR (created_at, job_id) < ($3, $4))
        ORDER BY created_at DESC, job_id DESC
        LIMIT $5
        "#,
        project as ProjectId,
        state as Option<JobState>,
        cursor.map(|cursor| cursor.created_at),
        cursor.map(|cursor| cursor.id) as Option<JobId>,
        limit,
    )
    .fetch_all(db)
    .await
}

/// Whether the project has at least `count` jobs that have not ended.
pub(crate) async fn has_unfinished(
    db: &mut PgConnection,
    project: ProjectId,
    count: i64,
) -> sqlx::Result<bool> {
    query_scalar!(
        r#"
        SELECT $2 <= count(*) AS "is_full!"
        FROM (SELECT FROM job WHERE project_id = $1 AND ended_at IS NULL LIMIT $2) AS unfinished
        "#,
        project as ProjectId,
        count,
    )
    .fetch_one(db)
    .await
}

/// What an idempotency key was used for.
#[derive(Debug, Clone)]
pub(crate) struct KeyUse {
    pub(crate) fingerprint: String,
    pub(crate) job_id: JobId,
}

/// The use of a key since `since`.
pub(crate) async fn find_key(
    db: &mut PgConnection,
    project: ProjectId,
    key: &str,
    since: DateTime<Utc>,
) -> sqlx::Result<Option<KeyUse>> {
    query_as!(
        KeyUse,
        r#"
        SELECT fingerprint, job_id AS "job_id: JobId" FROM idempotency_key
        WHERE project_id = $1 AND key = $2 AND $3 <= created_at
        "#,
        project as ProjectId,
        key,
        since,
    )
    .fetch_optional(db)
    .await
}

/// Whether a key was free.
#[must_use]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Key {
    /// And now stands for this job.
    Taken,
    /// It stands for another job; this transaction must be rolled back.
    InUse,
}

/// Ties a key to a job. Waits for a transaction that is about to use the same key. Keys from before `since` are forgotten.
pub(crate) async fn take_key(
    db: &mut PgConnection,
    project: ProjectId,
    key: &str,
    key_use: &KeyUse,
    since: DateTime<Utc>,
    now: DateTime<Utc>,
) -> sqlx::Result<Key> {
    query!(
        "DELETE FROM idempotency_key WHERE project_id = $1 AND created_at < $2",
        project as ProjectId,
        since,
    )
    .execute(&mut *db)
    .await?;
    let touched = query!(
        "INSERT INTO idempotency_key (project_id, key, fingerprint, job_id, created_at)
         VALUES ($1, $2, $3, $4, $5) ON CONFLICT DO NOTHING",
        project as ProjectId,
        key,
        key_use.fingerprint,
        key_use.job_id as JobId,
        now,
    )
    .execute(db)
    .await?
    .rows_affected();
    Ok(if touched == 1 { Key::Taken } else { Key::InUse })
}
