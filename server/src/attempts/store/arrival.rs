//! How far ranks are in their collectives, as of the last heartbeat.

use chrono::{DateTime, TimeDelta, Utc};
use lockstep_api::{
    AttemptId, AttemptState, CollectivePosition, Generation, JobId, Lane, NodeId, Phase, ProjectId,
    Rank, RankPosition, Step,
};
use lockstep_core::arrival::{Entered, Seen};
use serde::{Deserialize, Serialize};
use sqlx::types::Json;
use sqlx::{PgConnection, query, query_as};

use crate::progress::text::storable;

/// Longest name of a collective, bytes.
const WHAT_BYTES: usize = 100;
/// Longest time that an agent may say something has lasted or will.
const LONGEST: TimeDelta = TimeDelta::days(365);
/// More lanes of one rank than a flight record has.
const MAX_FURTHER_LANES: usize = 32;

/// Takes note of where the ranks of an attempt are. The attempt's row is locked. What is said of a rank that has another process
/// by now is left out: the node has yet to hear of it.
pub(crate) async fn record_arrivals(
    db: &mut PgConnection,
    attempt: AttemptId,
    node: NodeId,
    positions: &[RankPosition],
    now: DateTime<Utc>,
) -> sqlx::Result<()> {
    let before = |millis: Option<i64>| millis.map(|millis| now - length(millis));
    let after = |millis: Option<i64>| millis.map(|millis| now + length(millis));
    let collectives = || positions.iter().map(|it| it.collective.as_ref());
    let of = |field: fn(&CollectivePosition) -> i64| -> Vec<Option<i64>> {
        collectives().map(|it| it.map(field)).collect()
    };
    let what = |it: &CollectivePosition| storable(&it.what, WHAT_BYTES);
    let ranks: Vec<i32> = positions.iter().map(|it| it.rank.0).collect();
    let pids: Vec<i32> = positions.iter().map(|it| it.pid).collect();
    let phase_since: Vec<Option<DateTime<Utc>>> =
        positions.iter().map(|it| before(it.phase_ms)).collect();
    let entered_at: Vec<Option<DateTime<Utc>>> =
        collectives().map(|it| before(it.map(|it| it.entered_ms))).collect();
    let paused_until: Vec<Option<DateTime<Utc>>> =
        positions.iter().map(|it| after(it.pause_left_ms)).collect();
    let names: Vec<Option<String>> = collectives().map(|it| it.map(what)).collect();
    let stopped: Vec<bool> = positions.iter().map(|it| it.is_stopped).collect();
    let further: Vec<Option<Json<Vec<FurtherLane>>>> =
        positions.iter().map(|it| further_lanes(it, before)).collect();
    query!(
        "UPDATE group_member
         SET seen_at = $3, phase_since = p.phase_since, last_entered = p.entered, last_left = p.left_seq,
             collective = p.collective, entered_at = p.entered_at, paused_until = p.paused_until,
             is_stopped = p.is_stopped, further_lanes = p.further_lanes
         FROM unnest($4::integer[], $5::timestamptz[], $6::bigint[], $7::bigint[], $8::text[], $9::timestamptz[],
                     $10::timestamptz[], $11::boolean[], $12::integer[], $13::jsonb[])
              AS p (rank, phase_since, entered, left_seq, collective, entered_at, paused_until, is_stopped, pid,
                    further_lanes)
         WHERE attempt_id = $1 AND node_id = $2 AND group_member.rank = p.rank AND group_member.pid = p.pid
           AND evicted_at IS NULL AND released_at IS NULL",
        attempt as AttemptId,
        node as NodeId,
        now,
        &ranks,
        &phase_since as &[Option<DateTime<Utc>>],
        &of(|it| it.entered) as &[Option<i64>],
        &of(|it| it.left) as &[Option<i64>],
        &names as &[Option<String>],
        &entered_at as &[Option<DateTime<Utc>>],
        &paused_until as &[Option<DateTime<Utc>>],
        &stopped,
        &pids,
        &further as &[Option<Json<Vec<FurtherLane>>>],
    )
    .execute(db)
    .await
    .map(drop)
}

/// How far a rank is in a lane beyond the first, as it stands in its row.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct FurtherLane {
    pub(crate) lane: Lane,
    pub(crate) entered: i64,
    pub(crate) left: i64,
    pub(crate) what: String,
    pub(crate) at: DateTime<Utc>,
}

/// `before`: what time it was so many milliseconds ago.
fn further_lanes(
    position: &RankPosition,
    before: impl Fn(Option<i64>) -> Option<DateTime<Utc>>,
) -> Option<Json<Vec<FurtherLane>>> {
    let lanes = position.lanes().filter(|(lane, _)| Lane(0) < *lane).take(MAX_FURTHER_LANES);
    let lanes = lanes.filter_map(|(lane, it)| {
        let CollectivePosition { entered, left, ref what, entered_ms } = *it;
        let at = before(Some(entered_ms))?;
        Some(FurtherLane { lane, entered, left, what: storable(what, WHAT_BYTES), at })
    });
    let lanes: Vec<FurtherLane> = lanes.collect();
    (!lanes.is_empty()).then_some(Json(lanes))
}

/// What an agent says of a length of time, within reason.
fn length(millis: i64) -> TimeDelta {
    TimeDelta::milliseconds(millis.clamp(0, LONGEST.num_milliseconds()))
}

/// An attempt, as far as an arrival map names it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Whose {
    pub(crate) attempt_id: AttemptId,
    pub(crate) project_id: ProjectId,
    pub(crate) job_id: JobId,
    pub(crate) state: AttemptState,
    pub(crate) generation: Generation,
}

/// The newest attempt of a job.
pub(crate) async fn newest_of(db: &mut PgConnection, job: JobId) -> sqlx::Result<Option<Whose>> {
    query_as!(
        Whose,
        r#"
        SELECT attempt_id AS "attempt_id: AttemptId", project_id AS "project_id: ProjectId", job_id AS "job_id: JobId",
               state AS "state: AttemptState", generation AS "generation: Generation"
        FROM attempt WHERE job_id = $1 ORDER BY number DESC LIMIT 1
        "#,
        job as JobId,
    )
    .fetch_optional(db)
    .await
}

/// An attempt that is at work.
pub(crate) async fn whose(
    db: &mut PgConnection,
    attempt: AttemptId,
) -> sqlx::Result<Option<Whose>> {
    query_as!(
        Whose,
        r#"
        SELECT attempt_id AS "attempt_id: AttemptId", project_id AS "project_id: ProjectId", job_id AS "job_id: JobId",
               state AS "state: AttemptState", generation AS "generation: Generation"
        FROM attempt WHERE attempt_id = $1 AND state <> 'ended'
        "#,
        attempt as AttemptId,
    )
    .fetch_optional(db)
    .await
}

/// A rank as last heard of, with what only people ask for.
#[derive(Debug, Clone)]
pub(crate) struct Heard {
    pub(crate) node_id: NodeId,
    pub(crate) pid: Option<i32>,
    pub(crate) seen: Seen,
}

/// What was last heard of an attempt's ranks, in order.
pub(crate) async fn heard(db: &mut PgConnection, attempt: AttemptId) -> sqlx::Result<Vec<Heard>> {
    let rows = query!(
        r#"
        SELECT rank AS "rank: Rank", node_id AS "node_id: NodeId", node.name AS node_name, pid,
               phase AS "phase: Phase", step AS "step: Step", seen_at, phase_since, last_left, collective, entered_at,
               paused_until, is_stopped,
               -- A rank between two groups still has the numbers of the old one.
               CASE WHEN phase IS DISTINCT FROM 'recovering' THEN last_entered END AS last_entered,
               CASE WHEN phase IS DISTINCT FROM 'recovering' THEN further_lanes END
                   AS "further_lanes: Json<Vec<FurtherLane>>",
               (released_at IS NOT NULL OR finished_at IS NOT NULL OR exit_code IS NOT NULL OR signal IS NOT NULL)
                   AS "has_ended!"
        FROM group_member JOIN node USING (node_id)
        WHERE attempt_id = $1 AND evicted_at IS NULL ORDER BY rank
        "#,
        attempt as AttemptId,
    )
    .fetch_all(db)
    .await?;
    let heard = rows.into_iter().map(|row| {
        let first = match (row.last_entered, row.last_left, row.collective, row.entered_at) {
            (Some(sequence), Some(left), Some(what), Some(at)) => {
                Some(Entered { lane: Lane(0), sequence, left, what, at })
            }
            _ => None,
        };
        let further = row.further_lanes.map_or_else(Vec::new, |Json(lanes)| lanes);
        let further = further.into_iter().map(|it| {
            let FurtherLane { lane, entered: sequence, left, what, at } = it;
            Entered { lane, sequence, left, what, at }
        });
        let seen = Seen {
            rank: row.rank,
            node_name: row.node_name,
            phase: row.phase.map(|phase| (phase, row.phase_since)),
            step: row.step,
            entered: first.into_iter().chain(further).collect(),
            paused_until: row.paused_until,
            is_stopped: row.is_stopped,
            seen_at: row.seen_at,
            has_ended: row.has_ended,
        };
        Heard { node_id: row.node_id, pid: row.pid, seen }
    });
    Ok(heard.collect())
}

/// Whether nobody has yet been told of a straggler in this collective of the attempt; from now on somebody has.
#[must_use]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Claim {
    /// The caller tells.
    Ours,
    /// It was told, or is being told by another.
    Told,
}

/// Claims the one warning of a collective of a lane.
pub(crate) async fn claim_warning(
    db: &mut PgConnection,
    attempt: AttemptId,
    (lane, collective): (Lane, i64),
) -> sqlx::Result<Claim> {
    let touched = query!(
        "UPDATE attempt SET warned_collective = $2, warned_lane = $3
         WHERE attempt_id = $1 AND (warned_collective, warned_lane) IS DISTINCT FROM ($2, $3) AND state <> 'ended'",
        attempt as AttemptId,
        collective,
        lane as Lane,
    )
    .execute(db)
    .await?
    .rows_affected();
    Ok(if touched == 1 { Claim::Ours } else { Claim::Told })
}
