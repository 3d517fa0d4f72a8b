//! Everything the database knows of checkpoints. No other module names this table, but for what refers to files
//! ([`crate::data::collect`]).

use chrono::{DateTime, Utc};
use lockstep_api::{
    AttemptId, CheckpointId, CheckpointView, Digest, JobId, ProjectId, ResumeFrom, Step,
};
use sqlx::types::Uuid;
use sqlx::{PgConnection, query, query_as, query_scalar};

use crate::data;

/// Checkpoints shown of one job: more than the newest, the best and the pinned ones may be together.
const CHECKPOINTS_SHOWN: i64 = 200;

/// A digest that the database holds: it was checked on the way in.
fn digest(text: &str) -> sqlx::Result<Digest> {
    text.parse().map_err(|error| sqlx::Error::Decode(Box::new(error)))
}

/// A checkpoint to be published.
#[derive(Debug)]
pub(crate) struct NewCheckpoint<'a> {
    pub(crate) id: CheckpointId,
    pub(crate) project_id: ProjectId,
    pub(crate) job_id: JobId,
    pub(crate) attempt_id: AttemptId,
    pub(crate) step: Step,
    pub(crate) data_epoch: i64,
    pub(crate) next_position: i64,
    pub(crate) file: &'a Digest,
    pub(crate) size_bytes: i64,
}

/// Publishes a checkpoint whose file is recorded. The one of that attempt and step stays if there is one already.
pub(crate) async fn insert(
    db: &mut PgConnection,
    new: NewCheckpoint<'_>,
    now: DateTime<Utc>,
) -> sqlx::Result<()> {
    let NewCheckpoint {
        id,
        project_id,
        job_id,
        attempt_id,
        step,
        data_epoch,
        next_position,
        file,
        size_bytes,
    } = new;
    query!(
        "INSERT INTO checkpoint (checkpoint_id, project_id, job_id, attempt_id, step, data_epoch, next_position,
                                 file_digest, size_bytes, created_at)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
         ON CONFLICT (attempt_id, step) DO NOTHING",
        id as CheckpointId,
        project_id as ProjectId,
        job_id as JobId,
        attempt_id as AttemptId,
        step as Step,
        data_epoch,
        next_position,
        file.as_str(),
        size_bytes,
        now,
    )
    .execute(db)
    .await
    .map(drop)
}

/// The checkpoint of that attempt and step.
pub(crate) async fn find_step(
    db: &mut PgConnection,
    attempt: AttemptId,
    step: Step,
) -> sqlx::Result<Option<CheckpointView>> {
    let row = query_as!(
        Row,
        r#"SELECT checkpoint_id AS "id: CheckpointId", attempt_id AS "attempt_id: AttemptId", step AS "step: Step",
                  file_digest, size_bytes, created_at, pinned_at
           FROM checkpoint WHERE attempt_id = $1 AND step = $2"#,
        attempt as AttemptId,
        step as Step,
    )
    .fetch_optional(db)
    .await?;
    row.map(Row::view).transpose()
}

/// What deleted rows leave behind: files that may have nobody any more.
pub(crate) async fn delete(
    db: &mut PgConnection,
    ids: &[CheckpointId],
) -> sqlx::Result<Vec<Digest>> {
    let ids: Vec<Uuid> = ids.iter().map(|id| id.0).collect();
    let files = query_scalar!(
        "DELETE FROM checkpoint WHERE checkpoint_id = ANY($1) RETURNING file_digest",
        &ids,
    )
    .fetch_all(db)
    .await?;
    files.iter().map(|text| digest(text)).collect()
}

/// A checkpoint as retention sees it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kept {
    pub(crate) id: CheckpointId,
    pub(crate) attempt_id: AttemptId,
    pub(crate) step: Step,
    pub(crate) is_pinned: bool,
}

/// All checkpoints of a job. Its row is locked, so there will be no others before the transaction ends.
pub(crate) async fn all(db: &mut PgConnection, job: JobId) -> sqlx::Result<Vec<Kept>> {
    query_as!(
        Kept,
        r#"SELECT checkpoint_id AS "id: CheckpointId", attempt_id AS "attempt_id: AttemptId", step AS "step: Step",
                  pinned_at IS NOT NULL AS "is_pinned!"
           FROM checkpoint WHERE job_id = $1"#,
        job as JobId,
    )
    .fetch_all(db)
    .await
}

/// The job that a checkpoint of `project` is of.
pub(crate) async fn job_of(
    db: &mut PgConnection,
    project: ProjectId,
    id: CheckpointId,
) -> sqlx::Result<Option<JobId>> {
    query_scalar!(
        r#"SELECT job_id AS "job_id: JobId" FROM checkpoint WHERE project_id = $1 AND checkpoint_id = $2"#,
        project as ProjectId,
        id as CheckpointId,
    )
    .fetch_optional(db)
    .await
}

/// Pins a checkpoint, or lets go of it with `None`.
pub(crate) async fn set_pinned(
    db: &mut PgConnection,
    id: CheckpointId,
    pinned_at: Option<DateTime<Utc>>,
) -> sqlx::Result<()> {
    query!(
        "UPDATE checkpoint SET pinned_at = $2 WHERE checkpoint_id = $1",
        id as CheckpointId,
        pinned_at,
    )
    .execute(db)
    .await
    .map(drop)
}

/// The one to resume from. Attempts build on one another, so the highest step is the newest.
pub(crate) async fn newest(
    db: &mut PgConnection,
    job: JobId,
) -> sqlx::Result<Option<(CheckpointId, Step)>> {
    let row = query!(
        r#"SELECT checkpoint_id AS "id: CheckpointId", step AS "step: Step" FROM checkpoint WHERE job_id = $1
           ORDER BY step DESC, checkpoint_id DESC LIMIT 1"#,
        job as JobId,
    )
    .fetch_optional(db)
    .await?;
    Ok(row.map(|row| (row.id, row.step)))
}

/// What a rank needs to go on from a checkpoint.
pub(crate) async fn resume_from(
    db: &mut PgConnection,
    id: CheckpointId,
) -> sqlx::Result<Option<ResumeFrom>> {
    let row = query!(
        r#"SELECT project_id AS "project_id: ProjectId", step AS "step: Step", file_digest
           FROM checkpoint WHERE checkpoint_id = $1"#,
        id as CheckpointId,
    )
    .fetch_optional(&mut *db)
    .await?;
    let Some(row) = row else { return Ok(None) };
    let file = data::store::find_file(db, row.project_id, &digest(&row.file_digest)?).await?;
    Ok(file.map(|file| ResumeFrom { step: row.step, file }))
}

/// The file of a checkpoint of `project`.
pub(crate) async fn find_file(
    db: &mut PgConnection,
    project: ProjectId,
    id: CheckpointId,
) -> sqlx::Result<Option<Digest>> {
    let row = query!(
        "SELECT file_digest FROM checkpoint WHERE project_id = $1 AND checkpoint_id = $2",
        project as ProjectId,
        id as CheckpointId,
    )
    .fetch_optional(db)
    .await?;
    row.map(|row| digest(&row.file_digest)).transpose()
}

/// The checkpoints of a job as people see them, newest first.
pub(crate) async fn views(db: &mut PgConnection, job: JobId) -> sqlx::Result<Vec<CheckpointView>> {
    let rows = query_as!(
        Row,
        r#"SELECT checkpoint_id AS "id: CheckpointId", attempt_id AS "attempt_id: AttemptId", step AS "step: Step",
                  file_digest, size_bytes, created_at, pinned_at
           FROM checkpoint WHERE job_id = $1
           ORDER BY step DESC, checkpoint_id DESC LIMIT $2"#,
        job as JobId,
        CHECKPOINTS_SHOWN,
    )
    .fetch_all(db)
    .await?;
    rows.into_iter().map(Row::view).collect()
}

struct Row {
    id: CheckpointId,
    attempt_id: AttemptId,
    step: Step,
    file_digest: String,
    size_bytes: i64,
    created_at: DateTime<Utc>,
    pinned_at: Option<DateTime<Utc>>,
}

impl Row {
    fn view(self) -> sqlx::Result<CheckpointView> {
        let Self { id, attempt_id, step, file_digest, size_bytes, created_at, pinned_at } = self;
        let (file, is_pinned) = (digest(&file_digest)?, pinned_at.is_some());
        Ok(CheckpointView { id, attempt_id, step, file, size_bytes, created_at, is_pinned })
    }
}
