//! The table `job_event`, the outbox of a job: what changed, numbered under the job row's lock, so that a reader who goes by the numbers misses nothing.

use chrono::{DateTime, Utc};
use lockstep_api::{JobEvent, JobEventKind, JobId, ProjectId};
use sqlx::{PgConnection, query, query_as};

use crate::jobs::store::lifecycle;

/// Appends one event of each kind. Call in the transaction of the change; wake the readers after its commit.
pub(crate) async fn append_events(
    db: &mut PgConnection,
    project: ProjectId,
    job: JobId,
    kinds: &[JobEventKind],
    now: DateTime<Utc>,
) -> sqlx::Result<()> {
    if kinds.is_empty() {
        return Ok(());
    }
    let count = i64::try_from(kinds.len()).unwrap_or(i64::MAX);
    let first = lifecycle::take_event_numbers(db, job, count).await?;
    for (seq, kind) in (first..).zip(kinds) {
        query!(
            "INSERT INTO job_event (project_id, job_id, seq, kind, at) VALUES ($1, $2, $3, $4, $5)",
            project as ProjectId,
            job as JobId,
            seq,
            *kind as JobEventKind,
            now,
        )
        .execute(&mut *db)
        .await?;
    }
    Ok(())
}

/// Events of a job after `last`, oldest first.
pub(crate) async fn events_after(
    db: &mut PgConnection,
    project: ProjectId,
    job: JobId,
    last: i64,
    limit: i64,
) -> sqlx::Result<Vec<JobEvent>> {
    query_as!(
        JobEvent,
        r#"
        SELECT seq, at, kind AS "kind: JobEventKind" FROM job_event
        WHERE project_id = $1 AND job_id = $2 AND $3 < seq
        ORDER BY seq
        LIMIT $4
        "#,
        project as ProjectId,
        job as JobId,
        last,
        limit,
    )
    .fetch_all(db)
    .await
}
