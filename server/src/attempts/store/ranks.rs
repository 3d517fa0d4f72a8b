//! What nodes say of the processes of their ranks.

use chrono::{DateTime, Utc};
use lockstep_api::{
    AttemptId, Fence, Generation, NodeId, Phase, Rank, RankExit, RankPosition, Step,
};
use sqlx::{PgConnection, query, query_scalar};

/// A rank's process runs.
pub(crate) async fn record_start(
    db: &mut PgConnection,
    attempt: AttemptId,
    rank: Rank,
    pid: i32,
) -> sqlx::Result<()> {
    query!(
        "UPDATE group_member SET pid = $3, phase = coalesce(phase, 'starting')
         WHERE attempt_id = $1 AND rank = $2 AND evicted_at IS NULL",
        attempt as AttemptId,
        rank as Rank,
        pid,
    )
    .execute(db)
    .await
    .map(drop)
}

/// How a process of `node` left, and where it was. Says whether it was one that was given up: its slot is free from now on.
pub(crate) async fn record_exit(
    db: &mut PgConnection,
    attempt: AttemptId,
    (node, process): (NodeId, i32),
    exit: RankExit,
    now: DateTime<Utc>,
) -> sqlx::Result<bool> {
    // For want of memory: its failure says so.
    let RankExit { code, signal, phase, step, exceeded_memory_mib: _ } = exit;
    let was_given_up = query_scalar!(
        r#"UPDATE group_member
           SET exit_code = $4, signal = $5, phase = $6, step = $7,
               released_at = CASE WHEN evicted_at IS NOT NULL THEN coalesce(released_at, $8) ELSE released_at END
           WHERE attempt_id = $1 AND process = $2 AND node_id = $3
           RETURNING evicted_at IS NOT NULL AS "was_given_up!""#,
        attempt as AttemptId,
        process,
        node as NodeId,
        code,
        signal,
        phase as Phase,
        step as Step,
        now,
    )
    .fetch_optional(db)
    .await?;
    Ok(was_given_up.unwrap_or(false))
}

/// A rank's process is gone, and its slot free.
pub(crate) async fn release(
    db: &mut PgConnection,
    attempt: AttemptId,
    rank: Rank,
    now: DateTime<Utc>,
) -> sqlx::Result<()> {
    query!(
        "UPDATE group_member SET released_at = coalesce(released_at, $3)
         WHERE attempt_id = $1 AND rank = $2 AND evicted_at IS NULL",
        attempt as AttemptId,
        rank as Rank,
        now,
    )
    .execute(db)
    .await
    .map(drop)
}

/// A node has nothing left to do for its ranks of the attempt.
pub(crate) async fn record_closed(
    db: &mut PgConnection,
    attempt: AttemptId,
    node: NodeId,
    now: DateTime<Utc>,
) -> sqlx::Result<()> {
    query!(
        "UPDATE group_member SET closed_at = coalesce(closed_at, $3) WHERE attempt_id = $1 AND node_id = $2",
        attempt as AttemptId,
        node as NodeId,
        now,
    )
    .execute(db)
    .await
    .map(drop)
}

/// A rank finished training.
pub(crate) async fn record_finish(
    db: &mut PgConnection,
    attempt: AttemptId,
    rank: Rank,
    now: DateTime<Utc>,
) -> sqlx::Result<()> {
    query!(
        "UPDATE group_member SET finished_at = coalesce(finished_at, $3), phase = 'done', exit_code = 0
         WHERE attempt_id = $1 AND rank = $2 AND evicted_at IS NULL",
        attempt as AttemptId,
        rank as Rank,
        now,
    )
    .execute(db)
    .await
    .map(drop)
}

/// Where the ranks of an attempt are. The attempt's row is locked.
pub(crate) async fn record_positions(
    db: &mut PgConnection,
    Fence { attempt_id: attempt, generation }: Fence,
    node: NodeId,
    positions: &[RankPosition],
) -> sqlx::Result<()> {
    let ranks: Vec<i32> = positions.iter().map(|p| p.rank.0).collect();
    let pids: Vec<i32> = positions.iter().map(|p| p.pid).collect();
    let phases: Vec<String> = positions.iter().map(|p| p.phase.as_str().to_owned()).collect();
    let steps: Vec<i64> = positions.iter().map(|p| p.step.0).collect();
    query!(
        "UPDATE group_member SET pid = p.pid, phase = p.phase::phase, step = p.step
         FROM unnest($3::integer[], $4::integer[], $5::text[], $6::bigint[]) AS p (rank, pid, phase, step)
         WHERE attempt_id = $1 AND node_id = $2 AND group_member.rank = p.rank
           AND (group_member.pid = p.pid
                OR group_member.pid IS NULL AND EXISTS (SELECT FROM attempt AS a
                                                        WHERE a.attempt_id = $1 AND a.generation = $7))
           AND evicted_at IS NULL AND released_at IS NULL",
        attempt as AttemptId,
        node as NodeId,
        &ranks,
        &pids,
        &phases,
        &steps,
        generation as Generation,
    )
    .execute(db)
    .await
    .map(drop)
}
