//! Guests that misbehave while they train: each ends as a named failure of its job, and nothing else is harmed.

use std::time::Duration;

use lockstep_api::{Blame, FailureCode, JobState, JobView};
use lockstep_e2e::{Service, wait_for_job};

const JOB: &str = "examples/digits/job.toml";

/// Time limit of one guest call in these tests.
const CALL_LIMIT: Duration = Duration::from_secs(1);

/// What everything else of a job may take: start, first steps, the way to the database.
const REST_OF_THE_JOB: Duration = Duration::from_secs(20);

/// From the call that goes wrong to the verdict in the database, beyond the limit of the call itself: a second on
/// a quiet machine, but a busy one wakes the clock of the guests late.
const SLACK: Duration = Duration::from_secs(5);

/// What the loader does from its 17th call on, and the name of that. Its first 16 calls, two steps of eight grains, are
/// good: the check at submit lets it pass.
const CASES: &[(&str, FailureCode)] = &[
    ("loop", FailureCode::GuestTimeLimit),
    ("bomb", FailureCode::GuestMemoryLimit),
    ("trap", FailureCode::GuestTrap),
    ("overflow", FailureCode::GuestStackOverflow),
    ("shape", FailureCode::GuestShape),
    ("huge", FailureCode::GuestOutputLimit),
    ("error", FailureCode::GuestError),
    ("nan", FailureCode::NonFinite),
];

#[tokio::test]
async fn every_misbehaviour_ends_its_job_with_its_name_while_another_job_trains_on()
-> anyhow::Result<()> {
    let service = Service::start(2).await?;
    let bystander = service.submit(JOB, &["train.epochs=100000", "gang.ranks=1"])?.summary.id;
    let runs = |job: &JobView| 1 <= job.summary.steps_done.0;
    wait_for_job(&service.client, bystander, "the bystander runs", REST_OF_THE_JOB, runs).await?;

    for (mode, code) in CASES {
        let job = service.submit(
            JOB,
            &[
                "gang.ranks=1",
                "loader.component=./../../worker/sandbox/tests/guests/misbehaving-loader.wasm",
                &format!("loader.config={{ mode = \"{mode}\", after_calls = 16 }}"),
                "loader.limits={ memory_mib = 64, call_ms = 1000, output_mib = 8 }",
            ],
        )?;
        let over = |job: &JobView| job.summary.state.is_final();
        let deadline = CALL_LIMIT + REST_OF_THE_JOB;
        let job = wait_for_job(&service.client, job.summary.id, mode, deadline, over).await?;
        assert_eq!(job.summary.state, JobState::Failed, "{mode}: {job:#?}");
        let verdict = &job.failures[0];
        assert_eq!(verdict.code, *code, "{mode}: {verdict:#?}");
        assert_eq!(verdict.blame, Blame::User, "{mode}: {verdict:#?}");
        assert!(!verdict.message.is_empty());
        let first_step_at = job.attempts[0].first_step_at.expect("two steps were done before");
        let until_named = (verdict.at - first_step_at).to_std()?;
        assert!(until_named <= CALL_LIMIT + SLACK, "{mode}: named after {until_named:?}");
        if *code == FailureCode::GuestTimeLimit {
            // The first step is written down when its report comes, and the call may have begun before.
            assert!(CALL_LIMIT / 2 <= until_named, "{mode}: named after {until_named:?}");
        }
    }

    let before = service.client.job(bystander).await?.summary.steps_done;
    let goes_on = |job: &JobView| before < job.summary.steps_done;
    wait_for_job(&service.client, bystander, "the bystander goes on", REST_OF_THE_JOB, goes_on)
        .await?;
    assert!(service.client.nodes().await?[0].is_live);
    Ok(())
}
