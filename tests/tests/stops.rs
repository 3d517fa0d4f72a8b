//! Jobs that are paused or preempted, nodes that are drained, agents that are told to stop: the job goes on from a checkpoint of its
//! last step, for nothing, and has the curve of one that was left alone.

use std::time::Duration;

use lockstep_api::{AttemptOutcome, DrainState, JobId, JobState, JobView, ReadLog};
use lockstep_e2e::{Service, WHOLE_JOB, wait_for_job};

const JOB: &str = "examples/digits/job.toml";

/// Long enough to be hit in the middle. Its only checkpoints are those of its end and of a stop.
const LONG: &[&str] = &["train.epochs=300", "checkpoint.every_steps=100000"];

/// Too long to be nearly done when a job of higher priority comes.
const LONGER: &[&str] = &["train.epochs=900", "checkpoint.every_steps=100000"];

async fn midway(service: &Service, id: JobId, steps: i64) -> anyhow::Result<JobView> {
    let is_midway =
        |job: &JobView| job.summary.state == JobState::Active && steps <= job.summary.steps_done.0;
    wait_for_job(&service.client, id, "the job is midway", WHOLE_JOB, is_midway).await
}

/// Two attempts: the second went on where the first was stopped, and nothing was done twice.
async fn assert_undisturbed(service: &Service, id: JobId, whole: JobId) -> anyhow::Result<()> {
    let job = service.until_succeeded(id).await?;
    assert_eq!(job.failures, []);
    let [second, first] = &job.attempts[..] else { panic!("{:#?}", job.attempts) };
    assert_eq!(first.outcome, Some(AttemptOutcome::Cancelled));
    assert_eq!(first.steps_done, second.first_step, "no step was lost");
    assert!(0 < second.first_step.0);
    assert_eq!(service.curve(id).await?, service.curve(whole).await?);
    Ok(())
}

#[tokio::test]
async fn a_job_that_was_paused_or_moved_has_the_curve_of_one_that_was_left_alone()
-> anyhow::Result<()> {
    let mut service = Service::start(1).await?;
    let settings = [LONG, &["gang.ranks=1"]].concat();
    let whole = service.train(JOB, &settings).await?.summary.id;

    let id = service.submit(JOB, &settings)?.summary.id;
    midway(&service, id, 60).await?;
    service.client.pause(id).await?;
    let paused = |job: &JobView| job.summary.state == JobState::Paused;
    let job = wait_for_job(&service.client, id, "the job is paused", WHOLE_JOB, paused).await?;
    assert_eq!(job.checkpoints.len(), 1, "that of its last step");
    service.client.resume(id).await?;
    assert_undisturbed(&service, id, whole).await?;

    service.add_agent("second", 1).await?;
    let id = service.submit(JOB, &settings)?.summary.id;
    let there = midway(&service, id, 60).await?.attempts[0].ranks[0].node_name.clone();
    service.client.drain_node(&there).await?;
    assert_undisturbed(&service, id, whole).await?;
    let job = service.client.job(id).await?;
    assert_ne!(job.attempts[0].ranks[0].node_name, there, "it went on elsewhere");
    let nodes = service.client.nodes().await?;
    let drained = nodes.iter().find(|node| node.name == there).expect("it is listed");
    assert_eq!(drained.drain, Some(DrainState::Drained));
    Ok(())
}

#[tokio::test]
async fn an_agent_that_is_told_to_stop_loses_no_step_and_costs_no_retry() -> anyhow::Result<()> {
    let mut service = Service::start(2).await?;
    let settings = [LONG, &["gang.ranks=2", "retry.infrastructure=0"]].concat();
    let whole = service.train(JOB, &settings).await?.summary.id;
    let id = service.submit(JOB, &settings)?.summary.id;
    midway(&service, id, 60).await?;
    service.interrupt_agent(0, Duration::from_secs(10))?;
    service.start_agent(0).await?;
    assert_undisturbed(&service, id, whole).await
}

#[tokio::test]
async fn a_job_gives_its_slots_to_one_of_higher_priority_and_goes_on_as_if_nothing_had_been()
-> anyhow::Result<()> {
    let service = Service::start(2).await?;
    let settings = [LONGER, &["gang.ranks=2", "retry.infrastructure=0"]].concat();
    let whole = service.train(JOB, &settings).await?;

    let id = service.submit(JOB, &settings)?.summary.id;
    midway(&service, id, 60).await?;
    let urgent = ["name=urgent", "priority=60", "gang.ranks=2", "train.epochs=4"];
    let urgent = service.submit(JOB, &urgent)?.summary.id;
    let urgent = service.until_succeeded(urgent).await?;
    let waiting = service.client.job(id).await?;
    assert!(waiting.summary.ended_at.is_none(), "the other one went first: {waiting:#?}");
    assert_undisturbed(&service, id, whole.summary.id).await?;

    let job = service.client.job(id).await?;
    let [second, first] = &job.attempts[..] else { panic!("{:#?}", job.attempts) };
    let told = "preempted: gives its slots to job urgent of priority 60 (1 of 3 preemptions)";
    assert_eq!(first.stopped_because.as_deref(), Some(told));
    assert!(urgent.attempts[0].created_at < second.created_at, "it went on afterwards");
    assert_eq!(job.checkpoints[0].file, whole.checkpoints[0].file, "the same bytes");
    assert_eq!(service.client.ledger(id).await?.complete_epochs.len(), 900);
    let log = service.client.log(id, &ReadLog::default()).await?;
    let says = |text: &str| log.iter().any(|line| line.text == text);
    let step = second.first_step;
    let goes_on =
        format!("stopped: goes on from its checkpoint of step {step} when slots are free");
    assert!(says(told) && says(&goes_on), "{log:#?}");
    Ok(())
}
