//! Gangs over several nodes, and over TCP within one: the curve of one rank, bit for bit.

use std::collections::BTreeSet;
use std::time::Duration;

use lockstep_api::{FailureCode, JobId, JobState, JobView, MetricSeries};
use lockstep_e2e::{Cable, Service, kill_now, wait_for_job};

const JOB: &str = "examples/digits/job.toml";
const SHORT: &str = "train.epochs=4";
/// Long enough to be hit in the middle.
const LONG: &[&str] = &["train.epochs=300", "checkpoint.every_steps=40"];
const WHOLE_JOB: Duration = Duration::from_secs(120);

async fn until_succeeded(service: &Service, id: JobId) -> anyhow::Result<JobView> {
    let over = |job: &JobView| job.summary.state == JobState::Succeeded;
    wait_for_job(&service.client, id, "the job succeeds", WHOLE_JOB, over).await
}

async fn trained(service: &Service, settings: &[&str]) -> anyhow::Result<JobView> {
    let id = service.submit(JOB, settings)?.summary.id;
    until_succeeded(service, id).await
}

/// The training curve and the last evaluation, bit for bit.
async fn curve(service: &Service, job: &JobView) -> anyhow::Result<(Vec<(i64, u64)>, u64)> {
    let series = service.client.metrics(job.summary.id, Some("train/loss"), None).await?;
    let points = series.into_iter().flat_map(|MetricSeries { name: _, points }| points);
    let bits =
        points.map(|point| (point.step.0, point.value.unwrap_or(f64::NAN).to_bits())).collect();
    Ok((bits, job.metrics["eval/loss"].to_bits()))
}

/// Names of the nodes of each rank of the newest attempt, in order of rank.
fn node_names(job: &JobView) -> Vec<&str> {
    job.attempts[0].ranks.iter().map(|rank| rank.node_name.as_str()).collect()
}

/// The same job alone and with `settings`; answers the latter.
async fn assert_curve_of_one(service: &Service, settings: &[&str]) -> anyhow::Result<JobView> {
    let alone = trained(service, &["gang.ranks=1", SHORT]).await?;
    let together = trained(service, &[settings, &[SHORT]].concat()).await?;
    assert_eq!(together.attempts.len(), 1, "{:#?}", together.failures);
    let (of_one, of_many) = (curve(service, &alone).await?, curve(service, &together).await?);
    assert!(!of_one.0.is_empty());
    assert_eq!(of_one, of_many);
    let ledger = service.client.ledger(together.summary.id).await?;
    assert_eq!(ledger.complete_epochs, [0, 1, 2, 3]);
    Ok(together)
}

#[tokio::test]
async fn two_ranks_on_two_nodes_have_the_curve_of_one() -> anyhow::Result<()> {
    let mut service = Service::start(1).await?;
    service.add_agent("second", 1).await?;
    let job = assert_curve_of_one(&service, &["gang.ranks=2"]).await?;
    assert_eq!(node_names(&job), ["first", "second"]);
    Ok(())
}

#[tokio::test]
async fn two_ranks_in_two_network_namespaces_have_the_curve_of_one() -> anyhow::Result<()> {
    let Some(cable) = Cable::lay()? else { return Ok(()) };
    cable.move_to_near_end()?;
    let mut service = Service::start_server_at(Cable::NEAR).await?;
    service.add_agent("first", 1).await?;
    service.add_agent_behind("second", 1, cable.at_far_end()).await?;
    for encrypt in ["ddp.encrypt=false", "ddp.encrypt=true"] {
        let job = assert_curve_of_one(&service, &["gang.ranks=2", encrypt]).await?;
        assert_eq!(node_names(&job), ["first", "second"]);
    }
    Ok(())
}

#[tokio::test]
async fn four_ranks_on_two_nodes_of_two_slots_have_the_curve_of_one() -> anyhow::Result<()> {
    let mut service = Service::start(2).await?;
    service.add_agent("second", 2).await?;
    let job = assert_curve_of_one(&service, &["gang.ranks=4"]).await?;
    assert_eq!(node_names(&job), ["first", "first", "second", "second"]);
    Ok(())
}

#[tokio::test]
async fn two_ranks_over_tcp_on_one_node_have_the_curve_of_one() -> anyhow::Result<()> {
    let service = Service::start(2).await?;
    for encrypt in ["ddp.encrypt=false", "ddp.encrypt=true"] {
        let settings = ["gang.ranks=2", "ddp.transport=tcp", encrypt];
        let job = assert_curve_of_one(&service, &settings).await?;
        assert_eq!(node_names(&job), ["first", "first"]);
    }
    Ok(())
}

#[tokio::test]
async fn a_rank_killed_on_the_second_node_is_named_and_the_job_goes_on_with_the_same_curve()
-> anyhow::Result<()> {
    let mut service = Service::start(1).await?;
    service.add_agent("second", 1).await?;
    let undisturbed = trained(&service, &[LONG, &["gang.ranks=1"]].concat()).await?;

    let id = service.submit(JOB, &[LONG, &["gang.ranks=2"]].concat())?.summary.id;
    let midway = |job: &JobView| 60 <= job.summary.steps_done.0 && !job.checkpoints.is_empty();
    let hit = wait_for_job(&service.client, id, "the job is midway", WHOLE_JOB, midway).await?;
    assert!(!hit.summary.state.is_final(), "the job is too short to be hit: {hit:#?}");
    let victim = &hit.attempts[0].ranks[1];
    assert_eq!(victim.node_name, "second");
    kill_now(victim.pid.expect("rank 1 runs"))?;
    let job = until_succeeded(&service, id).await?;

    let verdict = &job.failures[0];
    assert_eq!(verdict.code, FailureCode::PeerGone, "{verdict:#?}");
    assert_eq!(verdict.rank.map(|rank| rank.0), Some(1), "{verdict:#?}");
    assert_eq!(verdict.signal, Some(9), "{verdict:#?}");
    assert_eq!(verdict.node_id, Some(victim.node_id), "{verdict:#?}");
    assert!(verdict.message.starts_with("rank 1 on node second"), "{verdict:#?}");
    assert_eq!(job.failures.len(), 1, "{:#?}", job.failures);
    assert_eq!(job.attempts.len(), 2, "{:#?}", job.attempts);
    assert!(0 < job.attempts[0].first_step.0, "it resumed from a checkpoint");
    let names: BTreeSet<&str> = node_names(&job).into_iter().collect();
    assert_eq!(names, BTreeSet::from(["first", "second"]));
    assert_eq!(curve(&service, &job).await?, curve(&service, &undisturbed).await?);
    Ok(())
}
