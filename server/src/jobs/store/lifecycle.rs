//! The job row as scheduler and reconcilers see it: locked first of all rows, changed only as `lockstep_core` says.
//!
//! # Order of locks
//!
//! Jobs by id, then attempts by id, then nodes by id, then anything else. Every transaction takes them in this order and none
//! twice, so none waits for another in a circle.

use chrono::{DateTime, Utc};
use lockstep_api::{
    Generation, JobId, JobSpec, JobState, OrganisationId, Priority, ProjectId, StopPurpose,
    TimeoutSpec,
};
use lockstep_core::{Job, Request, RetryBudget, Timeouts};
use sqlx::types::{Json, Uuid};
use sqlx::{PgConnection, query, query_scalar};

/// How many queued jobs of an organisation one placement pass looks at.
const QUEUE_LOOK: i64 = 1000;

/// A job whose row this transaction holds.
#[derive(Debug, Clone)]
pub(crate) struct LockedJob {
    pub(crate) id: JobId,
    pub(crate) project_id: ProjectId,
    pub(crate) core: Job,
    pub(crate) spec: JobSpec,
    /// After a failure: no attempt begins before.
    pub(crate) not_before: Option<DateTime<Utc>>,
    /// Why it was not tried again, if that needs saying beside the verdict.
    pub(crate) ended_because: Option<String>,
}

impl LockedJob {
    pub(crate) fn timeouts(&self) -> Timeouts {
        self.spec.timeouts.effective()
    }
}

/// The time limits of a job, without a lock.
pub(crate) async fn timeouts(db: &mut PgConnection, job: JobId) -> sqlx::Result<Option<Timeouts>> {
    let spec = query_scalar!(
        r#"SELECT spec -> 'timeouts' AS "timeouts!: Json<TimeoutSpec>" FROM job WHERE job_id = $1"#,
        job as JobId,
    )
    .fetch_optional(db)
    .await?;
    Ok(spec.map(|Json(spec)| spec.effective()))
}

/// A job that waits for slots.
#[derive(Debug, Clone)]
pub(crate) struct QueuedJob {
    pub(crate) id: JobId,
    pub(crate) name: String,
    pub(crate) project_id: ProjectId,
    pub(crate) organisation_id: OrganisationId,
    pub(crate) priority: Priority,
    pub(crate) request: Request,
    pub(crate) waiting: Option<String>,
}

/// Locks the rows of `jobs`, in order of id. A job that does not exist is left out.
pub(crate) async fn lock(db: &mut PgConnection, jobs: &[JobId]) -> sqlx::Result<Vec<LockedJob>> {
    let rows = query!(
        r#"
        SELECT
            job_id     AS "id: JobId",
            project_id AS "project_id: ProjectId",
            state      AS "state: JobState",
            generation AS "generation: Generation",
            user_retries,
            infrastructure_retries,
            stopping   AS "stopping: StopPurpose",
            preemptions,
            not_before,
            ended_because,
            spec       AS "spec: Json<JobSpec>"
        FROM job WHERE job_id = ANY($1) ORDER BY job_id FOR UPDATE
        "#,
        &uuids(jobs),
    )
    .fetch_all(db)
    .await?;
    let jobs = rows.into_iter().map(|row| LockedJob {
        id: row.id,
        project_id: row.project_id,
        core: Job {
            state: row.state,
            generation: row.generation,
            budget: RetryBudget {
                user: count(row.user_retries),
                infrastructure: count(row.infrastructure_retries),
            },
            stopping: row.stopping,
            preemptions: count(row.preemptions),
        },
        spec: row.spec.0,
        not_before: row.not_before,
        ended_because: row.ended_because,
    });
    Ok(jobs.collect())
}

/// The job's row, if it exists and is of `project`; locked.
pub(crate) async fn lock_of_project(
    db: &mut PgConnection,
    project: ProjectId,
    job: JobId,
) -> sqlx::Result<Option<LockedJob>> {
    let found = lock(db, &[job]).await?.pop();
    Ok(found.filter(|job| job.project_id == project))
}

/// Writes down what the core decided. `waiting` is why the job waits, if it does.
pub(crate) async fn save(
    db: &mut PgConnection,
    job: &LockedJob,
    waiting: Option<&str>,
    now: DateTime<Utc>,
) -> sqlx::Result<()> {
    let Job { state, generation, budget, stopping, preemptions } = job.core;
    query!(
        "UPDATE job
         SET state = $2, generation = $3, user_retries = $4, infrastructure_retries = $5, waiting = $6,
             ended_at = CASE WHEN $7 THEN coalesce(ended_at, $8) END, not_before = $9, ended_because = $10,
             stopping = $11, preemptions = $12
         WHERE job_id = $1 AND generation <= $3",
        job.id as JobId,
        state as JobState,
        generation as Generation,
        i32::try_from(budget.user).unwrap_or(i32::MAX),
        i32::try_from(budget.infrastructure).unwrap_or(i32::MAX),
        waiting,
        state.is_final(),
        now,
        job.not_before,
        job.ended_because.as_deref(),
        stopping as Option<StopPurpose>,
        i32::try_from(preemptions).unwrap_or(i32::MAX),
    )
    .execute(db)
    .await
    .map(drop)
}

/// Those that wait for slots, the highest priority first, of equals the oldest. Who waits after a failure is not among them.
pub(crate) async fn queue(
    db: &mut PgConnection,
    now: DateTime<Utc>,
) -> sqlx::Result<Vec<QueuedJob>> {
    let rows = query!(
        r#"
        SELECT
            job_id          AS "id!: JobId",
            name            AS "name!",
            project_id      AS "project_id!: ProjectId",
            organisation_id AS "organisation_id!: OrganisationId",
            priority        AS "priority!",
            spec            AS "spec!: Json<JobSpec>",
            waiting
        FROM (SELECT job_id, job.name, project_id, organisation_id, priority, spec, waiting, job.created_at,
                     row_number() OVER (PARTITION BY organisation_id ORDER BY priority DESC, job.created_at, job_id) AS place
              FROM job JOIN project USING (project_id)
              WHERE state = 'queued' AND ended_at IS NULL AND (not_before IS NULL OR not_before <= $2)) AS queued
        WHERE place <= $1
        ORDER BY priority DESC, created_at, job_id
        "#,
        QUEUE_LOOK,
        now,
    )
    .fetch_all(db)
    .await?;
    let jobs = rows.into_iter().map(|row| QueuedJob {
        id: row.id,
        name: row.name,
        project_id: row.project_id,
        organisation_id: row.organisation_id,
        priority: Priority(count(row.priority)),
        request: Request {
            ranks: row.spec.0.gang.ranks,
            slot: row.spec.0.gang.slot,
            transport: row.spec.0.ddp.transport,
        },
        waiting: row.waiting,
    });
    Ok(jobs.collect())
}

/// Whether a job has waited long enough after a failure by `by`, and has not now.
pub(crate) async fn is_due_by(
    db: &mut PgConnection,
    now: DateTime<Utc>,
    by: DateTime<Utc>,
) -> sqlx::Result<bool> {
    query_scalar!(
        r#"SELECT EXISTS (SELECT FROM job WHERE state = 'queued' AND ended_at IS NULL
                          AND $1 < not_before AND not_before <= $2) AS "is_due!""#,
        now,
        by,
    )
    .fetch_one(db)
    .await
}

/// Says why a queued job waits, unless it stopped waiting meanwhile or the sentence is there already. Answers the
/// project of a job whose sentence changed.
pub(crate) async fn set_waiting(
    db: &mut PgConnection,
    job: JobId,
    waiting: &str,
) -> sqlx::Result<Option<ProjectId>> {
    query_scalar!(
        r#"UPDATE job SET waiting = $2
           WHERE job_id = $1 AND state = 'queued' AND waiting IS DISTINCT FROM $2
           RETURNING project_id AS "project_id: ProjectId""#,
        job as JobId,
        waiting,
    )
    .fetch_optional(db)
    .await
}

/// Takes `count` numbers of the job's events, under the row's lock; answers the first.
pub(crate) async fn take_event_numbers(
    db: &mut PgConnection,
    job: JobId,
    count: i64,
) -> sqlx::Result<i64> {
    let last = query_scalar!(
        "UPDATE job SET event_seq = event_seq + $2 WHERE job_id = $1 RETURNING event_seq",
        job as JobId,
        count,
    )
    .fetch_one(db)
    .await?;
    Ok(last - count + 1)
}

/// Takes `count` numbers of the job's log, under the row's lock; answers the first.
pub(crate) async fn take_log_numbers(
    db: &mut PgConnection,
    job: JobId,
    count: i64,
) -> sqlx::Result<i64> {
    let last = query_scalar!(
        "UPDATE job SET log_seq = log_seq + $2 WHERE job_id = $1 RETURNING log_seq",
        job as JobId,
        count,
    )
    .fetch_one(db)
    .await?;
    Ok(last - count + 1)
}

/// Whether `project` has this job.
pub(crate) async fn exists(
    db: &mut PgConnection,
    project: ProjectId,
    job: JobId,
) -> sqlx::Result<bool> {
    query_scalar!(
        r#"SELECT EXISTS (SELECT FROM job WHERE project_id = $1 AND job_id = $2) AS "exists!""#,
        project as ProjectId,
        job as JobId,
    )
    .fetch_one(db)
    .await
}

/// Whose job it is.
pub(crate) async fn organisation(
    db: &mut PgConnection,
    job: JobId,
) -> sqlx::Result<OrganisationId> {
    query_scalar!(
        r#"SELECT organisation_id AS "id: OrganisationId" FROM job JOIN project USING (project_id) WHERE job_id = $1"#,
        job as JobId,
    )
    .fetch_one(db)
    .await
}

/// Samples of the job's training split.
pub(crate) async fn samples_per_epoch(db: &mut PgConnection, job: JobId) -> sqlx::Result<i64> {
    query_scalar!("SELECT samples_per_epoch FROM job WHERE job_id = $1", job as JobId)
        .fetch_one(db)
        .await
}

/// The specs of some jobs.
pub(crate) async fn specs(
    db: &mut PgConnection,
    jobs: &[JobId],
) -> sqlx::Result<Vec<(JobId, JobSpec)>> {
    let rows = query!(
        r#"SELECT job_id AS "id: JobId", spec AS "spec: Json<JobSpec>" FROM job WHERE job_id = ANY($1)"#,
        &uuids(jobs),
    )
    .fetch_all(db)
    .await?;
    Ok(rows.into_iter().map(|row| (row.id, row.spec.0)).collect())
}

fn uuids(jobs: &[JobId]) -> Vec<Uuid> {
    jobs.iter().map(|id| id.0).collect()
}

/// The schema's counts are never negative.
fn count(stored: i32) -> u32 {
    u32::try_from(stored).unwrap_or(0)
}
