//! Gangs over several nodes, and over TCP within one: the curve of one rank, bit for bit.

use lockstep_api::{FailureCode, JobView};
use lockstep_e2e::{Cable, Service, WHOLE_JOB, is_running, kill_now, wait_for, wait_for_job};
use std::collections::BTreeSet;

const JOB: &str = "examples/digits/job.toml";
const SHORT: &str = "train.epochs=4";
/// Long enough to be hit in the middle.
const LONG: &[&str] = &["train.epochs=300", "checkpoint.every_steps=40"];
/// The same, for one that makes itself last.
const LASTING: &[&str] = &["train.epochs=100", "checkpoint.every_steps=40"];
/// Pictures and a network with batch norms; its data are not in the repository.
const FASHION: &str = "examples/fashion/job.toml";

/// The training curve and the last evaluation, bit for bit.
async fn curve(service: &Service, job: &JobView) -> anyhow::Result<(Vec<(i64, u64)>, u64)> {
    Ok((service.curve(job.summary.id).await?, job.metrics["eval/loss"].to_bits()))
}

/// Names of the nodes of each rank of the newest attempt, in order of rank.
fn node_names(job: &JobView) -> Vec<&str> {
    job.attempts[0].ranks.iter().map(|rank| rank.node_name.as_str()).collect()
}

/// The same job alone and with `settings`; answers the latter.
async fn assert_curve_of_one(service: &Service, settings: &[&str]) -> anyhow::Result<JobView> {
    let alone = service.train(JOB, &["gang.ranks=1", SHORT]).await?;
    let together = service.train(JOB, &[settings, &[SHORT]].concat()).await?;
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

/// A part of it.
#[tokio::test]
async fn the_fashion_job_has_one_curve_over_shared_memory_a_cable_and_both() -> anyhow::Result<()> {
    let short = ["train.max_steps=24", "checkpoint.every_steps=1000"];
    let with = |settings: &[&'static str]| [settings, &short].concat();
    let on_one_node = Service::start(4).await?;
    let pair = on_one_node.train(FASHION, &with(&["gang.ranks=2"])).await?;
    let tree = &["gang.ranks=4", "train.micro_batch=32", "ddp.reduction=fixed-tree"][..];
    let four = on_one_node.train(FASHION, &with(tree)).await?;
    let expected = (curve(&on_one_node, &pair).await?, curve(&on_one_node, &four).await?);
    drop(on_one_node);

    let Some(cable) = Cable::lay()? else { return Ok(()) };
    cable.move_to_near_end()?;
    for (slots, settings, expected) in
        [(1, &["gang.ranks=2"][..], expected.0), (2, tree, expected.1)]
    {
        let mut service = Service::start_server_at(Cable::NEAR).await?;
        service.add_agent("first", slots).await?;
        service.add_agent_behind("second", slots, cable.at_far_end()).await?;
        let job = service.train(FASHION, &with(settings)).await?;
        let nodes: BTreeSet<&str> = node_names(&job).into_iter().collect();
        assert_eq!(nodes, BTreeSet::from(["first", "second"]));
        assert_eq!(curve(&service, &job).await?, expected, "{slots} ranks on each node");
    }
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

/// Its rank goes on training, since nothing is wrong between ranks; from the verdict on it is fenced off, and nobody can tell it.
#[tokio::test]
async fn an_agent_that_is_cut_off_is_lost_and_its_living_rank_has_no_part_in_what_follows()
-> anyhow::Result<()> {
    let mut service = Service::start(1).await?;
    service.add_agent("second", 1).await?;
    service.add_agent("third", 1).await?;
    let undisturbed = service.train(JOB, &[LASTING, &["gang.ranks=1"]].concat()).await?;

    // The other rank is busy for so long that the job lasts.
    let chaos = "chaos=[{kind=\"partition\",target=\"agent\",rank=1,step=60,milliseconds=30000},\
                 {kind=\"slow\",rank=0,step=200,milliseconds=12000}]";
    let id = service.submit(JOB, &[LASTING, &["gang.ranks=2", chaos]].concat())?.summary.id;
    let begun = |job: &JobView| 30 <= job.summary.steps_done.0;
    let hit = wait_for_job(&service.client, id, "the job has begun", WHOLE_JOB, begun).await?;
    let rank = &hit.attempts[0].ranks[1];
    let (pid, node) = (rank.pid.expect("rank 1 runs"), rank.node_name.clone());
    let goes_on = |job: &JobView| {
        let last = job.attempts[0].groups.last();
        1 < job.attempts[0].groups.len() && last.is_some_and(|it| it.first_step_at.is_some())
    };
    wait_for_job(&service.client, id, "it goes on without it", WHOLE_JOB, goes_on).await?;
    assert!(is_running(pid), "no order comes through to end it");
    let job = service.until_succeeded(id).await?;
    let verdict = &job.failures[0];
    assert_eq!(verdict.code, FailureCode::NodeLost, "{verdict:#?}");
    assert!(verdict.message.contains(&node), "{verdict:#?}");
    assert_eq!((job.failures.len(), job.attempts.len()), (1, 1), "{:#?}", job.failures);
    assert!(!node_names(&job).contains(&node.as_str()), "{:#?}", job.attempts);
    assert_eq!(curve(&service, &job).await?, curve(&service, &undisturbed).await?);
    wait_for("it is ended once its agent hears", WHOLE_JOB, || async {
        (!is_running(pid)).then_some(())
    })
    .await?;
    Ok(())
}

/// A real one: the far end of the line between the ranks goes down while both agents go on speaking with the server.
#[tokio::test]
async fn a_line_that_is_pulled_is_named_and_the_same_ranks_go_on_once_it_is_back()
-> anyhow::Result<()> {
    let Some(cable) = Cable::lay()? else { return Ok(()) };
    cable.move_to_near_end()?;
    let mut service = Service::start_server_at(Cable::NEAR).await?;
    let [near, far] = cable.lay_line()?;
    service.add_agent_behind("first", 1, near).await?;
    service.add_agent_behind("second", 1, far).await?;
    let undisturbed = service.train(JOB, &[LONG, &["gang.ranks=1"]].concat()).await?;

    let settings = [LONG, &["gang.ranks=2", "timeouts.collective=2s", "timeouts.formation=20s"]];
    let id = service.submit(JOB, &settings.concat())?.summary.id;
    let midway = |job: &JobView| 60 <= job.summary.steps_done.0 && !job.checkpoints.is_empty();
    let hit = wait_for_job(&service.client, id, "the job is midway", WHOLE_JOB, midway).await?;
    assert!(!hit.summary.state.is_final(), "the job is too short to be hit: {hit:#?}");
    cable.set_line("down")?;
    let named = |job: &JobView| !job.failures.is_empty();
    wait_for_job(&service.client, id, "the verdict is in", WHOLE_JOB, named).await?;
    cable.set_line("up")?;
    let job = service.until_succeeded(id).await?;

    let verdict = &job.failures[0];
    assert_eq!(verdict.code, FailureCode::LinkOrDeviceStall, "{verdict:#?}");
    assert_eq!((verdict.rank, verdict.node_id), (None, None), "{verdict:#?}");
    assert!(verdict.message.contains("rank 0 on node first and rank 1 on node second"));
    assert_eq!((job.failures.len(), job.attempts.len()), (1, 1), "{:#?}", job.failures);
    let pids = |job: &JobView| job.attempts[0].ranks.iter().map(|it| it.pid).collect::<Vec<_>>();
    assert_eq!(pids(&job), pids(&hit), "nobody was replaced");
    assert_eq!(curve(&service, &job).await?, curve(&service, &undisturbed).await?);
    Ok(())
}

#[tokio::test]
async fn a_rank_killed_on_the_second_node_is_named_and_the_job_goes_on_with_the_same_curve()
-> anyhow::Result<()> {
    let mut service = Service::start(1).await?;
    service.add_agent("second", 1).await?;
    let undisturbed = service.train(JOB, &[LONG, &["gang.ranks=1"]].concat()).await?;

    let id = service.submit(JOB, &[LONG, &["gang.ranks=2"]].concat())?.summary.id;
    let midway = |job: &JobView| 60 <= job.summary.steps_done.0 && !job.checkpoints.is_empty();
    let hit = wait_for_job(&service.client, id, "the job is midway", WHOLE_JOB, midway).await?;
    assert!(!hit.summary.state.is_final(), "the job is too short to be hit: {hit:#?}");
    let victim = &hit.attempts[0].ranks[1];
    assert_eq!(victim.node_name, "second");
    kill_now(victim.pid.expect("rank 1 runs"))?;
    let job = service.until_succeeded(id).await?;

    let verdict = &job.failures[0];
    assert_eq!(verdict.code, FailureCode::PeerGone, "{verdict:#?}");
    assert_eq!(verdict.rank.map(|rank| rank.0), Some(1), "{verdict:#?}");
    assert_eq!(verdict.signal, Some(9), "{verdict:#?}");
    assert_eq!(verdict.node_id, Some(victim.node_id), "{verdict:#?}");
    assert!(verdict.message.starts_with("rank 1 on node second"), "{verdict:#?}");
    assert_eq!(job.failures.len(), 1, "{:#?}", job.failures);
    assert_eq!(job.attempts.len(), 1, "{:#?}", job.attempts);
    assert_eq!(job.attempts[0].ranks[0].pid, hit.attempts[0].ranks[0].pid, "rank 0 went on");
    let names: BTreeSet<&str> = node_names(&job).into_iter().collect();
    assert_eq!(names, BTreeSet::from(["first", "second"]));
    assert_eq!(curve(&service, &job).await?, curve(&service, &undisturbed).await?);
    Ok(())
}
