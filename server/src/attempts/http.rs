//! `/v1/agent/reports`, `/v1/jobs/{id}/ranks`: HTTP in, HTTP out.

use axum::extract::State;
use lockstep_api::{ArrivalMap, JobId, ProblemBody, ReportRequest, ReportResponse};

use crate::app::App;
use crate::attempts::store::arrival as store;
use crate::attempts::{arrival, report};
use crate::extract::{Caller, Json, Path};
use crate::jobs::store::lifecycle;
use crate::nodes::caller::NodeCaller;
use crate::problem::Problem;

/// Takes a node's numbered reports.
///
/// Each has its effect exactly once: what was acknowledged before is skipped. Reports about an attempt whose lease is lost
/// have none, and the attempt is named in `lost`.
#[utoipa::path(
    post, path = "/v1/agent/reports", operation_id = "agent_report", tag = "agent", request_body = ReportRequest,
    responses((status = 200, body = ReportResponse), (status = 401, body = ProblemBody)),
)]
#[tracing::instrument(skip_all, fields(node.id = %node.node_id))]
pub(crate) async fn reports(
    State(app): State<App>,
    node: NodeCaller,
    Json(request): Json<ReportRequest>,
) -> Result<Json<ReportResponse>, Problem> {
    let ReportRequest { reports } = request;
    if report::REPORTS_PER_BATCH < reports.len() {
        let message =
            format!("expected at most {}, got {}", report::REPORTS_PER_BATCH, reports.len());
        return Err(Problem::field("reports", message));
    }
    if let Some(i) = reports.windows(2).position(|pair| pair[1].seq <= pair[0].seq) {
        let message = format!("expected more than {}, got {}", reports[i].seq, reports[i + 1].seq);
        return Err(Problem::field(format!("reports[{}].seq", i + 1), message));
    }
    report::take(&app, node, reports).await.map(Json)
}

/// Who has entered the collective under way, who has not, and what those do instead: of the newest attempt, from the
/// newest heartbeat of each node.
#[utoipa::path(
    get, path = "/v1/jobs/{id}/ranks", operation_id = "get_job_ranks", tag = "jobs", params(("id" = JobId, Path)),
    responses((status = 200, body = ArrivalMap), (status = 404, body = ProblemBody)),
)]
#[tracing::instrument(skip_all, fields(job.id = %id))]
pub(crate) async fn ranks(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<JobId>,
) -> Result<Json<ArrivalMap>, Problem> {
    let mut tx = app.db.snapshot(caller.project_id).await?;
    if !lifecycle::exists(&mut tx, caller.project_id, id).await? {
        return Err(Problem::not_found("job", id));
    }
    let of = store::newest_of(&mut tx, id).await?;
    let heard = match of {
        Some(of) => store::heard(&mut tx, of.attempt_id).await?,
        None => Vec::new(),
    };
    tx.rollback().await?;
    Ok(Json(arrival::map(of, heard, app.clock.now())))
}
