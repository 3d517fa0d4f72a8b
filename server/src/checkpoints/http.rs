//! `/v1/checkpoints`: HTTP in, HTTP out.

use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::TryStreamExt as _;
use lockstep_api::{CheckpointId, CheckpointView, Digest, ProblemBody, ProjectId, Role};

use crate::app::App;
use crate::checkpoints::{pin, store};
use crate::data;
use crate::extract::{Caller, Json, Path};
use crate::problem::Problem;

/// A checkpoint's file, `safetensors`.
#[utoipa::path(
    get, path = "/v1/checkpoints/{id}/file", operation_id = "download_checkpoint", tag = "checkpoints", params(("id" = CheckpointId, Path)),
    responses(
        (status = 200, body = Vec<u8>, content_type = "application/octet-stream"),
        (status = 404, body = ProblemBody),
    ),
)]
#[tracing::instrument(skip_all, fields(checkpoint.id = %id))]
pub(crate) async fn file(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<CheckpointId>,
) -> Result<Response, Problem> {
    let project = caller.project_id;
    let mut tx = app.db.project(project).await?;
    let digest = store::find_file(&mut tx, project, id).await?;
    let digest = digest.ok_or_else(|| Problem::not_found("checkpoint", id))?;
    let file = data::store::find_file(&mut tx, project, &digest).await?;
    tx.rollback().await?;
    let file =
        file.ok_or_else(|| Problem::internal(format!("file {digest} of a checkpoint is gone")))?;
    let chunks = futures::stream::iter(file.chunks.into_iter().map(Ok::<Digest, Problem>))
        .and_then(move |digest| read_chunk(app.clone(), project, digest));
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream")),
        (header::CONTENT_LENGTH, HeaderValue::from(file.size_bytes)),
    ];
    Ok((headers, axum::body::Body::from_stream(chunks)).into_response())
}

/// One short transaction a chunk: a slow reader holds no connection. A chunk that is gone cuts the body short of its announced
/// length, which the reader notices.
async fn read_chunk(app: App, project: ProjectId, digest: Digest) -> Result<Bytes, Problem> {
    let chunk = data::chunks::read(&app, project, &digest).await?;
    chunk.ok_or_else(|| Problem::not_found("chunk", digest))
}

/// Keeps a checkpoint until it is unpinned, whatever `keep_last` and `keep_best` say. Safe to repeat.
#[utoipa::path(
    put, path = "/v1/checkpoints/{id}/pin", operation_id = "pin_checkpoint", tag = "checkpoints", params(("id" = CheckpointId, Path)),
    responses(
        (status = 200, body = CheckpointView), (status = 404, body = ProblemBody), (status = 409, body = ProblemBody),
    ),
)]
#[tracing::instrument(name = "checkpoints.pin", skip_all, fields(checkpoint.id = %id))]
pub(crate) async fn pin_checkpoint(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<CheckpointId>,
) -> Result<Json<CheckpointView>, Problem> {
    caller.require(Role::Member)?;
    pin::pin(&app, &caller, id).await.map(Json)
}

/// Leaves a checkpoint to `keep_last` and `keep_best`: if they do not keep it, it is gone at once. Safe to repeat.
#[utoipa::path(
    delete, path = "/v1/checkpoints/{id}/pin", operation_id = "unpin_checkpoint", tag = "checkpoints", params(("id" = CheckpointId, Path)),
    responses((status = 204, description = "Not pinned any more"), (status = 404, body = ProblemBody)),
)]
#[tracing::instrument(name = "checkpoints.unpin", skip_all, fields(checkpoint.id = %id))]
pub(crate) async fn unpin_checkpoint(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<CheckpointId>,
) -> Result<StatusCode, Problem> {
    caller.require(Role::Member)?;
    pin::unpin(&app, &caller, id).await?;
    Ok(StatusCode::NO_CONTENT)
}
