//! From a request to a queued job: resolve, check, record.

use chrono::TimeDelta;
use lockstep_api::{
    CheckRequest, CheckSummary, DatasetView, Digest, FieldError, FileManifest, GuestSpec,
    JobEventKind, JobId, JobSpec, ProjectId,
};
use sqlx::PgConnection;

use super::materials::CACHE_BYTES;
use super::{check, store};
use crate::app::App;
use crate::extract::Caller;
use crate::problem::Problem;
use crate::{audit, data, progress};

/// Jobs of one project that have not ended.
const MAX_UNFINISHED_JOBS: i64 = 10_000;
/// Largest component, bytes.
const COMPONENT_BYTES: i64 = 64 << 20;
/// Largest file of weights to begin with, bytes.
const WEIGHTS_BYTES: i64 = 8 << 30;
/// How long an idempotency key is remembered.
const KEY_LIFETIME: TimeDelta = TimeDelta::hours(24);

/// What a submit led to.
#[must_use]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Submitted {
    /// A new job.
    New(JobId),
    /// The job that the key stood for already.
    Before(JobId),
}

/// What the job refers to, found in its project.
struct Resolved {
    loader: FileManifest,
    loss: FileManifest,
    train: DatasetView,
    eval: Option<DatasetView>,
    init: Option<FileManifest>,
}

/// Submits a job. With a key: at most one job comes of it, whoever is quicker.
pub(crate) async fn submit(
    app: &App,
    caller: &Caller,
    mut spec: JobSpec,
    key: Option<&str>,
) -> Result<Submitted, Problem> {
    let fingerprint = Digest::of(&serde_json::to_vec(&spec).map_err(Problem::internal)?);
    if let Some(key) = key
        && let Some(id) = used_before(app, caller.project_id, key, &fingerprint).await?
    {
        return Ok(Submitted::Before(id));
    }
    let errors = spec.check();
    if !errors.is_empty() {
        return Err(Problem::Refused(errors));
    }
    let mut tx = app.db.project(caller.project_id).await?;
    let resolved = resolve(&mut tx, caller.project_id, &spec).await?;
    tx.rollback().await?;
    spec.data.train = resolved.train.digest.to_string();
    spec.data.eval = resolved.eval.as_ref().map(|dataset| dataset.digest.to_string());
    let summary = examine(app, caller.project_id, &spec, &resolved).await?;
    let id = app.new_id(JobId::new);
    match record(app, caller, id, &spec, &summary, key, &fingerprint).await? {
        store::Key::Taken => {}
        store::Key::InUse => {
            let key = key.unwrap_or_default();
            let before = used_before(app, caller.project_id, key, &fingerprint).await?;
            return before.map(Submitted::Before).ok_or_else(|| {
                Problem::Unavailable("the idempotency key was just used and forgotten".to_owned())
            });
        }
    }
    app.wakeup.jobs_changed();
    app.wakeup.job_event(id);
    Ok(Submitted::New(id))
}

async fn used_before(
    app: &App,
    project: ProjectId,
    key: &str,
    fingerprint: &Digest,
) -> Result<Option<JobId>, Problem> {
    let mut tx = app.db.project(project).await?;
    let found = store::find_key(&mut tx, project, key, app.clock.now() - KEY_LIFETIME).await?;
    tx.rollback().await?;
    match found {
        None => Ok(None),
        Some(found) if found.fingerprint == fingerprint.as_str() => Ok(Some(found.job_id)),
        Some(_) => Err(Problem::IdempotencyMismatch),
    }
}

/// Finds components, datasets and weights; names every field that leads nowhere.
async fn resolve(
    db: &mut PgConnection,
    project: ProjectId,
    spec: &JobSpec,
) -> Result<Resolved, Problem> {
    let mut errors = Vec::new();
    let loader = component(db, project, "loader", &spec.loader, &mut errors).await?;
    let loss = component(db, project, "loss", &spec.loss, &mut errors).await?;
    let train = dataset(db, project, "data.train", &spec.data.train, &mut errors).await?;
    let eval = match &spec.data.eval {
        Some(name) => Some(dataset(db, project, "data.eval", name, &mut errors).await?),
        None => None,
    };
    let init = match &spec.model.init_from {
        Some(text) => {
            file(db, project, "model.init_from", text, WEIGHTS_BYTES, &mut errors).await?
        }
        None => None,
    };
    // What was named and not found is among the errors.
    let (Some(loader), Some(loss), Some(train), true) = (loader, loss, train, errors.is_empty())
    else {
        return Err(Problem::Refused(errors));
    };
    Ok(Resolved { loader, loss, train, eval: eval.flatten(), init })
}

async fn component(
    db: &mut PgConnection,
    project: ProjectId,
    field: &str,
    guest: &GuestSpec,
    errors: &mut Vec<FieldError>,
) -> Result<Option<FileManifest>, Problem> {
    let field = format!("{field}.component");
    file(db, project, &field, &guest.component, COMPONENT_BYTES, errors).await
}

/// A file of the project, by digest.
async fn file(
    db: &mut PgConnection,
    project: ProjectId,
    field: &str,
    digest: &str,
    bytes_cap: i64,
    errors: &mut Vec<FieldError>,
) -> Result<Option<FileManifest>, Problem> {
    let digest: Digest = match digest.parse() {
        Ok(digest) => digest,
        Err(error) => {
            return Err(Problem::Refused(vec![FieldError::new(field, format!("{error}"))]));
        }
    };
    let found = data::store::find_file(db, project, &digest).await?;
    let message = match &found {
        Some(file) if bytes_cap < file.size_bytes => {
            format!("expected at most {bytes_cap} bytes, got {}", file.size_bytes)
        }
        Some(_) => return Ok(found),
        None => format!("expected the digest of a file that was put before, got {digest}"),
    };
    errors.push(FieldError::new(field, message));
    Ok(None)
}

async fn dataset(
    db: &mut PgConnection,
    project: ProjectId,
    field: &str,
    name: &str,
    errors: &mut Vec<FieldError>,
) -> Result<Option<DatasetView>, Problem> {
    let found = data::store::find_dataset(db, project, name).await?;
    let bytes: u64 = found
        .iter()
        .flat_map(|found| &found.files)
        .map(|file| file.size_bytes.unsigned_abs())
        .sum();
    let message = match found {
        Some(_) if CACHE_BYTES < bytes => {
            format!("expected at most {CACHE_BYTES} bytes of data, got {bytes}")
        }
        Some(found) => return Ok(Some(found)),
        None => format!("expected a registered dataset's name or digest, got {name:?}"),
    };
    errors.push(FieldError::new(field, message));
    Ok(None)
}

/// Puts the files where the check can read them, and runs it.
async fn examine(
    app: &App,
    project: ProjectId,
    spec: &JobSpec,
    resolved: &Resolved,
) -> Result<CheckSummary, Problem> {
    let materials = &app.materials;
    let _in_place = materials.enter().await?;
    let loader_path = materials.file(app, project, &resolved.loader).await?;
    let loss_path = materials.file(app, project, &resolved.loss).await?;
    let train_dir = materials.dataset(app, project, &resolved.train).await?;
    let eval_dir = match &resolved.eval {
        Some(eval) => Some(materials.dataset(app, project, eval).await?.into_string()),
        None => None,
    };
    let init_path = match &resolved.init {
        Some(init) => Some(materials.file(app, project, init).await?.into_string()),
        None => None,
    };
    let request = CheckRequest {
        spec: spec.clone(),
        loader_path: loader_path.into_string(),
        loss_path: loss_path.into_string(),
        train_dir: train_dir.into_string(),
        eval_dir,
        init_path,
        cache_dir: materials.compiled().into_string(),
    };
    check::check(app, &request).await
}

/// Job, key, first event and audit line, in one transaction.
async fn record(
    app: &App,
    caller: &Caller,
    id: JobId,
    spec: &JobSpec,
    summary: &CheckSummary,
    key: Option<&str>,
    fingerprint: &Digest,
) -> Result<store::Key, Problem> {
    let (project, now) = (caller.project_id, app.clock.now());
    let number = |count: u64| i64::try_from(count).map_err(Problem::internal);
    let job = store::NewJob {
        id,
        project_id: project,
        principal_id: caller.principal_id,
        spec,
        samples_per_epoch: number(
            spec.ddp.uneven.positions(summary.train_samples, spec.train.global_batch),
        )?,
        steps_total: number(summary.steps_total)?,
        created_at: now,
    };
    let mut tx = app.db.project(project).await?;
    if store::has_unfinished(&mut tx, project, MAX_UNFINISHED_JOBS).await? {
        let message = format!("the project has {MAX_UNFINISHED_JOBS} jobs that have not ended");
        return Err(Problem::Conflict(message));
    }
    store::insert(&mut tx, &job).await?;
    if let Some(key) = key {
        let key_use = store::KeyUse { fingerprint: fingerprint.to_string(), job_id: id };
        let taken =
            store::take_key(&mut tx, project, key, &key_use, now - KEY_LIFETIME, now).await?;
        if taken == store::Key::InUse {
            tx.rollback().await?;
            return Ok(taken);
        }
    }
    progress::store::append_events(&mut tx, project, id, &[JobEventKind::State], now).await?;
    audit::record(&mut tx, caller, "job.submit", id, now).await?;
    tx.commit().await?;
    Ok(store::Key::Taken)
}
