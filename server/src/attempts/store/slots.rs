//! What the placement reads of attempts at work: who waits for slots, who could do with more, and which are about to be free.

use std::collections::BTreeSet;

use chrono::{DateTime, Utc};
use lockstep_api::{
    AttemptId, DeviceKind, JobId, JobSpec, NodeId, OrganisationId, Rank, RankCount, SlotSpec,
    Transport,
};
use lockstep_core::{Coming, SlotKey};
use sqlx::types::Json;
use sqlx::{PgConnection, query};

/// Whether someone else took a slot meanwhile.
pub(crate) fn is_slot_taken(error: &sqlx::Error) -> bool {
    let database = error.as_database_error();
    database.is_some_and(|it| it.constraint() == Some("group_member_holds_its_slot_alone"))
}

/// An attempt with ranks whose processes were given up.
#[derive(Debug, Clone)]
pub(crate) struct Vacancies {
    pub(crate) id: AttemptId,
    pub(crate) job_id: JobId,
    pub(crate) organisation_id: OrganisationId,
    /// Those ranks.
    pub(crate) vacant: BTreeSet<Rank>,
    pub(crate) rank_count: RankCount,
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
        rank_count: row.spec.0.gang.ranks,
        slot: row.spec.0.gang.slot,
        transport: row.spec.0.ddp.transport,
    });
    Ok(vacancies.filter(|it| !it.vacant.is_empty()).collect())
}

/// An attempt at work whose gang may change its size.
#[derive(Debug, Clone)]
pub(crate) struct ElasticAttempt {
    pub(crate) id: AttemptId,
    pub(crate) job_id: JobId,
    pub(crate) organisation_id: OrganisationId,
    pub(crate) rank_count: RankCount,
    pub(crate) slot: SlotSpec,
    pub(crate) transport: Transport,
    /// Steps that it has done, those that are left, and since when it does them.
    pub(crate) course: (i64, i64),
    pub(crate) began_at: DateTime<Utc>,
    /// Of its ranks, in order.
    pub(crate) slots: Vec<SlotKey>,
}

/// Attempts whose gangs may change their size and have done a step since they last did, the oldest first. Only a first choice:
/// the core decides. An elastic `gang.ranks` is the one that is a table.
pub(crate) async fn elastic(db: &mut PgConnection) -> sqlx::Result<Vec<ElasticAttempt>> {
    let rows = query!(
        r#"
        SELECT attempt_id AS "id: AttemptId", attempt.job_id AS "job_id: JobId",
               project.organisation_id AS "organisation_id: OrganisationId", spec AS "spec: Json<JobSpec>",
               node_id AS "node: NodeId", device AS "device: DeviceKind", slot_index,
               steps_done - first_step AS "done!", steps_total - steps_done AS "left!",
               coalesce(attempt.first_step_at, attempt.created_at) AS "began_at!"
        FROM attempt JOIN group_generation AS g USING (attempt_id, generation) JOIN group_member USING (attempt_id)
             JOIN job ON job.job_id = attempt.job_id JOIN project ON project.project_id = job.project_id
        WHERE attempt.state = 'running' AND g.first_step_at IS NOT NULL AND evicted_at IS NULL
          AND jsonb_typeof(spec -> 'gang' -> 'ranks') = 'object'
        ORDER BY attempt.created_at, attempt_id, rank
        "#,
    )
    .fetch_all(db)
    .await?;
    let mut elastic: Vec<ElasticAttempt> = Vec::new();
    for row in rows {
        let slot = SlotKey { node: row.node, device: row.device, index: row.slot_index };
        match elastic.last_mut() {
            Some(last) if last.id == row.id => last.slots.push(slot),
            Some(_) | None => elastic.push(ElasticAttempt {
                id: row.id,
                job_id: row.job_id,
                organisation_id: row.organisation_id,
                rank_count: row.spec.0.gang.ranks,
                slot: row.spec.0.gang.slot,
                transport: row.spec.0.ddp.transport,
                course: (row.done, row.left),
                began_at: row.began_at,
                slots: vec![slot],
            }),
        }
    }
    Ok(elastic)
}

/// Held slots whose processes are about to go: they were given up, or their attempt is over or told to stop.
pub(crate) async fn coming_slots(db: &mut PgConnection) -> sqlx::Result<Coming> {
    let rows = query!(
        r#"SELECT node_id AS "node: NodeId", device AS "device: DeviceKind", slot_index,
                  coalesce(stopping = 'preempt', false) AS "is_preempted!"
           FROM group_member JOIN attempt USING (attempt_id) JOIN job ON job.job_id = attempt.job_id
           WHERE released_at IS NULL AND (evicted_at IS NOT NULL OR attempt.state IN ('stopping', 'ended'))"#
    )
    .fetch_all(db)
    .await?;
    let mut coming = Coming::default();
    for row in rows {
        let slot = SlotKey { node: row.node, device: row.device, index: row.slot_index };
        coming.slots.insert(slot);
        coming.preempted.extend(row.is_preempted.then_some(slot));
    }
    Ok(coming)
}
