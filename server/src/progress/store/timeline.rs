//! The table `step_timeline`: what each rank did in a step.

use lockstep_api::{
    AttemptId, ClockAnchor, Generation, JobId, NodeId, ProjectId, Rank, Span, Step, StepSpans,
    StepTimeline,
};
use sqlx::types::{Json, Uuid};
use sqlx::{PgConnection, query};

use super::BranchColumns;
use crate::attempts::store::Branch;
use crate::progress::place::TimelinePlace;

/// One rank's step, and where and when its clock was read.
#[derive(Debug)]
pub(crate) struct Timed {
    pub(crate) generation: Generation,
    pub(crate) node_id: NodeId,
    pub(crate) clock: ClockAnchor,
    pub(crate) spans: StepSpans,
}

/// Writes timelines down. A step of a rank that is there already stays as it is.
pub(crate) async fn insert_timed(
    db: &mut PgConnection,
    project: ProjectId,
    job: JobId,
    attempt: AttemptId,
    timed: &[Timed],
) -> sqlx::Result<()> {
    let steps: Vec<i64> = timed.iter().map(|it| it.spans.step.0).collect();
    let ranks: Vec<i32> = timed.iter().map(|it| it.spans.rank.0).collect();
    let generations: Vec<i64> = timed.iter().map(|it| it.generation.0).collect();
    let nodes: Vec<Uuid> = timed.iter().map(|it| it.node_id.0).collect();
    let clock_times: Vec<_> = timed.iter().map(|it| it.clock.at).collect();
    let clock_ns: Vec<i64> = timed.iter().map(|it| it.clock.monotonic_ns).collect();
    let began_ns: Vec<i64> = timed.iter().map(|it| it.spans.began_ns).collect();
    let spans: Vec<Json<&[Span]>> = timed.iter().map(|it| Json(&*it.spans.spans)).collect();
    let dropped: Vec<i64> = timed.iter().map(|it| it.spans.dropped).collect();
    query!(
        "INSERT INTO step_timeline (project_id, job_id, attempt_id, step, rank, generation, node_id, clock_at, clock_ns,
                                    began_ns, spans, dropped)
         SELECT $1, $2, $3, t.step, t.rank, t.generation, t.node_id, t.clock_at, t.clock_ns, t.began_ns, t.spans, t.dropped
         FROM unnest($4::bigint[], $5::integer[], $6::bigint[], $7::uuid[], $8::timestamptz[], $9::bigint[],
                     $10::bigint[], $11::jsonb[], $12::bigint[])
              AS t (step, rank, generation, node_id, clock_at, clock_ns, began_ns, spans, dropped)
         ON CONFLICT DO NOTHING",
        project as ProjectId,
        job as JobId,
        attempt as AttemptId,
        &steps,
        &ranks,
        &generations,
        &nodes,
        &clock_times,
        &clock_ns,
        &began_ns,
        &spans as &[Json<&[Span]>],
        &dropped,
    )
    .execute(db)
    .await
    .map(drop)
}

/// Which rows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TimelineQuery {
    pub(crate) from_step: Option<Step>,
    pub(crate) to_step: Option<Step>,
    pub(crate) rank: Option<Rank>,
    pub(crate) after: Option<TimelinePlace>,
    pub(crate) limit: i64,
}

/// Rows of all attempts of a job, by attempt, step and rank.
pub(crate) async fn timeline(
    db: &mut PgConnection,
    job: JobId,
    attempts: &[Branch],
    wanted: TimelineQuery,
) -> sqlx::Result<Vec<StepTimeline>> {
    let TimelineQuery { from_step, to_step, rank, after, limit } = wanted;
    let columns = BranchColumns::new(attempts);
    let rows = query!(
        r#"
        SELECT
            t.attempt_id AS "attempt_id: AttemptId", a.number AS "attempt_number!", t.generation AS "generation: Generation",
            t.step AS "step: Step", t.rank AS "rank: Rank", t.node_id AS "node_id: NodeId", t.clock_at, t.clock_ns, t.began_ns,
            t.spans AS "spans: Json<Vec<Span>>", t.dropped
        FROM step_timeline AS t
        JOIN unnest($2::uuid[], $3::integer[]) AS a (attempt_id, number) USING (attempt_id)
        WHERE t.job_id = $1
          AND ($4::bigint IS NULL OR $4 <= t.step) AND ($5::bigint IS NULL OR t.step <= $5)
          AND ($6::integer IS NULL OR t.rank = $6)
          AND ($7::integer IS NULL OR ($7, $8::bigint, $9::integer) < (a.number, t.step, t.rank))
        ORDER BY a.number, t.step, t.rank LIMIT $10
        "#,
        job as JobId,
        &columns.attempts,
        &columns.numbers,
        from_step.map(|step| step.0),
        to_step.map(|step| step.0),
        rank.map(|rank| rank.0),
        after.map(|place| place.attempt_number),
        after.map(|place| place.step.0),
        after.map(|place| place.rank.0),
        limit,
    )
    .fetch_all(db)
    .await?;
    let timelines = rows.into_iter().map(|row| StepTimeline {
        attempt_id: row.attempt_id,
        attempt_number: row.attempt_number,
        generation: row.generation,
        step: row.step,
        rank: row.rank,
        node_id: row.node_id,
        clock: ClockAnchor { at: row.clock_at, monotonic_ns: row.clock_ns },
        began_ns: row.began_ns,
        spans: row.spans.0,
        dropped: row.dropped,
    });
    Ok(timelines.collect())
}
