//! `/v1/checkpoints`: HTTP in, HTTP out.

use axum::extract::State;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::TryStreamExt as _;
use lockstep_api::{CheckpointId, Digest, ProblemBody, ProjectId};

use crate::app::App;
use crate::checkpoints::store;
use crate::data;
use crate::extract::{Caller, Path};
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
