//! Acts out what `course` decides: starts the ranks, hears them, kills them, reports.

mod seating;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use camino::Utf8PathBuf;
use lockstep_api::{
    AgentMessage, Assignment, FailureReport, FaultKind, FaultSpec, FaultTarget, Fence, LogLevel,
    Rank, RankMessage, Report, ReportedLine,
};
use rustix::process::{Signal, getpid, kill_process};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};

use super::checkpoints::{Checkpoints, Outcome, Written};
use super::course::{Action, Course, Ending, Gone, Graces, Input, own_failure};
use super::link::Heard;
use super::meet::{self, Sockets};
use super::positions::Positions;
use super::prepare::{PrepareError, Ready, folder_of, prepare};
use super::process::RankProcess;
use super::reporter::Reporter;
use super::watchdog::{self, Stopped, Watchdog};
use crate::control_group::AttemptGroup;
use crate::folder::WorkFolder;
use crate::gang::{Order, fence_of};
use crate::node::{Node, Note, blocking};
use crate::stat::{Stat, process_state};
use crate::tree::end_attempt;
use lockstep_service::chain;
use seating::could_not_start;

/// Messages of ranks that wait for the attempt's task. When it is full, ranks wait.
const HEARD_QUEUE: usize = 1024;
/// Processes that are gone and wait to be noticed; when it is full, those that watch them wait.
const GONE_QUEUE: usize = 64;
/// How long a fault of this agent waits until the server knows of it.
const FAULT_LIMIT: Duration = Duration::from_secs(2);
/// Lines of standard error that wait.
const LINE_QUEUE: usize = 1024;

/// What the session tells an attempt.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Told {
    pub(crate) order: Order,
    /// Why the ranks must die, if the server does not know.
    pub(crate) verdict: Option<FailureReport>,
    /// What the server wants of this node: the newest generation, with everyone's endpoints once they are known.
    pub(crate) wanted: Arc<Assignment>,
}

/// The whole life of an attempt on this node. Its last report is in the spool when this returns.
pub(crate) async fn run(
    node: Arc<Node>,
    mut told: watch::Receiver<Told>,
    positions: Arc<Positions>,
) -> Ending {
    let first = told.borrow().wanted.clone();
    let mut reporter = Reporter::new(node.clone(), fence_of(&first));
    let folder = folder_of(&node, &first);
    let group = node.control_groups.attempt(folder.path().file_name().unwrap_or_default());
    let ready = get_ready(&node, &folder, &mut told, &mut reporter).await;
    let ending = match ready {
        None => {
            if let Some(verdict) = told.borrow().verdict.clone() {
                reporter.report(Report::Failed(verdict));
            }
            Ending::Stopped
        }
        Some(Err(error)) => {
            let fence = fence_of(&told.borrow().wanted);
            could_not_prepare(&node, fence, &error, &mut reporter);
            Ending::Stopped
        }
        Some(Ok((assignment, ready, sockets))) => {
            let ready = (ready, group.clone());
            let mut drive = Drive::new(node.clone(), &assignment, ready, &positions, reporter);
            let ending = match drive.seat(&assignment, sockets).await {
                Ok(()) => drive.until_over(told).await,
                Err(error) => {
                    drive.reporter.report(Report::Failed(could_not_start(&error)));
                    Ending::Stopped
                }
            };
            reporter = drive.reporter;
            ending
        }
    };
    end_attempt(&group).await;
    reporter.report(match ending {
        Ending::Finished => Report::Finished,
        Ending::Stopped => Report::Stopped,
    });
    if let Err(error) = folder.remove().await {
        tracing::warn!(%error, "cannot remove an attempt's folder");
    }
    ending
}

type Prepared = Result<(Arc<Assignment>, Ready, Sockets), PrepareError>;

/// Everything that must be there before a rank starts: sockets, files, and the other nodes; anew for every generation.
/// `None`: it is not wanted any more.
async fn get_ready(
    node: &Arc<Node>,
    folder: &WorkFolder,
    told: &mut watch::Receiver<Told>,
    reporter: &mut Reporter,
) -> Option<Prepared> {
    loop {
        let (order, wanted) = {
            let told = told.borrow_and_update();
            (told.order, told.wanted.clone())
        };
        if order != Order::Run {
            return None;
        }
        let (mut endpoints, mut next) = (told.clone(), told.clone());
        reporter.set_fence(fence_of(&wanted));
        let ready = async {
            let sockets = meet::listen(node, &wanted, reporter).await?;
            let ready = prepare(node, &wanted, folder).await?;
            let known = meet::until_known(&wanted, &mut endpoints, reporter).await;
            Ok((known, ready, sockets))
        };
        let is_other =
            |told: &Told| told.order != Order::Run || told.wanted.generation != wanted.generation;
        tokio::select! {
            ready = ready => return Some(ready),
            () = until(&mut next, is_other) => {}
        }
    }
}

async fn until(told: &mut watch::Receiver<Told>, is_it: impl FnMut(&Told) -> bool) {
    if told.wait_for(is_it).await.is_err() {
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

/// The running gang. How it gets from one group to the next: see `seating`.
struct Drive {
    node: Arc<Node>,
    /// Under the newest generation.
    fence: Fence,
    reporter: Reporter,
    course: Course,
    ready: Ready,
    /// Of its ranks here.
    group: AttemptGroup,
    /// Of the present group, by number.
    processes: BTreeMap<i32, RankProcess>,
    /// Given up, and not known to be gone.
    evicted: BTreeMap<i32, RankProcess>,
    /// The group to come, while something is missing that it needs.
    next: Option<(Arc<Assignment>, Sockets)>,
    positions: Arc<Positions>,
    checkpoints: Checkpoints,
    hear: mpsc::Sender<Heard>,
    heard: mpsc::Receiver<Heard>,
    line: mpsc::Sender<ReportedLine>,
    lines: mpsc::Receiver<ReportedLine>,
    go: mpsc::Sender<Gone>,
    gone: mpsc::Receiver<Gone>,
    socket_paths: Vec<Utf8PathBuf>,
    /// Faults that the job asked for.
    chaos: Vec<FaultSpec>,
    watchdog: Watchdog,
    /// Dropped, and so ended, with the attempt.
    tasks: JoinSet<()>,
}

impl Drive {
    fn new(
        node: Arc<Node>,
        assignment: &Assignment,
        (ready, group): (Ready, AttemptGroup),
        positions: &Arc<Positions>,
        reporter: Reporter,
    ) -> Self {
        let (hear, heard) = mpsc::channel(HEARD_QUEUE);
        let (line, lines) = mpsc::channel(LINE_QUEUE);
        let (go, gone) = mpsc::channel(GONE_QUEUE);
        let fence = fence_of(assignment);
        let (checkpoints, upload) = Checkpoints::start(node.clone(), fence);
        let mut tasks = JoinSet::new();
        tasks.spawn(upload);
        let ranks: Vec<Rank> = assignment.ranks.iter().map(|it| it.rank).collect();
        Self {
            course: Course::new(&ranks, graces(assignment)),
            ready,
            group,
            processes: BTreeMap::new(),
            evicted: BTreeMap::new(),
            next: None,
            positions: positions.clone(),
            tasks,
            node,
            fence,
            reporter,
            checkpoints,
            hear,
            heard,
            line,
            lines,
            go,
            gone,
            socket_paths: Vec::new(),
            chaos: assignment.spec.chaos.clone(),
            watchdog: Watchdog::new(assignment.spec.collective_timeout()),
        }
    }

    /// Until every rank is gone and every checkpoint that counts is published.
    async fn until_over(&mut self, mut told: watch::Receiver<Told>) -> Ending {
        let mut unfinished = self.checkpoints.unfinished();
        let mut acked = self.node.spool.acked();
        let mut order = Order::Run;
        let mut looks = tokio::time::interval(watchdog::LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        told.mark_changed();
        let ending = loop {
            match self.course.ending() {
                Some(_) if !self.evicted.is_empty() => {}
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
                Ok(()) = told.changed() => {
                    let now = told.borrow_and_update().clone();
                    self.hear_told(now, &mut order).await;
                }
                Some(gone) = self.gone.recv() => self.lose(gone).await,
                outcome = self.checkpoints.outcome() => self.checkpoint(outcome),
                () = sleep_until(deadline) => {
                    if self.reporter.deadline().is_some_and(|at| at <= Instant::now()) {
                        self.reporter.flush();
                    }
                    self.act(Input::Tick);
                }
                _ = looks.tick() => self.look_for_stopped(),
                Some(line) = self.lines.recv() => self.reporter.line(line),
                Some(heard) = self.heard.recv(), if !holds_back => self.hear(heard),
                _ = acked.changed(), if holds_back => {}
                _ = unfinished.changed() => {}
            }
        };
        for path in &self.socket_paths {
            if let Err(error) = std::fs::remove_file(path) {
                tracing::debug!(%path, %error, "cannot remove a socket");
            }
        }
        if order == Order::Kill { Ending::Stopped } else { ending }
    }

    /// The session has said something new.
    async fn hear_told(&mut self, told: Told, order: &mut Order) {
        if *order < told.order {
            *order = told.order;
            // Who was to be started for it is not.
            self.next = None;
            self.act(match (told.order, told.verdict) {
                (Order::Kill, Some(verdict)) => Input::Broken(verdict),
                (Order::Kill, None) => Input::KillAsked,
                (Order::Stop | Order::Run, _) => Input::StopAsked,
            });
        }
        if self.fence.generation < told.wanted.generation {
            self.regroup(told.wanted).await;
        } else if let Some((wanted, _)) = &mut self.next {
            *wanted = told.wanted;
            self.seat_next().await;
        }
    }

    fn look_for_stopped(&mut self) {
        let stopped = |known: &RankProcess| {
            let (rank, pid) = (known.rank(), known.pid.as_raw_pid());
            let is_stopped = Stat::of(pid).is_some_and(|it| it.is_stopped());
            is_stopped.then(|| Stopped { rank, pid, position: self.positions.of(rank) })
        };
        let found: Vec<Stopped> = self.processes.values().filter_map(stopped).collect();
        if let Some(report) = self.watchdog.look(&found, Instant::now()) {
            self.act(Input::StandsStill(report));
        }
    }

    /// A process is gone.
    async fn lose(&mut self, gone: Gone) {
        self.hear_all();
        let Gone { process, rank, exit, .. } = gone;
        if self.evicted.remove(&process).is_some() {
            // Its slot waits for that.
            self.reporter.report(Report::RankExited { process, rank, exit });
            self.seat_next().await;
        } else if self.processes.contains_key(&process) {
            self.act(Input::Gone(gone));
        }
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
                Action::StopAll => self.say_to_all(&AgentMessage::Stop),
                Action::InterruptAll => self.say_to_all(&AgentMessage::Interrupt),
                Action::Kill(rank) => {
                    self.processes
                        .values()
                        .filter(|it| it.rank() == rank)
                        .for_each(RankProcess::kill);
                }
                Action::KillAll => {
                    self.next = None;
                    self.processes
                        .values()
                        .chain(self.evicted.values())
                        .for_each(RankProcess::kill);
                }
            }
        }
    }

    fn say_to_all(&self, message: &AgentMessage) {
        self.processes.values().for_each(|it| it.say(message.clone().into()));
    }

    /// Everything that ranks said before one of them was found to be gone.
    fn hear_all(&mut self) {
        while let Ok(line) = self.lines.try_recv() {
            self.reporter.line(line);
        }
        while let Ok(heard) = self.heard.try_recv() {
            self.hear(heard);
        }
    }

    fn hear(&mut self, heard: Heard) {
        let (process, message) = match heard {
            Heard::Done { release } => return self.release(release),
            Heard::Message { process, message } => (process, message),
        };
        // What one says that was given up has been judged.
        let Some(rank) = self.processes.get(&process).map(RankProcess::rank) else { return };
        match message {
            RankMessage::Failed(report) => {
                let report = self.with_positions(report);
                self.act(Input::Failed { by: rank, report });
            }
            // What broke before this group began has been judged.
            RankMessage::Interrupted { generation, .. } if generation < self.fence.generation => {}
            RankMessage::Interrupted { generation: _, report } => {
                let report = self.with_positions(report);
                self.act(Input::Interrupted { by: rank, report });
            }
            RankMessage::Checkpoint { path, step, data_epoch, next_position } => {
                let path = Utf8PathBuf::from(path);
                if !path.starts_with(&self.ready.folder) {
                    tracing::warn!(%rank, %path, "a rank named a checkpoint outside its attempt's folder");
                    return;
                }
                self.reporter.flush();
                let after_seq = self.reporter.newest_seq();
                self.checkpoints.add(Written { path, step, data_epoch, next_position, after_seq });
            }
            RankMessage::Fault { index } => self.fault(index),
            message => self.reporter.message(rank, message),
        }
    }

    /// A fault that the job asked for is about to happen; if it is to this agent, it makes it happen, once the server knows.
    fn fault(&mut self, index: i32) {
        self.reporter.report(Report::FaultInjected { index, at: self.node.clock.now() });
        let planned = usize::try_from(index).ok().and_then(|index| self.chaos.get(index));
        let Some(&fault) = planned.filter(|fault| fault.target == FaultTarget::Agent) else {
            return;
        };
        let (node, seq) = (self.node.clone(), self.reporter.newest_seq());
        self.tasks.spawn(async move {
            let mut acked = node.spool.acked();
            drop(tokio::time::timeout(FAULT_LIMIT, acked.wait_for(|acked| seq <= *acked)).await);
            let done = match fault.kind {
                FaultKind::Kill => kill_process(getpid(), Signal::KILL),
                FaultKind::Freeze => kill_process(getpid(), Signal::STOP),
                FaultKind::Partition => {
                    node.server.cut(Duration::from_millis(fault.milliseconds));
                    Ok(())
                }
                FaultKind::Slow | FaultKind::Corrupt => Ok(()),
            };
            if let Err(error) = done {
                tracing::error!(%error, "a fault could not be made to happen");
            }
        });
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
        let missing: Vec<Rank> = report.missing_ranks().collect();
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

#[cfg(test)]
pub(crate) mod tests;
