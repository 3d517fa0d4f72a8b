//! Lets go of the checkpoints that attempts resumed from which have ended since, without input.

use lockstep_api::{JobEventKind, JobId};

use crate::app::App;
use crate::attempts::drive::Drive;
use crate::attempts::store as attempts;
use crate::checkpoints::retention::{Retained, retain};
use crate::problem::Problem;

/// Looks once more at the jobs of attempts that have ended and hold a checkpoint still.
pub(crate) async fn let_go(app: &App) -> Result<(), Problem> {
    let mut tx = app.db.system().await?;
    let jobs = attempts::ended_holding(&mut tx).await?;
    tx.rollback().await?;
    for job in jobs {
        of_job(app, job).await?;
    }
    Ok(())
}

async fn of_job(app: &App, job: JobId) -> Result<(), Problem> {
    let mut tx = app.db.system().await?;
    let mut drive = Drive::lock(app, &mut tx, &[job], &[], &[]).await?;
    attempts::let_go(&mut tx, job).await?;
    if let Some(locked) = drive.job(job)
        && retain(&mut tx, locked, drive.now()).await? == Retained::Fewer
    {
        drive.note(job, JobEventKind::Checkpoint);
    }
    let announcement = drive.finish(&mut tx).await?;
    tx.commit().await?;
    announcement.send(&app.wakeup);
    Ok(())
}
