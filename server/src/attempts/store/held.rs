//! Who holds what: leases, fences and slots.

use std::collections::BTreeSet;

use chrono::{DateTime, Utc};
use lockstep_api::{
    AttemptId, AttemptState, DeviceKind, Fence, Generation, JobId, NodeId, ProjectId,
};
use sqlx::types::Uuid;
use sqlx::{PgConnection, query, query_as, query_scalar};

/// Renews the leases of those attempts that `node` may speak for: the attempt has not ended, the node runs ranks of its
/// present group, and the fence names no later generation (it names an earlier one while the node has yet to hear). Answers those; all others of `fences` are lost. Attempts that the node is
/// still preparing are renewed as well: their ranks do not live yet and are in no heartbeat.
pub(crate) async fn renew(
    db: &mut PgConnection,
    node: NodeId,
    fences: &[Fence],
    lease_expires_at: DateTime<Utc>,
) -> sqlx::Result<BTreeSet<AttemptId>> {
    let ids: Vec<Uuid> = fences.iter().map(|fence| fence.attempt_id.0).collect();
    let generations: Vec<i64> = fences.iter().map(|fence| fence.generation.0).collect();
    let rows = query!(
        r#"
        WITH held AS (
            SELECT attempt_id
            FROM attempt
            WHERE state <> 'ended'
              AND EXISTS (SELECT FROM group_member AS m
                          WHERE m.attempt_id = attempt.attempt_id AND m.node_id = $1 AND m.evicted_at IS NULL)
              AND (state IN ('placing', 'starting', 'recovering')
                   OR EXISTS (SELECT FROM unnest($2::uuid[], $3::bigint[]) AS fence (id, generation)
                              WHERE fence.id = attempt_id AND fence.generation <= attempt.generation))
            ORDER BY attempt_id FOR UPDATE
        )
        UPDATE attempt SET lease_expires_at = greatest(lease_expires_at, $4)
        WHERE attempt_id IN (SELECT attempt_id FROM held)
          AND state <> 'ended'
        RETURNING attempt_id AS "attempt_id: AttemptId", generation AS "generation: Generation"
        "#,
        node as NodeId,
        &ids,
        &generations,
        lease_expires_at,
    )
    .fetch_all(db)
    .await?;
    let is_held = |id, generation: Generation| {
        rows.iter().any(|row| row.attempt_id == id && generation <= row.generation)
    };
    let held = fences.iter().filter(|fence| is_held(fence.attempt_id, fence.generation));
    Ok(held.map(|fence| fence.attempt_id).collect())
}

/// What a word from a node may write for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HeldFence {
    pub(crate) project_id: ProjectId,
    pub(crate) job_id: JobId,
}

/// Holds the fence until the end of the transaction: the attempt cannot end before. `None`: it is lost, or was never this
/// node's. What an earlier generation of the same attempt has begun goes on, as long as the node has a rank in the present
/// one: its state is that of the same course.
pub(crate) async fn hold_fence(
    db: &mut PgConnection,
    node: NodeId,
    fence: Fence,
) -> sqlx::Result<Option<HeldFence>> {
    let row = query!(
        r#"
        SELECT project_id AS "project_id: ProjectId", job_id AS "job_id: JobId"
        FROM attempt
        WHERE attempt_id = $1 AND $2 <= generation AND state <> 'ended'
          AND EXISTS (SELECT FROM group_member AS m
                      WHERE m.attempt_id = attempt.attempt_id AND m.node_id = $3 AND m.evicted_at IS NULL)
        FOR SHARE
        "#,
        fence.attempt_id as AttemptId,
        fence.generation as Generation,
        node as NodeId,
    )
    .fetch_optional(db)
    .await?;
    Ok(row.map(|row| HeldFence { project_id: row.project_id, job_id: row.job_id }))
}

/// The job's attempt that is at work, if one is.
pub(crate) async fn at_work(db: &mut PgConnection, job: JobId) -> sqlx::Result<Option<AttemptId>> {
    query_scalar!(
        r#"SELECT attempt_id AS "attempt_id: AttemptId" FROM attempt WHERE job_id = $1 AND state <> 'ended'"#,
        job as JobId,
    )
    .fetch_optional(db)
    .await
}

/// An attempt that someone has to look after.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tended {
    pub(crate) id: AttemptId,
    pub(crate) job_id: JobId,
    pub(crate) state: AttemptState,
    pub(crate) lease_expires_at: DateTime<Utc>,
    pub(crate) rendezvous_by: Option<DateTime<Utc>>,
}

/// All attempts that have not ended. A rendezvous is over once ranks have been started.
pub(crate) async fn unfinished(db: &mut PgConnection) -> sqlx::Result<Vec<Tended>> {
    query_as!(
        Tended,
        r#"SELECT attempt_id AS "id: AttemptId", job_id AS "job_id: JobId", state AS "state: AttemptState",
                  lease_expires_at,
                  CASE WHEN state IN ('placing', 'recovering') THEN rendezvous_by END AS rendezvous_by
           FROM attempt WHERE state <> 'ended' ORDER BY attempt_id"#
    )
    .fetch_all(db)
    .await
}

/// Attempts with a rank on `node` that is not known to be gone, and those at work that it takes part in.
pub(crate) async fn of_node(
    db: &mut PgConnection,
    node: NodeId,
) -> sqlx::Result<Vec<(AttemptId, JobId)>> {
    let rows = query!(
        r#"
        SELECT DISTINCT attempt_id AS "attempt_id: AttemptId", job_id AS "job_id: JobId"
        FROM group_member JOIN attempt USING (attempt_id)
        WHERE node_id = $1 AND (released_at IS NULL OR state <> 'ended')
        "#,
        node as NodeId,
    )
    .fetch_all(db)
    .await?;
    Ok(rows.into_iter().map(|row| (row.attempt_id, row.job_id)).collect())
}

/// Attempts that ended before `ended_before` and of which a rank is still held on `node`.
pub(crate) async fn held_after_end(
    db: &mut PgConnection,
    node: NodeId,
    ended_before: DateTime<Utc>,
) -> sqlx::Result<Vec<(AttemptId, JobId)>> {
    let rows = query!(
        r#"
        SELECT DISTINCT attempt_id AS "attempt_id: AttemptId", job_id AS "job_id: JobId"
        FROM group_member JOIN attempt USING (attempt_id)
        WHERE node_id = $1 AND released_at IS NULL AND ended_at <= $2
        "#,
        node as NodeId,
        ended_before,
    )
    .fetch_all(db)
    .await?;
    Ok(rows.into_iter().map(|row| (row.attempt_id, row.job_id)).collect())
}

/// Nodes on which a rank is held.
pub(crate) async fn holding_nodes(db: &mut PgConnection) -> sqlx::Result<BTreeSet<NodeId>> {
    let nodes = query_scalar!(
        r#"SELECT DISTINCT node_id AS "node_id: NodeId" FROM group_member WHERE released_at IS NULL"#
    )
    .fetch_all(db)
    .await?;
    Ok(nodes.into_iter().collect())
}

/// Slots in which a process may live.
pub(crate) async fn held_slots(
    db: &mut PgConnection,
) -> sqlx::Result<BTreeSet<(NodeId, DeviceKind, i32)>> {
    let rows = query!(
        r#"SELECT node_id AS "node_id: NodeId", device AS "device: DeviceKind", slot_index
           FROM group_member WHERE released_at IS NULL"#
    )
    .fetch_all(db)
    .await?;
    Ok(rows.into_iter().map(|row| (row.node_id, row.device, row.slot_index)).collect())
}

/// Nobody could renew a lease while no server was there, nor say where a rank listens.
pub(crate) async fn extend_leases(
    db: &mut PgConnection,
    lease_expires_at: DateTime<Utc>,
) -> sqlx::Result<()> {
    query!(
        "UPDATE attempt
         SET lease_expires_at = greatest(lease_expires_at, $1),
             rendezvous_by = CASE WHEN rendezvous_by IS NOT NULL THEN greatest(rendezvous_by, $1) END
         WHERE attempt_id IN (SELECT attempt_id FROM attempt WHERE state <> 'ended' ORDER BY attempt_id FOR UPDATE)",
        lease_expires_at,
    )
    .execute(db)
    .await
    .map(drop)
}
