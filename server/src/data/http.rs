//! `/v1/chunks`, `/v1/files`, `/v1/datasets`: HTTP in, HTTP out.

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use lockstep_api::{
    DatasetId, DatasetView, Digest, FieldError, FileManifest, MissingRequest, MissingResponse,
    RegisterDataset, Role, dataset_digest,
};

use super::readback::{Readback, read_back, verify};
use super::{check, chunks, store};
use crate::app::App;
use crate::audit;
use crate::extract::{Body, Caller, Json, Path};
use crate::problem::Problem;

/// Which of these chunks does the project lack?
#[utoipa::path(
    post, path = "/v1/chunks/missing", operation_id = "missing_chunks", tag = "data", request_body = MissingRequest,
    responses((status = 200, body = MissingResponse)),
)]
#[tracing::instrument(name = "chunks.missing", skip_all)]
pub(crate) async fn missing_chunks(
    State(app): State<App>,
    caller: Caller,
    Json(request): Json<MissingRequest>,
) -> Result<Json<MissingResponse>, Problem> {
    caller.require(Role::Member)?;
    check::asked(&request.digests)?;
    let mut tx = app.db.project(caller.project_id).await?;
    let missing = store::missing_chunks(&mut tx, caller.project_id, &request.digests).await?;
    tx.rollback().await?;
    Ok(Json(MissingResponse { missing }))
}

/// Stores a chunk: 1 byte to 4 MiB, whose SHA-256 is the digest in the path. Safe to repeat.
#[utoipa::path(
    put, path = "/v1/chunks/{digest}", operation_id = "put_chunk", tag = "data",
    params(("digest" = String, Path, description = "`sha256:` and 64 hex digits")),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 204, description = "Stored")),
)]
#[tracing::instrument(name = "chunks.put", skip_all)]
pub(crate) async fn put_chunk(
    State(app): State<App>,
    caller: Caller,
    Path(digest): Path<Digest>,
    headers: HeaderMap,
    Body(bytes): Body,
) -> Result<StatusCode, Problem> {
    caller.require(Role::Member)?;
    octets(&headers)?;
    verify(&digest, &bytes).await?;
    let placed = chunks::place(&app, caller.project_id, &digest, bytes).await?;
    let mut tx = app.db.project(caller.project_id).await?;
    chunks::record(&app, &mut tx, caller.project_id, &digest, placed).await?;
    tx.commit().await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Refuses a body that says it is something else than octets.
fn octets(headers: &HeaderMap) -> Result<(), Problem> {
    const OCTETS: &str = "application/octet-stream";
    match headers.get(header::CONTENT_TYPE) {
        Some(kind) if kind.as_bytes() != OCTETS.as_bytes() => {
            Err(Problem::UnsupportedMediaType { expected: OCTETS })
        }
        _ => Ok(()),
    }
}

/// Which of these files does the project lack?
#[utoipa::path(
    post, path = "/v1/files/missing", operation_id = "missing_files", tag = "data", request_body = MissingRequest,
    responses((status = 200, body = MissingResponse)),
)]
#[tracing::instrument(name = "files.missing", skip_all)]
pub(crate) async fn missing_files(
    State(app): State<App>,
    caller: Caller,
    Json(request): Json<MissingRequest>,
) -> Result<Json<MissingResponse>, Problem> {
    caller.require(Role::Member)?;
    check::asked(&request.digests)?;
    let mut tx = app.db.project(caller.project_id).await?;
    let missing = store::missing_files(&mut tx, caller.project_id, &request.digests).await?;
    tx.rollback().await?;
    Ok(Json(MissingResponse { missing }))
}

/// Makes a file of chunks that were stored before. They are read back and hashed first. Safe to repeat.
#[utoipa::path(
    put, path = "/v1/files/{digest}", operation_id = "put_file", tag = "data",
    params(("digest" = String, Path, description = "`sha256:` and 64 hex digits")), request_body = FileManifest,
    responses((status = 204, description = "Stored")),
)]
#[tracing::instrument(name = "files.put", skip_all)]
pub(crate) async fn put_file(
    State(app): State<App>,
    caller: Caller,
    Path(digest): Path<Digest>,
    Json(file): Json<FileManifest>,
) -> Result<StatusCode, Problem> {
    caller.require(Role::Member)?;
    if digest != file.digest {
        let message = format!("expected the digest in the path, {digest}, got {}", file.digest);
        return Err(Problem::field("digest", message));
    }
    check::manifest(&file)?;
    match read_back(&app, caller.project_id, &file).await? {
        Readback::Whole => {}
        Readback::Missing(chunk) => return Err(lacking(&chunk)),
        Readback::Differs(field, message) => return Err(Problem::field(field, message)),
    }
    let mut tx = app.db.project(caller.project_id).await?;
    if let Some(chunk) = store::hold_chunks(&mut tx, caller.project_id, &file.chunks).await?.first()
    {
        return Err(lacking(chunk));
    }
    store::insert_file(&mut tx, caller.project_id, &file, app.clock.now()).await?;
    tx.commit().await?;
    Ok(StatusCode::NO_CONTENT)
}

fn lacking(chunk: &Digest) -> Problem {
    Problem::Conflict(format!("chunk {chunk} is not there: put it first"))
}

/// Registers a dataset, of files that were stored before. Safe to repeat.
#[utoipa::path(
    post, path = "/v1/datasets", operation_id = "register_dataset", tag = "data", request_body = RegisterDataset,
    responses((status = 200, body = DatasetView)),
)]
#[tracing::instrument(name = "datasets.register", skip_all)]
pub(crate) async fn register_dataset(
    State(app): State<App>,
    caller: Caller,
    Json(request): Json<RegisterDataset>,
) -> Result<Json<DatasetView>, Problem> {
    caller.require(Role::Member)?;
    let errors = check::dataset(&request);
    if !errors.is_empty() {
        return Err(Problem::Invalid(errors));
    }
    let RegisterDataset { name, mut files } = request;
    let (project, now) = (caller.project_id, app.clock.now());
    let mut tx = app.db.project(project).await?;
    let digests: Vec<Digest> = files.iter().map(|file| file.file.clone()).collect();
    let lengths = store::hold_files(&mut tx, project, &digests).await?;
    for (index, file) in files.iter().enumerate() {
        let field = |name: &str| format!("files[{index}].{name}");
        match lengths.get(file.file.as_str()) {
            None => {
                let message = format!("{} is not there: put it first", file.file);
                return Err(FieldError::new(field("file"), message).into());
            }
            Some(length) if *length != file.size_bytes => {
                let message = format!("expected {length}, got {}", file.size_bytes);
                return Err(FieldError::new(field("size_bytes"), message).into());
            }
            Some(_) => {}
        }
    }
    files.sort();
    let digest = dataset_digest(&files);
    let new_id = app.new_id(DatasetId::new);
    let id = store::insert_dataset(&mut tx, project, new_id, &digest, &files, now).await?;
    if let Some(name) = &name {
        store::name_dataset(&mut tx, project, name, id).await?;
    }
    let object = format!("{} {digest}", name.as_deref().unwrap_or("-"));
    audit::record(&mut tx, &caller, "dataset.register", object, now).await?;
    tx.commit().await?;
    Ok(Json(DatasetView { id, digest, name, files }))
}

/// A dataset by digest or name. A slash in a name is written `%2F`.
#[utoipa::path(
    get, path = "/v1/datasets/{name}", operation_id = "get_dataset", tag = "data",
    params(("name" = String, Path, description = "Digest or name")),
    responses((status = 200, body = DatasetView)),
)]
#[tracing::instrument(name = "datasets.get", skip_all)]
pub(crate) async fn get_dataset(
    State(app): State<App>,
    caller: Caller,
    Path(name): Path<String>,
) -> Result<Json<DatasetView>, Problem> {
    let mut tx = app.db.project(caller.project_id).await?;
    let found = store::find_dataset(&mut tx, caller.project_id, &name).await?;
    tx.rollback().await?;
    found.map(Json).ok_or_else(|| Problem::not_found("dataset", name))
}
