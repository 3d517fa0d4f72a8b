//! The groups that an attempt's ranks form one after the other, and the processes that come and go with them.

use chrono::{DateTime, Utc};
use lockstep_api::{AttemptId, DeviceKind, Generation, NodeId, ProjectId, Rank};
use lockstep_core::{NewSlot, Refill, Replacement, Seated, SlotKey};
use sqlx::{PgConnection, query, query_scalar};

/// A process to be started.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NewMember {
    pub(crate) process: i32,
    pub(crate) rank: Rank,
    pub(crate) slot: SlotKey,
    pub(crate) memory_index: i32,
}

type Group = (ProjectId, AttemptId, Generation);

/// Writes a process down. A slot that someone else took meanwhile violates `group_member_holds_its_slot_alone`.
pub(super) async fn insert_member(
    db: &mut PgConnection,
    (project_id, attempt, generation): Group,
    member: NewMember,
) -> sqlx::Result<()> {
    let NewMember { process, rank, slot, memory_index } = member;
    query!(
        "INSERT INTO group_member (project_id, attempt_id, process, rank, node_id, device, slot_index, memory_index,
                                   first_generation)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
        project_id as ProjectId,
        attempt as AttemptId,
        process,
        rank as Rank,
        slot.node as NodeId,
        slot.device as DeviceKind,
        slot.index,
        memory_index,
        generation as Generation,
    )
    .execute(db)
    .await
    .map(drop)
}

/// Writes down that a group begins.
pub(super) async fn insert_generation(
    db: &mut PgConnection,
    (project_id, attempt, generation): Group,
    world_size: usize,
    now: DateTime<Utc>,
) -> sqlx::Result<()> {
    query!(
        "INSERT INTO group_generation (project_id, attempt_id, generation, world_size, began_at)
         VALUES ($1, $2, $3, $4, $5)",
        project_id as ProjectId,
        attempt as AttemptId,
        generation as Generation,
        i32::try_from(world_size).unwrap_or(i32::MAX),
        now,
    )
    .execute(db)
    .await
    .map(drop)
}

/// A rank's process is given up. Its slot stays as it is.
pub(crate) async fn evict(
    db: &mut PgConnection,
    attempt: AttemptId,
    rank: Rank,
    now: DateTime<Utc>,
) -> sqlx::Result<()> {
    query!(
        "UPDATE group_member SET evicted_at = $3 WHERE attempt_id = $1 AND rank = $2 AND evicted_at IS NULL",
        attempt as AttemptId,
        rank as Rank,
        now,
    )
    .execute(db)
    .await
    .map(drop)
}

/// The group of the present generation: everybody's seat, other processes in the place of the lost ones, and nobody ready yet.
pub(crate) async fn begin_generation(
    db: &mut PgConnection,
    group: Group,
    (replacements, seats): (&[Replacement], &[Seated]),
    now: DateTime<Utc>,
) -> sqlx::Result<()> {
    let (_, attempt, _) = group;
    let mut slots = Vec::with_capacity(replacements.len());
    for Replacement { slot, .. } in replacements {
        slots.push(match slot {
            NewSlot::Free(Refill { node, device, index, .. }) => {
                SlotKey { node: *node, device: *device, index: *index }
            }
            // From one process to the next: the agent lets only one of them live.
            NewSlot::Of(process) => hand_over(db, attempt, *process, now).await?,
        });
    }
    seat(db, attempt, seats).await?;
    for (Replacement { rank, process, .. }, slot) in replacements.iter().zip(slots) {
        let memory_index = seats.iter().find(|it| it.rank == *rank).map_or(0, |it| it.memory_index);
        let member = NewMember { process: *process, rank: *rank, slot, memory_index };
        insert_member(db, group, member).await?;
    }
    insert_generation(db, group, seats.len(), now).await
}

/// Seats the processes that go on.
async fn seat(db: &mut PgConnection, attempt: AttemptId, seats: &[Seated]) -> sqlx::Result<()> {
    let processes: Vec<i32> = seats.iter().map(|it| it.process).collect();
    let ranks: Vec<i32> = seats.iter().map(|it| it.rank.0).collect();
    let indices: Vec<i32> = seats.iter().map(|it| it.memory_index).collect();
    // Out of each other's way first: every rank has one process at any time.
    query!(
        "UPDATE group_member
         SET rank = -1 - m.rank, endpoints = NULL, prepared_at = NULL, memory_index = m.memory_index,
             last_entered = NULL, last_left = NULL, collective = NULL, entered_at = NULL,
             further_lanes = NULL
         FROM unnest($2::integer[], $3::integer[], $4::integer[]) AS m (process, rank, memory_index)
         WHERE attempt_id = $1 AND group_member.process = m.process AND evicted_at IS NULL",
        attempt as AttemptId,
        &processes,
        &ranks,
        &indices,
    )
    .execute(&mut *db)
    .await?;
    query!(
        "UPDATE group_member SET rank = -1 - rank WHERE attempt_id = $1 AND rank < 0",
        attempt as AttemptId
    )
    .execute(db)
    .await
    .map(drop)
}

/// Evicts a process and frees the slot that it answers.
async fn hand_over(
    db: &mut PgConnection,
    attempt: AttemptId,
    process: i32,
    now: DateTime<Utc>,
) -> sqlx::Result<SlotKey> {
    let row = query!(
        r#"UPDATE group_member SET evicted_at = $3, released_at = coalesce(released_at, $3)
           WHERE attempt_id = $1 AND process = $2 AND evicted_at IS NULL
           RETURNING node_id AS "node: NodeId", device AS "device: DeviceKind", slot_index"#,
        attempt as AttemptId,
        process,
        now,
    )
    .fetch_one(db)
    .await?;
    Ok(SlotKey { node: row.node, device: row.device, index: row.slot_index })
}

/// The group of `generation` has formed.
pub(crate) async fn record_formed(
    db: &mut PgConnection,
    attempt: AttemptId,
    generation: Generation,
    now: DateTime<Utc>,
) -> sqlx::Result<()> {
    query!(
        "UPDATE group_generation SET formed_at = coalesce(formed_at, $3) WHERE attempt_id = $1 AND generation = $2",
        attempt as AttemptId,
        generation as Generation,
        now,
    )
    .execute(db)
    .await
    .map(drop)
}

/// A step was done under `generation`.
pub(crate) async fn record_progress(
    db: &mut PgConnection,
    attempt: AttemptId,
    generation: Generation,
    now: DateTime<Utc>,
) -> sqlx::Result<()> {
    query!(
        "UPDATE group_generation SET first_step_at = $3
         WHERE attempt_id = $1 AND generation = $2 AND first_step_at IS NULL",
        attempt as AttemptId,
        generation as Generation,
        now,
    )
    .execute(db)
    .await
    .map(drop)
}

/// Whatever generation.
pub(crate) const ANY: Generation = Generation(i64::MAX);

/// Processes on `node` that were given up are gone: of one attempt, as far as they were started under a generation that the
/// word is of or before, or of all. Says whether a slot became free.
pub(crate) async fn release_evicted(
    db: &mut PgConnection,
    node: NodeId,
    attempt: Option<(AttemptId, Generation)>,
    now: DateTime<Utc>,
) -> sqlx::Result<bool> {
    let released = query!(
        "UPDATE group_member SET released_at = $3
         WHERE node_id = $1 AND ($2::uuid IS NULL OR (attempt_id = $2 AND first_generation <= $4))
           AND evicted_at IS NOT NULL AND released_at IS NULL",
        node as NodeId,
        attempt.map(|(attempt, _)| attempt.0),
        now,
        attempt.map(|(_, generation)| generation.0),
    )
    .execute(db)
    .await?;
    Ok(0 < released.rows_affected())
}

/// Attempts of which `node` held a process that was given up before `evicted_before`.
pub(crate) async fn held_after_eviction(
    db: &mut PgConnection,
    node: NodeId,
    evicted_before: DateTime<Utc>,
) -> sqlx::Result<Vec<AttemptId>> {
    query_scalar!(
        r#"SELECT DISTINCT attempt_id AS "attempt_id: AttemptId" FROM group_member
           WHERE node_id = $1 AND released_at IS NULL AND evicted_at <= $2"#,
        node as NodeId,
        evicted_before,
    )
    .fetch_all(db)
    .await
}
