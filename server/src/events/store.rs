//! Reads the outbox of a job. Whoever changes a job appends to it in the same transaction (`progress::store`).

use lockstep_api::{JobEvent, JobEventKind, JobId, ProjectId};
use sqlx::{PgConnection, query_as};

/// Events of a job after `last`, oldest first.
pub(crate) async fn after(
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
