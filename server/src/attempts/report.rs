//! Takes a node's reports: each has its effect once, in one transaction for the whole batch.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use chrono::{DateTime, Utc};
use lockstep_api::{
    AttemptId, ClockAnchor, Fence, Generation, JobEventKind, JobId, MAX_SPANS, NamedValue,
    NumberedReport, Rank, Report, ReportResponse, ReportedLine, Step, StepReport, StepSpans,
};
use lockstep_core::{Event, Stage, StepError, Word};
use sqlx::PgConnection;

use crate::app::App;
use crate::attempts::drive::Drive;
use crate::attempts::store::{self, LockedAttempt};
use crate::nodes;
use crate::nodes::caller::NodeCaller;
use crate::problem::Problem;
use crate::progress::store::{self as progress, LOSS, Point, Timed};
use crate::progress::text::{is_metric_name, storable_time};

/// Reports of one batch.
pub(crate) const REPORTS_PER_BATCH: usize = 500;
/// Steps of one report.
const STEPS_PER_REPORT: usize = 5000;
/// Metrics of one step or evaluation; further ones are dropped.
const METRICS_PER_STEP: usize = 100;
/// Places where a rank may listen; further ones are dropped.
const ENDPOINTS_PER_RANK: usize = 16;
/// Lines of one report.
const LINES_PER_REPORT: usize = 5000;
/// Timelines of steps in one report.
const TIMELINES_PER_REPORT: usize = 5000;

/// Takes a batch whose numbers ascend. What was handled before is skipped.
pub(crate) async fn take(
    app: &App,
    node: NodeCaller,
    reports: Vec<NumberedReport>,
) -> Result<ReportResponse, Problem> {
    let attempts: BTreeSet<AttemptId> = reports.iter().map(|r| r.fence.attempt_id).collect();
    let attempts: Vec<AttemptId> = attempts.into_iter().collect();
    let mut tx = app.db.system().await?;
    let jobs = store::jobs_of(&mut tx, &attempts).await?;
    let mut drive = Drive::lock(app, &mut tx, &jobs, &attempts, &[node.node_id]).await?;
    let mut acked_seq = nodes::store::acked_seq(&mut tx, node.node_id).await?;
    let mut batch = Batch::default();
    for NumberedReport { seq, fence, report } in reports {
        if seq <= acked_seq {
            continue;
        }
        acked_seq = seq;
        let is_last = matches!(report, Report::Finished | Report::Stopped);
        let answer = one(&mut drive, &mut tx, node, fence, report, &mut batch).await?;
        if is_last {
            // Its ranks are gone, those that were given up as well.
            let (now, of) = (drive.now(), (fence.attempt_id, fence.generation));
            if store::release_evicted(&mut tx, node.node_id, Some(of), now).await? {
                drive.wake_reconcilers();
            }
        }
        match answer {
            Ok(()) => {}
            Err(StepError::NotAMember { rank: Some(rank), .. }) => {
                tracing::warn!(node.id = %node.node_id, attempt.id = %fence.attempt_id, %rank, "report of a stranger's rank");
            }
            // Of a generation that its node has yet to hear the end of.
            Err(StepError::Stale { .. }) if is_member(&drive, node, fence) => {}
            Err(StepError::Stale { .. } | StepError::NotAMember { .. } | StepError::Over) => {
                batch.lost.insert(fence);
            }
        }
    }
    batch.write(&mut drive, &mut tx).await?;
    nodes::store::ack(&mut tx, node.node_id, acked_seq).await?;
    let announcement = drive.finish(&mut tx).await?;
    tx.commit().await?;
    announcement.send(&app.wakeup);
    Ok(ReportResponse { acked_seq, lost: batch.lost.into_iter().collect() })
}

/// Rows of the whole batch, written with one statement a table and attempt.
#[derive(Debug, Default)]
struct Batch {
    lost: BTreeSet<Fence>,
    steps: BTreeMap<AttemptId, Vec<StepReport>>,
    points: BTreeMap<AttemptId, Vec<Point>>,
    lines: BTreeMap<AttemptId, Vec<ReportedLine>>,
    timed: BTreeMap<AttemptId, Vec<Timed>>,
    /// Generations in which a step was done.
    progressed: BTreeSet<(AttemptId, Generation)>,
}

async fn one(
    drive: &mut Drive<'_>,
    db: &mut PgConnection,
    node: NodeCaller,
    fence: Fence,
    report: Report,
    batch: &mut Batch,
) -> Result<Result<(), StepError>, Problem> {
    let Fence { attempt_id: id, generation } = fence;
    let said = |word| Event::Said { node: node.node_id, generation, word };
    let word = match report {
        Report::RankStarted { rank, pid } => {
            return started(drive, db, id, said(Word::RankStarted { rank }), rank, pid).await;
        }
        Report::RankListens { rank, endpoints } => {
            return listens(drive, db, id, said(Word::RankListens { rank }), rank, endpoints).await;
        }
        Report::Prepared => {
            let answer = drive.step(db, id, said(Word::Prepared)).await?;
            if answer.is_ok() {
                store::record_prepared(db, id, node.node_id, drive.now()).await?;
            }
            return Ok(answer);
        }
        Report::FaultInjected { index, at } => {
            return injected(drive, db, last_words(drive, node, fence), fence, (index, at)).await;
        }
        Report::GroupFormed { .. } => {
            let answer = drive.step(db, id, said(Word::Formed)).await?;
            if answer.is_ok() {
                store::record_formed(db, id, generation, drive.now()).await?;
            }
            return Ok(answer);
        }
        Report::Steps { steps } => {
            let answer = drive.step(db, id, said(Word::Progressed)).await?;
            if answer.is_ok() {
                batch.progressed.insert((id, generation));
                batch.steps.entry(id).or_default().extend(sane(steps));
            }
            return Ok(answer);
        }
        Report::Evaluated { step, metrics } => {
            let answer = drive.step(db, id, said(Word::Formed)).await?;
            if answer.is_ok() && 0 <= step.0 {
                batch.points.entry(id).or_default().extend(points(step, metrics));
            }
            return Ok(answer);
        }
        Report::Log { lines } => {
            let answer = last_words(drive, node, fence);
            if answer.is_ok() {
                let lines = lines.into_iter().take(LINES_PER_REPORT);
                batch.lines.entry(id).or_default().extend(lines);
            }
            return Ok(answer);
        }
        Report::Timeline { clock, steps } => {
            let answer = last_words(drive, node, fence);
            if answer.is_ok() {
                batch.timed.entry(id).or_default().extend(timed(drive, node, fence, clock, steps));
            }
            return Ok(answer);
        }
        Report::RankExited { process, rank: _, exit } => {
            let answer = drive.step(db, id, said(Word::RankExited { process, exit })).await?;
            if store::record_exit(db, id, (node.node_id, process), exit, drive.now()).await? {
                drive.wake_reconcilers();
            }
            return Ok(answer);
        }
        Report::Failed(failure) => Word::Failed(failure),
        Report::Finished => Word::Finished,
        Report::Stopped => return stopped(drive, db, id, said(Word::Stopped), node).await,
    };
    drive.step(db, id, said(word)).await
}

/// What the node had to publish, it has.
async fn stopped(
    drive: &mut Drive<'_>,
    db: &mut PgConnection,
    id: AttemptId,
    event: Event,
    node: NodeCaller,
) -> Result<Result<(), StepError>, Problem> {
    let answer = drive.step(db, id, event).await?;
    if answer.is_ok() {
        store::record_closed(db, id, node.node_id, drive.now()).await?;
    }
    Ok(answer)
}

async fn started(
    drive: &mut Drive<'_>,
    db: &mut PgConnection,
    id: AttemptId,
    event: Event,
    rank: Rank,
    pid: i32,
) -> Result<Result<(), StepError>, Problem> {
    let answer = drive.step(db, id, event).await?;
    if answer.is_ok() {
        store::record_start(db, id, rank, pid).await?;
        if let Some(job) = drive.attempt(id).map(|attempt| attempt.job_id) {
            drive.note(job, JobEventKind::State);
        }
    }
    Ok(answer)
}

/// A fault that the job asked for has happened.
async fn injected(
    drive: &Drive<'_>,
    db: &mut PgConnection,
    answer: Result<(), StepError>,
    Fence { attempt_id, generation }: Fence,
    (index, at): (i32, DateTime<Utc>),
) -> Result<Result<(), StepError>, Problem> {
    let attempt = drive.attempt(attempt_id).filter(|_| answer.is_ok());
    if let Some(LockedAttempt { project_id, job_id, .. }) = attempt {
        let fault = (*project_id, *job_id, index);
        progress::insert_fault(db, fault, (attempt_id, generation), storable_time(at)).await?;
    }
    Ok(answer)
}

/// What is no address is left out; a rank that is left with none has not said where it listens.
async fn listens(
    drive: &mut Drive<'_>,
    db: &mut PgConnection,
    id: AttemptId,
    event: Event,
    rank: Rank,
    endpoints: Vec<String>,
) -> Result<Result<(), StepError>, Problem> {
    let is_endpoint =
        |text: &String| text.parse::<SocketAddr>().is_ok_and(|address| address.port() != 0);
    let endpoints: Vec<String> =
        endpoints.into_iter().filter(is_endpoint).take(ENDPOINTS_PER_RANK).collect();
    if endpoints.is_empty() {
        tracing::warn!(attempt.id = %id, %rank, "a rank that listens nowhere is left out");
        return Ok(Ok(()));
    }
    let answer = drive.step(db, id, event).await?;
    if answer.is_ok() {
        store::record_endpoints(db, id, rank, &endpoints).await?;
    }
    Ok(answer)
}

/// The last words of an attempt that has ended still help: they are taken until its job has a newer attempt.
fn last_words(drive: &Drive<'_>, node: NodeCaller, fence: Fence) -> Result<(), StepError> {
    let attempt = drive.attempt(fence.attempt_id).ok_or(StepError::Over)?;
    let held = attempt.core.gang.generation;
    if held < fence.generation {
        return Err(StepError::Stale { got: fence.generation, held });
    }
    if !attempt.nodes().contains(&node.node_id) {
        return Err(StepError::NotAMember { node: node.node_id, rank: None });
    }
    if drive.job(attempt.job_id).is_none_or(|job| job.core.generation != held) {
        return Err(StepError::Over);
    }
    Ok(())
}

/// Whether the node runs a rank of the attempt's present group.
fn is_member(drive: &Drive<'_>, node: NodeCaller, fence: Fence) -> bool {
    let attempt = drive.attempt(fence.attempt_id);
    attempt.is_some_and(|it| {
        !matches!(it.core.stage, Stage::Ended(_)) && it.nodes().contains(&node.node_id)
    })
}

/// Timelines of the node's own ranks, with numbers that the table takes.
fn timed(
    drive: &Drive<'_>,
    node: NodeCaller,
    Fence { attempt_id, generation }: Fence,
    clock: ClockAnchor,
    steps: Vec<StepSpans>,
) -> Vec<Timed> {
    let Some(attempt) = drive.attempt(attempt_id) else { return Vec::new() };
    let clock = ClockAnchor { at: storable_time(clock.at), ..clock };
    let is_sane = |it: &StepSpans| {
        let member = attempt.core.gang.members.get(&it.rank);
        let is_own = member.is_some_and(|member| member.node == node.node_id);
        let is_sane = is_own && it.spans.len() <= MAX_SPANS;
        let is_sane = is_sane && 0 <= it.step.0 && 0 <= it.began_ns && 0 <= it.dropped;
        if !is_sane {
            tracing::warn!(node.id = %node.node_id, attempt.id = %attempt_id, rank = %it.rank, step = %it.step, "an impossible timeline is left out");
        }
        is_sane
    };
    let steps = steps.into_iter().take(TIMELINES_PER_REPORT).filter(is_sane);
    let timed = |spans| Timed { generation, node_id: node.node_id, clock, spans };
    steps.map(timed).collect()
}

/// Steps whose numbers the tables take. What a node makes up must not keep its other reports from being handled.
fn sane(steps: Vec<StepReport>) -> impl Iterator<Item = StepReport> {
    steps.into_iter().take(STEPS_PER_REPORT).filter(|step| {
        let ledger = step.ledger;
        let numbers = [ledger.step.0, ledger.data_epoch, ledger.first_position];
        let is_sane = numbers.into_iter().all(|number| 0 <= number) && 0 < ledger.sample_count;
        if !is_sane {
            tracing::warn!(?ledger, "a step with impossible numbers is left out");
        }
        is_sane
    })
}

fn points(step: Step, metrics: Vec<NamedValue>) -> impl Iterator<Item = Point> {
    let named = metrics.into_iter().filter(|metric| is_metric_name(&metric.name));
    named.take(METRICS_PER_STEP).map(move |NamedValue { name, value }| Point {
        name,
        step,
        value: value.unwrap_or(f64::NAN),
    })
}

impl Batch {
    async fn write(&mut self, drive: &mut Drive<'_>, db: &mut PgConnection) -> Result<(), Problem> {
        for (id, generation) in std::mem::take(&mut self.progressed) {
            store::record_progress(db, id, generation, drive.now()).await?;
        }
        for (id, steps) in std::mem::take(&mut self.steps) {
            let Some((project, job)) = owner(drive, id) else { continue };
            let entries: Vec<_> = steps.iter().map(|step| step.ledger).collect();
            progress::insert_entries(db, project, job, id, &entries).await?;
            let now = drive.now();
            let done = entries.iter().map(|entry| Step(entry.step.0.saturating_add(1))).max();
            if let (Some(done), Some(attempt)) = (done, drive.attempt_mut(id)) {
                attempt.steps_done = attempt.steps_done.max(done);
                attempt.first_step_at.get_or_insert(now);
            }
            let all = self.points.entry(id).or_default();
            for StepReport { ledger, loss, metrics, duration_us: _ } in steps {
                let value = loss.unwrap_or(f64::NAN);
                all.push(Point { name: LOSS.to_owned(), step: ledger.step, value });
                all.extend(points(ledger.step, metrics));
            }
        }
        for (id, points) in std::mem::take(&mut self.points) {
            let Some((project, job)) = owner(drive, id) else { continue };
            progress::insert_points(db, project, job, id, &points).await?;
            drive.note(job, JobEventKind::Metrics);
        }
        for (id, lines) in std::mem::take(&mut self.lines) {
            let Some((project, job)) = owner(drive, id) else { continue };
            progress::insert_lines(db, project, job, id, &lines).await?;
            drive.note(job, JobEventKind::Log);
        }
        for (id, timed) in std::mem::take(&mut self.timed) {
            let Some((project, job)) = owner(drive, id) else { continue };
            progress::insert_timed(db, project, job, id, &timed).await?;
        }
        Ok(())
    }
}

fn owner(drive: &Drive<'_>, id: AttemptId) -> Option<(lockstep_api::ProjectId, JobId)> {
    drive.attempt(id).map(|attempt| (attempt.project_id, attempt.job_id))
}
