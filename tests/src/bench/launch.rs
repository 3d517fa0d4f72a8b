//! From submitting a job to its first optimizer step, on a warm agent.

use std::time::Duration;

use anyhow::Context as _;
use lockstep_e2e::{Service, wait_for_job};

use crate::report::{Row, print, say};

/// The bar for `submit to first step p50`, milliseconds.
const LAUNCH_TARGET_MS: f64 = 500.0;

/// Longest wait for one job.
const JOB_DEADLINE: Duration = Duration::from_secs(60);

/// Measures `runs` jobs.
pub(crate) async fn launch(runs: u32, json: bool) -> anyhow::Result<()> {
    let service = Service::start(2).await?;
    let warm_up = one_launch(&service).await?;
    let mut times = Vec::new();
    for _ in 0..runs {
        times.push(one_launch(&service).await?);
    }
    let row = Row::of("submit to first step p50", "ms", times, Some(LAUNCH_TARGET_MS))?;
    say(&format!("the first job, on a cold agent: {warm_up:.1} ms; 2 ranks of examples/digits"));
    print("launch", vec![row], json)
}

/// Submits a short digits job through the command line; milliseconds from starting that to the first step.
async fn one_launch(service: &Service) -> anyhow::Result<f64> {
    let start = lockstep_e2e::now();
    let job = service.submit("examples/digits/job.toml", &["train.max_steps=3", "gang.ranks=2"])?;
    let job =
        wait_for_job(&service.client, job.summary.id, "the job is over", JOB_DEADLINE, |job| {
            job.summary.state.is_final()
        })
        .await?;
    let attempt = job.attempts.first().context("the job has an attempt")?;
    let first_step_at = attempt.first_step_at.context("the attempt has done a step")?;
    let time = first_step_at - start;
    Ok(time.as_seconds_f64() * 1e3)
}
