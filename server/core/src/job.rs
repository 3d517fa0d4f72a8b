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
            (JobState::Paused, JobEvent::ResumeRequested) => {
                Ok((Self { state: JobState::Queued, ..self }, vec![]))
            }
            // Too late to stop the stop: it goes on from where that leads.
            (JobState::Active, JobEvent::ResumeRequested) if self.stopping.is_some() => {
                Ok((Self { stopping: Some(StopPurpose::Move), ..self }, vec![]))
            }
            (
                _,
                JobEvent::CancelRequested
                | JobEvent::PauseRequested
                | JobEvent::ResumeRequested
                | JobEvent::MoveRequested,
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
            _ if stopped_for == Some(StopPurpose::Move) => Self { state: JobState::Queued, ..self },
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
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn job(user: u32, infrastructure: u32) -> Job {
        let budget = RetryBudget { user, infrastructure };
        Job { state: JobState::Queued, generation: Generation(0), budget, stopping: None }
    }

    /// A job of no retries whose attempt is at work, after these.
    fn after(events: &[JobEvent]) -> (Job, Vec<JobEffect>) {
        let (placed, _) = job(0, 0).step(JobEvent::Placed).unwrap();
        events.iter().fold((placed, vec![]), |(job, mut all), event| {
            let (job, effects) = job.step(*event).unwrap();
            all.extend(effects);
            (job, all)
        })
    }

    const STOPPED: JobEvent = JobEvent::AttemptEnded {
        generation: Generation(1),
        outcome: AttemptOutcome::Cancelled,
        blame: Blame::Infrastructure,
        outlook: Outlook::Open,
    };

    #[test]
    fn a_paused_job_is_set_aside_when_its_attempt_has_ended_and_goes_on_for_nothing() {
        use JobEvent::{PauseRequested, Placed, ResumeRequested};
        let (pausing, effects) = after(&[PauseRequested, PauseRequested]);
        assert_eq!((pausing.state, effects), (JobState::Active, vec![JobEffect::StopAttempt]));
        let (paused, _) = pausing.step(STOPPED).unwrap();
        assert_eq!((paused.state, paused.stopping), (JobState::Paused, None));
        assert_eq!(paused.step(PauseRequested), Ok((paused, vec![])));
        assert!(paused.step(Placed).is_err());
        let (resumed, _) = paused.step(ResumeRequested).unwrap();
        assert_eq!((resumed.state, resumed.budget), (JobState::Queued, pausing.budget));
        assert_eq!(resumed.step(ResumeRequested), Ok((resumed, vec![])));
        let (again, _) = resumed.step(PauseRequested).unwrap();
        assert_eq!(again.state, JobState::Paused, "there is nothing to stop");
        let lost = ended(1, AttemptOutcome::LeaseLost, Blame::Infrastructure);
        assert_eq!(pausing.step(lost).unwrap().0.state, JobState::Paused, "it was to stop anyway");
    }

    #[test]
    fn a_cancel_while_pausing_wins_and_a_finished_training_beats_both() {
        use JobEvent::{CancelRequested, PauseRequested, ResumeRequested};
        let (cancelling, _) = after(&[PauseRequested, CancelRequested]);
        assert_eq!(cancelling.step(PauseRequested), Ok((cancelling, vec![])));
        assert_eq!(cancelling.step(ResumeRequested), Ok((cancelling, vec![])));
        assert_eq!(cancelling.step(STOPPED).unwrap().0.state, JobState::Cancelled);
        let finished = ended(1, AttemptOutcome::Succeeded, Blame::Infrastructure);
        for events in [&[PauseRequested][..], &[PauseRequested, CancelRequested]] {
            assert_eq!(after(events).0.step(finished).unwrap().0.state, JobState::Succeeded);
        }
    }

    #[test]
    fn a_job_that_is_moved_is_queued_again_for_nothing_and_a_pause_beats_that() {
        use JobEvent::{MoveRequested, PauseRequested, ResumeRequested};
        let (moving, effects) = after(&[MoveRequested, MoveRequested]);
        assert_eq!(effects, [JobEffect::StopAttempt]);
        let (moved, _) = moving.step(STOPPED).unwrap();
        assert_eq!((moved.state, moved.budget), (JobState::Queued, moving.budget));
        for events in [[MoveRequested, PauseRequested], [PauseRequested, MoveRequested]] {
            let (pausing, effects) = after(&events);
            assert_eq!(effects, [JobEffect::StopAttempt]);
            assert_eq!(pausing.step(STOPPED).unwrap().0.state, JobState::Paused);
        }
        let (resumed, _) = after(&[PauseRequested, ResumeRequested]);
        assert_eq!(resumed.step(STOPPED).unwrap().0.state, JobState::Queued);
        let (undisturbed, effects) = after(&[ResumeRequested]);
        assert_eq!((undisturbed.stopping, effects), (None, vec![]), "nobody stopped it");
    }

    fn ended(generation: i64, outcome: AttemptOutcome, blame: Blame) -> JobEvent {
        let outlook = Outlook::Open;
        JobEvent::AttemptEnded { generation: Generation(generation), outcome, blame, outlook }
    }

    #[test]
    fn a_hopeless_retry_is_not_made_whatever_budget_is_left() {
        let (job, _) = job(3, 0).step(JobEvent::Placed).unwrap();
        let (outcome, blame) = (AttemptOutcome::Failed, Blame::User);
        let open = job.step(ended(1, outcome, blame)).unwrap().0;
        assert_eq!((open.state, open.budget.user), (JobState::Queued, 2));
        let (generation, outlook) = (Generation(1), Outlook::Hopeless);
        let ended = JobEvent::AttemptEnded { generation, outcome, blame, outlook };
        let hopeless = job.step(ended).unwrap().0;
        assert_eq!((hopeless.state, hopeless.budget.user), (JobState::Failed, 3));
    }

    #[test]
    fn budgets_are_kept_apart_and_the_one_at_fault_pays() {
        let (job, _) = job(0, 1).step(JobEvent::Placed).unwrap();
        let (job, _) = job.step(ended(1, AttemptOutcome::Failed, Blame::Infrastructure)).unwrap();
        assert_eq!((job.state, job.budget.infrastructure), (JobState::Queued, 0));
        let (job, effects) = job.step(JobEvent::Placed).unwrap();
        assert_eq!((job.generation, effects), (Generation(2), vec![JobEffect::BeginAttempt]));
        let (job, _) = job.step(ended(2, AttemptOutcome::Failed, Blame::User)).unwrap();
        assert_eq!(job.state, JobState::Failed);
    }

    #[test]
    fn a_cancel_can_be_repeated_and_a_finished_training_beats_it() {
        let (job, _) = job(0, 5).step(JobEvent::Placed).unwrap();
        let (job, effects) = job.step(JobEvent::CancelRequested).unwrap();
        assert_eq!((job.state, effects), (JobState::Cancelling, vec![JobEffect::StopAttempt]));
        assert_eq!(job.step(JobEvent::CancelRequested), Ok((job, vec![])));
        let after = |outcome| job.step(ended(1, outcome, Blame::Infrastructure)).unwrap().0.state;
        assert_eq!(after(AttemptOutcome::Succeeded), JobState::Succeeded);
        assert_eq!(after(AttemptOutcome::Cancelled), JobState::Cancelled);
        assert_eq!(after(AttemptOutcome::Failed), JobState::Cancelled);
        assert_eq!(after(AttemptOutcome::LeaseLost), JobState::Cancelled);
    }

    fn any_event() -> impl Strategy<Value = JobEvent> {
        let outcome = prop::sample::select(AttemptOutcome::ALL);
        let blame = prop::sample::select(Blame::ALL);
        prop_oneof![
            3 => Just(JobEvent::Placed),
            1 => Just(JobEvent::CancelRequested),
            1 => Just(JobEvent::PauseRequested),
            2 => Just(JobEvent::ResumeRequested),
            1 => Just(JobEvent::MoveRequested),
            4 => (0..6i64, outcome, blame).prop_map(|(g, outcome, blame)| ended(g, outcome, blame)),
        ]
    }

    proptest! {
        /// Whatever arrives: a final job stays as it is, the generation never decreases, budgets are never refilled,
        /// and no more attempts begin than budgets allow.
        #[test]
        fn final_is_final_and_budgets_bound_the_attempts(
            user in 0..4u32, infrastructure in 0..4u32,
            events in prop::collection::vec(any_event(), 0..60),
        ) {
            let mut job = job(user, infrastructure);
            let (mut begun, mut stopped) = (0, 0);
            for event in events {
                let stale = matches!(event, JobEvent::AttemptEnded { generation, .. } if generation != job.generation);
                let Ok((next, effects)) = job.step(event) else { continue };
                prop_assert!(!stale, "a stale event was accepted");
                prop_assert!(!job.state.is_final() || (next == job && effects.is_empty()));
                prop_assert!(job.generation <= next.generation);
                prop_assert!(next.budget.user <= job.budget.user);
                prop_assert!(next.budget.infrastructure <= job.budget.infrastructure);
                prop_assert!(next.stopping.is_none() || next.state == JobState::Active);
                let was_stopped = job.stopping.is_some() && next.generation == job.generation;
                stopped += usize::from(was_stopped && matches!(next.state, JobState::Queued | JobState::Paused));
                begun += effects.iter().filter(|e| **e == JobEffect::BeginAttempt).count();
                job = next;
            }
            prop_assert!(begun <= (user + infrastructure + 1) as usize + stopped);
        }
    }
}
