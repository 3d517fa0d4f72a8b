//! The groups that an attempt's ranks form one after the other, and the processes that come and go with them.

use std::collections::BTreeSet;

use chrono::{DateTime, Utc};
use lockstep_api::{
    AttemptId, DeviceKind, Generation, JobId, JobSpec, NodeId, OrganisationId, ProjectId, Rank,
    SlotSpec, Transport,
};
use lockstep_core::{Refill, Replacement};
use sqlx::types::Json;
use sqlx::{PgConnection, query, query_scalar};

/// A slot of a node.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Slot {
    pub(crate) node: NodeId,
    pub(crate) device: DeviceKind,
    pub(crate) index: i32,
}

/// A process to be started.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NewMember {
    pub(crate) process: i32,
    pub(crate) rank: Rank,
    pub(crate) slot: Slot,
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

/// The group of the present generation: other processes in the place of the lost ones, and nobody ready yet.
pub(crate) async fn begin_generation(
    db: &mut PgConnection,
    group: Group,
    (replacements, memories): (&[Replacement], &[(Rank, i32)]),
    now: DateTime<Utc>,
) -> sqlx::Result<()> {
    let (_, attempt, _) = group;
    let memory_of = |rank: Rank| memories.iter().find(|it| it.0 == rank).map_or(0, |it| it.1);
    for Replacement { rank, process, place } in replacements {
        let slot = match place {
            Some(Refill { node, device, index, .. }) => {
                Slot { node: *node, device: *device, index: *index }
            }
            // From one process to the next: the agent lets only one of them live.
            None => hand_over(db, attempt, *rank, now).await?,
        };
        let memory_index = memory_of(*rank);
        let member = NewMember { process: *process, rank: *rank, slot, memory_index };
        insert_member(db, group, member).await?;
    }
    let (ranks, indices): (Vec<i32>, Vec<i32>) =
        memories.iter().map(|(rank, index)| (rank.0, *index)).unzip();
    query!(
        "UPDATE group_member
         SET endpoints = NULL, prepared_at = NULL, memory_index = m.memory_index,
             last_entered = NULL, last_left = NULL, collective = NULL, entered_at = NULL
         FROM unnest($2::integer[], $3::integer[]) AS m (rank, memory_index)
         WHERE attempt_id = $1 AND group_member.rank = m.rank AND evicted_at IS NULL",
        attempt as AttemptId,
        &ranks,
        &indices,
    )
    .execute(&mut *db)
    .await?;
    insert_generation(db, group, memories.len(), now).await
}

/// Evicts a rank's process and frees the slot that it answers.
async fn hand_over(
    db: &mut PgConnection,
    attempt: AttemptId,
    rank: Rank,
    now: DateTime<Utc>,
) -> sqlx::Result<Slot> {
    let row = query!(
        r#"UPDATE group_member SET evicted_at = $3, released_at = coalesce(released_at, $3)
           WHERE attempt_id = $1 AND rank = $2 AND evicted_at IS NULL
           RETURNING node_id AS "node: NodeId", device AS "device: DeviceKind", slot_index"#,
        attempt as AttemptId,
        rank as Rank,
        now,
    )
    .fetch_one(db)
    .await?;
    Ok(Slot { node: row.node, device: row.device, index: row.slot_index })
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
    pub(crate) ranks: BTreeSet<Rank>,
    pub(crate) slot: SlotSpec,
    pub(crate) transport: Transport,
}

/// Attempts that wait for slots for some of their ranks, the oldest first.
pub(crate) async fn with_vacancies(db: &mut PgConnection) -> sqlx::Result<Vec<Vacancies>> {
    let rows = query!(
        r#"
        SELECT attempt_id AS "id: AttemptId", attempt.job_id AS "job_id: JobId",
               project.organisation_id AS "organisation_id: OrganisationId", spec AS "spec: Json<JobSpec>",
               ARRAY(SELECT DISTINCT m.rank FROM group_member AS m
                     WHERE m.attempt_id = attempt.attempt_id
                       AND NOT EXISTS (SELECT FROM group_member AS n
                                       WHERE n.attempt_id = m.attempt_id AND n.rank = m.rank
                                         AND n.evicted_at IS NULL)) AS "ranks!"
        FROM attempt JOIN job ON job.job_id = attempt.job_id JOIN project ON project.project_id = job.project_id
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
        ranks: row.ranks.into_iter().map(Rank).collect(),
        slot: row.spec.0.gang.slot,
        transport: row.spec.0.ddp.transport,
    });
    Ok(vacancies.filter(|it| !it.ranks.is_empty()).collect())
}
