//! `/v1/jobs`: HTTP in, HTTP out. Decides nothing.

use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use lockstep_api::{
    JobId, JobSpec, JobState, JobSummary, JobView, ListJobs, Page, Priority, ProblemBody, Role,
};
use lockstep_core::JobEvent;

use super::cursor::Cursor;
use super::submit::{self, Submitted};
use super::{store, view};
use crate::app::App;
use crate::attempts::drive::{self, Wish};
use crate::extract::{Caller, Json, Path, Query};
use crate::problem::Problem;

/// Jobs of one page.
const MAX_PAGE: u32 = 200;
/// Jobs of a page for which nobody said how many.
const DEFAULT_PAGE: u32 = 50;
/// Bytes of an idempotency key.
const MAX_KEY_BYTES: usize = 255;

const CANCEL: Wish =
    Wish { event: JobEvent::CancelRequested, action: "job.cancel", words: "cancel requested by" };
const PAUSE: Wish =
    Wish { event: JobEvent::PauseRequested, action: "job.pause", words: "pause requested by" };
const RESUME: Wish =
    Wish { event: JobEvent::ResumeRequested, action: "job.resume", words: "resume requested by" };

static IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// Checks and queues a job.
///
/// With an `Idempotency-Key`, a repetition within 24 hours answers the first job, with status 200.
#[utoipa::path(
    post, path = "/v1/jobs", operation_id = "submit_job", tag = "jobs", request_body = JobSpec,
    params(("Idempotency-Key" = Option<String>, Header, description = "1 to 255 visible ASCII characters")),
    responses(
        (status = 201, body = JobView), (status = 200, body = JobView, description = "Submitted before"),
    ),
)]
#[tracing::instrument(name = "jobs.submit", skip_all)]
pub(crate) async fn submit_job(
    State(app): State<App>,
    caller: Caller,
    headers: HeaderMap,
    Json(spec): Json<JobSpec>,
) -> Result<Response, Problem> {
    caller.require(Role::Member)?;
    if !spec.chaos.is_empty() {
        // It may kill agents, and with them the ranks of other jobs.
        caller.require(Role::Admin)?;
    }
    if Priority::default() < spec.priority {
        // It may stop the jobs of others.
        let what = format!("a priority above {}, here {},", Priority::default(), spec.priority);
        caller.require_for(&what, Role::Admin)?;
    }
    let key = idempotency_key(&headers)?;
    let (status, id) = match submit::submit(&app, &caller, spec, key).await? {
        Submitted::New(id) => (StatusCode::CREATED, id),
        Submitted::Before(id) => (StatusCode::OK, id),
    };
    let job = read(&app, &caller, id).await?;
    Ok((status, [(header::LOCATION, format!("/v1/jobs/{id}"))], job).into_response())
}

fn idempotency_key(headers: &HeaderMap) -> Result<Option<&str>, Problem> {
    let Some(value) = headers.get(&IDEMPOTENCY_KEY) else { return Ok(None) };
    let key = value.to_str().ok().filter(|key| {
        (1..=MAX_KEY_BYTES).contains(&key.len()) && key.bytes().all(|byte| byte.is_ascii_graphic())
    });
    let message = || format!("expected 1 to {MAX_KEY_BYTES} visible ASCII characters");
    key.map(Some).ok_or_else(|| Problem::field("Idempotency-Key", message()))
}

async fn read(app: &App, caller: &Caller, id: JobId) -> Result<Json<JobView>, Problem> {
    let mut tx = app.db.snapshot(caller.project_id).await?;
    let found = view::view(&mut tx, caller.project_id, id).await?;
    tx.rollback().await?;
    found.map(Json).ok_or_else(|| Problem::not_found("job", id))
}

/// Jobs of the project, newest first.
#[utoipa::path(
    get, path = "/v1/jobs", operation_id = "list_jobs", tag = "jobs",
    params(
        ("state" = Option<JobState>, Query), ("limit" = Option<u32>, Query, minimum = 1, maximum = 200),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the page before"),
    ),
    responses((status = 200, body = Page<JobSummary>)),
)]
#[tracing::instrument(name = "jobs.list", skip_all)]
pub(crate) async fn list_jobs(
    State(app): State<App>,
    caller: Caller,
    Query(query): Query<ListJobs>,
) -> Result<Json<Page<JobSummary>>, Problem> {
    let limit = query.limit.unwrap_or(DEFAULT_PAGE);
    if !(1..=MAX_PAGE).contains(&limit) {
        return Err(Problem::field("limit", format!("expected 1 to {MAX_PAGE}, got {limit}")));
    }
    let cursor = Cursor::of(&query)?;
    let mut tx = app.db.snapshot(caller.project_id).await?;
    // One more than asked for tells whether there is a next page.
    let mut jobs =
        store::list(&mut tx, caller.project_id, query.state, cursor, i64::from(limit) + 1).await?;
    let mut next_cursor = None;
    if usize::try_from(limit).is_ok_and(|limit| limit < jobs.len()) {
        jobs.pop();
        let place = |job: &store::Job| {
            Cursor { created_at: job.created_at, id: job.id }.encode(query.state)
        };
        next_cursor = jobs.last().map(place);
    }
    let items = view::summaries(&mut tx, jobs).await?;
    tx.rollback().await?;
    Ok(Json(Page { items, next_cursor }))
}

/// One job in full.
#[utoipa::path(
    get, path = "/v1/jobs/{id}", operation_id = "get_job", tag = "jobs", params(("id" = JobId, Path)),
    responses((status = 200, body = JobView)),
)]
#[tracing::instrument(name = "jobs.get", skip_all)]
pub(crate) async fn get_job(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<JobId>,
) -> Result<Json<JobView>, Problem> {
    read(&app, &caller, id).await
}

/// Asks a job to end. Safe to repeat: a job that has ended stays as it is.
///
/// A member cancels own jobs, a maintainer any.
#[utoipa::path(
    post, path = "/v1/jobs/{id}/cancel", operation_id = "cancel_job", tag = "jobs", params(("id" = JobId, Path)),
    responses((status = 200, body = JobView)),
)]
#[tracing::instrument(name = "jobs.cancel", skip_all)]
pub(crate) async fn cancel_job(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<JobId>,
) -> Result<Json<JobView>, Problem> {
    let state = own(&app, &caller, id).await?;
    if !state.is_final() {
        drive::request(&app, &caller, id, CANCEL).await?;
    }
    read(&app, &caller, id).await
}

/// Sets a job aside: its ranks leave after a checkpoint, and it takes no slots until it is resumed. Safe to repeat.
///
/// A member pauses own jobs, a maintainer any.
#[utoipa::path(
    post, path = "/v1/jobs/{id}/pause", operation_id = "pause_job", tag = "jobs", params(("id" = JobId, Path)),
    responses((status = 200, body = JobView), (status = 409, body = ProblemBody, description = "It has ended")),
)]
#[tracing::instrument(name = "jobs.pause", skip_all)]
pub(crate) async fn pause_job(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<JobId>,
) -> Result<Json<JobView>, Problem> {
    request(&app, &caller, id, PAUSE).await
}

/// Queues a paused job again; it goes on from its newest checkpoint. Safe to repeat.
///
/// A member resumes own jobs, a maintainer any.
#[utoipa::path(
    post, path = "/v1/jobs/{id}/resume", operation_id = "resume_job", tag = "jobs", params(("id" = JobId, Path)),
    responses((status = 200, body = JobView), (status = 409, body = ProblemBody, description = "It has ended")),
)]
#[tracing::instrument(name = "jobs.resume", skip_all)]
pub(crate) async fn resume_job(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<JobId>,
) -> Result<Json<JobView>, Problem> {
    request(&app, &caller, id, RESUME).await
}

async fn request(
    app: &App,
    caller: &Caller,
    id: JobId,
    wish: Wish,
) -> Result<Json<JobView>, Problem> {
    let state = own(app, caller, id).await?;
    if state.is_final() {
        return Err(Problem::Conflict(format!(
            "the job is {state}: there is nothing left of it to run"
        )));
    }
    drive::request(app, caller, id, wish).await?;
    read(app, caller, id).await
}

/// Where a job stands of which the caller disposes.
async fn own(app: &App, caller: &Caller, id: JobId) -> Result<JobState, Problem> {
    caller.require(Role::Member)?;
    let mut tx = app.db.project(caller.project_id).await?;
    let found = store::find(&mut tx, caller.project_id, id).await?;
    tx.rollback().await?;
    let job = found.ok_or_else(|| Problem::not_found("job", id))?;
    if job.principal_id != caller.principal_id {
        caller.require(Role::Maintainer)?;
    }
    Ok(job.state)
}
