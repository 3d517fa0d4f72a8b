//! `kill -9` of a rank, of the agent and of the server, in the middle of a job: each ends in the documented way.

use std::time::Duration;

use lockstep_api::{AttemptOutcome, FailureCode, JobId, JobState, JobView};
use lockstep_e2e::{
    Belongings, LEASE, Service, WHOLE_JOB, is_running, kill_now, wait_for, wait_for_job,
};

const JOB: &str = "examples/digits/job.toml";

/// Long enough to be hit in the middle, short enough for a test.
const LONG: &[&str] = &["train.epochs=300", "checkpoint.every_steps=40", "gang.ranks=2"];

/// A rank that lost its agent is gone within this time: its socket closes, and the kernel kills it with its parent.
/// Whatever else would end it takes longer: collectives wait for 20 s.
const ORPHAN: Duration = Duration::from_secs(10);

async fn until_midway(service: &Service, id: JobId) -> anyhow::Result<JobView> {
    let midway = |job: &JobView| 60 <= job.summary.steps_done.0 && !job.checkpoints.is_empty();
    let job = wait_for_job(&service.client, id, "the job is midway", WHOLE_JOB, midway).await?;
    assert!(!job.summary.state.is_final(), "the job is too short to be hit: {job:#?}");
    Ok(job)
}

fn pids(job: &JobView) -> Vec<i32> {
    job.attempts[0].ranks.iter().filter_map(|rank| rank.pid).collect()
}

/// Every epoch's samples were used exactly once, and every step has its place on the curve.
async fn assert_nothing_lost_or_repeated(service: &Service, job: &JobView) -> anyhow::Result<()> {
    let id = job.summary.id;
    let ledger = service.client.ledger(id).await?;
    let epochs: Vec<i64> = (0..i64::from(job.spec.train.epochs)).collect();
    assert_eq!(ledger.complete_epochs, epochs);
    let steps: Vec<i64> = service.curve(id).await?.into_iter().map(|(step, _)| step).collect();
    let all: Vec<i64> = (0..job.summary.steps_total.expect("the steps are known").0).collect();
    assert_eq!(steps, all);
    Ok(())
}

#[tokio::test]
async fn a_killed_rank_is_named_and_replaced_and_the_job_goes_on_with_the_same_curve()
-> anyhow::Result<()> {
    let service = Service::start(2).await?;
    let undisturbed = service.submit(JOB, LONG)?.summary.id;
    service.until_succeeded(undisturbed).await?;

    let id = service.submit(JOB, LONG)?.summary.id;
    let midway = until_midway(&service, id).await?;
    let victim = midway.attempts[0].ranks[1].pid.expect("rank 1 runs");
    kill_now(victim)?;
    let job = service.until_succeeded(id).await?;

    let verdict = &job.failures[0];
    assert_eq!(verdict.code, FailureCode::PeerGone, "{verdict:#?}");
    assert_eq!(verdict.rank.map(|rank| rank.0), Some(1), "{verdict:#?}");
    assert_eq!(verdict.signal, Some(9), "{verdict:#?}");
    assert!(verdict.step.is_some_and(|step| 60 <= step.0), "{verdict:#?}");
    assert!(verdict.phase.is_some(), "{verdict:#?}");
    assert!(verdict.message.contains("SIGKILL"), "{verdict:#?}");

    assert_eq!(job.attempts.len(), 1, "{:#?}", job.failures);
    assert_eq!(job.attempts[0].outcome, Some(AttemptOutcome::Succeeded));
    assert!(midway.attempts[0].generation < job.attempts[0].generation);
    assert_eq!(job.attempts[0].ranks[0].pid, midway.attempts[0].ranks[0].pid, "rank 0 went on");
    assert_ne!(job.attempts[0].ranks[1].pid, Some(victim), "rank 1 is another process");
    assert_nothing_lost_or_repeated(&service, &job).await?;
    assert_eq!(service.curve(id).await?, service.curve(undisturbed).await?);
    Ok(())
}

/// It has nobody who would miss it.
#[tokio::test]
async fn a_lone_rank_that_is_frozen_is_named_and_its_job_tried_again() -> anyhow::Result<()> {
    let service = Service::start(1).await?;
    let settings = [
        "train.epochs=10",
        "checkpoint.every_steps=12",
        "timeouts.collective=2s",
        "chaos=[{kind=\"freeze\",rank=0,step=30}]",
    ];
    let job = service.train(JOB, &[&settings[..], &["gang.ranks=1"]].concat()).await?;
    let verdict = &job.failures[0];
    assert_eq!(verdict.code, FailureCode::NotEntered, "{verdict:#?}");
    assert_eq!(verdict.rank.map(|rank| rank.0), Some(0), "{verdict:#?}");
    assert!(verdict.message.contains(": stopped for "), "{verdict:#?}");
    assert_eq!((job.failures.len(), job.attempts.len()), (1, 2), "{:#?}", job.failures);
    assert_nothing_lost_or_repeated(&service, &job).await
}

#[tokio::test]
async fn a_killed_agent_takes_its_ranks_along_and_the_job_is_placed_again_when_it_is_back()
-> anyhow::Result<()> {
    let mut service = Service::start(2).await?;
    let id = service.submit(JOB, LONG)?.summary.id;
    let midway = until_midway(&service, id).await?;
    service.kill_agent(0)?;
    wait_for("the ranks are gone", ORPHAN, || async {
        pids(&midway).into_iter().all(|pid| !is_running(pid)).then_some(())
    })
    .await?;

    let lost =
        |job: &JobView| job.failures.iter().any(|failure| failure.code == FailureCode::NodeLost);
    let job = wait_for_job(&service.client, id, "the lease expires", WHOLE_JOB, lost).await?;
    assert_eq!(job.summary.state, JobState::Queued);
    assert!(job.summary.waiting.is_some(), "a job that waits says why");

    service.start_agent(0).await?;
    let job = service.until_succeeded(id).await?;
    assert_eq!(job.attempts.len(), 2);
    assert_eq!(job.attempts[1].outcome, Some(AttemptOutcome::LeaseLost));
    assert_nothing_lost_or_repeated(&service, &job).await
}

#[tokio::test]
async fn a_killed_server_does_not_stop_the_ranks_and_loses_no_metrics() -> anyhow::Result<()> {
    let mut service = Service::start(2).await?;
    let id = service.submit(JOB, LONG)?.summary.id;
    let midway = until_midway(&service, id).await?;
    service.kill_server()?;
    assert!(pids(&midway).into_iter().all(is_running), "ranks keep training");
    // Longer than a lease: what was missed in the meantime must not be held against the node.
    tokio::time::sleep(LEASE + Duration::from_millis(500)).await;
    service.start_server().await?;
    let job = service.until_succeeded(id).await?;
    assert_eq!(job.attempts.len(), 1, "{:#?}", job.failures);
    assert_eq!(job.failures, []);
    assert_nothing_lost_or_repeated(&service, &job).await
}

/// Ranks that were killed again and again, over shared memory and over connections, cost their agent nothing: no memory,
/// no descriptor, no thread.
#[tokio::test]
async fn killed_ranks_leave_nothing_behind() -> anyhow::Result<()> {
    let service = Service::start(2).await?;
    let agent = service.agent(0).pid();
    for transport in ["ddp.transport=shm", "ddp.transport=tcp"] {
        let settings = [LONG, &[transport, "train.epochs=60"]].concat();
        service.train(JOB, &["gang.ranks=2", transport, "train.epochs=1"]).await?;
        let idle = Belongings::of(agent)?;
        let mut ever: Vec<i32> = Vec::new();
        for victim in [0, 1] {
            let id = service.submit(JOB, &settings)?.summary.id;
            let midway = until_midway(&service, id).await?;
            let busy = Belongings::of(pids(&midway)[victim])?;
            assert!(0 < busy.group_memories, "what is counted is there: {busy:?}");
            ever.extend(pids(&midway));
            kill_now(pids(&midway)[victim])?;
            let job = service.until_succeeded(id).await?;
            assert_eq!((job.attempts.len(), job.failures.len()), (1, 1), "{:#?}", job.failures);
            ever.extend(pids(&job));
        }
        let what = format!("{transport}: the agent has what it had: {idle:?}");
        wait_for(&what, WHOLE_JOB, || async {
            let now = Belongings::of(agent).ok()?;
            (now.group_memories == 0 && now.sockets <= idle.sockets && now.threads <= idle.threads)
                .then_some(())
        })
        .await?;
        assert!(ever.into_iter().all(|pid| !is_running(pid)));
    }
    Ok(())
}
