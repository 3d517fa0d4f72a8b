use proptest::prelude::*;

use super::*;

fn job(user: u32, infrastructure: u32) -> Job {
    let budget = RetryBudget { user, infrastructure };
    let generation = Generation(0);
    Job { state: JobState::Queued, generation, budget, stopping: None, preemptions: 0 }
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

#[test]
fn a_preempted_job_is_queued_again_for_nothing_as_often_as_its_budget_says() {
    use JobEvent::{MoveRequested, PauseRequested, Placed, PreemptRequested, ResumeRequested};
    let mut job = job(0, 0);
    for generation in 1..=MAX_PREEMPTIONS {
        let (placed, _) = job.step(Placed).unwrap();
        let (stopping, effects) = placed.step(PreemptRequested).unwrap();
        assert_eq!(effects, [JobEffect::StopAttempt]);
        assert_eq!(stopping.preemptions, generation);
        for event in [PreemptRequested, MoveRequested, ResumeRequested] {
            assert_eq!(stopping.step(event), Ok((stopping, vec![])), "it is stopped already");
        }
        let end = ended(generation.into(), AttemptOutcome::LeaseLost, Blame::Infrastructure);
        job = stopping.step(end).unwrap().0;
        assert_eq!((job.state, job.budget, job.stopping), (JobState::Queued, placed.budget, None));
        assert_eq!(job.step(PreemptRequested), Ok((job, vec![])), "it has no slots");
    }
    let (placed, _) = job.step(Placed).unwrap();
    assert_eq!(placed.step(PreemptRequested), Ok((placed, vec![])), "its budget is spent");
    let (pausing, _) = after(&[PreemptRequested, PauseRequested]);
    assert_eq!(pausing.step(STOPPED).unwrap().0.state, JobState::Paused, "a pause beats that");
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
        1 => Just(JobEvent::PreemptRequested),
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
            prop_assert!(job.preemptions <= next.preemptions && next.preemptions <= MAX_PREEMPTIONS);
            let was_stopped = job.stopping.is_some() && next.generation == job.generation;
            stopped += usize::from(was_stopped && matches!(next.state, JobState::Queued | JobState::Paused));
            begun += effects.iter().filter(|e| **e == JobEffect::BeginAttempt).count();
            job = next;
        }
        prop_assert!(begun <= (user + infrastructure + 1) as usize + stopped);
    }
}
