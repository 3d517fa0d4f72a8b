//! What ranks that share no memory need to reach each other.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use lockstep_api::{AttemptId, NodeId, Rank};
use sqlx::{PgConnection, query};

use super::uuids;

/// One rank as the others see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Peer {
    pub(crate) rank: Rank,
    /// Ranks with the same number share a group memory.
    pub(crate) memory_index: i32,
    /// Which machine and network namespace its node's agent is in, if it has said so.
    pub(crate) host: Option<String>,
    /// Where it listens, once that is known and its node has everything that it needs.
    pub(crate) endpoints: Option<Vec<String>>,
}

/// The ranks of some attempts, in order.
pub(crate) async fn peers(
    db: &mut PgConnection,
    attempts: &[AttemptId],
) -> sqlx::Result<BTreeMap<AttemptId, Vec<Peer>>> {
    let rows = query!(
        r#"
        SELECT attempt_id AS "attempt_id: AttemptId", rank AS "rank: Rank", memory_index, node.host,
               CASE WHEN prepared_at IS NOT NULL THEN endpoints END AS endpoints
        FROM group_member JOIN node USING (node_id)
        WHERE attempt_id = ANY($1) AND evicted_at IS NULL ORDER BY attempt_id, rank
        "#,
        &uuids(attempts),
    )
    .fetch_all(db)
    .await?;
    let mut peers: BTreeMap<AttemptId, Vec<Peer>> = BTreeMap::new();
    for row in rows {
        peers.entry(row.attempt_id).or_default().push(Peer {
            rank: row.rank,
            memory_index: row.memory_index,
            host: row.host,
            endpoints: row.endpoints,
        });
    }
    Ok(peers)
}

/// Where a rank listens.
pub(crate) async fn record_endpoints(
    db: &mut PgConnection,
    attempt: AttemptId,
    rank: Rank,
    endpoints: &[String],
) -> sqlx::Result<()> {
    query!(
        "UPDATE group_member SET endpoints = $3 WHERE attempt_id = $1 AND rank = $2 AND evicted_at IS NULL",
        attempt as AttemptId,
        rank as Rank,
        endpoints,
    )
    .execute(db)
    .await
    .map(drop)
}

/// Everything is there that the node's ranks need.
pub(crate) async fn record_prepared(
    db: &mut PgConnection,
    attempt: AttemptId,
    node: NodeId,
    now: DateTime<Utc>,
) -> sqlx::Result<()> {
    query!(
        "UPDATE group_member SET prepared_at = coalesce(prepared_at, $3)
         WHERE attempt_id = $1 AND node_id = $2 AND evicted_at IS NULL",
        attempt as AttemptId,
        node as NodeId,
        now,
    )
    .execute(db)
    .await
    .map(drop)
}
