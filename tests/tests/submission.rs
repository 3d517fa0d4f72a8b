//! Submitting, refusing, repeating, cancelling: through the command line and REST.

use std::time::Duration;

use lockstep_api::{AttemptOutcome, JobState, JobView, ListJobs, ProblemCode};
use lockstep_client::ClientError;
use lockstep_e2e::{LEASE, Service, is_running, wait_for, wait_for_job};

const JOB: &str = "examples/digits/job.toml";

/// What `submit` says on standard error, and its exit code.
fn refusal(service: &Service, settings: &[&str]) -> anyhow::Result<(Option<i32>, String)> {
    let mut submit = service.lockstep();
    submit.args(["submit", JOB]);
    for setting in settings {
        submit.args(["--set", setting]);
    }
    let output = submit.output()?;
    Ok((output.status.code(), String::from_utf8(output.stderr)?))
}

#[tokio::test]
async fn what_does_not_fit_is_refused_at_submit_with_the_field_and_what_was_expected()
-> anyhow::Result<()> {
    let service = Service::start_server_alone().await?;
    let cases: &[(&str, &[&str])] = &[
        ("model.inputs=63", &["model.inputs", "63", "64"]),
        ("model.classes=9", &["model.classes", "9"]),
        ("train.globl_batch=3", &["globl_batch", "global_batch"]),
        ("train.epochs=soon", &["train.epochs"]),
        ("train.micro_batch=100000", &["train.micro_batch", "100000"]),
        ("loader.limits.memory_mib=0", &["loader.limits.memory_mib", "0"]),
        ("loss.component=./digits-loader.wasm", &["loss"]),
        ("data.train=no-such-dataset", &["data.train", "no-such-dataset"]),
    ];
    for (setting, words) in cases {
        let (code, said) = refusal(&service, &[setting])?;
        assert!(code.is_some_and(|code| code != 0), "{setting} was accepted");
        for word in *words {
            assert!(said.contains(word), "{setting}: {word:?} is missing in: {said}");
        }
    }
    let jobs = service.client.list_jobs(&ListJobs::default()).await?;
    assert_eq!(jobs.items, [], "nothing was queued");
    Ok(())
}

#[tokio::test]
async fn a_repeated_submit_with_the_same_key_returns_the_first_job() -> anyhow::Result<()> {
    let service = Service::start_server_alone().await?;
    let spec = service.submit(JOB, &[])?.spec;
    let first = service.client.submit(&spec, "monday").await?;
    let again = service.client.submit(&spec, "monday").await?;
    assert_eq!(first.summary.id, again.summary.id);
    let other = lockstep_api::JobSpec { name: "other".to_owned(), ..spec };
    let error = service.client.submit(&other, "monday").await.unwrap_err();
    let ClientError::Problem(problem) = error else { panic!("{error}") };
    assert_eq!(problem.code, ProblemCode::IdempotencyMismatch);
    assert_eq!(service.client.list_jobs(&ListJobs::default()).await?.items.len(), 2);
    Ok(())
}

#[tokio::test]
async fn a_job_without_slots_waits_with_a_reason_and_can_be_cancelled() -> anyhow::Result<()> {
    let mut service = Service::start_server_alone().await?;
    let id = service.submit(JOB, &["gang.ranks=2", "ddp.transport=shm"])?.summary.id;
    let deadline = Duration::from_secs(30);
    let waits = |job: &JobView| job.summary.waiting.is_some();
    wait_for_job(&service.client, id, "the job says why it waits", deadline, waits).await?;
    // One slot on each of two nodes: ranks that speak through shared memory cannot be there, and that is said.
    service.add_agent("left", 1).await?;
    service.add_agent("right", 1).await?;
    let says =
        |job: &JobView| job.summary.waiting.as_ref().is_some_and(|why| why.contains("span nodes"));
    let job = wait_for_job(
        &service.client,
        id,
        "the reason says that it would span nodes",
        deadline,
        says,
    )
    .await?;
    assert_eq!(job.summary.state, JobState::Queued);
    assert_eq!(job.attempts, [], "it was not placed on one of them");

    let cancelled = service.lockstep().args(["cancel", &id.to_string()]).output()?;
    assert!(cancelled.status.success(), "{}", String::from_utf8_lossy(&cancelled.stderr));
    assert_eq!(service.client.job(id).await?.summary.state, JobState::Cancelled);
    Ok(())
}

#[tokio::test]
async fn cancelling_a_running_job_stops_its_ranks() -> anyhow::Result<()> {
    let service = Service::start(2).await?;
    let id = service.submit(JOB, &["train.epochs=2000"])?.summary.id;
    let deadline = Duration::from_secs(30);
    let runs = |job: &JobView| 5 <= job.summary.steps_done.0;
    let job = wait_for_job(&service.client, id, "the job runs", deadline, runs).await?;
    let pids: Vec<i32> = job.attempts[0].ranks.iter().filter_map(|rank| rank.pid).collect();
    assert_eq!(pids.len(), 2);
    service.client.cancel(id).await?;
    let over = |job: &JobView| job.summary.state == JobState::Cancelled;
    let job = wait_for_job(&service.client, id, "the job is cancelled", deadline, over).await?;
    assert_eq!(job.attempts[0].outcome, Some(AttemptOutcome::Cancelled));
    wait_for("the ranks are gone", LEASE, || async {
        pids.iter().all(|pid| !is_running(*pid)).then_some(())
    })
    .await?;
    // The slots are free again.
    let next = service.submit(JOB, &["train.epochs=1"])?.summary.id;
    let over = |job: &JobView| job.summary.state == JobState::Succeeded;
    wait_for_job(&service.client, next, "the next job runs", deadline, over).await?;
    Ok(())
}
