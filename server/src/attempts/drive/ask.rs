//! What people and the server itself want of a job, and what its log says of it.

use lockstep_api::{AttemptId, JobId, LogLevel};
use lockstep_core::{Event, JobEffect, JobEvent};
use sqlx::PgConnection;

use super::Drive;
use crate::app::App;
use crate::attempts::store;
use crate::audit;
use crate::extract::Caller;
use crate::jobs::store::lifecycle;
use crate::problem::Problem;
use crate::projects;

/// What someone wants of a job.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wish {
    pub(crate) event: JobEvent,
    /// On the trail: `job.pause`.
    pub(crate) action: &'static str,
    /// In the job's log, before the name of who it is: `pause requested by`.
    pub(crate) words: &'static str,
}

impl Drive<'_> {
    /// Takes one step with a job, at somebody's wish. Its attempt is told to stop if need be; if anything changes, the job's log says
    /// `because`, and a stopped attempt keeps it.
    pub(crate) async fn ask(
        &mut self,
        db: &mut PgConnection,
        job: JobId,
        event: JobEvent,
        because: &str,
    ) -> Result<(), Problem> {
        let before = self.job(job).map(|job| job.core);
        let effects = self.step_job(job, event)?;
        if self.job(job).map(|job| job.core) == before {
            return Ok(());
        }
        // A job that was never placed has no log.
        if let Some(newest) = store::newest(db, &[job]).await?.get(&job) {
            self.say((job, newest.attempt_id), None, LogLevel::Info, because.to_owned());
        }
        let of_job = self.attempts.values().filter(|attempt| attempt.job_id == job);
        for id in of_job.map(|attempt| attempt.id).collect::<Vec<_>>() {
            if event != JobEvent::ResumeRequested {
                store::record_stop(db, id, because).await?;
            }
            if effects.contains(&JobEffect::StopAttempt) {
                // An attempt at work can always be asked to stop.
                let _refused = self.step(db, id, Event::StopRequested).await?;
            }
        }
        Ok(())
    }
}

/// Asks a job of the caller's project to end, to pause or to go on, and puts that on the trail: a queued one does so here,
/// one at work is told to stop. Repeating changes nothing.
pub(crate) async fn request(
    app: &App,
    caller: &Caller,
    job: JobId,
    Wish { event, action, words }: Wish,
) -> Result<(), Problem> {
    let mut tx = app.db.system().await?;
    if lifecycle::lock_of_project(&mut tx, caller.project_id, job).await?.is_none() {
        return Err(Problem::not_found("job", job));
    }
    let attempt = store::at_work(&mut tx, job).await?;
    let attempts: Vec<AttemptId> = attempt.into_iter().collect();
    let mut drive = Drive::lock(app, &mut tx, &[job], &attempts, &[]).await?;
    let name = projects::store::principal_name(&mut tx, caller.principal_id).await?;
    drive.ask(&mut tx, job, event, &format!("{words} {name}")).await?;
    let announcement = drive.finish(&mut tx).await?;
    audit::record(&mut tx, caller, action, job, app.clock.now()).await?;
    tx.commit().await?;
    announcement.send(&app.wakeup);
    Ok(())
}
