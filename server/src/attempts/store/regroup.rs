//! The groups that an attempt's ranks form one after the other, and the processes that come and go with them.

use std::collections::BTreeSet;

use chrono::{DateTime, Utc};
use lockstep_api::{
    AttemptId, DeviceKind, Generation, JobId, JobSpec, NodeId, OrganisationId, ProjectId, Rank,
    RankCount, SlotSpec, Transport,
};
use lockstep_core::{NewSlot, Refill, Replacement, Seated, SlotKey};
use sqlx::types::Json;
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
             last_entered = NULL, last_left = NULL, collective = NULL, entered_at = NULL
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

/// Processes on `node` that were given up are gone: of one attempt, or of all. Says whether a slot became free.
pub(crate) async fn release_evicted(
    db: &mut PgConnection,
    node: NodeId,
    attempt: Option<AttemptId>,
    now: DateTime<Utc>,
) -> sqlx::Result<bool> {
    let released = query!(
        "UPDATE group_member SET released_at = $3
         WHERE node_id = $1 AND ($2::uuid IS NULL OR attempt_id = $2)
           AND evicted_at IS NOT NULL AND released_at IS NULL",
        node as NodeId,
        attempt.map(|attempt| attempt.0),
        now,
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

/// An attempt with ranks whose processes were given up.
#[derive(Debug, Clone)]
pub(crate) struct Vacancies {
    pub(crate) id: AttemptId,
    pub(crate) job_id: JobId,
    pub(crate) organisation_id: OrganisationId,
    /// Those ranks.
    pub(crate) vacant: BTreeSet<Rank>,
    /// How many there are with them.
    pub(crate) world_size: u32,
    pub(crate) ranks: RankCount,
    pub(crate) slot: SlotSpec,
    pub(crate) transport: Transport,
}

/// Attempts that wait for slots for some of their ranks, the oldest first.
pub(crate) async fn with_vacancies(db: &mut PgConnection) -> sqlx::Result<Vec<Vacancies>> {
    let rows = query!(
        r#"
        SELECT attempt_id AS "id: AttemptId", attempt.job_id AS "job_id: JobId",
               project.organisation_id AS "organisation_id: OrganisationId", spec AS "spec: Json<JobSpec>",
               world_size,
               ARRAY(SELECT DISTINCT m.rank FROM group_member AS m
                     WHERE m.attempt_id = attempt.attempt_id AND m.rank < g.world_size
                       AND NOT EXISTS (SELECT FROM group_member AS n
                                       WHERE n.attempt_id = m.attempt_id AND n.rank = m.rank
                                         AND n.evicted_at IS NULL)) AS "vacant!"
        FROM attempt JOIN group_generation AS g USING (attempt_id, generation)
             JOIN job ON job.job_id = attempt.job_id JOIN project ON project.project_id = job.project_id
        WHERE attempt.state = 'recovering'
        ORDER BY attempt.created_at, attempt_id
        "#
    )
    .fetch_all(db)
    .await?;
    let vacancies = rows.into_iter().map(|row| Vacancies {
        id: row.id,
        job_id: row.job_id,
        organisation_id: row.organisation_id,
        vacant: row.vacant.into_iter().map(Rank).collect(),
        world_size: row.world_size.unsigned_abs(),
        ranks: row.spec.0.gang.ranks,
        slot: row.spec.0.gang.slot,
        transport: row.spec.0.ddp.transport,
    });
    Ok(vacancies.filter(|it| !it.vacant.is_empty()).collect())
}

/// An attempt at work whose gang may change its size.
#[derive(Debug, Clone)]
pub(crate) struct Elastic {
    pub(crate) id: AttemptId,
    pub(crate) job_id: JobId,
    pub(crate) organisation_id: OrganisationId,
    pub(crate) ranks: RankCount,
    pub(crate) slot: SlotSpec,
    pub(crate) transport: Transport,
    /// Of its ranks, in order.
    pub(crate) slots: Vec<SlotKey>,
}

/// Attempts whose gangs may change their size and have done a step since they last did, the oldest first.
pub(crate) async fn elastic(db: &mut PgConnection) -> sqlx::Result<Vec<Elastic>> {
    let rows = query!(
        r#"
        SELECT attempt_id AS "id: AttemptId", attempt.job_id AS "job_id: JobId",
               project.organisation_id AS "organisation_id: OrganisationId", spec AS "spec: Json<JobSpec>",
               node_id AS "node: NodeId", device AS "device: DeviceKind", slot_index
        FROM attempt JOIN group_generation AS g USING (attempt_id, generation) JOIN group_member USING (attempt_id)
             JOIN job ON job.job_id = attempt.job_id JOIN project ON project.project_id = job.project_id
        WHERE attempt.state = 'running' AND g.first_step_at IS NOT NULL AND evicted_at IS NULL
          AND jsonb_typeof(spec -> 'gang' -> 'ranks') = 'object'
        ORDER BY attempt.created_at, attempt_id, rank
        "#,
    )
    .fetch_all(db)
    .await?;
    let mut elastic: Vec<Elastic> = Vec::new();
    for row in rows {
        let slot = SlotKey { node: row.node, device: row.device, index: row.slot_index };
        match elastic.last_mut() {
            Some(last) if last.id == row.id => last.slots.push(slot),
            Some(_) | None => elastic.push(Elastic {
                id: row.id,
                job_id: row.job_id,
                organisation_id: row.organisation_id,
                ranks: row.spec.0.gang.ranks,
                slot: row.spec.0.gang.slot,
                transport: row.spec.0.ddp.transport,
                slots: vec![slot],
            }),
        }
    }
    Ok(elastic)
}

/// Held slots whose processes are about to go: they were given up, or their attempt is over or told to stop.
pub(crate) async fn coming_slots(db: &mut PgConnection) -> sqlx::Result<BTreeSet<SlotKey>> {
    let rows = query!(
        r#"SELECT node_id AS "node: NodeId", device AS "device: DeviceKind", slot_index
           FROM group_member JOIN attempt USING (attempt_id)
           WHERE released_at IS NULL AND (evicted_at IS NOT NULL OR state IN ('stopping', 'ended'))"#
    )
    .fetch_all(db)
    .await?;
    let key = |node, device, index| SlotKey { node, device, index };
    Ok(rows.into_iter().map(|row| key(row.node, row.device, row.slot_index)).collect())
}
