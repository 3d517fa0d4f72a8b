//! `/v1/agent/chunks`, `/files`, `/checkpoints`: bytes of an attempt's own project, under its fence. HTTP in, HTTP out.

use axum::extract::State;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use lockstep_api::{
    AgentMissingRequest, AttemptId, AttemptQuery, CheckpointView, Digest, Fence, FileManifest,
    MissingResponse, ProblemBody, PublishCheckpoint,
};

use crate::app::App;
use crate::attempts::store as attempts;
use crate::checkpoints::publish;
use crate::data;
use crate::extract::{Body, Json, Path, Query};
use crate::nodes::caller::NodeCaller;
use crate::problem::Problem;

fn fence(query: AttemptQuery) -> Fence {
    let AttemptQuery { attempt, generation } = query;
    Fence { attempt_id: attempt, generation }
}

/// Which chunks the attempt's project lacks.
#[utoipa::path(
    post, path = "/v1/agent/chunks/missing", operation_id = "agent_missing_chunks", tag = "agent", request_body = AgentMissingRequest,
    responses((status = 200, body = MissingResponse), (status = 409, body = ProblemBody)),
)]
#[tracing::instrument(skip_all, fields(node.id = %node.node_id))]
pub(crate) async fn missing(
    State(app): State<App>,
    node: NodeCaller,
    Json(request): Json<AgentMissingRequest>,
) -> Result<Json<MissingResponse>, Problem> {
    let AgentMissingRequest { fence, digests } = request;
    data::check::asked(&digests)?;
    let mut tx = app.db.system().await?;
    let held = attempts::hold_fence(&mut tx, node.node_id, fence).await?.ok_or(Problem::Fenced)?;
    let missing = data::store::missing_chunks(&mut tx, held.project_id, &digests).await?;
    tx.rollback().await?;
    Ok(Json(MissingResponse { missing }))
}

/// Puts a chunk. Again: changes nothing.
#[utoipa::path(
    put, path = "/v1/agent/chunks/{digest}", operation_id = "agent_put_chunk", tag = "agent",
    params(("digest" = Digest, Path), ("attempt" = AttemptId, Query), ("generation" = i64, Query)),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 204), (status = 400, body = ProblemBody), (status = 409, body = ProblemBody)),
)]
#[tracing::instrument(skip_all, fields(node.id = %node.node_id))]
pub(crate) async fn put_chunk(
    State(app): State<App>,
    node: NodeCaller,
    Path(digest): Path<Digest>,
    Query(query): Query<AttemptQuery>,
    Body(bytes): Body,
) -> Result<axum::http::StatusCode, Problem> {
    data::readback::verify(&digest, &bytes).await?;
    let fence = fence(query);
    let mut tx = app.db.system().await?;
    let held = attempts::hold_fence(&mut tx, node.node_id, fence).await?.ok_or(Problem::Fenced)?;
    tx.rollback().await?;
    let placed = data::chunks::place(&app, held.project_id, &digest, bytes).await?;
    let mut tx = app.db.system().await?;
    attempts::hold_fence(&mut tx, node.node_id, fence).await?.ok_or(Problem::Fenced)?;
    data::chunks::record(&app, &mut tx, held.project_id, &digest, placed).await?;
    tx.commit().await?;
    Ok(axum::http::StatusCode::NO_CONTENT)
}

/// A chunk's bytes.
#[utoipa::path(
    get, path = "/v1/agent/chunks/{digest}", operation_id = "agent_get_chunk", tag = "agent",
    params(("digest" = Digest, Path), ("attempt" = AttemptId, Query), ("generation" = i64, Query)),
    responses(
        (status = 200, body = Vec<u8>, content_type = "application/octet-stream"),
        (status = 404, body = ProblemBody), (status = 409, body = ProblemBody),
    ),
)]
#[tracing::instrument(skip_all, fields(node.id = %node.node_id))]
pub(crate) async fn get_chunk(
    State(app): State<App>,
    node: NodeCaller,
    Path(digest): Path<Digest>,
    Query(query): Query<AttemptQuery>,
) -> Result<Response, Problem> {
    let mut tx = app.db.system().await?;
    let held =
        attempts::hold_fence(&mut tx, node.node_id, fence(query)).await?.ok_or(Problem::Fenced)?;
    let chunk = data::store::find_chunk(&mut tx, held.project_id, &digest).await?;
    tx.rollback().await?;
    let chunk = chunk.ok_or_else(|| Problem::not_found("chunk", digest))?;
    let chunk = data::chunks::fetch(&app, chunk).await?;
    let kind = HeaderValue::from_static("application/octet-stream");
    Ok(([(header::CONTENT_TYPE, kind)], chunk).into_response())
}

/// A file's manifest.
#[utoipa::path(
    get, path = "/v1/agent/files/{digest}", operation_id = "agent_get_file", tag = "agent",
    params(("digest" = Digest, Path), ("attempt" = AttemptId, Query), ("generation" = i64, Query)),
    responses(
        (status = 200, body = FileManifest), (status = 404, body = ProblemBody), (status = 409, body = ProblemBody),
    ),
)]
#[tracing::instrument(skip_all, fields(node.id = %node.node_id))]
pub(crate) async fn get_file(
    State(app): State<App>,
    node: NodeCaller,
    Path(digest): Path<Digest>,
    Query(query): Query<AttemptQuery>,
) -> Result<Json<FileManifest>, Problem> {
    let mut tx = app.db.system().await?;
    let held =
        attempts::hold_fence(&mut tx, node.node_id, fence(query)).await?.ok_or(Problem::Fenced)?;
    let file = data::store::find_file(&mut tx, held.project_id, &digest).await?;
    tx.rollback().await?;
    file.map(Json).ok_or_else(|| Problem::not_found("file", digest))
}

/// Publishes a checkpoint whose chunks were put before. They are read back first.
#[utoipa::path(
    post, path = "/v1/agent/checkpoints", operation_id = "agent_publish_checkpoint", tag = "agent", request_body = PublishCheckpoint,
    responses((status = 200, body = CheckpointView), (status = 409, body = ProblemBody)),
)]
#[tracing::instrument(skip_all, fields(node.id = %node.node_id))]
pub(crate) async fn publish_checkpoint(
    State(app): State<App>,
    node: NodeCaller,
    Json(request): Json<PublishCheckpoint>,
) -> Result<Json<CheckpointView>, Problem> {
    publish::publish(&app, node, request).await.map(Json)
}
