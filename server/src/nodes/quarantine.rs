//! What nodes are blamed for, and which of them get no work for it. No other module names these tables.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};
use lockstep_api::{AttemptId, FailureCode, NodeId, NodeQuarantine};
use lockstep_core::Quarantine;
use lockstep_core::quarantine::{AVOIDED_FROM, QUARANTINED_FROM, WINDOW};
use sqlx::types::Uuid;
use sqlx::{PgConnection, query, query_scalar};

/// How a node stands with placement.
#[derive(Debug, Clone, Default)]
pub(crate) struct Standing {
    /// Verdicts within the window that are its doing.
    pub(crate) blames: u32,
    /// While it gets no work.
    pub(crate) quarantine: Option<NodeQuarantine>,
}

impl Standing {
    /// Whether it gets work only if nobody else has room.
    pub(crate) fn is_avoided(&self) -> bool {
        AVOIDED_FROM <= self.blames
    }

    /// Whether a rank that was lost there had better go elsewhere: one more, and it is quarantined.
    pub(crate) fn is_shunned(&self) -> bool {
        self.quarantine.is_some() || QUARANTINED_FROM <= self.blames.saturating_add(1)
    }
}

/// The standing of `nodes`, or of all; those without a stain are left out.
pub(crate) async fn standings(
    db: &mut PgConnection,
    nodes: Option<&[NodeId]>,
    now: DateTime<Utc>,
) -> sqlx::Result<BTreeMap<NodeId, Standing>> {
    let nodes: Option<Vec<Uuid>> = nodes.map(|nodes| nodes.iter().map(|id| id.0).collect());
    let rows = query!(
        r#"
        SELECT node_id AS "node_id!: NodeId", coalesce(blames, 0) AS "blames!", count AS "count?", until AS "until?",
               reason AS "reason?"
        FROM (SELECT node_id, count(*) AS blames FROM node_blame WHERE $2 < at GROUP BY node_id) AS blamed
        FULL JOIN (SELECT * FROM node_quarantine WHERE $3 < until) AS quarantined USING (node_id)
        WHERE $1::uuid[] IS NULL OR node_id = ANY($1)
        "#,
        nodes.as_deref(),
        now - WINDOW,
        now,
    )
    .fetch_all(db)
    .await?;
    let standings = rows.into_iter().map(|row| {
        let quarantine = match (row.count, row.until, row.reason) {
            (Some(count), Some(until), Some(reason)) => {
                Some(NodeQuarantine { count: count.unsigned_abs(), until, reason })
            }
            _ => None,
        };
        let blames = u32::try_from(row.blames).unwrap_or(u32::MAX);
        (row.node_id, Standing { blames, quarantine })
    });
    Ok(standings.collect())
}

/// A verdict on this attempt is the doing of `nodes`.
pub(crate) async fn blame(
    db: &mut PgConnection,
    nodes: &BTreeSet<NodeId>,
    attempt: AttemptId,
    code: FailureCode,
    now: DateTime<Utc>,
) -> sqlx::Result<()> {
    for &node in nodes {
        query!(
            "DELETE FROM node_blame WHERE node_id = $1 AND at <= $2",
            node as NodeId,
            now - WINDOW
        )
        .execute(&mut *db)
        .await?;
        query!(
            "INSERT INTO node_blame (node_id, attempt_id, at) VALUES ($1, $2, $3)",
            node as NodeId,
            attempt as AttemptId,
            now,
        )
        .execute(&mut *db)
        .await?;
        let blames = query_scalar!(
            r#"SELECT count(*) AS "blames!" FROM node_blame WHERE node_id = $1"#,
            node as NodeId,
        )
        .fetch_one(&mut *db)
        .await?;
        let blames = u32::try_from(blames).unwrap_or(u32::MAX);
        let held = held(db, node).await?;
        let after = Quarantine::after_blame(held, blames, now);
        if let (true, Some(after)) = (after != held, after) {
            tracing::warn!(node.id = %node, until = %after.until, blames, "node quarantined");
            // The words of a verdict are its project's; this is seen by all of the organisation.
            let minutes = WINDOW.num_minutes();
            let reason =
                format!("{blames} failures in {minutes} min are its doing, the last {code}");
            save(db, node, after, Some(&reason)).await?;
        }
    }
    Ok(())
}

/// A job has succeeded in this attempt on `nodes`.
pub(crate) async fn forgive(
    db: &mut PgConnection,
    nodes: &[NodeId],
    attempt: AttemptId,
    now: DateTime<Utc>,
) -> sqlx::Result<()> {
    for &node in nodes {
        let Some(held) = held(db, node).await? else { continue };
        let is_blamed = query_scalar!(
            r#"SELECT EXISTS (SELECT FROM node_blame WHERE node_id = $1 AND attempt_id = $2) AS "is_blamed!""#,
            node as NodeId,
            attempt as AttemptId,
        )
        .fetch_one(&mut *db)
        .await?;
        match held.after_success(now) {
            _ if is_blamed => {}
            Some(after) => save(db, node, after, None).await?,
            None => drop_quarantine(db, node).await?,
        }
    }
    Ok(())
}

/// Forgets everything that the node is blamed for.
pub(crate) async fn release(db: &mut PgConnection, node: NodeId) -> sqlx::Result<()> {
    query!("DELETE FROM node_blame WHERE node_id = $1", node as NodeId).execute(&mut *db).await?;
    drop_quarantine(db, node).await
}

async fn held(db: &mut PgConnection, node: NodeId) -> sqlx::Result<Option<Quarantine>> {
    let row = query!("SELECT count, until FROM node_quarantine WHERE node_id = $1", node as NodeId)
        .fetch_optional(db)
        .await?;
    Ok(row.map(|row| Quarantine { count: row.count.unsigned_abs(), until: row.until }))
}

/// Without a reason, that of before.
async fn save(
    db: &mut PgConnection,
    node: NodeId,
    Quarantine { count, until }: Quarantine,
    reason: Option<&str>,
) -> sqlx::Result<()> {
    query!(
        "INSERT INTO node_quarantine (node_id, count, until, reason) VALUES ($1, $2, $3, coalesce($4, ''))
         ON CONFLICT (node_id) DO UPDATE SET count = $2, until = $3, reason = coalesce($4, node_quarantine.reason)",
        node as NodeId,
        i32::try_from(count).unwrap_or(i32::MAX),
        until,
        reason,
    )
    .execute(db)
    .await
    .map(drop)
}

async fn drop_quarantine(db: &mut PgConnection, node: NodeId) -> sqlx::Result<()> {
    query!("DELETE FROM node_quarantine WHERE node_id = $1", node as NodeId)
        .execute(db)
        .await
        .map(drop)
}
