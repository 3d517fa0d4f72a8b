//! Everything the database knows of attempts and their ranks. No other module names these tables.

pub(crate) mod arrival;
mod held;
mod locked;
mod network;
mod ranks;
mod read;
mod regroup;
mod resume;
mod slots;
mod stops;

use chrono::{DateTime, Utc};
use lockstep_api::{AttemptId, CheckpointId, Generation, JobId, ProjectId, Step};
use lockstep_core::{Placed, SlotKey};
use sqlx::types::Uuid;
use sqlx::{PgConnection, query, query_scalar};

pub(crate) use held::{
    at_work, extend_leases, held_after_end, held_slots, hold_fence, holding_nodes, of_node, renew,
    unfinished,
};
pub(crate) use locked::{LockedAttempt, lock, save};
pub(crate) use network::{Peer, peers, record_endpoints, record_prepared};
pub(crate) use ranks::{
    record_closed, record_exit, record_finish, record_positions, record_start, release,
};
pub(crate) use read::{Assigned, Branch, Newest, assigned, branch, idle, newest, views};
pub(crate) use regroup::{
    ANY, NewMember, begin_generation, evict, held_after_eviction, record_formed, record_progress,
    release_evicted,
};
pub(crate) use resume::{ended_holding, let_go, resumed_from};
pub(crate) use slots::{
    ElasticAttempt, Vacancies, coming_slots, elastic, is_slot_taken, with_vacancies,
};
pub(crate) use stops::{AtWork, all_at_work, record_stop};

/// The jobs of some attempts; those that do not exist are left out.
pub(crate) async fn jobs_of(
    db: &mut PgConnection,
    attempts: &[AttemptId],
) -> sqlx::Result<Vec<JobId>> {
    query_scalar!(
        r#"SELECT DISTINCT job_id AS "job_id: JobId" FROM attempt WHERE attempt_id = ANY($1)"#,
        &uuids(attempts),
    )
    .fetch_all(db)
    .await
}

/// A new attempt and the slots of its ranks.
#[derive(Debug)]
pub(crate) struct NewAttempt<'a> {
    pub(crate) id: AttemptId,
    pub(crate) project_id: ProjectId,
    pub(crate) job_id: JobId,
    pub(crate) generation: Generation,
    pub(crate) attempt_key: &'a str,
    pub(crate) resume: Option<(CheckpointId, Step)>,
    pub(crate) lease_expires_at: DateTime<Utc>,
    pub(crate) rendezvous_by: Option<DateTime<Utc>>,
    pub(crate) places: &'a [Placed],
}

/// Writes a new attempt down. A slot that someone else took meanwhile violates `group_member_holds_its_slot_alone`.
pub(crate) async fn insert(
    db: &mut PgConnection,
    attempt: NewAttempt<'_>,
    now: DateTime<Utc>,
) -> sqlx::Result<()> {
    let NewAttempt {
        id,
        project_id,
        job_id,
        generation,
        attempt_key,
        resume,
        lease_expires_at,
        rendezvous_by,
        places,
    } = attempt;
    let first_step = resume.map_or(Step(0), |(_, step)| step);
    query!(
        "INSERT INTO attempt (attempt_id, project_id, job_id, number, generation, state, attempt_key,
                              resume_checkpoint_id, first_step, steps_done, lease_expires_at, rendezvous_by,
                              created_at)
         VALUES ($1, $2, $3, (SELECT 1 + coalesce(max(number), 0) FROM attempt WHERE job_id = $3), $4, 'placing', $5,
                 $6, $7, $7, $8, $9, $10)",
        id as AttemptId,
        project_id as ProjectId,
        job_id as JobId,
        generation as Generation,
        attempt_key,
        resume.map(|(id, _)| id.0),
        first_step as Step,
        lease_expires_at,
        rendezvous_by,
        now,
    )
    .execute(&mut *db)
    .await?;
    for (process, place) in (0..).zip(places) {
        let Placed { rank, node, device, index, memory_index } = *place;
        let slot = SlotKey { node, device, index };
        let member = NewMember { process, rank, slot, memory_index };
        regroup::insert_member(&mut *db, (project_id, id, generation), member).await?;
    }
    regroup::insert_generation(db, (project_id, id, generation), places.len(), now).await
}

fn uuids(attempts: &[AttemptId]) -> Vec<Uuid> {
    attempts.iter().map(|id| id.0).collect()
}
