//! The same job on 1, 2 and 3 ranks: the same curve, and what it leaves can be used elsewhere.

use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;
use lockstep_api::{JobState, JobView};
use lockstep_e2e::{Service, python, wait_for_job};

const JOB: &str = "examples/digits/job.toml";
const WHOLE_JOB: Duration = Duration::from_secs(120);

async fn trained(service: &Service, settings: &[&str]) -> anyhow::Result<JobView> {
    let id = service.submit(JOB, settings)?.summary.id;
    let over = |job: &JobView| job.summary.state == JobState::Succeeded;
    wait_for_job(&service.client, id, "the job succeeds", WHOLE_JOB, over).await
}

async fn losses(service: &Service, job: &JobView) -> anyhow::Result<Vec<f64>> {
    let series = service.client.metrics(job.summary.id, Some("train/loss"), None).await?;
    let series = series.into_iter().next().context("the job has a training loss")?;
    Ok(series.points.iter().map(|point| point.value.unwrap_or(f64::NAN)).collect())
}

#[tokio::test]
async fn any_number_of_ranks_gives_the_same_curve_bit_for_bit_with_the_fixed_tree()
-> anyhow::Result<()> {
    let service = Service::start(3).await?;
    let mut curves = Vec::new();
    for ranks in ["gang.ranks=1", "gang.ranks=2", "gang.ranks=3"] {
        let job = trained(&service, &[ranks, "train.epochs=4"]).await?;
        let ledger = service.client.ledger(job.summary.id).await?;
        assert_eq!(ledger.complete_epochs, [0, 1, 2, 3]);
        let bits: Vec<u64> = losses(&service, &job).await?.into_iter().map(f64::to_bits).collect();
        let test_loss = job.metrics["eval/loss"].to_bits();
        curves.push((bits, test_loss));
    }
    assert!(!curves[0].0.is_empty());
    assert_eq!(curves[0], curves[1]);
    assert_eq!(curves[0], curves[2]);
    Ok(())
}

#[tokio::test]
async fn the_fast_reduction_agrees_with_one_process_to_five_digits() -> anyhow::Result<()> {
    let service = Service::start(3).await?;
    let fast = "ddp.reduction=fast";
    let alone = trained(&service, &["gang.ranks=1", "train.epochs=2", fast]).await?;
    let alone = losses(&service, &alone).await?;
    for ranks in ["gang.ranks=2", "gang.ranks=3"] {
        let together = trained(&service, &[ranks, "train.epochs=2", fast]).await?;
        let together = losses(&service, &together).await?;
        assert_eq!(alone.len(), together.len());
        for (step, (one, many)) in alone.iter().zip(&together).enumerate() {
            assert!(
                (one - many).abs() <= 1e-5 * one.abs(),
                "{ranks}, step {step}: {one} and {many}"
            );
        }
    }
    Ok(())
}

#[tokio::test]
async fn the_digits_job_learns_and_its_checkpoint_opens_in_python() -> anyhow::Result<()> {
    let service = Service::start(2).await?;
    let job = trained(&service, &[]).await?;
    assert!(0.95 <= job.metrics["eval/accuracy"], "{:?}", job.metrics);
    let checkpoint = job.checkpoints.first().context("the last state is kept")?;
    assert_eq!(Some(checkpoint.step), job.summary.steps_total);

    let file = service.folder().join("weights.safetensors");
    let mut download = service.lockstep();
    download.args(["checkpoint", "download", &job.summary.id.to_string(), "-o", file.as_str()]);
    let output = download.output()?;
    anyhow::ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

    let script = "import sys; from safetensors.numpy import load_file
tensors = load_file(sys.argv[1])
print(tensors['layers.0.weight'].shape, tensors['layers.0.weight'].dtype)";
    let python = Command::new(python()?).args(["-c", script, file.as_str()]).output()?;
    anyhow::ensure!(python.status.success(), "{}", String::from_utf8_lossy(&python.stderr));
    assert_eq!(String::from_utf8(python.stdout)?.trim(), "(128, 64) float32");
    Ok(())
}
