//! Attempts whose rows a transaction holds: read whole, decided by the core, written back.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};
use lockstep_api::{
    AttemptId, AttemptOutcome, AttemptState, Generation, JobId, Lane, NodeId, ProjectId, Rank,
    RankCount, Step, Transport,
};
use lockstep_core::{Attempt, Gang, Member, News, Place, Readiness, Stage};
use sqlx::types::{Json, Uuid};
use sqlx::{PgConnection, query};

use super::arrival::FurtherLane;
use super::uuids;
use crate::progress;

/// An attempt whose row this transaction holds.
#[derive(Debug, Clone)]
pub(crate) struct LockedAttempt {
    pub(crate) id: AttemptId,
    pub(crate) project_id: ProjectId,
    pub(crate) job_id: JobId,
    pub(crate) steps_done: Step,
    pub(crate) first_step_at: Option<DateTime<Utc>>,
    pub(crate) core: Attempt,
}

impl LockedAttempt {
    /// The nodes that run its ranks, in order.
    pub(crate) fn nodes(&self) -> Vec<NodeId> {
        let members = self.core.gang.members.values().filter(|m| m.place != Place::Vacant);
        let nodes: BTreeSet<_> = members.map(|m| m.node).collect();
        nodes.into_iter().collect()
    }
}

/// Locks the rows of `attempts`, in order of id. Their jobs' rows are locked already.
pub(crate) async fn lock(
    db: &mut PgConnection,
    attempts: &[AttemptId],
) -> sqlx::Result<Vec<LockedAttempt>> {
    let ids = uuids(attempts);
    let rows = query!(
        r#"
        SELECT
            attempt_id AS "id: AttemptId",
            attempt.project_id AS "project_id: ProjectId",
            job_id     AS "job_id: JobId",
            generation AS "generation: Generation",
            state      AS "state: AttemptState",
            outcome    AS "outcome: AttemptOutcome",
            steps_done AS "steps_done: Step",
            lease_expires_at,
            rendezvous_by,
            recovering_since,
            stop_requested_at,
            attempt.first_step_at,
            began_at,
            g.first_step_at IS NOT NULL AS "has_progressed!",
            (SELECT coalesce(max(h.generation) FILTER (WHERE h.first_step_at IS NOT NULL), min(h.generation))
             FROM group_generation AS h
             WHERE h.attempt_id = attempt.attempt_id) AS "has_state_from!: Generation",
            NOT EXISTS (SELECT FROM failure AS f
                        WHERE f.attempt_id = attempt.attempt_id AND f.generation = attempt.generation - 1
                          AND NOT f.is_effect)
                AND EXISTS (SELECT FROM group_generation AS h
                            WHERE h.attempt_id = attempt.attempt_id AND h.generation = attempt.generation - 1)
                AS "is_planned!",
            (SELECT coalesce(max(process), -1) + 1 FROM group_member AS m
             WHERE m.attempt_id = attempt.attempt_id) AS "next_process!"
        FROM attempt JOIN group_generation AS g USING (attempt_id, generation)
        WHERE attempt_id = ANY($1) ORDER BY attempt_id FOR UPDATE OF attempt
        "#,
        &ids,
    )
    .fetch_all(&mut *db)
    .await?;
    let mut members = members(db, &ids).await?;
    let mut suspects = progress::store::suspects(db, attempts).await?;
    let attempts = rows.into_iter().map(|row| {
        let since = (row.recovering_since, row.stop_requested_at);
        let stage = stage((row.state, row.outcome), since, row.lease_expires_at);
        let gang = Gang {
            generation: row.generation,
            began_at: row.began_at,
            lease_expires_at: row.lease_expires_at,
            members: members.remove(&row.id).unwrap_or_default(),
            rendezvous_by: row.rendezvous_by,
            suspect: suspects.remove(&row.id),
            // The job says so: see `drive`.
            ranks: RankCount::Fixed(0),
            transport: Transport::Auto,
            has_copies: false,
            has_progressed: row.has_progressed,
            has_state_from: row.has_state_from,
            is_planned: row.is_planned,
            next_process: row.next_process,
            shunned: BTreeSet::new(),
        };
        LockedAttempt {
            id: row.id,
            project_id: row.project_id,
            job_id: row.job_id,
            steps_done: row.steps_done,
            first_step_at: row.first_step_at,
            core: Attempt { gang, stage },
        }
    });
    Ok(attempts.collect())
}

fn stage(
    (state, outcome): (AttemptState, Option<AttemptOutcome>),
    (recovering_since, stop_requested_at): (Option<DateTime<Utc>>, Option<DateTime<Utc>>),
    otherwise: DateTime<Utc>,
) -> Stage {
    match (state, outcome) {
        (_, Some(outcome)) => Stage::Ended(outcome),
        (AttemptState::Placing, None) => Stage::Placing,
        (AttemptState::Starting, None) => Stage::Starting,
        (AttemptState::Running, None) => Stage::Running,
        (AttemptState::Recovering, None) => {
            Stage::Recovering { since: recovering_since.unwrap_or(otherwise) }
        }
        // The schema has no ended attempt without an outcome.
        (AttemptState::Stopping | AttemptState::Ended, None) => {
            Stage::Stopping { since: stop_requested_at.unwrap_or(otherwise) }
        }
    }
}

async fn members(
    db: &mut PgConnection,
    attempts: &[Uuid],
) -> sqlx::Result<BTreeMap<AttemptId, BTreeMap<Rank, Member>>> {
    let rows = query!(
        r#"
        SELECT DISTINCT ON (attempt_id, rank)
            attempt_id AS "attempt_id: AttemptId",
            rank       AS "rank: Rank",
            node_id    AS "node_id: NodeId",
            node.name  AS node_name,
            endpoints IS NOT NULL   AS "listens!",
            prepared_at IS NOT NULL AS "is_prepared!",
            evicted_at IS NOT NULL  AS "is_vacant!",
            first_generation AS "first_generation: Generation",
            node.last_seen_at AS node_seen_at,
            closed_at IS NOT NULL   AS "is_closed!",
            CASE WHEN last_left < last_entered AND phase <> 'recovering' THEN last_entered END AS inside,
            CASE WHEN phase <> 'recovering' THEN further_lanes END AS "further_lanes: Json<Vec<FurtherLane>>",
            is_stopped, seen_at, process, exit_code, signal, finished_at, released_at
        FROM group_member JOIN node USING (node_id)
        JOIN attempt USING (attempt_id)
        JOIN group_generation AS g USING (attempt_id, generation)
        WHERE attempt_id = ANY($1) AND rank < g.world_size
        ORDER BY attempt_id, rank, evicted_at DESC NULLS FIRST, process DESC
        "#,
        attempts,
    )
    .fetch_all(db)
    .await?;
    let mut members: BTreeMap<AttemptId, BTreeMap<Rank, Member>> = BTreeMap::new();
    for row in rows {
        let place = match (row.released_at, row.finished_at, row.exit_code, row.signal) {
            _ if row.is_vacant => Place::Vacant,
            (None, ..) => Place::Held,
            (Some(_), Some(_), ..) => Place::Finished,
            (Some(_), None, Some(0), None) if !row.is_closed => Place::Left,
            (Some(_), None, ..) => Place::Gone,
        };
        let readiness = Readiness { listens: row.listens, is_prepared: row.is_prepared };
        let is_stopped = row.is_stopped;
        let further = row.further_lanes.map_or_else(Vec::new, |Json(lanes)| lanes);
        let further = further.into_iter().filter(|it| it.left < it.entered);
        let first = row.inside.map(|entered| (Lane(0), entered));
        let inside = first.into_iter().chain(further.map(|it| (it.lane, it.entered))).collect();
        let news = row.seen_at.map(|seen_at| News { seen_at, is_stopped, inside });
        let member = Member {
            node: row.node_id,
            node_name: row.node_name,
            place,
            readiness,
            process: row.process,
            first_generation: row.first_generation,
            node_seen_at: row.node_seen_at,
            news,
        };
        members.entry(row.attempt_id).or_default().insert(row.rank, member);
    }
    Ok(members)
}

/// Writes down what the core decided of an attempt whose row is locked. A lease never gets shorter.
pub(crate) async fn save(
    db: &mut PgConnection,
    attempt: &LockedAttempt,
    now: DateTime<Utc>,
) -> sqlx::Result<()> {
    let Attempt { gang, stage } = &attempt.core;
    let (outcome, stop_requested_at) = match stage {
        Stage::Ended(outcome) => (Some(*outcome), None),
        Stage::Stopping { since } => (None, Some(*since)),
        Stage::Placing | Stage::Starting | Stage::Running | Stage::Recovering { .. } => {
            (None, None)
        }
    };
    let recovering_since = match stage {
        Stage::Recovering { since } => Some(*since),
        _ => None,
    };
    query!(
        "UPDATE attempt
         SET state = $3, outcome = $4, stop_requested_at = coalesce($5, stop_requested_at), steps_done = $6,
             first_step_at = $7, lease_expires_at = greatest(lease_expires_at, $8), generation = $2,
             ended_at = CASE WHEN $3 = 'ended'::attempt_state THEN coalesce(ended_at, $9) END,
             recovering_since = $10, rendezvous_by = $11
         WHERE attempt_id = $1 AND generation <= $2",
        attempt.id as AttemptId,
        gang.generation as Generation,
        stage.label() as AttemptState,
        outcome as Option<AttemptOutcome>,
        stop_requested_at,
        attempt.steps_done as Step,
        attempt.first_step_at,
        gang.lease_expires_at,
        now,
        recovering_since,
        gang.rendezvous_by,
    )
    .execute(db)
    .await
    .map(drop)
}
