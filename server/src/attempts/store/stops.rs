//! Attempts at work that may have to give way, and why one was told to stop.

use chrono::{DateTime, Utc};
use lockstep_api::{
    AttemptId, DeviceKind, JobId, NodeId, OrganisationId, Priority, ProjectId, RankCount,
};
use lockstep_core::SlotKey;
use sqlx::types::Json;
use sqlx::{PgConnection, query};

/// An attempt at work.
#[derive(Debug, Clone)]
pub(crate) struct AtWork {
    pub(crate) job_id: JobId,
    pub(crate) project_id: ProjectId,
    pub(crate) organisation_id: OrganisationId,
    pub(crate) id: AttemptId,
    pub(crate) priority: Priority,
    pub(crate) preemptions: u32,
    pub(crate) ranks: RankCount,
    pub(crate) placed_at: DateTime<Utc>,
    /// When its first step was done, if one was.
    pub(crate) first_step_at: Option<DateTime<Utc>>,
    /// Steps done and left.
    pub(crate) course: (i64, i64),
    /// Whether a rank has left.
    pub(crate) has_left: bool,
    /// The slots that it holds, in order of rank.
    pub(crate) slots: Vec<SlotKey>,
}

/// All attempts at work, the oldest first.
pub(crate) async fn all_at_work(db: &mut PgConnection) -> sqlx::Result<Vec<AtWork>> {
    let rows = query!(
        r#"
        SELECT attempt_id AS "id: AttemptId", attempt.job_id AS "job_id: JobId",
               attempt.project_id AS "project_id: ProjectId",
               project.organisation_id AS "organisation_id: OrganisationId", priority, preemptions,
               spec -> 'gang' -> 'ranks' AS "ranks!: Json<RankCount>",
               node_id AS "node: NodeId", device AS "device: DeviceKind", slot_index,
               released_at IS NOT NULL AS "is_free!", attempt.created_at, first_step_at, steps_done - first_step AS "done!",
               steps_total - steps_done AS "left!"
        FROM attempt JOIN group_member USING (attempt_id)
             JOIN job ON job.job_id = attempt.job_id JOIN project ON project.project_id = job.project_id
        WHERE attempt.state IN ('placing', 'starting', 'running', 'recovering') AND evicted_at IS NULL
        ORDER BY attempt.created_at, attempt_id, rank
        "#,
    )
    .fetch_all(db)
    .await?;
    let count = |stored: i32| u32::try_from(stored).unwrap_or(0);
    let mut all: Vec<AtWork> = Vec::new();
    for row in rows {
        let slot = SlotKey { node: row.node, device: row.device, index: row.slot_index };
        if all.last().is_none_or(|last| last.id != row.id) {
            all.push(AtWork {
                job_id: row.job_id,
                project_id: row.project_id,
                organisation_id: row.organisation_id,
                id: row.id,
                priority: Priority(count(row.priority)),
                preemptions: count(row.preemptions),
                ranks: row.ranks.0,
                placed_at: row.created_at,
                first_step_at: row.first_step_at,
                course: (row.done, row.left),
                has_left: false,
                slots: Vec::new(),
            });
        }
        let Some(last) = all.last_mut() else { continue };
        last.has_left |= row.is_free;
        if !row.is_free {
            last.slots.push(slot);
        }
    }
    Ok(all)
}

/// Why an attempt was told to stop.
pub(crate) async fn record_stop(
    db: &mut PgConnection,
    attempt: AttemptId,
    because: &str,
) -> sqlx::Result<()> {
    query!(
        "UPDATE attempt SET stopped_because = $2 WHERE attempt_id = $1",
        attempt as AttemptId,
        because,
    )
    .execute(db)
    .await
    .map(drop)
}
