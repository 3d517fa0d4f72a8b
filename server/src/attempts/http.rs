//! `/v1/agent/reports`: HTTP in, HTTP out.

use axum::extract::State;
use lockstep_api::{ProblemBody, ReportRequest, ReportResponse};

use crate::app::App;
use crate::attempts::report;
use crate::extract::Json;
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
