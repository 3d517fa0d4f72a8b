//! Ways of training together that a job file can ask for, on two ranks.

use lockstep_api::JobView;
use lockstep_e2e::Service;

const JOB: &str = "examples/digits/job.toml";

async fn trained(service: &Service, settings: &[&str]) -> anyhow::Result<JobView> {
    let all = [settings, &["gang.ranks=2", "train.epochs=4", "checkpoint.every_steps=20"]].concat();
    service.train(JOB, &all).await
}

#[tokio::test]
async fn a_sharded_job_has_the_curve_and_the_checkpoint_of_a_whole_one() -> anyhow::Result<()> {
    let service = Service::start(2).await?;
    for transport in ["ddp.transport=auto", "ddp.transport=tcp"] {
        let whole = trained(&service, &["ddp.compare_every=7", transport]).await?;
        let sharded =
            trained(&service, &["ddp.compare_every=7", "ddp.shard=zero1", transport]).await?;
        let curve = async |job: &JobView| service.curve(job.summary.id).await;
        assert_eq!(curve(&whole).await?, curve(&sharded).await?);
        assert_eq!(whole.metrics["eval/loss"], sharded.metrics["eval/loss"]);
        // The same bytes, the optimizer's state included.
        let files =
            |job: &JobView| job.checkpoints.iter().map(|it| it.file.clone()).collect::<Vec<_>>();
        assert_eq!(files(&whole), files(&sharded));
    }
    Ok(())
}

#[tokio::test]
async fn hooks_and_local_steps_learn_as_well() -> anyhow::Result<()> {
    let service = Service::start(2).await?;
    let plain = trained(&service, &["ddp.reduction=fast"]).await?;
    let plain_curve = service.curve(plain.summary.id).await?;
    let plain = plain.metrics["eval/loss"];
    for settings in [
        &["ddp.hook=bf16"][..],
        &["ddp.hook=f16"],
        &["ddp.hook=power-sgd", "ddp.power_sgd.start_step=10", "ddp.power_sgd.rank=4"],
        &["ddp.sync_every=4", "ddp.sync_from=8"],
    ] {
        let job = trained(&service, &[settings, &["ddp.reduction=fast"]].concat()).await?;
        let loss = job.metrics["eval/loss"];
        assert_ne!(service.curve(job.summary.id).await?, plain_curve, "{settings:?} do nothing");
        assert!(
            loss.is_finite() && (loss - plain).abs() < 0.3 * plain,
            "{settings:?}: {loss}, {plain}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn passes_of_whole_batches_have_a_complete_ledger_of_their_own_length() -> anyhow::Result<()>
{
    let service = Service::start(2).await?;
    // Of 1437 samples in batches of 128.
    for (uneven, steps) in [("join", 12), ("shortest", 11), ("pad", 12)] {
        let job = trained(&service, &[&format!("ddp.uneven={uneven}")]).await?;
        assert_eq!(job.summary.steps_done.0, 4 * steps, "{uneven}");
        let ledger = service.client.ledger(job.summary.id).await?;
        assert_eq!(ledger.complete_epochs, [0, 1, 2, 3], "{uneven}");
    }
    Ok(())
}

#[tokio::test]
async fn settings_that_contradict_each_other_are_refused_by_name() -> anyhow::Result<()> {
    let service = Service::start(1).await?;
    for (settings, field) in [
        (&["ddp.hook=bf16"][..], "ddp.hook"),
        (&["ddp.shard=zero1", "ddp.sync_every=2", "ddp.reduction=fast"], "ddp.shard"),
        (&["ddp.sync_every=2"], "ddp.sync_every"),
        (&["ddp.digest=off"], "ddp.compare_every"),
        (&["ddp.groups=9"], "ddp.groups"),
        (&["ddp.groups=2", "ddp.shard=zero1"], "ddp.groups"),
        (&["ddp.sync_batch_norm=true"], "ddp.sync_batch_norm"),
        (
            &["ddp.sync_every=2", "ddp.reduction=fast", "train.micro_batch=64", "gang.ranks=3"],
            "gang.ranks",
        ),
    ] {
        let error = service.submit(JOB, settings).unwrap_err().to_string();
        assert!(error.contains(field), "{settings:?}: {error}");
    }
    Ok(())
}
