//! A job's life, driven by how its attempts end.

use lockstep_api::{AttemptOutcome, Blame, Generation, JobState, StopPurpose};

use crate::retry::Outlook;

/// How many more attempts may be lost, by whose fault. Never refilled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryBudget {
    /// To the job's own faults.
    pub user: u32,
    /// To machines and links.
    pub infrastructure: u32,
}

impl RetryBudget {
    /// Pays for one more attempt, or `None` when that budget is spent.
    fn pay(self, blame: Blame) -> Option<Self> {
        match blame {
            Blame::User => Some(Self { user: self.user.checked_sub(1)?, ..self }),
            Blame::Infrastructure => {
                Some(Self { infrastructure: self.infrastructure.checked_sub(1)?, ..self })
            }
        }
    }
}

/// A job whose slots were taken so often for jobs of higher priority keeps them from then on: no two jobs throw each other
/// out for ever.
pub const MAX_PREEMPTIONS: u32 = 3;

/// What decides about a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Job {
    /// Where it stands.
    pub state: JobState,
    /// The fencing number of its newest attempt.
    pub generation: Generation,
    /// Retries left.
    pub budget: RetryBudget,
    /// What its attempt was told to stop for, if it goes on afterwards.
    pub stopping: Option<StopPurpose>,
    /// How often its slots were taken for a job of higher priority.
    pub preemptions: u32,
}

/// What can happen to a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobEvent {
    /// Slots were found for a new attempt.
    Placed,
    /// Its attempt goes on under a new generation.
    Repaired {
        /// Under which generation it was.
        generation: Generation,
        /// Whether it costs a retry.
        is_paid: bool,
    },
    /// Its owner wants it to end.
    CancelRequested,
    /// Its owner sets it aside.
    PauseRequested,
    /// Its owner wants it to go on.
    ResumeRequested,
    /// A node of its attempt is to become free.
    MoveRequested,
    /// A job of higher priority is to get its slots.
    PreemptRequested,
    /// Its attempt is over.
    AttemptEnded {
        /// Under which generation.
        generation: Generation,
        /// How.
        outcome: AttemptOutcome,
        /// Whose fault, by the verdict; without one it is nobody's at the job.
        blame: Blame,
        /// Whether another attempt could end otherwise.
        outlook: Outlook,
    },
}

/// What the caller must do, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobEffect {
    /// Begin an attempt under the job's new generation.
    BeginAttempt,
    /// Tell the attempt to stop.
    StopAttempt,
}

/// Why a job's event was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum JobStepError {
    /// Cannot happen in this state: a bug of the caller.
    #[error("event {event:?} is not legal for a job that is {state}")]
    Illegal {
        /// Where the job stands.
        state: JobState,
        /// What came.
        event: JobEvent,
    },
    /// About an attempt that is not the newest.
    #[error("event carries generation {got}, the job is at {held}")]
    Stale {
        /// As it came.
        got: Generation,
        /// The job's.
        held: Generation,
    },
}

impl Job {
    /// Takes one step. What a person asks for can be repeated, and changes nothing on a final job.
    ///
    /// # Errors
    /// [`JobStepError::Stale`]: drop the event. [`JobStepError::Illegal`]: a bug, log it.
    pub fn step(self, event: JobEvent) -> Result<(Self, Vec<JobEffect>), JobStepError> {
        match (self.state, event) {
            (JobState::Queued, JobEvent::Placed) => {
                let next =
                    Self { state: JobState::Active, generation: self.generation.next(), ..self };
                Ok((next, vec![JobEffect::BeginAttempt]))
            }
            (JobState::Queued | JobState::Paused, JobEvent::CancelRequested) => {
                Ok((Self { state: JobState::Cancelled, ..self }, vec![]))
            }
            (JobState::Active, JobEvent::CancelRequested) => {
                let next = Self { state: JobState::Cancelling, stopping: None, ..self };
                Ok((next, vec![JobEffect::StopAttempt]))
            }
            (JobState::Queued, JobEvent::PauseRequested) => {
                Ok((Self { state: JobState::Paused, ..self }, vec![]))
            }
            (JobState::Active, JobEvent::PauseRequested) => Ok(self.stop(StopPurpose::Pause)),
            (JobState::Active, JobEvent::MoveRequested) if self.stopping.is_none() => {
                Ok(self.stop(StopPurpose::Move))
            }
            (JobState::Active, JobEvent::PreemptRequested)
                if self.stopping.is_none() && self.preemptions < MAX_PREEMPTIONS =>
            {
                let paid = Self { preemptions: self.preemptions + 1, ..self };
                Ok(paid.stop(StopPurpose::Preempt))
            }
            (JobState::Paused, JobEvent::ResumeRequested) => {
                Ok((Self { state: JobState::Queued, ..self }, vec![]))
            }
            // Too late to stop the stop: it goes on from where that leads.
            (JobState::Active, JobEvent::ResumeRequested)
                if self.stopping == Some(StopPurpose::Pause) =>
            {
                Ok((Self { stopping: Some(StopPurpose::Move), ..self }, vec![]))
            }
            (
                _,
                JobEvent::CancelRequested
                | JobEvent::PauseRequested
                | JobEvent::ResumeRequested
                | JobEvent::MoveRequested
                | JobEvent::PreemptRequested,
            ) => Ok((self, vec![])),
            (JobState::Active, JobEvent::Repaired { generation, is_paid }) => {
                if generation != self.generation {
                    return Err(JobStepError::Stale { got: generation, held: self.generation });
                }
                let budget = match is_paid {
                    true => self.budget.pay(Blame::Infrastructure),
                    false => Some(self.budget),
                };
                let budget = budget.ok_or(JobStepError::Illegal { state: self.state, event })?;
                Ok((Self { generation: self.generation.next(), budget, ..self }, vec![]))
            }
            (
                JobState::Active | JobState::Cancelling,
                JobEvent::AttemptEnded { generation, outcome, blame, outlook },
            ) => {
                if generation != self.generation {
                    return Err(JobStepError::Stale { got: generation, held: self.generation });
                }
                Ok((self.after_attempt(outcome, blame, outlook), vec![]))
            }
            (state, event) => Err(JobStepError::Illegal { state, event }),
        }
    }

    /// Its attempt is told to stop, if it has not been.
    fn stop(self, purpose: StopPurpose) -> (Self, Vec<JobEffect>) {
        let effects = match self.stopping {
            None => vec![JobEffect::StopAttempt],
            Some(_) => vec![],
        };
        (Self { stopping: Some(purpose), ..self }, effects)
    }

    /// A finished training counts even when a cancel or a pause was on its way; a stop that was asked for costs nothing,
    /// however it went; a failed one under a cancel is not tried again, nor
    /// one that would fail again.
    fn after_attempt(self, outcome: AttemptOutcome, blame: Blame, outlook: Outlook) -> Self {
        let stopped_for = self.stopping;
        let this = Self { stopping: None, ..self };
        this.after_outcome((outcome, stopped_for), blame, outlook)
    }

    fn after_outcome(
        self,
        (outcome, stopped_for): (AttemptOutcome, Option<StopPurpose>),
        blame: Blame,
        outlook: Outlook,
    ) -> Self {
        match (outcome, self.state) {
            (AttemptOutcome::Succeeded, _) => Self { state: JobState::Succeeded, ..self },
            (_, JobState::Cancelling) => Self { state: JobState::Cancelled, ..self },
            _ if stopped_for == Some(StopPurpose::Pause) => {
                Self { state: JobState::Paused, ..self }
            }
            _ if matches!(stopped_for, Some(StopPurpose::Move | StopPurpose::Preempt)) => {
                Self { state: JobState::Queued, ..self }
            }
            (AttemptOutcome::Cancelled, _) => Self { state: JobState::Cancelled, ..self },
            (AttemptOutcome::Failed | AttemptOutcome::LeaseLost, _)
                if outlook == Outlook::Hopeless =>
            {
                Self { state: JobState::Failed, ..self }
            }
            (AttemptOutcome::Failed | AttemptOutcome::LeaseLost, _) => match self.budget.pay(blame)
            {
                Some(budget) => Self { state: JobState::Queued, budget, ..self },
                None => Self { state: JobState::Failed, ..self },
            },
        }
    }
}

#[cfg(test)]
#[path = "job_tests.rs"]
mod tests;
