//! What people and agents are shown of attempts.

use std::collections::{BTreeMap, HashMap};

use lockstep_api::{
    AssignedRank, AttemptId, AttemptOutcome, AttemptState, AttemptView, CheckpointId, Generation,
    GroupView, JobId, NodeId, Phase, ProjectId, Rank, RankView, Step,
};
use sqlx::types::Uuid;
use sqlx::{PgConnection, query, query_scalar};

/// Attempts shown of one job, newest first. Budgets of retries keep their number far below.
const ATTEMPTS_SHOWN: i64 = 200;

/// The attempts of a job as people see them, newest first.
pub(crate) async fn views(db: &mut PgConnection, job: JobId) -> sqlx::Result<Vec<AttemptView>> {
    let rows = query!(
        r#"
        SELECT
            attempt_id AS "id: AttemptId", number, state AS "state: AttemptState",
            outcome AS "outcome: AttemptOutcome", stopped_because, generation AS "generation: Generation",
            first_step AS "first_step: Step", steps_done AS "steps_done: Step", created_at, first_step_at, ended_at
        FROM attempt WHERE job_id = $1 ORDER BY number DESC LIMIT $2
        "#,
        job as JobId,
        ATTEMPTS_SHOWN,
    )
    .fetch_all(&mut *db)
    .await?;
    let ids: Vec<Uuid> = rows.iter().map(|row| row.id.0).collect();
    let mut ranks = ranks(&mut *db, &ids).await?;
    let mut groups = groups(db, &ids).await?;
    let views = rows.into_iter().map(|row| AttemptView {
        id: row.id,
        number: row.number,
        state: row.state,
        outcome: row.outcome,
        stopped_because: row.stopped_because,
        generation: row.generation,
        first_step: row.first_step,
        steps_done: row.steps_done,
        ranks: ranks.remove(&row.id).unwrap_or_default(),
        groups: groups.remove(&row.id).unwrap_or_default(),
        created_at: row.created_at,
        first_step_at: row.first_step_at,
        ended_at: row.ended_at,
    });
    Ok(views.collect())
}

async fn groups(
    db: &mut PgConnection,
    attempts: &[Uuid],
) -> sqlx::Result<BTreeMap<AttemptId, Vec<GroupView>>> {
    let rows = query!(
        r#"
        SELECT attempt_id AS "attempt_id: AttemptId", generation AS "generation: Generation", world_size, began_at,
               formed_at, first_step_at
        FROM group_generation WHERE attempt_id = ANY($1) ORDER BY attempt_id, generation
        "#,
        attempts,
    )
    .fetch_all(db)
    .await?;
    let mut groups: BTreeMap<AttemptId, Vec<GroupView>> = BTreeMap::new();
    for row in rows {
        groups.entry(row.attempt_id).or_default().push(GroupView {
            generation: row.generation,
            world_size: row.world_size.unsigned_abs(),
            began_at: row.began_at,
            formed_at: row.formed_at,
            first_step_at: row.first_step_at,
        });
    }
    Ok(groups)
}

async fn ranks(
    db: &mut PgConnection,
    attempts: &[Uuid],
) -> sqlx::Result<BTreeMap<AttemptId, Vec<RankView>>> {
    let rows = query!(
        r#"
        SELECT
            attempt_id AS "attempt_id: AttemptId", rank AS "rank: Rank", node_id AS "node_id: NodeId",
            node.name AS node_name, pid, phase AS "phase: Phase", step AS "step: Step", exit_code, signal
        FROM (SELECT DISTINCT ON (attempt_id, rank) m.* FROM group_member AS m
              JOIN attempt USING (attempt_id)
              JOIN group_generation AS g USING (attempt_id, generation)
              WHERE attempt_id = ANY($1) AND rank < g.world_size
              ORDER BY attempt_id, rank, evicted_at DESC NULLS FIRST, process DESC) AS newest
        JOIN node USING (node_id)
        ORDER BY attempt_id, rank
        "#,
        attempts,
    )
    .fetch_all(db)
    .await?;
    let mut ranks: BTreeMap<AttemptId, Vec<RankView>> = BTreeMap::new();
    for row in rows {
        ranks.entry(row.attempt_id).or_default().push(RankView {
            rank: row.rank,
            node_id: row.node_id,
            node_name: row.node_name,
            pid: row.pid,
            phase: row.phase,
            step: row.step,
            exit_code: row.exit_code,
            signal: row.signal,
        });
    }
    Ok(ranks)
}

/// The newest attempt of a job, as far as a list tells.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Newest {
    pub(crate) attempt_id: AttemptId,
    pub(crate) steps_done: Step,
    /// While it is at work.
    pub(crate) world_size: Option<u32>,
}

/// The newest attempt of each job; a job without one is left out.
pub(crate) async fn newest(
    db: &mut PgConnection,
    jobs: &[JobId],
) -> sqlx::Result<HashMap<JobId, Newest>> {
    let ids: Vec<Uuid> = jobs.iter().map(|id| id.0).collect();
    let rows = query!(
        r#"
        SELECT DISTINCT ON (job_id)
            job_id AS "job_id: JobId", attempt_id AS "attempt_id: AttemptId", steps_done AS "steps_done: Step",
            CASE WHEN state <> 'ended' THEN world_size END AS world_size
        FROM attempt JOIN group_generation USING (attempt_id, generation)
        WHERE job_id = ANY($1) ORDER BY job_id, number DESC
        "#,
        &ids,
    )
    .fetch_all(db)
    .await?;
    let newest = rows.into_iter().map(|row| {
        let (attempt_id, steps_done) = (row.attempt_id, row.steps_done);
        let world_size = row.world_size.and_then(|size| u32::try_from(size).ok());
        (row.job_id, Newest { attempt_id, steps_done, world_size })
    });
    Ok(newest.collect())
}

/// How many of a job's newest attempts in a row were lost without having done a step.
pub(crate) async fn idle(db: &mut PgConnection, job: JobId) -> sqlx::Result<u32> {
    let idle = query_scalar!(
        r#"
        SELECT count(*) AS "idle!" FROM attempt
        WHERE job_id = $1 AND outcome IN ('failed', 'lease_lost')
          AND number > (SELECT coalesce(max(number), 0) FROM attempt
                        WHERE job_id = $1 AND first_step_at IS NOT NULL)
        "#,
        job as JobId,
    )
    .fetch_one(db)
    .await?;
    Ok(u32::try_from(idle).unwrap_or(u32::MAX))
}

/// One attempt's part of a job's course.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Branch {
    pub(crate) attempt_id: AttemptId,
    pub(crate) number: i32,
    /// Its steps count below this one; from there on a later attempt's do.
    pub(crate) counts_below: Option<Step>,
}

/// Which attempt's steps count from where to where; in order of attempts.
pub(crate) async fn branch(db: &mut PgConnection, job: JobId) -> sqlx::Result<Vec<Branch>> {
    let rows = query!(
        r#"SELECT attempt_id AS "attempt_id: AttemptId", number, first_step AS "first_step: Step"
           FROM attempt WHERE job_id = $1 ORDER BY number"#,
        job as JobId,
    )
    .fetch_all(db)
    .await?;
    let first_steps: Vec<Step> = rows.iter().map(|row| row.first_step).collect();
    let below = lockstep_core::counts_below(&first_steps);
    let branch = rows.into_iter().zip(below).map(|(row, counts_below)| Branch {
        attempt_id: row.attempt_id,
        number: row.number,
        counts_below,
    });
    Ok(branch.collect())
}

/// The ranks of one attempt that a node should run.
#[derive(Debug, Clone)]
pub(crate) struct Assigned {
    pub(crate) attempt_id: AttemptId,
    pub(crate) project_id: ProjectId,
    pub(crate) job_id: JobId,
    pub(crate) generation: Generation,
    pub(crate) is_stopping: bool,
    pub(crate) attempt_key: String,
    pub(crate) resume: Option<CheckpointId>,
    pub(crate) world_size: i32,
    pub(crate) steps_reported: Step,
    pub(crate) faults_done: Vec<i32>,
    /// In order.
    pub(crate) ranks: Vec<AssignedRank>,
}

/// What `node` should run: attempts that have not ended and whose ranks on it have not finished. A rank that left with
/// status 0 has given its slot back, but its node may still be publishing the last checkpoint: until it says `finished`,
/// the attempt is its own.
pub(crate) async fn assigned(db: &mut PgConnection, node: NodeId) -> sqlx::Result<Vec<Assigned>> {
    let rows = query!(
        r#"
        SELECT
            attempt_id AS "attempt_id: AttemptId", attempt.project_id AS "project_id: ProjectId",
            job_id AS "job_id: JobId", generation AS "generation: Generation", state AS "state: AttemptState",
            attempt_key, resume_checkpoint_id AS "resume: CheckpointId", rank AS "rank: Rank", slot_index, process,
            first_generation, steps_done AS "steps_reported: Step",
            ARRAY(SELECT fault_index FROM chaos_fault AS f WHERE f.job_id = attempt.job_id ORDER BY fault_index)
                AS "faults_done!",
            (SELECT min(m.first_generation) FROM group_member AS m WHERE m.attempt_id = attempt.attempt_id)
                AS "begun_under!",
            world_size
        FROM attempt JOIN group_member USING (attempt_id) JOIN group_generation USING (attempt_id, generation)
        WHERE node_id = $1 AND evicted_at IS NULL AND state <> 'ended'
          AND attempt_id IN (SELECT m.attempt_id FROM group_member AS m
                             WHERE m.node_id = $1 AND m.evicted_at IS NULL AND m.finished_at IS NULL)
        ORDER BY attempt.created_at, attempt_id, rank
        "#,
        node as NodeId,
    )
    .fetch_all(db)
    .await?;
    let mut assigned: Vec<Assigned> = Vec::new();
    for row in rows {
        let place = AssignedRank {
            rank: row.rank,
            slot_index: row.slot_index,
            process: row.process,
            heals: row.begun_under < row.first_generation,
        };
        match assigned.last_mut() {
            Some(last) if last.attempt_id == row.attempt_id => last.ranks.push(place),
            Some(_) | None => assigned.push(Assigned {
                attempt_id: row.attempt_id,
                project_id: row.project_id,
                job_id: row.job_id,
                generation: row.generation,
                is_stopping: row.state == AttemptState::Stopping,
                attempt_key: row.attempt_key,
                resume: row.resume,
                world_size: row.world_size,
                steps_reported: row.steps_reported,
                faults_done: row.faults_done,
                ranks: vec![place],
            }),
        }
    }
    Ok(assigned)
}
