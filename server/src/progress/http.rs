//! `/v1/jobs/{id}/metrics`, `/log`, `/ledger`, `/timeline`: HTTP in, HTTP out.

use axum::extract::State;
use lockstep_api::{
    JobId, LedgerView, LogLine, MetricSeries, Page, ProblemBody, ReadLog, ReadTimeline, Step,
    StepTimeline,
};
use serde::{Deserialize, Serialize};

use crate::app::App;
use crate::attempts::store as attempts;
use crate::db::Tx;
use crate::extract::{Caller, Json, Path, Query};
use crate::jobs::store::lifecycle;
use crate::problem::Problem;
use crate::progress::place::TimelinePlace;
use crate::progress::store;
use crate::progress::text::is_metric_name;

/// Lines of one answer, if the query does not say.
const LINES_DEFAULT: u32 = 1000;
/// Most lines of one answer.
const LINES_MAX: u32 = 5000;
/// Rows of a timeline in one answer, if the query does not say.
const TIMELINE_DEFAULT: u32 = 200;
/// Most rows of a timeline in one answer.
const TIMELINE_MAX: u32 = 1000;

/// Which metrics.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReadMetrics {
    /// Only this one.
    #[serde(default)]
    name: Option<String>,
    /// Only steps after this one.
    #[serde(default)]
    after_step: Option<Step>,
}

/// A job's metrics.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct MetricsView {
    /// By name.
    series: Vec<MetricSeries>,
}

/// A part of a job's log.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct LogView {
    /// In order.
    lines: Vec<LogLine>,
}

/// A transaction that sees the caller's project, in which the job exists.
async fn of_job(app: &App, caller: &Caller, job: JobId) -> Result<Tx, Problem> {
    let mut tx = app.db.project(caller.project_id).await?;
    if lifecycle::exists(&mut tx, caller.project_id, job).await? {
        return Ok(tx);
    }
    Err(Problem::not_found("job", job))
}

/// The metrics of a job: for each step the newest attempt's value.
#[utoipa::path(
    get, path = "/v1/jobs/{id}/metrics", operation_id = "get_job_metrics", tag = "jobs",
    params(("id" = JobId, Path), ("name" = Option<String>, Query), ("after_step" = Option<i64>, Query)),
    responses((status = 200, body = MetricsView), (status = 404, body = ProblemBody)),
)]
#[tracing::instrument(skip_all, fields(job.id = %id))]
pub(crate) async fn metrics(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<JobId>,
    Query(query): Query<ReadMetrics>,
) -> Result<Json<MetricsView>, Problem> {
    let ReadMetrics { name, after_step } = query;
    if let Some(name) = name.as_deref().filter(|name| !is_metric_name(name)) {
        return Err(Problem::field("name", format!("expected [a-z0-9_/], got {name:?}")));
    }
    let mut tx = of_job(&app, &caller, id).await?;
    let branch = attempts::branch(&mut tx, id).await?;
    let series = store::series(&mut tx, id, &branch, name.as_deref(), after_step).await?;
    tx.rollback().await?;
    Ok(Json(MetricsView { series }))
}

/// Lines of a job's log.
#[utoipa::path(
    get, path = "/v1/jobs/{id}/log", operation_id = "read_job_log", tag = "jobs",
    params(
        ("id" = JobId, Path), ("after" = Option<i64>, Query), ("limit" = Option<u32>, Query),
        ("tail" = Option<bool>, Query),
    ),
    responses((status = 200, body = LogView), (status = 404, body = ProblemBody)),
)]
#[tracing::instrument(skip_all, fields(job.id = %id))]
pub(crate) async fn log(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<JobId>,
    Query(query): Query<ReadLog>,
) -> Result<Json<LogView>, Problem> {
    let ReadLog { after, limit, tail } = query;
    let limit = limit.unwrap_or(LINES_DEFAULT);
    if !(1..=LINES_MAX).contains(&limit) {
        return Err(Problem::field("limit", format!("expected 1 to {LINES_MAX}, got {limit}")));
    }
    let mut tx = of_job(&app, &caller, id).await?;
    let wanted = store::LogQuery { after, limit: i64::from(limit), tail };
    let lines = store::log(&mut tx, id, wanted).await?;
    tx.rollback().await?;
    Ok(Json(LogView { lines }))
}

/// Which samples each step of a job used.
#[utoipa::path(
    get, path = "/v1/jobs/{id}/ledger", operation_id = "get_job_ledger", tag = "jobs", params(("id" = JobId, Path)),
    responses((status = 200, body = LedgerView), (status = 404, body = ProblemBody)),
)]
#[tracing::instrument(skip_all, fields(job.id = %id))]
pub(crate) async fn ledger(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<JobId>,
) -> Result<Json<LedgerView>, Problem> {
    let mut tx = of_job(&app, &caller, id).await?;
    let branch = attempts::branch(&mut tx, id).await?;
    let entries = store::ledger(&mut tx, id, &branch).await?;
    let samples_per_epoch = lifecycle::samples_per_epoch(&mut tx, id).await?;
    tx.rollback().await?;
    let complete_epochs = lockstep_core::complete_epochs(&entries, samples_per_epoch);
    Ok(Json(LedgerView { entries, samples_per_epoch: Some(samples_per_epoch), complete_epochs }))
}

/// What each rank did in the steps of which it keeps a timeline, of all attempts: by attempt, step and rank.
#[utoipa::path(
    get, path = "/v1/jobs/{id}/timeline", operation_id = "get_job_timeline", tag = "jobs",
    params(
        ("id" = JobId, Path), ("from_step" = Option<i64>, Query), ("to_step" = Option<i64>, Query),
        ("rank" = Option<i32>, Query), ("limit" = Option<u32>, Query, minimum = 1, maximum = 1000),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the page before"),
    ),
    responses((status = 200, body = Page<StepTimeline>), (status = 404, body = ProblemBody)),
)]
#[tracing::instrument(skip_all, fields(job.id = %id))]
pub(crate) async fn timeline(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<JobId>,
    Query(query): Query<ReadTimeline>,
) -> Result<Json<Page<StepTimeline>>, Problem> {
    let ReadTimeline { from_step, to_step, rank, limit, cursor } = query;
    let limit = limit.unwrap_or(TIMELINE_DEFAULT);
    if !(1..=TIMELINE_MAX).contains(&limit) {
        return Err(Problem::field("limit", format!("expected 1 to {TIMELINE_MAX}, got {limit}")));
    }
    let after = cursor.as_deref().map(TimelinePlace::parse).transpose()?;
    let mut tx = of_job(&app, &caller, id).await?;
    let branch = attempts::branch(&mut tx, id).await?;
    // One more than asked for tells whether there is a next page.
    let wanted =
        store::TimelineQuery { from_step, to_step, rank, after, limit: i64::from(limit) + 1 };
    let mut items = store::timeline(&mut tx, id, &branch, wanted).await?;
    tx.rollback().await?;
    let mut next_cursor = None;
    if usize::try_from(limit).is_ok_and(|limit| limit < items.len()) {
        items.pop();
        next_cursor = items.last().map(|row| TimelinePlace::of(row).to_string());
    }
    Ok(Json(Page { items, next_cursor }))
}
