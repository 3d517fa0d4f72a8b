//! What an asynchronous checkpoint costs the ranks of a job: how long it holds them, against a step, and what its
//! writing costs the steps that go on meanwhile.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use lockstep_api::{JobId, JobState, Rank, ReadTimeline, SpanKind, StepTimeline};
use lockstep_e2e::{Service, wait_for_job};

use crate::report::{Row, median, print, say};

const JOB: &str = "examples/text/job.toml";
const RANKS: usize = 2;
/// The model and the batch of the step benchmark's `gpt-8`, on each of two ranks.
const GPT: [&str; 12] = [
    "model.vocab_size=512",
    "model.n_embd=256",
    "model.activation_function=gelu",
    "model.tie_word_embeddings=false",
    "train.global_batch=16",
    "train.micro_batch=8",
    "train.optimizer={ name = \"adamw\", lr = 3e-4, weight_decay = 0.01 }",
    "train.schedule={ name = \"constant\" }",
    "train.epochs=1000",
    "gang.ranks=2",
    "trace.first_steps=0",
    "trace.every_steps=1",
];
/// Steps from one checkpoint to the next: the one before is written by then.
const EVERY: u32 = 20;
/// Steps after a checkpoint that are counted as those during which it is written.
const WRITTEN_DURING: usize = 3;
/// The bar for the stall, per cent of a step.
const STALL_TARGET: f64 = 5.0;
/// A step takes some tenths of a second in a release build.
const DEADLINE_OF_A_STEP: Duration = Duration::from_secs(5);

/// Measures so many checkpoints.
pub(crate) async fn checkpoint(runs: u32, json: bool) -> anyhow::Result<()> {
    let service = Service::start(2).await?;
    let data = service.folder().join("text");
    std::fs::create_dir(&data)?;
    // The words do not matter, their number does: enough for some steps an epoch.
    std::fs::write(data.join("text.txt"), "In the beginning was the word.\n".repeat(4000))?;
    // One more interval, so that the last measured checkpoint is not the job's last.
    let steps = (runs + 1) * EVERY;
    let settings = [
        format!("data.train={data}"),
        format!("data.eval={data}"),
        format!("train.max_steps={steps}"),
        format!("checkpoint.every_steps={EVERY}"),
    ];
    let settings: Vec<&str> = GPT.into_iter().chain(settings.iter().map(String::as_str)).collect();
    let id = service.submit(JOB, &settings)?.summary.id;
    let deadline = DEADLINE_OF_A_STEP * steps;
    let job = wait_for_job(&service.client, id, "the job is over", deadline, |job| {
        job.summary.state.is_final()
    })
    .await?;
    ensure!(job.summary.state == JobState::Succeeded, "{:#?}", job.failures);
    let total = steps;
    let steps = timeline(&service, id).await?;
    let is_whole = steps.iter().map(|it| it.step.0).eq(0..i64::from(total));
    ensure!(is_whole, "the timeline of {total} steps has {} of them", steps.len());
    let rows = rows(&steps)?;
    let bytes = job.checkpoints.first().context("there are checkpoints")?.size_bytes;
    let mib = bytes as f64 / f64::from(1 << 20);
    say(&format!("GPT of the step benchmark on {RANKS} ranks; a checkpoint is {mib:.0} MiB"));
    print("checkpoint", rows, json)
}

/// Of rank 0, which writes the checkpoints; steps in order.
async fn timeline(service: &Service, id: JobId) -> anyhow::Result<Vec<StepTimeline>> {
    let mut query = ReadTimeline { rank: Some(Rank(0)), ..ReadTimeline::default() };
    let mut steps = Vec::new();
    loop {
        let page = service.client.timeline(id, &query).await?;
        steps.extend(page.items);
        query.cursor = page.next_cursor;
        if query.cursor.is_none() {
            return Ok(steps);
        }
    }
}

fn rows(steps: &[StepTimeline]) -> anyhow::Result<Vec<Row>> {
    let of = |step: &StepTimeline, kind| {
        let span = step.spans.iter().find(|span| span.kind == kind)?;
        Some((span.end_ns - span.start_ns) as f64 / 1e6)
    };
    let stalls: Vec<Option<f64>> = steps.iter().map(|it| of(it, SpanKind::Checkpoint)).collect();
    let (mut usual, mut during) = (Vec::new(), Vec::new());
    // The first steps warm up: components, pages, caches.
    for (at, step) in steps.iter().enumerate().skip(EVERY as usize / 2) {
        let time = of(step, SpanKind::Step).context("a step has its span")?;
        let before = &stalls[at.saturating_sub(WRITTEN_DURING)..at];
        let is_written = before.iter().any(Option::is_some);
        if is_written { &mut during } else { &mut usual }.push(time);
    }
    // The last is the job's end.
    let stalls: Vec<f64> =
        stalls[..stalls.len().saturating_sub(1)].iter().flatten().copied().collect();
    ensure!(!stalls.is_empty(), "no checkpoint is in the timeline of {} steps", steps.len());
    usual.sort_by(f64::total_cmp);
    let step = median(&usual).context("steps without a checkpoint")?;
    let parts = stalls.iter().map(|stall| 100.0 * stall / step).collect();
    Ok(vec![
        Row::of("step", "ms", usual, None)?,
        Row::of("step while one is written", "ms", during, None)?,
        Row::of("checkpoint: ranks are held", "ms", stalls, None)?,
        Row::of("the same, of a step", "%", parts, Some(STALL_TARGET))?,
    ])
}
