//! What becomes of a job and its nodes once an attempt has ended or a verdict is in.

use lockstep_api::{
    AttemptId, AttemptOutcome, Blame, JobId, JobState, LogLevel, Step, StopPurpose,
};
use lockstep_core::{Failure, Gang, JobEvent, Outlook, Waits, quarantine, retry};
use sqlx::PgConnection;

use super::Drive;
use crate::attempts::store::{self, LockedAttempt};
use crate::checkpoints;
use crate::nodes;
use crate::problem::Problem;
use crate::progress;

/// What a job's `waiting` says until the next pass of placement.
const WAITS_FOR_PLACE: &str = "waits to be placed";

impl Drive<'_> {
    /// An attempt is over: its job and its nodes hear of it.
    pub(super) async fn end(
        &mut self,
        db: &mut PgConnection,
        id: AttemptId,
        outcome: AttemptOutcome,
        blame: Blame,
    ) -> Result<(), Problem> {
        let Some(attempt) = self.attempts.get(&id) else { return Ok(()) };
        let (job, generation) = (attempt.job_id, attempt.core.gang.generation);
        let outlook = match outcome {
            AttemptOutcome::Failed => self.outlook(db, job, blame).await?,
            AttemptOutcome::Succeeded | AttemptOutcome::LeaseLost | AttemptOutcome::Cancelled => {
                Outlook::Open
            }
        };
        match outcome {
            AttemptOutcome::Failed | AttemptOutcome::LeaseLost => {
                self.bereft_jobs.insert(job);
            }
            AttemptOutcome::Succeeded => {
                let nodes = self.attempts.get(&id).map(LockedAttempt::nodes).unwrap_or_default();
                nodes::quarantine::forgive(db, &nodes, id, self.now).await?;
            }
            AttemptOutcome::Cancelled => {}
        }
        let stopped_for = self.job(job).and_then(|job| job.core.stopping);
        if let (Some(purpose), true) = (stopped_for, outcome != AttemptOutcome::Succeeded) {
            let resume = checkpoints::store::newest(db, job).await?.map(|(_, step)| step);
            self.say((job, id), None, LogLevel::Info, stopped(purpose, resume));
        }
        self.step_job(job, JobEvent::AttemptEnded { generation, outcome, blame, outlook })?;
        let is_lost = matches!(outcome, AttemptOutcome::Failed | AttemptOutcome::LeaseLost);
        if is_lost && self.job(job).is_some_and(|it| it.core.state == JobState::Queued) {
            let resume = checkpoints::store::newest(db, job).await?.map(|(_, step)| step);
            let why = self.attempts.get(&id).and_then(|it| unfilled(&it.core.gang));
            let text = format!(
                "{}another attempt goes on from {}",
                why.unwrap_or_default(),
                place(resume)
            );
            self.say((job, id), None, LogLevel::Info, text);
        }
        Ok(())
    }

    /// A verdict is the doing of its nodes, unless the job has asked for faults.
    pub(super) async fn blame(
        &self,
        db: &mut PgConnection,
        id: AttemptId,
        failure: &Failure,
        gang: &Gang,
    ) -> Result<(), Problem> {
        let job = self.attempts.get(&id).and_then(|attempt| self.jobs.get(&attempt.job_id));
        if job.is_none_or(|job| !job.spec.chaos.is_empty()) {
            return Ok(());
        }
        let blamed = quarantine::blamed(gang, failure);
        nodes::quarantine::blame(db, &blamed, id, failure.report.code, self.now).await?;
        Ok(())
    }

    /// Whether a job whose attempt has just failed could end otherwise if it were tried again; if not, the job says so.
    pub(super) async fn outlook(
        &mut self,
        db: &mut PgConnection,
        id: JobId,
        blame: Blame,
    ) -> Result<Outlook, Problem> {
        let Some(job) = self.jobs.get_mut(&id) else { return Ok(Outlook::Open) };
        if blame != Blame::User || job.core.budget.user == 0 {
            return Ok(Outlook::Open);
        }
        let verdicts = progress::store::last_two(db, id).await?;
        let repeated = verdicts.and_then(|(last, before)| retry::repeated(&before, &last));
        job.ended_because = repeated.as_ref().map(ToString::to_string);
        Ok(repeated.map_or(Outlook::Open, |_| Outlook::Hopeless))
    }

    /// When a queued job may be placed, and what it says until then.
    pub(super) async fn queue(
        &mut self,
        db: &mut PgConnection,
        id: JobId,
    ) -> Result<String, Problem> {
        let Some(job) = self.jobs.get_mut(&id) else { return Ok(String::new()) };
        if !self.bereft_jobs.contains(&id) {
            return Ok(WAITS_FOR_PLACE.to_owned());
        }
        let wait = retry::wait_after(store::idle(db, id).await?);
        job.not_before = Some(self.now + wait);
        Ok(Waits(wait).to_string())
    }
}

/// Where a job goes on.
fn place(resume: Option<Step>) -> String {
    match resume {
        Some(step) => format!("its checkpoint of step {step}"),
        None => "its beginning".to_owned(),
    }
}

/// Of an attempt that has ended: whose places were still to be filled.
fn unfilled(gang: &Gang) -> Option<String> {
    let ranks: Vec<String> = gang.vacant().iter().map(ToString::to_string).collect();
    let word = if ranks.len() == 1 { "rank" } else { "ranks" };
    let who = ranks.join(", ");
    (!ranks.is_empty()).then(|| format!("{word} {who} had no slots: "))
}

/// A sentence for the log of a job whose attempt was stopped and that goes on from the checkpoint of this step.
fn stopped(purpose: StopPurpose, resume: Option<Step>) -> String {
    let from = place(resume);
    match purpose {
        StopPurpose::Pause => format!("paused: goes on from {from} once it is resumed"),
        StopPurpose::Move | StopPurpose::Preempt => {
            format!("stopped: goes on from {from} when slots are free")
        }
    }
}
