//! Measures whole services: a table for people, and with `--json` one object on the last line.

use std::time::Duration;

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use lockstep_e2e::{Service, wait_for_job};
use serde::Serialize;

/// Benchmarks of whole services.
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Subcommand)]
enum Bench {
    /// From submitting a job to its first optimizer step, on a warm agent.
    Launch {
        /// Jobs that are measured.
        #[arg(long, default_value_t = 20)]
        runs: u32,
        /// End with one JSON object on a line of its own.
        #[arg(long)]
        json: bool,
    },
}

/// What a benchmark answers.
#[derive(Debug, Serialize)]
struct Table {
    bench: &'static str,
    machine: Machine,
    rows: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Machine {
    cores: usize,
    cpu: String,
}

#[derive(Debug, Serialize)]
struct Row {
    case: &'static str,
    unit: &'static str,
    ours: f64,
    runs: usize,
    min: f64,
    max: f64,
    target: Target,
    holds: bool,
}

#[derive(Debug, Serialize)]
struct Target {
    ours: f64,
}

/// The bar for `submit to first step p50`, milliseconds.
const LAUNCH_TARGET_MS: f64 = 500.0;

/// Longest wait for one job.
const JOB_DEADLINE: Duration = Duration::from_secs(60);

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    match Arguments::parse().bench {
        Bench::Launch { runs, json } => launch(runs, json).await,
    }
}

async fn launch(runs: u32, json: bool) -> anyhow::Result<()> {
    let service = Service::start(2).await?;
    let warm_up = one_launch(&service).await?;
    let mut times = Vec::new();
    for _ in 0..runs {
        times.push(one_launch(&service).await?);
    }
    times.sort_by(f64::total_cmp);
    let p50 = median(&times).context("at least one run")?;
    let row = Row {
        case: "submit to first step p50",
        unit: "ms",
        ours: p50,
        runs: times.len(),
        min: times[0],
        max: times[times.len() - 1],
        target: Target { ours: LAUNCH_TARGET_MS },
        holds: p50 <= LAUNCH_TARGET_MS,
    };
    say(&format!("{:28} {:>9} {:>9} {:>9} {:>9}", "case", "p50 ms", "min", "max", "target"));
    say(&format!(
        "{:28} {:>9.1} {:>9.1} {:>9.1} {:>9}",
        row.case,
        row.ours,
        row.min,
        row.max,
        format!("<= {LAUNCH_TARGET_MS}")
    ));
    say(&format!("the first job, on a cold agent: {warm_up:.1} ms; 2 ranks of examples/digits"));
    if json {
        let table = Table { bench: "launch", machine: machine(), rows: vec![row] };
        say(&serde_json::to_string(&table)?);
    }
    Ok(())
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

fn median(sorted: &[f64]) -> Option<f64> {
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        count if count % 2 == 1 => Some(sorted[middle]),
        _ => Some(f64::midpoint(sorted[middle - 1], sorted[middle])),
    }
}

fn machine() -> Machine {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name"));
    let cpu = model.map_or("unknown", |rest| rest.trim_start_matches([' ', '\t', ':'])).to_owned();
    Machine { cores: std::thread::available_parallelism().map_or(1, std::num::NonZero::get), cpu }
}

#[expect(clippy::print_stdout, reason = "a benchmark's result is for standard output")]
fn say(line: &str) {
    println!("{line}");
}
