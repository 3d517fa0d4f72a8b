//! Gangs that give way to a job of higher priority.

use lockstep_core::{Coming, GangAtWork, GivesWay, JobEvent, NodeOffer, Request, preempt};

use crate::app::App;
use crate::attempts::drive::Drive;
use crate::attempts::store::AtWork;
use crate::jobs::store::lifecycle::QueuedJob;
use crate::problem::Problem;

/// Has gangs of lower priority give way to the last job of a queue, which waits for slots: they stop after a checkpoint, and their
/// jobs are queued again, for nothing. Says whether any does.
pub(crate) async fn preempt_gangs(
    app: &App,
    (queue, waiting): (&[Request], &QueuedJob),
    nodes: &[NodeOffer],
    coming: &Coming,
    at_work: &[AtWork],
) -> Result<bool, Problem> {
    let gangs: Vec<GangAtWork> = at_work.iter().map(|it| it.gang.clone()).collect();
    let chosen = preempt((queue, waiting.priority), nodes, coming, &gangs);
    for it in at_work.iter().filter(|it| chosen.contains(&it.gang.attempt)) {
        give_way(app, it, waiting).await?;
    }
    Ok(!chosen.is_empty())
}

/// Tells one to, unless it has ended or was told to stop meanwhile.
async fn give_way(app: &App, gang: &AtWork, to: &QueuedJob) -> Result<(), Problem> {
    let (job, attempt) = (gang.job_id, gang.gang.attempt);
    let mut tx = app.db.system().await?;
    let mut drive = Drive::lock(app, &mut tx, &[job], &[attempt], &[]).await?;
    let is_at_work = drive.attempt(attempt).is_some_and(|it| it.core.stage.is_at_work());
    let (Some(locked), true) = (drive.job(job), is_at_work) else { return Ok(()) };
    let because = GivesWay {
        // Two projects know nothing of each other.
        to: (gang.project_id == to.project_id).then_some(to.name.as_str()),
        priority: to.priority,
        preemptions: locked.core.preemptions + 1,
    };
    drive.ask(&mut tx, job, JobEvent::PreemptRequested, &because.to_string()).await?;
    let announcement = drive.finish(&mut tx).await?;
    tx.commit().await?;
    announcement.send(&app.wakeup);
    tracing::info!(job.id = %job, attempt.id = %attempt, to.job.id = %to.id, "a gang gives way to a job of higher priority");
    Ok(())
}
