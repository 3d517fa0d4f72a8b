//! Gangs that give way to a job of higher priority.

use chrono::{DateTime, Utc};
use lockstep_core::{
    Coming, GangAtWork, GivesWay, JobEvent, NodeOffer, Request, is_nearly_done, preempt,
};

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
    let now = app.clock.now();
    let gangs: Vec<GangAtWork> = at_work.iter().map(|it| gang(it, now)).collect();
    let chosen = preempt((queue, waiting.priority), nodes, coming, &gangs);
    for it in at_work.iter().filter(|it| chosen.contains(&it.id)) {
        give_way(app, it, waiting).await?;
    }
    Ok(!chosen.is_empty())
}

fn gang(at_work: &AtWork, now: DateTime<Utc>) -> GangAtWork {
    let AtWork { first_step_at, course, has_left, .. } = *at_work;
    let is_nearly = |since| is_nearly_done(course, now - since);
    GangAtWork {
        attempt: at_work.id,
        priority: at_work.priority,
        preemptions: at_work.preemptions,
        placed_at: at_work.placed_at,
        // The others of a gang that a rank has left are about to leave, too.
        is_nearly_done: has_left || first_step_at.is_some_and(is_nearly),
        ranks: at_work.ranks,
        slots: at_work.slots.clone(),
    }
}

/// Tells one to, unless it has ended or was told to stop meanwhile.
async fn give_way(app: &App, gang: &AtWork, to: &QueuedJob) -> Result<(), Problem> {
    let (job, attempt) = (gang.job_id, gang.id);
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
