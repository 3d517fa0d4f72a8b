//! The table `metric_point`, keyed by attempt and step.
//!
//! # Which attempt's value counts
//!
//! A step that is done again by a later attempt is another row. For each step the newest attempt's value counts, and
//! what an attempt did past the first step of a later one is an abandoned branch. Values of an evaluation are numbered
//! by steps done: one at exactly the step that a later attempt resumed from belongs to the state that was saved, so it stays.

use std::collections::{BTreeMap, HashMap};

use lockstep_api::{AttemptId, JobId, MetricSample, MetricSeries, ProjectId, Step};
use sqlx::types::Uuid;
use sqlx::{PgConnection, query};

use super::BranchColumns;
use crate::attempts::store::{self as attempts, Branch};

/// The name of the training loss.
pub(crate) const LOSS: &str = "train/loss";
/// Most points of one answer.
const POINTS_LISTED: i64 = 500_000;

/// One value.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Point {
    pub(crate) name: String,
    pub(crate) step: Step,
    /// NaN when it is not finite.
    pub(crate) value: f64,
}

/// Writes points down. A point that is there already stays as it is.
pub(crate) async fn insert_points(
    db: &mut PgConnection,
    project: ProjectId,
    job: JobId,
    attempt: AttemptId,
    points: &[Point],
) -> sqlx::Result<()> {
    let names: Vec<String> = points.iter().map(|point| point.name.clone()).collect();
    let steps: Vec<i64> = points.iter().map(|point| point.step.0).collect();
    let values: Vec<f64> = points.iter().map(|point| point.value).collect();
    query!(
        "INSERT INTO metric_point (project_id, job_id, attempt_id, name, step, value)
         SELECT $1, $2, $3, p.name, p.step, p.value
         FROM unnest($4::text[], $5::bigint[], $6::double precision[]) AS p (name, step, value)
         ON CONFLICT DO NOTHING",
        project as ProjectId,
        job as JobId,
        attempt as AttemptId,
        &names,
        &steps,
        &values,
    )
    .execute(db)
    .await
    .map(drop)
}

/// The series that count, by name, each ordered by step: all of them or one, after `after_step`.
pub(crate) async fn series(
    db: &mut PgConnection,
    job: JobId,
    branch: &[Branch],
    name: Option<&str>,
    after_step: Option<Step>,
) -> sqlx::Result<Vec<MetricSeries>> {
    let columns = BranchColumns::new(branch);
    let rows = query!(
        r#"
        SELECT DISTINCT ON (p.name, p.step) p.name, p.step AS "step: Step", p.value
        FROM metric_point AS p
        JOIN unnest($2::uuid[], $3::integer[], $4::bigint[]) AS b (attempt_id, number, counts_below) USING (attempt_id)
        WHERE p.job_id = $1 AND ($5::text IS NULL OR p.name = $5) AND ($6::bigint IS NULL OR $6 < p.step)
          AND (p.step < b.counts_below OR (p.step = b.counts_below AND starts_with(p.name, 'eval/')))
        ORDER BY p.name, p.step, b.number DESC LIMIT $7
        "#,
        job as JobId,
        &columns.attempts,
        &columns.numbers,
        &columns.counts_below,
        name,
        after_step.map(|step| step.0),
        POINTS_LISTED,
    )
    .fetch_all(db)
    .await?;
    let mut series: Vec<MetricSeries> = Vec::new();
    for row in rows {
        let value = row.value.is_finite().then_some(row.value);
        let sample = MetricSample { step: row.step, value };
        match series.last_mut() {
            Some(last) if last.name == row.name => last.points.push(sample),
            Some(_) | None => series.push(MetricSeries { name: row.name, points: vec![sample] }),
        }
    }
    Ok(series)
}

/// What attempts of a job measured under this name, by attempt and step. One that is not finite is left out.
pub(crate) async fn values_at(
    db: &mut PgConnection,
    name: &str,
    places: &[(AttemptId, Step)],
) -> sqlx::Result<HashMap<(AttemptId, Step), f64>> {
    let attempts: Vec<Uuid> = places.iter().map(|(attempt, _)| attempt.0).collect();
    let steps: Vec<i64> = places.iter().map(|(_, step)| step.0).collect();
    let rows = query!(
        r#"
        SELECT p.attempt_id AS "attempt_id: AttemptId", p.step AS "step: Step", p.value
        FROM metric_point AS p
        JOIN unnest($2::uuid[], $3::bigint[]) AS place (attempt_id, step) USING (attempt_id, step)
        WHERE p.name = $1
        "#,
        name,
        &attempts,
        &steps,
    )
    .fetch_all(db)
    .await?;
    let finite = rows.into_iter().filter(|row| row.value.is_finite());
    Ok(finite.map(|row| ((row.attempt_id, row.step), row.value)).collect())
}

/// The last value that counts of each metric of a job. One that is not finite is left out.
pub(crate) async fn latest_values(
    db: &mut PgConnection,
    job: JobId,
) -> sqlx::Result<BTreeMap<String, f64>> {
    let branch = attempts::branch(db, job).await?;
    let columns = BranchColumns::new(&branch);
    let rows = query!(
        r#"
        SELECT DISTINCT ON (p.name) p.name, p.value
        FROM metric_point AS p
        JOIN unnest($2::uuid[], $3::integer[], $4::bigint[]) AS b (attempt_id, number, counts_below) USING (attempt_id)
        WHERE p.job_id = $1
          AND (p.step < b.counts_below OR (p.step = b.counts_below AND starts_with(p.name, 'eval/')))
        ORDER BY p.name, p.step DESC, b.number DESC
        "#,
        job as JobId,
        &columns.attempts,
        &columns.numbers,
        &columns.counts_below,
    )
    .fetch_all(db)
    .await?;
    let finite = rows.into_iter().filter(|row| row.value.is_finite());
    Ok(finite.map(|row| (row.name, row.value)).collect())
}

/// The newest training loss of each job, of which the newest attempt is given: that one's, or an earlier one's as long as that has none. A job without
/// one, or whose last is not finite, is left out.
pub(crate) async fn latest_losses(
    db: &mut PgConnection,
    newest: impl Iterator<Item = (JobId, AttemptId)>,
) -> sqlx::Result<HashMap<JobId, f64>> {
    let (job_ids, attempt_ids): (Vec<Uuid>, Vec<Uuid>) =
        newest.map(|(job, attempt)| (job.0, attempt.0)).unzip();
    let rows = query!(
        r#"
        SELECT
            wanted.job_id AS "job_id!: JobId",
            coalesce(
                (SELECT value FROM metric_point AS p WHERE p.attempt_id = wanted.attempt_id AND p.name = $3
                 ORDER BY p.step DESC LIMIT 1),
                (SELECT value FROM metric_point AS p WHERE p.job_id = wanted.job_id AND p.name = $3
                 ORDER BY p.step DESC LIMIT 1)
            ) AS value
        FROM unnest($1::uuid[], $2::uuid[]) AS wanted (job_id, attempt_id)
        "#,
        &job_ids,
        &attempt_ids,
        LOSS,
    )
    .fetch_all(db)
    .await?;
    let finite = rows.into_iter().filter_map(|row| {
        let value = row.value.filter(|value| value.is_finite())?;
        Some((row.job_id, value))
    });
    Ok(finite.collect())
}
