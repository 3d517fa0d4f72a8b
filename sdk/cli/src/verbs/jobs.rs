//! `ps`, `show`, `cancel`, `pause`, `resume`.

use std::fmt::Write as _;

use chrono::{DateTime, Local, Utc};
use lockstep_api::{
    AttemptOutcome, AttemptView, FailureView, FaultSpec, FaultTarget, FaultView, JobSummary,
    JobView, ListJobs, TimeoutsView,
};

use crate::args::{Global, JobArgs, PsArgs};
use crate::out::{Out, bytes, number, or_dash, table};
use crate::settings::{client, job_page};
use crate::verbs::find;

/// Lists jobs.
pub(crate) async fn ps(global: &Global, args: PsArgs, out: Out) -> anyhow::Result<()> {
    let PsArgs { state, limit, cursor } = args;
    let query = ListJobs { state, limit: Some(limit), cursor };
    let page = client(global)?.list_jobs(&query).await?;
    out.data(&page, |page| jobs_table(&page.items))?;
    if let (Some(cursor), false) = (&page.next_cursor, out.is_json()) {
        out.note(&format!("there are more: --cursor {cursor}"));
    }
    Ok(())
}

fn jobs_table(jobs: &[JobSummary]) -> String {
    let mut rows = table(&[
        "ID",
        "NAME",
        "STATE",
        "PRIORITY",
        "RANKS",
        "STEPS",
        "LOSS",
        "SUBMITTED",
        "WAITS FOR",
    ]);
    for job in jobs {
        rows.add_row([
            job.id.to_string(),
            job.name.clone(),
            job.state.to_string(),
            job.priority.to_string(),
            ranks(job),
            steps(job),
            or_dash(job.loss.map(number)),
            time(job.created_at),
            job.waiting.clone().unwrap_or_default(),
        ]);
    }
    rows.trim_fmt()
}

/// `2`, `1 to 4`, and of a gang that may change, while it is at work, `3 of 1 to 4`
fn ranks(job: &JobSummary) -> String {
    match job.world_size.filter(|_| job.ranks.is_elastic()) {
        Some(size) => format!("{size} of {}", job.ranks),
        None => job.ranks.to_string(),
    }
}

fn steps(job: &JobSummary) -> String {
    match job.steps_total {
        Some(total) => format!("{}/{total}", job.steps_done),
        None => job.steps_done.to_string(),
    }
}

/// In the reader's own time zone.
pub(crate) fn time(at: DateTime<Utc>) -> String {
    at.with_timezone(&Local).format("%Y-%m-%d %H:%M:%S").to_string()
}

/// Shows one job.
pub(crate) async fn show(global: &Global, args: JobArgs, out: Out) -> anyhow::Result<()> {
    let client = client(global)?;
    let job = find::job(&client, &args.job).await?;
    let page = job_page(&client, job.summary.id);
    out.data(&job, |job| describe(job, &page))
}

fn describe(job: &JobView, page: &str) -> String {
    let summary = &job.summary;
    let mut facts = vec![
        ("id", summary.id.to_string()),
        ("name", summary.name.clone()),
        ("state", summary.state.to_string()),
        ("page", page.to_owned()),
        ("submitted", time(summary.created_at)),
    ];
    facts.extend(summary.ended_at.map(|at| ("ended", time(at))));
    facts.extend(summary.waiting.clone().map(|reason| ("waiting", reason)));
    facts.extend(summary.ended_because.clone().map(|reason| ("because", reason)));
    facts.push(("priority", summary.priority.to_string()));
    facts.push(("ranks", ranks(summary)));
    facts.push(("steps", steps(summary)));
    facts.extend(summary.loss.map(|loss| ("loss", number(loss))));
    facts.push(("timeouts", timeouts(job.timeouts)));
    let mut text: String =
        facts.iter().map(|(name, value)| format!("{name:10} {value}\n")).collect();
    section(&mut text, "METRIC", &metrics(job));
    section(&mut text, "ATTEMPT", &attempts(&job.attempts));
    section(&mut text, "VERDICT", &job.failures.iter().map(failure).collect::<String>());
    section(&mut text, "FAULT", &job.faults.iter().map(fault).collect::<String>());
    section(&mut text, "CHECKPOINT", &checkpoints(job));
    text
}

/// `kill of rank 1 in step 50, forward: peer_gone of rank 1, detected after 0.02 s, named 0.03 s, repaired 0.31 s, 0 steps lost`
fn fault(fault: &FaultView) -> String {
    let FaultSpec { kind, target, rank, step, phase, .. } = fault.fault;
    let whom = match target {
        FaultTarget::Rank => format!("rank {rank}"),
        FaultTarget::Agent => format!("the agent of rank {rank}"),
        FaultTarget::Link => format!("the links of rank {rank}"),
    };
    let what = format!("{kind} of {whom} in step {step}, {phase}");
    if fault.injected_at.is_none() {
        return format!("{what}: has not happened\n");
    }
    let verdict = fault.verdict.map_or_else(|| "no verdict".to_owned(), |code| code.to_string());
    let named = fault.named_rank.map_or_else(String::new, |rank| format!(" of rank {rank}"));
    let after = |what: &str, seconds: Option<f64>| {
        seconds.map_or_else(String::new, |seconds| format!(", {what} after {seconds:.2} s"))
    };
    let lost = fault.steps_lost.map_or_else(String::new, |lost| format!(", {lost} steps lost"));
    format!(
        "{what}: {verdict}{named}{}{}{}{lost}\n",
        after("detected", fault.detected_after),
        after("named", fault.named_after),
        after("repaired", fault.repaired_after),
    )
}

/// In their order, and what follows from them.
fn timeouts(limits: TimeoutsView) -> String {
    let TimeoutsView {
        collective_ms,
        soft_ms,
        snapshot_ms,
        abort_ms,
        formation_ms,
        stop_grace_ms,
        pause_ms,
    } = limits;
    let named = [
        ("snapshot", snapshot_ms),
        ("soft", soft_ms),
        ("abort", abort_ms),
        ("collective", collective_ms),
        ("formation", formation_ms),
        ("stop grace", stop_grace_ms),
        ("pause", pause_ms),
    ];
    named.map(|(name, time)| format!("{name} {}", milliseconds(time))).join(", ")
}

/// `600ms`, `10s`
fn milliseconds(time: u64) -> String {
    if time.is_multiple_of(1000) { format!("{}s", time / 1000) } else { format!("{time}ms") }
}

fn section(text: &mut String, title: &str, body: &str) {
    if !body.is_empty() {
        // Writing to a String cannot fail.
        writeln!(text, "\n{title}\n{}", body.trim_end_matches('\n'))
            .expect("a String takes everything");
    }
}

fn metrics(job: &JobView) -> String {
    job.metrics.iter().map(|(name, value)| format!("{name} {}\n", number(*value))).collect()
}

fn attempts(attempts: &[AttemptView]) -> String {
    let mut text = String::new();
    for attempt in attempts {
        let end = match (attempt.outcome, &attempt.stopped_because) {
            (Some(AttemptOutcome::Cancelled), Some(because)) => format!("stopped ({because})"),
            (Some(outcome), _) => outcome.to_string(),
            (None, Some(because)) => format!("{} ({because})", attempt.state),
            (None, None) => attempt.state.to_string(),
        };
        let (number, from, done) = (attempt.number, attempt.first_step, attempt.steps_done);
        writeln!(
            text,
            "{number}: {end}, steps {from} to {done}, generation {}",
            attempt.generation
        )
        .expect("a String takes everything");
        for (before, group) in attempt.groups.iter().zip(attempt.groups.iter().skip(1)) {
            let how = match before.world_size == group.world_size {
                true => "repaired in place".to_owned(),
                false => format!("ranks: {} instead of {}", group.world_size, before.world_size),
            };
            let step = group.first_step_at.map_or_else(
                || "no step yet".to_owned(),
                |at| format!("first step after {:.2} s", (at - group.began_at).as_seconds_f64()),
            );
            writeln!(text, "   {how}, generation {}: {step}", group.generation)
                .expect("a String takes everything");
        }
        for rank in &attempt.ranks {
            let place = rank.pid.map_or_else(String::new, |pid| format!(" pid {pid}"));
            let phase = rank.phase.map_or_else(String::new, |phase| format!(" {phase}"));
            let step = rank.step.map_or_else(String::new, |step| format!(" step {step}"));
            let exit = match (rank.signal, rank.exit_code) {
                (Some(signal), _) => format!(", ended by signal {signal}"),
                (None, Some(code)) => format!(", exit code {code}"),
                (None, None) => String::new(),
            };
            writeln!(text, "   rank {} on {}{place}{phase}{step}{exit}", rank.rank, rank.node_name)
                .expect("a String takes everything");
        }
    }
    text
}

fn failure(failure: &FailureView) -> String {
    let FailureView { code, blame, message, at, .. } = failure;
    format!("{} {code} ({blame}): {message}\n", time(*at))
}

fn checkpoints(job: &JobView) -> String {
    let lines = job.checkpoints.iter().map(|checkpoint| {
        let (id, step) = (checkpoint.id, checkpoint.step);
        format!(
            "{id} step {step}, {}, {}\n",
            bytes(checkpoint.size_bytes),
            time(checkpoint.created_at)
        )
    });
    lines.collect()
}

/// Asks a job to end.
pub(crate) async fn cancel(global: &Global, args: JobArgs, out: Out) -> anyhow::Result<()> {
    let client = client(global)?;
    let id = find::job_id(&client, &args.job).await?;
    client.cancel(id).await?;
    let job = client.job(id).await?;
    out.data(&job.summary, |job| format!("{} {}", job.id, job.state))
}

/// Sets a job aside.
pub(crate) async fn pause(global: &Global, args: JobArgs, out: Out) -> anyhow::Result<()> {
    let client = client(global)?;
    let job = client.pause(find::job_id(&client, &args.job).await?).await?;
    out.data(&job.summary, state)
}

/// Lets a job go on.
pub(crate) async fn resume(global: &Global, args: JobArgs, out: Out) -> anyhow::Result<()> {
    let client = client(global)?;
    let job = client.resume(find::job_id(&client, &args.job).await?).await?;
    out.data(&job.summary, state)
}

/// `01… active: is being paused: …`
fn state(job: &JobSummary) -> String {
    let waiting = job.waiting.iter().map(|waiting| format!(": {waiting}"));
    format!("{} {}{}", job.id, job.state, waiting.collect::<String>())
}
