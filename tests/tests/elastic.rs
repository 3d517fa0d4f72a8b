//! A gang that grows, gives ranks back and loses a node, with the curve and the bytes of one rank.

use lockstep_api::{JobId, JobView};
use lockstep_e2e::{Service, WHOLE_JOB, wait_for_job};

const JOB: &str = "examples/digits/job.toml";
/// Long enough for everything that happens to it.
const LONG: &[&str] = &["train.epochs=900", "checkpoint.every_steps=2000"];
const ELASTIC: &str = "gang.ranks={ min = 1, max = 3 }";

/// Waits until the job's group has so many ranks and has done another step.
async fn until_size(service: &Service, id: JobId, size: usize) -> anyhow::Result<JobView> {
    let is_so = |job: &JobView| {
        let Some(attempt) = job.attempts.first() else { return false };
        let newest = attempt.groups.last();
        attempt.ranks.len() == size && newest.is_some_and(|group| group.first_step_at.is_some())
    };
    let what = format!("{size} ranks are at work");
    wait_for_job(&service.client, id, &what, WHOLE_JOB, is_so).await
}

#[tokio::test]
async fn a_gang_grows_gives_back_and_shrinks_with_the_curve_of_one_rank() -> anyhow::Result<()> {
    let mut service = Service::start(1).await?;
    let undisturbed = service.train(JOB, &[LONG, &["gang.ranks=1"]].concat()).await?;

    let id = service.submit(JOB, &[LONG, &[ELASTIC]].concat())?.summary.id;
    let alone = until_size(&service, id, 1).await?;
    let pid = alone.attempts[0].ranks[0].pid;
    service.add_agent("second", 2).await?;
    until_size(&service, id, 3).await?;

    // Another job waits: it gets a slot back, and the gang takes it again afterwards.
    service.train(JOB, &["gang.ranks=1", "train.epochs=4"]).await?;
    until_size(&service, id, 3).await?;
    service.kill_agent(1)?;
    until_size(&service, id, 1).await?;
    service.start_agent(1).await?;
    until_size(&service, id, 3).await?;

    let job = service.until_succeeded(id).await?;
    let [attempt] = &job.attempts[..] else { panic!("{:#?}", job.failures) };
    let sizes: Vec<u32> = attempt.groups.iter().map(|group| group.world_size).collect();
    assert_eq!(sizes, [1, 3, 2, 3, 1, 3]);
    assert_eq!(attempt.ranks[0].pid, pid, "rank 0 was never started again");
    assert_eq!(job.failures.len(), 1, "only the node was lost: {:#?}", job.failures);
    assert_eq!(service.curve(id).await?, service.curve(undisturbed.summary.id).await?);
    assert_eq!(job.checkpoints[0].file, undisturbed.checkpoints[0].file, "the same bytes");
    let ledger = service.client.ledger(id).await?;
    assert_eq!(ledger.complete_epochs.len(), 900);
    Ok(())
}
