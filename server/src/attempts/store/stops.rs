//! Attempts at work that may have to give way, and why one was told to stop.

use chrono::{DateTime, Utc};
use lockstep_api::{
    AttemptId, DeviceKind, JobId, NodeId, OrganisationId, Priority, ProjectId, RankCount,
};
use lockstep_core::{GangAtWork, SlotKey, is_nearly_done};
use sqlx::types::Json;
use sqlx::{PgConnection, query};

/// An attempt at work.
#[derive(Debug, Clone)]
pub(crate) struct AtWork {
    pub(crate) job_id: JobId,
    pub(crate) project_id: ProjectId,
    pub(crate) organisation_id: OrganisationId,
    pub(crate) gang: GangAtWork,
}

/// All attempts at work with the slots that they hold, the oldest first. One that has not done a step yet is not nearly done.
pub(crate) async fn all_at_work(
    db: &mut PgConnection,
    now: DateTime<Utc>,
) -> sqlx::Result<Vec<AtWork>> {
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
        if all.last().is_none_or(|last| last.gang.attempt != row.id) {
            all.push(AtWork {
                job_id: row.job_id,
                project_id: row.project_id,
                organisation_id: row.organisation_id,
                gang: GangAtWork {
                    attempt: row.id,
                    priority: Priority(count(row.priority)),
                    preemptions: count(row.preemptions),
                    began_at: row.created_at,
                    is_nearly_done: row
                        .first_step_at
                        .is_some_and(|since| is_nearly_done((row.done, row.left), now - since)),
                    ranks: row.ranks.0,
                    slots: Vec::new(),
                },
            });
        }
        let Some(AtWork { gang, .. }) = all.last_mut() else { continue };
        // A rank that has left keeps no slot, and the others of such a gang are about to leave, too.
        gang.is_nearly_done |= row.is_free;
        if !row.is_free {
            gang.slots.push(slot);
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
