//! Everything the database knows of nodes and their slots. No other module writes to these tables.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use lockstep_api::{DeviceKind, NodeId, OrganisationId};
use lockstep_core::LeaseTerms;
use sqlx::types::Uuid;
use sqlx::{PgConnection, query, query_as, query_scalar};

use crate::nodes::inventory::{Offer, Slot};

/// Most nodes of one answer.
const NODES_LISTED: i64 = 1000;

/// A node's token.
pub(crate) struct NodeBearer {
    pub(crate) node_id: NodeId,
    pub(crate) token_hash: Vec<u8>,
}

/// The node whose token has this name. The caller compares the secret.
pub(crate) async fn find_bearer(
    db: &mut PgConnection,
    public_id: &str,
) -> sqlx::Result<Option<NodeBearer>> {
    query_as!(
        NodeBearer,
        r#"
        SELECT node_id AS "node_id: NodeId", token_hash FROM node WHERE token_public_id = $1
        "#,
        public_id,
    )
    .fetch_optional(db)
    .await
}

/// The node of that name.
pub(crate) async fn find_by_name(
    db: &mut PgConnection,
    organisation: OrganisationId,
    name: &str,
) -> sqlx::Result<Option<NodeId>> {
    query_scalar!(
        r#"SELECT node_id AS "node_id: NodeId" FROM node WHERE organisation_id = $1 AND name = $2"#,
        organisation as OrganisationId,
        name,
    )
    .fetch_optional(db)
    .await
}

/// Who has a name.
#[derive(Debug)]
pub(crate) struct Predecessor {
    pub(crate) id: NodeId,
    boot_id: Option<String>,
    last_seen_at: DateTime<Utc>,
    lease_expires_at: DateTime<Utc>,
    /// An agent that leaves withdraws what it offers.
    offers: bool,
}

impl Predecessor {
    /// Whether it lives and is not the agent of this boot.
    pub(crate) fn keeps_its_name(
        &self,
        boot_id: Option<&str>,
        terms: LeaseTerms,
        now: DateTime<Utc>,
    ) -> bool {
        let Some(own) = &self.boot_id else { return false };
        let is_live =
            self.offers && terms.takes_work(self.last_seen_at, self.lease_expires_at, now);
        is_live && boot_id != Some(own)
    }
}

/// The node whose place one that joins under this name would take.
pub(crate) async fn find_predecessor(
    db: &mut PgConnection,
    organisation: OrganisationId,
    name: &str,
) -> sqlx::Result<Option<Predecessor>> {
    query_as!(
        Predecessor,
        r#"SELECT node_id AS "id: NodeId", boot_id, last_seen_at, lease_expires_at,
                  EXISTS (SELECT FROM slot WHERE slot.node_id = node.node_id) AS "offers!"
           FROM node WHERE organisation_id = $1 AND name = $2"#,
        organisation as OrganisationId,
        name,
    )
    .fetch_optional(db)
    .await
}

/// A machine that joins.
#[derive(Debug)]
pub(crate) struct NewNode<'a> {
    /// Kept if the name is new.
    pub(crate) id: NodeId,
    pub(crate) organisation_id: OrganisationId,
    pub(crate) name: &'a str,
    pub(crate) token_public_id: &'a str,
    pub(crate) token_hash: &'a [u8],
    pub(crate) memory_mib: i32,
    pub(crate) lease_expires_at: DateTime<Utc>,
}

/// Makes the node, or lets the machine take the place of the one that had the name: the old token is dead from now on, and
/// reports are counted anew.
pub(crate) async fn join(
    db: &mut PgConnection,
    node: NewNode<'_>,
    now: DateTime<Utc>,
) -> sqlx::Result<NodeId> {
    let NewNode {
        id,
        organisation_id,
        name,
        token_public_id,
        token_hash,
        memory_mib,
        lease_expires_at,
    } = node;
    query_scalar!(
        r#"
        INSERT INTO node (node_id, organisation_id, name, token_public_id, token_hash, memory_mib, joined_at,
                          last_seen_at, lease_expires_at)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $7, $8)
        ON CONFLICT (organisation_id, name) DO UPDATE
        SET token_public_id = $4, token_hash = $5, memory_mib = $6, joined_at = $7, last_seen_at = $7,
            lease_expires_at = $8, boot_id = NULL, host = NULL, acked_seq = 0,
            assignment_version = node.assignment_version + 1
        RETURNING node_id AS "node_id: NodeId"
        "#,
        id as NodeId,
        organisation_id as OrganisationId,
        name,
        token_public_id,
        token_hash,
        memory_mib,
        now,
        lease_expires_at,
    )
    .fetch_one(db)
    .await
}

/// The slots that the node is known to have, in order of device and index.
pub(crate) async fn slots(db: &mut PgConnection, node: NodeId) -> sqlx::Result<Vec<Slot>> {
    query_as!(
        Slot,
        r#"
        SELECT device AS "device: DeviceKind", slot_index AS index, cores, memory_mib, model, device_uuid
        FROM slot WHERE node_id = $1 ORDER BY device, slot_index
        "#,
        node as NodeId,
    )
    .fetch_all(db)
    .await
}

/// Makes the node's slots those of `offer`.
pub(crate) async fn replace_slots(
    db: &mut PgConnection,
    node: NodeId,
    offer: &Offer,
) -> sqlx::Result<()> {
    let Offer { memory_mib, slots } = offer;
    query!("UPDATE node SET memory_mib = $2 WHERE node_id = $1", node as NodeId, memory_mib)
        .execute(&mut *db)
        .await?;
    query!("DELETE FROM slot WHERE node_id = $1", node as NodeId).execute(&mut *db).await?;
    for Slot { device, index, cores, memory_mib, model, device_uuid } in slots {
        query!(
            "INSERT INTO slot (node_id, device, slot_index, cores, memory_mib, model, device_uuid)
             VALUES ($1, $2, $3, $4, $5, $6, $7)",
            node as NodeId,
            *device as DeviceKind,
            index,
            cores,
            memory_mib,
            model.as_deref(),
            device_uuid.as_deref(),
        )
        .execute(&mut *db)
        .await?;
    }
    Ok(())
}

/// Whether the sender is the boot that the server knows.
#[must_use]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Boot {
    Known,
    /// Another one was heard of later, or none yet.
    Other,
}

/// From now on the node is under this boot, on this host. Answers whether it was before: an agent does not move.
pub(crate) async fn set_boot_id(
    db: &mut PgConnection,
    node: NodeId,
    boot_id: &str,
    host: &str,
) -> sqlx::Result<Boot> {
    let touched = query!(
        "UPDATE node SET boot_id = $2, host = $3 WHERE node_id = $1 AND boot_id IS DISTINCT FROM $2",
        node as NodeId,
        boot_id,
        host,
    )
    .execute(db)
    .await?
    .rows_affected();
    Ok(if touched == 0 { Boot::Known } else { Boot::Other })
}

/// The node was heard: its lease goes on, if it is under this boot.
pub(crate) async fn renew(
    db: &mut PgConnection,
    node: NodeId,
    boot_id: &str,
    now: DateTime<Utc>,
    lease_expires_at: DateTime<Utc>,
) -> sqlx::Result<Boot> {
    let touched = query!(
        "UPDATE node
         SET last_seen_at = greatest(last_seen_at, $3), lease_expires_at = greatest(lease_expires_at, $4)
         WHERE node_id = $1 AND boot_id = $2",
        node as NodeId,
        boot_id,
        now,
        lease_expires_at,
    )
    .execute(db)
    .await?
    .rows_affected();
    Ok(if touched == 1 { Boot::Known } else { Boot::Other })
}

/// What a parked poll waits for.
pub(crate) async fn assignment_version(db: &mut PgConnection, node: NodeId) -> sqlx::Result<i64> {
    query_scalar!("SELECT assignment_version FROM node WHERE node_id = $1", node as NodeId)
        .fetch_one(db)
        .await
}

/// Locks the rows of `nodes`, in order of id.
pub(crate) async fn lock(db: &mut PgConnection, nodes: &[NodeId]) -> sqlx::Result<()> {
    query!(
        "SELECT node_id FROM node WHERE node_id = ANY($1) ORDER BY node_id FOR UPDATE",
        &uuids(nodes),
    )
    .fetch_all(db)
    .await
    .map(drop)
}

/// The sets of these nodes changed. Their rows are locked.
pub(crate) async fn bump(db: &mut PgConnection, nodes: &[NodeId]) -> sqlx::Result<()> {
    query!(
        "UPDATE node SET assignment_version = assignment_version + 1 WHERE node_id = ANY($1)",
        &uuids(nodes),
    )
    .execute(db)
    .await
    .map(drop)
}

/// The highest report handled.
pub(crate) async fn acked_seq(db: &mut PgConnection, node: NodeId) -> sqlx::Result<i64> {
    query_scalar!("SELECT acked_seq FROM node WHERE node_id = $1", node as NodeId)
        .fetch_one(db)
        .await
}

/// Reports up to `seq` are handled.
pub(crate) async fn ack(db: &mut PgConnection, node: NodeId, seq: i64) -> sqlx::Result<()> {
    query!(
        "UPDATE node SET acked_seq = $2 WHERE node_id = $1 AND acked_seq < $2",
        node as NodeId,
        seq
    )
    .execute(db)
    .await
    .map(drop)
}

/// The node takes no new work since then, or does again.
pub(crate) async fn set_drain(
    db: &mut PgConnection,
    node: NodeId,
    since: Option<DateTime<Utc>>,
) -> sqlx::Result<()> {
    query!(
        "UPDATE node SET drain_requested_at = CASE WHEN $2::timestamptz IS NOT NULL THEN coalesce(drain_requested_at, $2) END
         WHERE node_id = $1",
        node as NodeId,
        since,
    )
    .execute(db)
    .await
    .map(drop)
}

/// Nodes that take no new work because someone asked.
pub(crate) async fn draining(db: &mut PgConnection) -> sqlx::Result<Vec<NodeId>> {
    query_scalar!(
        r#"SELECT node_id AS "node_id: NodeId" FROM node WHERE drain_requested_at IS NOT NULL ORDER BY node_id"#
    )
    .fetch_all(db)
    .await
}

/// Nodes whose lease has run out, and when.
pub(crate) async fn expired(
    db: &mut PgConnection,
    now: DateTime<Utc>,
) -> sqlx::Result<Vec<(NodeId, DateTime<Utc>)>> {
    let rows = query!(
        r#"SELECT node_id AS "node_id: NodeId", lease_expires_at FROM node
           WHERE lease_expires_at <= $1 ORDER BY node_id"#,
        now,
    )
    .fetch_all(db)
    .await?;
    Ok(rows.into_iter().map(|row| (row.node_id, row.lease_expires_at)).collect())
}

/// Nobody could renew a lease while no server was there.
pub(crate) async fn extend_leases(
    db: &mut PgConnection,
    lease_expires_at: DateTime<Utc>,
) -> sqlx::Result<()> {
    query!(
        "UPDATE node SET lease_expires_at = $1
         WHERE node_id IN (SELECT node_id FROM node WHERE lease_expires_at < $1 ORDER BY node_id FOR UPDATE)",
        lease_expires_at,
    )
    .execute(db)
    .await
    .map(drop)
}

/// A node with its slots.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    pub(crate) id: NodeId,
    pub(crate) organisation_id: OrganisationId,
    pub(crate) name: String,
    pub(crate) last_seen_at: DateTime<Utc>,
    pub(crate) lease_expires_at: DateTime<Utc>,
    /// Whether its agent has polled since it joined.
    pub(crate) has_polled: bool,
    /// Since when it takes no new work because someone asked.
    pub(crate) drain_requested_at: Option<DateTime<Utc>>,
    pub(crate) slots: Vec<Slot>,
}

impl Node {
    /// Whether its agent is known, its lease holds and it was heard within one.
    pub(crate) fn is_live(&self, terms: LeaseTerms, now: DateTime<Utc>) -> bool {
        self.has_polled && terms.takes_work(self.last_seen_at, self.lease_expires_at, now)
    }
}

/// All nodes, or those of one organisation, by name.
pub(crate) async fn list(
    db: &mut PgConnection,
    organisation: Option<OrganisationId>,
) -> sqlx::Result<Vec<Node>> {
    let rows = query!(
        r#"
        SELECT node_id AS "id: NodeId", organisation_id AS "organisation_id: OrganisationId", name, last_seen_at,
               lease_expires_at, boot_id IS NOT NULL AS "has_polled!", drain_requested_at
        FROM node WHERE $1::uuid IS NULL OR organisation_id = $1 ORDER BY name, node_id LIMIT $2
        "#,
        organisation.map(|id| id.0),
        NODES_LISTED,
    )
    .fetch_all(&mut *db)
    .await?;
    let ids: Vec<Uuid> = rows.iter().map(|row| row.id.0).collect();
    let mut slots: BTreeMap<NodeId, Vec<Slot>> = BTreeMap::new();
    let found = query!(
        r#"
        SELECT node_id AS "node_id: NodeId", device AS "device: DeviceKind", slot_index, cores, memory_mib, model,
               device_uuid
        FROM slot WHERE node_id = ANY($1) ORDER BY node_id, device, slot_index
        "#,
        &ids,
    )
    .fetch_all(db)
    .await?;
    for row in found {
        slots.entry(row.node_id).or_default().push(Slot {
            device: row.device,
            index: row.slot_index,
            cores: row.cores,
            memory_mib: row.memory_mib,
            model: row.model,
            device_uuid: row.device_uuid,
        });
    }
    let nodes = rows.into_iter().map(|row| Node {
        id: row.id,
        organisation_id: row.organisation_id,
        name: row.name,
        last_seen_at: row.last_seen_at,
        lease_expires_at: row.lease_expires_at,
        has_polled: row.has_polled,
        drain_requested_at: row.drain_requested_at,
        slots: slots.remove(&row.id).unwrap_or_default(),
    });
    Ok(nodes.collect())
}

fn uuids(nodes: &[NodeId]) -> Vec<Uuid> {
    nodes.iter().map(|id| id.0).collect()
}
