//! Publishes a checkpoint: reads its bytes back, then makes it visible in one transaction with what it stands for.

use lockstep_api::{CheckpointId, CheckpointView, JobEventKind, PublishCheckpoint};

use crate::app::App;
use crate::attempts::drive::Drive;
use crate::attempts::store as attempts;
use crate::checkpoints::retention;
use crate::checkpoints::store::{self, NewCheckpoint};
use crate::data;
use crate::data::readback::{Readback, read_back};
use crate::nodes::caller::NodeCaller;
use crate::problem::Problem;

/// Publishes, under the fence. Again: answers the one that is there.
pub(crate) async fn publish(
    app: &App,
    node: NodeCaller,
    request: PublishCheckpoint,
) -> Result<CheckpointView, Problem> {
    let PublishCheckpoint { fence, step, data_epoch, next_position, file } = request;
    for (field, value) in
        [("step", step.0), ("data_epoch", data_epoch), ("next_position", next_position)]
    {
        if value < 0 {
            return Err(Problem::field(field, format!("expected 0 or more, got {value}")));
        }
    }
    data::check::manifest(&file)
        .map_err(|error| Problem::field(format!("file.{}", error.field), error.message))?;
    let mut tx = app.db.system().await?;
    let held = attempts::hold_fence(&mut tx, node.node_id, fence).await?.ok_or(Problem::Fenced)?;
    tx.rollback().await?;
    match read_back(app, held.project_id, &file).await? {
        Readback::Whole => {}
        Readback::Missing(chunk) => return Err(missing(chunk.as_str())),
        Readback::Differs(field, message) => {
            return Err(Problem::field(format!("file.{field}"), message));
        }
    }

    let mut tx = app.db.system().await?;
    let mut drive = Drive::lock(app, &mut tx, &[held.job_id], &[fence.attempt_id], &[]).await?;
    attempts::hold_fence(&mut tx, node.node_id, fence).await?.ok_or(Problem::Fenced)?;
    // Retention of another job may have let a chunk go since.
    if let Some(chunk) =
        data::store::hold_chunks(&mut tx, held.project_id, &file.chunks).await?.first()
    {
        return Err(missing(chunk.as_str()));
    }
    let now = drive.now();
    data::store::insert_file(&mut tx, held.project_id, &file, now).await?;
    let new = NewCheckpoint {
        id: app.new_id(CheckpointId::new),
        project_id: held.project_id,
        job_id: held.job_id,
        attempt_id: fence.attempt_id,
        step,
        data_epoch,
        next_position,
        file: &file.digest,
        size_bytes: file.size_bytes,
    };
    store::insert(&mut tx, new, now).await?;
    let published = store::find_step(&mut tx, fence.attempt_id, step).await?;
    let published = published.filter(|there| there.file == file.digest).ok_or_else(|| {
        Problem::Conflict(format!("this attempt has published another checkpoint of step {step}"))
    })?;
    if let Some(job) = drive.job(held.job_id) {
        let _either = retention::retain(&mut tx, job, now).await?;
    }
    drive.note(held.job_id, JobEventKind::Checkpoint);
    let announcement = drive.finish(&mut tx).await?;
    tx.commit().await?;
    announcement.send(&app.wakeup);
    tracing::info!(job.id = %held.job_id, %step, size_bytes = file.size_bytes, "checkpoint published");
    Ok(published)
}

fn missing(chunk: &str) -> Problem {
    Problem::Conflict(format!(
        "chunk {chunk} is not there: ask what is missing, put it, and publish again"
    ))
}
