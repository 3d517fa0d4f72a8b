//! Pins checkpoints and lets go of them, with a line on the trail.

use chrono::{DateTime, Utc};
use lockstep_api::{CheckpointId, CheckpointView, JobEventKind};

use crate::app::App;
use crate::attempts::drive::Drive;
use crate::audit;
use crate::checkpoints::retention::retain;
use crate::checkpoints::store;
use crate::extract::Caller;
use crate::problem::Problem;

/// Pinned checkpoints of one job.
pub(crate) const MAX_PINNED: usize = 64;

/// Keeps a checkpoint until it is unpinned. Again: changes nothing.
pub(crate) async fn pin(
    app: &App,
    caller: &Caller,
    id: CheckpointId,
) -> Result<CheckpointView, Problem> {
    let now = app.clock.now();
    change(app, caller, id, Some(now)).await?.ok_or_else(|| Problem::not_found("checkpoint", id))
}

/// From now on a checkpoint is kept only if its job says so: it may go at once. Again: changes nothing.
pub(crate) async fn unpin(app: &App, caller: &Caller, id: CheckpointId) -> Result<(), Problem> {
    change(app, caller, id, None).await.map(drop)
}

/// The checkpoint afterwards; `None` when nothing keeps it any more.
async fn change(
    app: &App,
    caller: &Caller,
    id: CheckpointId,
    pinned_at: Option<DateTime<Utc>>,
) -> Result<Option<CheckpointView>, Problem> {
    let mut tx = app.db.system().await?;
    let found = store::job_of(&mut tx, caller.project_id, id).await?;
    let job = found.ok_or_else(|| Problem::not_found("checkpoint", id))?;
    let mut drive = Drive::lock(app, &mut tx, &[job], &[], &[]).await?;
    // Retention may have been quicker.
    let all = store::all(&mut tx, job).await?;
    let before = all.iter().find(|it| it.id == id);
    let before = before.ok_or_else(|| Problem::not_found("checkpoint", id))?;
    if before.is_pinned != pinned_at.is_some() {
        let pinned = all.iter().filter(|it| it.is_pinned).count();
        if pinned_at.is_some() && MAX_PINNED <= pinned {
            let message = format!("the job has {pinned} pinned checkpoints: unpin one first");
            return Err(Problem::Conflict(message));
        }
        store::set_pinned(&mut tx, id, pinned_at).await?;
        // Pinning one lets none of the others go.
        if let (None, Some(locked)) = (pinned_at, drive.job(job)) {
            let _either = retain(&mut tx, locked, drive.now()).await?;
        }
        drive.note(job, JobEventKind::Checkpoint);
        let action = if pinned_at.is_some() { "checkpoint.pin" } else { "checkpoint.unpin" };
        audit::record(&mut tx, caller, action, id, drive.now()).await?;
    }
    let after = store::views(&mut tx, job).await?.into_iter().find(|it| it.id == id);
    let announcement = drive.finish(&mut tx).await?;
    tx.commit().await?;
    announcement.send(&app.wakeup);
    Ok(after)
}
