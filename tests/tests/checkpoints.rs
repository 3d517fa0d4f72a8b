//! Checkpoints of real ranks: kept as the job says, pinned by the command line, restored bit for bit, in a folder or a database.

use std::process::Output;
use std::time::Duration;

use lockstep_api::{CheckpointView, JobView};
use lockstep_e2e::{Service, WHOLE_JOB, kill_now, wait_for, wait_for_job};

const JOB: &str = "examples/digits/job.toml";

/// Long enough to be hit in the middle, short enough for a test.
const LONG: &[&str] = &["train.epochs=300", "checkpoint.every_steps=40", "gang.ranks=2"];

/// Longest wait for a look of the reconcilers.
const SWEPT: Duration = Duration::from_secs(30);

fn run(service: &Service, words: &[&str]) -> anyhow::Result<Output> {
    Ok(service.lockstep().args(words).output()?)
}

fn said(service: &Service, words: &[&str]) -> anyhow::Result<String> {
    let output = run(service, words)?;
    let errors = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(output.status.success(), "{words:?} ended with {}: {errors}", output.status);
    Ok(String::from_utf8(output.stdout)? + &errors)
}

fn steps(checkpoints: &[CheckpointView]) -> Vec<i64> {
    checkpoints.iter().map(|it| it.step.0).collect()
}

#[tokio::test]
async fn the_best_by_accuracy_and_a_pinned_one_outlive_newer_ones() -> anyhow::Result<()> {
    let service = Service::start(2).await?;
    let settings = [
        "train.epochs=10",
        "checkpoint.every_steps=12",
        "checkpoint.keep_last=1",
        "checkpoint.keep_best=1",
        "checkpoint.best.metric=eval/accuracy",
        "checkpoint.best.mode=max",
    ];
    let job = service.train(JOB, &settings).await?;
    let id = job.summary.id;
    let series = service.client.metrics(id, Some("eval/accuracy"), None).await?;
    let measured = series.iter().flat_map(|series| &series.points);
    let measured: Vec<(i64, f64)> =
        measured.filter_map(|point| Some((point.step.0, point.value?))).collect();
    assert_eq!(measured.len(), 10, "each state that was saved was measured");
    // Of equals the older.
    let best =
        measured.iter().fold((0, f64::MIN), |best, it| if best.1 < it.1 { *it } else { best });
    let expected = if best.0 == 120 { vec![120] } else { vec![120, best.0] };
    assert_eq!(steps(&job.checkpoints), expected, "{measured:?}");

    let name = id.to_string();
    let last = ["checkpoint", "pin", &name, "--step", "120"];
    assert!(said(&service, &last)?.contains("step 120 of digits-mlp is pinned"));
    let list = said(&service, &["checkpoint", "list", &name])?;
    let pinned = list.lines().filter(|line| line.ends_with("yes")).count();
    assert_eq!(
        (pinned, list.lines().next().map(|it| it.ends_with("PINNED"))),
        (1, Some(true)),
        "{list}"
    );
    let unpinned = said(&service, &["checkpoint", "unpin", &name])?;
    assert!(unpinned.contains("the job keeps it by itself"), "{unpinned}");
    let refused = run(&service, &["checkpoint", "pin", &name, "--step", "7"])?;
    let words = String::from_utf8(refused.stderr)?;
    assert!(!refused.status.success() && words.contains("no checkpoint after step 7"), "{words}");
    Ok(())
}

#[tokio::test]
async fn a_job_whose_chunks_are_files_resumes_from_them_with_the_same_curve() -> anyhow::Result<()>
{
    let folder = tempfile::tempdir()?;
    let store = format!("file://{}", folder.path().join("chunks").display());
    let service = Service::start_with(2, &["--chunk-store", &store]).await?;
    let undisturbed = service.submit(JOB, LONG)?.summary.id;
    service.until_succeeded(undisturbed).await?;

    // One rank: when it is lost, no copy of the state is left.
    let id = service.submit(JOB, &[LONG, &["gang.ranks=1"]].concat())?.summary.id;
    let midway = |job: &JobView| 60 <= job.summary.steps_done.0 && !job.checkpoints.is_empty();
    let midway = wait_for_job(&service.client, id, "the job is midway", WHOLE_JOB, midway).await?;
    kill_now(midway.attempts[0].ranks[0].pid.expect("rank 0 runs"))?;
    let job = service.until_succeeded(id).await?;
    assert_eq!(job.attempts.len(), 2, "{:#?}", job.failures);
    assert!(0 < job.attempts[0].first_step.0, "it resumed from a checkpoint");
    assert_eq!(service.curve(id).await?, service.curve(undisturbed).await?);
    let files = |job: &JobView| job.checkpoints.first().map(|it| it.file.clone());
    assert_eq!(files(&job), files(&service.client.job(undisturbed).await?));
    let stall = service.client.metrics(id, Some("train/checkpoint_stall_ms"), None).await?;
    let points = stall.iter().flat_map(|series| &series.points);
    assert!(points.clone().all(|point| point.step.0 % 40 == 0), "{stall:?}");
    assert!(10 < points.count(), "{stall:?}");

    // What the two attempts shared with the undisturbed job is kept once, and a download is whole.
    let to = folder.path().join("last.safetensors");
    let to = to.to_str().expect("the path was text when it was made");
    said(&service, &["checkpoint", "download", &id.to_string(), "--output", to])?;
    assert!(std::fs::metadata(to)?.len() == u64::try_from(job.checkpoints[0].size_bytes)?);
    let again = ["checkpoint", "download", &id.to_string(), "--output", to];
    let refused = service.lockstep().args(again).output()?;
    let words = String::from_utf8_lossy(&refused.stderr);
    assert!(words.ends_with("is there already; --force writes over it\n"), "{words}");
    said(&service, &[&again[..], &["--force"]].concat())?;
    wait_for("the job lets go of what its attempt resumed from", SWEPT, || async {
        let job = service.client.job(id).await.ok()?;
        (job.checkpoints.len() == 2).then_some(())
    })
    .await
}
