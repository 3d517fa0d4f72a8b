//! Acts out what `course` decides: starts the ranks, hears them, kills them, reports.

use std::sync::Arc;

use anyhow::Context as _;
use camino::Utf8PathBuf;
use futures::future::join_all;
use lockstep_api::{
    Assignment, FailureCode, FailureReport, Fence, LogLevel, Rank, RankMessage, Report,
    ReportedLine,
};
use rustix::process::Pid;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::checkpoints::{Checkpoints, Outcome, Written};
use super::course::{Action, Course, Ending, Gone, Graces, Input, missing_ranks, own_failure};
use super::link::{Heard, Socket, serve};
use super::meet::{self, Seat};
use super::positions::{Positions, process_state};
use super::prepare::{PrepareError, Ready, folder_of, prepare};
use super::process::{RankProcess, Watch, feed};
use super::reporter::Reporter;
use crate::folder::WorkFolder;
use crate::gang::{Order, fence_of};
use crate::node::{Node, Note, blocking};
use crate::spawn::{GangCommand, Started};
use lockstep_service::chain;

/// Messages of ranks that wait for the attempt's task. When it is full, ranks wait.
const HEARD_QUEUE: usize = 1024;
/// Lines of standard error that wait.
const LINE_QUEUE: usize = 1024;

/// What the session tells an attempt.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Told {
    pub(crate) order: Order,
    /// Why the ranks must die, if the server does not know.
    pub(crate) verdict: Option<FailureReport>,
    /// Where every rank of the attempt listens, once all are ready.
    pub(crate) endpoints: Option<Vec<Vec<String>>>,
}

/// The whole life of an attempt on this node. Its last report is in the spool when this returns.
pub(crate) async fn run(
    node: Arc<Node>,
    assignment: Assignment,
    mut told: watch::Receiver<Told>,
    positions: Arc<Positions>,
) {
    let fence = fence_of(&assignment);
    let mut reporter = Reporter::new(node.clone(), fence);
    let folder = folder_of(&node, &assignment);
    let ready = tokio::select! {
        ready = get_ready(&node, &assignment, &folder, told.clone(), &mut reporter) => Some(ready),
        () = no_longer_run(&mut told) => None,
    };
    let ending = match ready {
        None => {
            if let Some(verdict) = told.borrow().verdict.clone() {
                reporter.report(Report::Failed(verdict));
            }
            Ending::Stopped
        }
        Some(Err(error)) => {
            could_not_prepare(&node, fence, &error, &mut reporter);
            Ending::Stopped
        }
        Some(Ok((ready, seats))) => {
            let started =
                Drive::start(node.clone(), &assignment, (&ready, seats), &positions, reporter);
            match started.await {
                Ok(drive) => {
                    let ending;
                    (reporter, ending) = drive.until_over(told, &ready).await;
                    ending
                }
                Err((error, returned)) => {
                    reporter = returned;
                    let text = format!("the ranks could not be started: {error:#}");
                    reporter.report(Report::Failed(own_failure(FailureCode::PrepareFailed, text)));
                    Ending::Stopped
                }
            }
        }
    };
    reporter.report(match ending {
        Ending::Finished => Report::Finished,
        Ending::Stopped => Report::Stopped,
    });
    if let Err(error) = folder.remove().await {
        tracing::warn!(%error, "cannot remove an attempt's folder");
    }
}

/// Everything that must be there before a rank starts: sockets, files, and the other nodes.
async fn get_ready(
    node: &Arc<Node>,
    assignment: &Assignment,
    folder: &WorkFolder,
    mut told: watch::Receiver<Told>,
    reporter: &mut Reporter,
) -> Result<(Ready, Vec<Seat>), PrepareError> {
    let sockets = meet::listen(node, assignment, reporter).await?;
    let ready = prepare(node, assignment, folder).await?;
    Ok((ready, meet::seats(assignment, sockets, &mut told, reporter).await))
}

async fn no_longer_run(told: &mut watch::Receiver<Told>) {
    if told.wait_for(|told| told.order != Order::Run).await.is_err() {
        // The session is gone; so is everything else in a moment.
        std::future::pending::<()>().await;
    }
}

fn could_not_prepare(node: &Node, fence: Fence, error: &PrepareError, reporter: &mut Reporter) {
    let text = chain(error);
    tracing::warn!(attempt = %fence.attempt_id, error = %text, "an attempt could not be prepared");
    if error.is_fenced() {
        lost(node, fence);
    } else {
        reporter.report(Report::Failed(own_failure(error.code(), text)));
    }
}

fn lost(node: &Node, fence: Fence) {
    if node.notes.send(Note::Lost(fence)).is_err() {
        tracing::debug!("the session is over");
    }
}

/// The running gang.
struct Drive {
    node: Arc<Node>,
    fence: Fence,
    reporter: Reporter,
    course: Course,
    processes: Vec<RankProcess>,
    positions: Arc<Positions>,
    checkpoints: Checkpoints,
    stop: watch::Sender<bool>,
    heard: mpsc::Receiver<Heard>,
    lines: mpsc::Receiver<ReportedLine>,
    gone: mpsc::Receiver<Gone>,
    socket_path: Utf8PathBuf,
    /// Dropped, and so ended, with the attempt.
    tasks: JoinSet<()>,
}

impl Drive {
    /// Starts the ranks. Gives the reporter back when that fails.
    async fn start(
        node: Arc<Node>,
        assignment: &Assignment,
        (ready, seats): (&Ready, Vec<Seat>),
        positions: &Arc<Positions>,
        reporter: Reporter,
    ) -> Result<Self, (anyhow::Error, Reporter)> {
        let (hear, heard) = mpsc::channel(HEARD_QUEUE);
        let (line, lines) = mpsc::channel(LINE_QUEUE);
        let (go, gone) = mpsc::channel(assignment.ranks.len().max(1));
        let (stop, stopped) = watch::channel(false);
        let fence = fence_of(assignment);
        let (checkpoints, upload) = Checkpoints::start(node.clone(), fence);
        let socket_path = node.places.sockets.join(socket_name(fence));
        let mut drive = Self {
            course: Course::new(&assignment.ranks, graces(assignment)),
            processes: Vec::new(),
            positions: positions.clone(),
            tasks: JoinSet::new(),
            node,
            fence,
            reporter,
            checkpoints,
            stop,
            heard,
            lines,
            gone,
            socket_path,
        };
        drive.tasks.spawn(upload);
        match drive.start_ranks(assignment, (ready, seats), (hear, line, go), stopped).await {
            Ok(()) => Ok(drive),
            Err(error) => Err((error, drive.reporter)),
        }
    }

    async fn start_ranks(
        &mut self,
        assignment: &Assignment,
        (ready, seats): (&Ready, Vec<Seat>),
        (hear, line, go): (mpsc::Sender<Heard>, mpsc::Sender<ReportedLine>, mpsc::Sender<Gone>),
        stopped: watch::Receiver<bool>,
    ) -> anyhow::Result<()> {
        let mut socket = Socket::bind(self.socket_path.clone())?;
        let (inherited, networks): (Vec<_>, Vec<_>) =
            seats.into_iter().map(|seat| (seat.inherited, seat.network)).unzip();
        let gang = self.node.spawner.gang(GangCommand {
            program: self.node.places.rank_binary.clone(),
            args: vec!["train".to_owned()],
            folder: ready.folder.clone(),
            members: inherited,
        });
        let gang =
            gang.await.with_context(|| format!("cannot start {}", self.node.places.rank_binary))?;
        let mut feeds = Vec::new();
        let started = gang.members.into_iter().zip(networks);
        for (local_rank, (rank, (Started { mut child, group_fd }, network))) in
            assignment.ranks.iter().copied().zip(started).enumerate()
        {
            let config = ready.config(
                &self.node,
                assignment,
                local_rank,
                socket.path.as_str(),
                (group_fd, network),
            );
            let config = serde_json::to_vec(&config).context("a rank's settings as JSON")?;
            feeds.push(feed(child.stdin.take(), config));
            let id = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
            let process = RankProcess::new(id.context("a rank ended before it was looked at")?);
            let pid = process.pid.as_raw_pid();
            self.positions.add(rank, pid, ready.flight_record(rank));
            self.reporter.report(Report::RankStarted { rank, pid });
            let watch = Watch {
                rank,
                child,
                positions: self.positions.clone(),
                ear: socket.expect(rank),
                clock: self.node.clock.clone(),
                lines: line.clone(),
                gone: go.clone(),
            };
            self.tasks.spawn(watch.start(&process));
            self.processes.push(process);
        }
        self.tasks.spawn(serve(socket, assignment.attempt_key.clone(), hear, stopped));
        join_all(feeds).await;
        Ok(())
    }

    /// Until every rank is gone and every checkpoint that counts is published.
    async fn until_over(
        mut self,
        mut told: watch::Receiver<Told>,
        ready: &Ready,
    ) -> (Reporter, Ending) {
        let mut unfinished = self.checkpoints.unfinished();
        let mut acked = self.node.spool.acked();
        let mut order = Order::Run;
        let ending = loop {
            match self.course.ending() {
                Some(ending) if order == Order::Kill || self.checkpoints.are_done() => {
                    break ending;
                }
                Some(Ending::Stopped) if order == Order::Run => break Ending::Stopped,
                _ => {}
            }
            let deadline =
                [self.course.deadline(), self.reporter.deadline()].into_iter().flatten().min();
            let holds_back = self.node.spool.is_full();
            tokio::select! {
                biased;
                Ok(told) = told.wait_for(|told| order < told.order) => {
                    order = told.order;
                    let input = match (order, told.verdict.clone()) {
                        (Order::Kill, Some(verdict)) => Input::Broken(verdict),
                        (Order::Kill, None) => Input::KillAsked,
                        (Order::Stop | Order::Run, _) => Input::StopAsked,
                    };
                    drop(told);
                    self.act(input);
                }
                Some(gone) = self.gone.recv() => {
                    self.hear_all(ready);
                    self.act(Input::Gone(gone));
                }
                outcome = self.checkpoints.outcome() => self.checkpoint(outcome),
                () = sleep_until(deadline) => {
                    if self.reporter.deadline().is_some_and(|at| at <= Instant::now()) {
                        self.reporter.flush();
                    }
                    self.act(Input::Tick);
                }
                Some(line) = self.lines.recv() => self.reporter.line(line),
                Some(heard) = self.heard.recv(), if !holds_back => self.hear(heard, ready),
                _ = acked.changed(), if holds_back => {}
                _ = unfinished.changed() => {}
            }
        };
        if let Err(error) = std::fs::remove_file(&self.socket_path) {
            tracing::debug!(path = %self.socket_path, %error, "cannot remove a socket");
        }
        let ending = if order == Order::Kill { Ending::Stopped } else { ending };
        (self.reporter, ending)
    }

    fn act(&mut self, input: Input) {
        for action in self.course.step(input, Instant::now()) {
            match action {
                Action::Report(mut report) => {
                    if let Report::Failed(failure) = &mut report {
                        if let Some(rank) = failure.rank {
                            self.positions.add_tail(rank, &mut failure.evidence);
                        }
                        tracing::warn!(attempt = %self.fence.attempt_id, code = %failure.code, message = %failure.message, "an attempt broke");
                    }
                    self.reporter.report(report);
                }
                Action::StopAll => {
                    self.stop.send_replace(true);
                }
                Action::KillAll => self.processes.iter().for_each(RankProcess::kill),
            }
        }
    }

    /// Everything that ranks said before one of them was found to be gone.
    fn hear_all(&mut self, ready: &Ready) {
        while let Ok(line) = self.lines.try_recv() {
            self.reporter.line(line);
        }
        while let Ok(heard) = self.heard.try_recv() {
            self.hear(heard, ready);
        }
    }

    fn hear(&mut self, heard: Heard, ready: &Ready) {
        match heard {
            Heard::Done { release } => self.release(release),
            Heard::Message { rank, message: RankMessage::Failed(report) } => {
                let report = self.with_positions(report);
                self.act(Input::Failed { by: rank, report });
            }
            Heard::Message {
                rank,
                message: RankMessage::Checkpoint { path, step, data_epoch, next_position },
            } => {
                let path = Utf8PathBuf::from(path);
                if !path.starts_with(&ready.folder) {
                    tracing::warn!(%rank, %path, "a rank named a checkpoint outside its attempt's folder");
                    return;
                }
                self.reporter.flush();
                let after_seq = self.reporter.newest_seq();
                self.checkpoints.add(Written { path, step, data_epoch, next_position, after_seq });
            }
            Heard::Message { rank, message } => self.reporter.message(rank, message),
        }
    }

    /// Lets a rank go once everything reported so far is on disk, or else has reached the server.
    fn release(&mut self, release: oneshot::Sender<()>) {
        self.reporter.flush();
        let (node, seq) = (self.node.clone(), self.reporter.newest_seq());
        self.tasks.spawn(async move {
            let on_disk = node.clone();
            if let Err(error) = blocking(move || on_disk.spool.sync()).await {
                tracing::error!(%error, "reports are not safe on disk: waiting for the server to take them");
                drop(node.spool.acked().wait_for(|acked| seq <= *acked).await);
            }
            if release.send(()).is_err() {
                tracing::debug!("a rank was gone before it was released");
            }
        });
    }

    fn checkpoint(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Published(step) => {
                self.reporter
                    .say(LogLevel::Info, &format!("published the checkpoint of step {step}"));
            }
            Outcome::Fenced => lost(&self.node, self.fence),
            Outcome::Failed(report) => self.act(Input::Broken(report)),
        }
    }

    /// Adds to a complaint of missing ranks where those of this node are.
    fn with_positions(&self, mut report: FailureReport) -> FailureReport {
        let missing: Vec<Rank> = missing_ranks(&report).collect();
        let mut found = Vec::new();
        for rank in missing {
            let Some(pid) = self.positions.pid(rank) else { continue };
            let (phase, step) = self.positions.of(rank);
            let state = process_state(pid);
            let is = match state {
                Some('T' | 't') => ", stopped",
                None | Some('Z' | 'X') => ", gone",
                Some(_) => "",
            };
            report.message.push_str(&format!(
                "; rank {rank} (pid {pid}) is in phase {phase} of step {step}{is}"
            ));
            found.push(serde_json::json!({
                "rank": rank, "pid": pid, "phase": phase, "step": step, "state": state,
            }));
        }
        if let (false, Some(evidence)) = (found.is_empty(), report.evidence.as_object_mut()) {
            evidence.insert("positions".to_owned(), found.into());
        }
        report
    }
}

async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// How long the job grants a rank that overstays.
fn graces(assignment: &Assignment) -> Graces {
    let limits = assignment.spec.timeouts.effective();
    Graces { stop: limits.stop_grace(), leave: limits.leave_grace() }
}

/// Short, and different for every fence: the random end of the attempt's id, and the generation.
fn socket_name(fence: Fence) -> String {
    let id = fence.attempt_id.to_string();
    format!("{}-{}", &id[id.len().saturating_sub(12)..], fence.generation)
}

#[cfg(test)]
#[path = "drive_tests.rs"]
pub(crate) mod tests;
