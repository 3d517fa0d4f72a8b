//! Acts out what `course` decides: starts the ranks, hears them, kills them, reports.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use camino::Utf8PathBuf;
use futures::future::join_all;
use lockstep_api::{
    AgentMessage, AssignedRank, Assignment, FailureCode, FailureReport, FaultKind, FaultSpec,
    FaultTarget, Fence, LogLevel, Rank, RankConfig, RankMessage, RankNetwork, Regroup, Report,
    ReportedLine,
};
use rustix::process::{Pid, Signal, getpid, kill_process};
use tokio::process::Child;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::checkpoints::{Checkpoints, Outcome, Written};
use super::course::{Action, Course, Ending, Gone, Graces, Input, own_failure};
use super::link::{Heard, Socket, Word, serve};
use super::meet::{self, Seat, Sockets};
use super::positions::{Positions, process_state};
use super::prepare::{PrepareError, Ready, folder_of, prepare};
use super::process::{RankProcess, Watch, feed};
use super::reporter::Reporter;
use crate::folder::WorkFolder;
use crate::gang::{Order, fence_of};
use crate::node::{Node, Note, blocking};
use crate::spawn::{GangCommand, Inherited, Joined};
use lockstep_service::chain;

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
) {
    let first = told.borrow().wanted.clone();
    let mut reporter = Reporter::new(node.clone(), fence_of(&first));
    let folder = folder_of(&node, &first);
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
    reporter.report(match ending {
        Ending::Finished => Report::Finished,
        Ending::Stopped => Report::Stopped,
    });
    if let Err(error) = folder.remove().await {
        tracing::warn!(%error, "cannot remove an attempt's folder");
    }
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

fn could_not_start(error: &anyhow::Error) -> FailureReport {
    let text = format!("the ranks could not be started: {error:#}");
    own_failure(FailureCode::PrepareFailed, text)
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
    /// Under the newest generation.
    fence: Fence,
    reporter: Reporter,
    course: Course,
    ready: Ready,
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
    go: mpsc::Sender<(i32, Gone)>,
    gone: mpsc::Receiver<(i32, Gone)>,
    socket_paths: Vec<Utf8PathBuf>,
    /// Faults that the job asked for.
    chaos: Vec<FaultSpec>,
    /// Dropped, and so ended, with the attempt.
    tasks: JoinSet<()>,
}

impl Drive {
    fn new(
        node: Arc<Node>,
        assignment: &Assignment,
        ready: Ready,
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
        }
    }

    /// Seats the ranks of a group: starts those that do not run, tells the others.
    async fn seat(&mut self, assignment: &Assignment, sockets: Sockets) -> anyhow::Result<()> {
        let path = self.node.places.sockets.join(socket_name(fence_of(assignment)));
        let mut socket = Socket::bind(path.clone())?;
        self.socket_paths.push(path);
        let mut networks = Vec::new();
        let mut members = Vec::new();
        for (assigned, seat) in assignment.ranks.iter().zip(meet::seats(assignment, sockets)) {
            let Seat { memory_index, listener, network } = seat;
            let is_running = self.processes.contains_key(&assigned.process);
            members.push(Inherited { memory_index, listener, is_running });
            networks.push(network);
        }
        let gang = self.node.spawner.gang(GangCommand {
            program: self.node.places.rank_binary.clone(),
            args: vec!["train".to_owned()],
            folder: self.ready.folder.clone(),
            members,
        });
        let gang =
            gang.await.with_context(|| format!("cannot start {}", self.node.places.rank_binary))?;
        let mut feeds = Vec::new();
        for (place, (joined, network)) in gang.members.into_iter().zip(networks).enumerate() {
            match joined {
                Joined::Running { memory, listener } => {
                    self.tell_group(assignment, place, network, (memory, listener));
                }
                Joined::Started { child, group_fd, listener_fd } => {
                    let config = self.ready.config(
                        &self.node,
                        assignment,
                        place,
                        socket.path.as_str(),
                        (group_fd, listener_fd, network),
                    );
                    feeds.push(self.watch(assignment.ranks[place], &config, child, &mut socket)?);
                }
            }
        }
        let key = assignment.attempt_key.clone();
        self.tasks.spawn(serve(socket, key, self.hear.clone()));
        join_all(feeds).await;
        Ok(())
    }

    /// Tells a rank that runs of its next group.
    fn tell_group(
        &self,
        assignment: &Assignment,
        place: usize,
        network: Option<RankNetwork>,
        (memory, listener): (Arc<OwnedFd>, Option<OwnedFd>),
    ) {
        let AssignedRank { rank, process, .. } = assignment.ranks[place];
        let Some(known) = self.processes.get(&process) else { return };
        let message = AgentMessage::Regroup(Regroup {
            generation: assignment.generation,
            rank,
            world_size: assignment.world_size,
            network,
            steps_reported: assignment.steps_reported,
        });
        let descriptors = [memory].into_iter().chain(listener.map(Arc::new)).collect();
        known.say(Word { message, descriptors });
    }

    /// Looks after a process that was just started. Answers the future that gives it its settings.
    fn watch(
        &mut self,
        assigned: AssignedRank,
        config: &RankConfig,
        mut child: Child,
        socket: &mut Socket,
    ) -> anyhow::Result<impl Future<Output = ()> + use<>> {
        let AssignedRank { rank, process, .. } = assigned;
        let config = serde_json::to_vec(config).context("a rank's settings as JSON")?;
        let fed = feed(child.stdin.take(), config);
        let id = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        let pid = id.context("a rank ended before it was looked at")?;
        let (ear, words) = socket.expect(rank, process);
        let known = RankProcess::new(rank, pid, words);
        self.positions.add(rank, pid.as_raw_pid(), self.ready.flight_record(process));
        self.reporter.report(Report::RankStarted { rank, pid: pid.as_raw_pid() });
        let watch = Watch {
            rank,
            process,
            child,
            positions: self.positions.clone(),
            ear,
            clock: self.node.clock.clone(),
            lines: self.line.clone(),
            gone: self.go.clone(),
        };
        self.tasks.spawn(watch.start(&known));
        self.processes.insert(process, known);
        Ok(fed)
    }

    /// The next generation: who is not in it is killed, and the group forms once they are gone and everybody can be reached.
    async fn regroup(&mut self, wanted: Arc<Assignment>) {
        if !self.course.can_regroup() {
            return;
        }
        self.hear_all();
        self.fence = fence_of(&wanted);
        self.reporter.set_fence(self.fence);
        let place_of = |process: i32| wanted.ranks.iter().find(|it| it.process == process);
        for (process, mut known) in std::mem::take(&mut self.processes) {
            match place_of(process) {
                Some(assigned) => {
                    known.rank = assigned.rank;
                    self.processes.insert(process, known);
                }
                None => {
                    known.kill();
                    if known.is_alive() {
                        self.evicted.insert(process, known);
                    }
                }
            }
        }
        self.positions.retain(|rank| wanted.ranks.iter().any(|it| it.rank == rank));
        let is_new = |assigned: &AssignedRank| !self.processes.contains_key(&assigned.process);
        let ranks: Vec<_> = wanted.ranks.iter().map(|it| (it.rank, is_new(it))).collect();
        self.course.regroup(ranks);
        self.processes.values().for_each(|it| it.say(AgentMessage::Interrupt.into()));
        match meet::listen(&self.node, &wanted, &mut self.reporter).await {
            Ok(sockets) => {
                meet::say_prepared(&wanted, &mut self.reporter);
                self.next = Some((wanted, sockets));
            }
            Err(error) => {
                let error = PrepareError::from(error);
                self.act(Input::Broken(own_failure(error.code(), chain(&error))));
            }
        }
        self.seat_next().await;
    }

    /// Seats the next group, if nothing is missing.
    async fn seat_next(&mut self) {
        let is_ready =
            |(wanted, _): &mut (Arc<Assignment>, Sockets)| meet::are_endpoints_known(wanted);
        if !self.evicted.is_empty() {
            return;
        }
        let Some((wanted, sockets)) = self.next.take_if(is_ready) else { return };
        if let Err(error) = self.seat(&wanted, sockets).await {
            self.act(Input::Broken(could_not_start(&error)));
        }
    }

    /// Until every rank is gone and every checkpoint that counts is published.
    async fn until_over(&mut self, mut told: watch::Receiver<Told>) -> Ending {
        let mut unfinished = self.checkpoints.unfinished();
        let mut acked = self.node.spool.acked();
        let mut order = Order::Run;
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
                Some((process, gone)) = self.gone.recv() => self.lose(process, gone).await,
                outcome = self.checkpoints.outcome() => self.checkpoint(outcome),
                () = sleep_until(deadline) => {
                    if self.reporter.deadline().is_some_and(|at| at <= Instant::now()) {
                        self.reporter.flush();
                    }
                    self.act(Input::Tick);
                }
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

    /// A process is gone.
    async fn lose(&mut self, process: i32, gone: Gone) {
        self.hear_all();
        if self.evicted.remove(&process).is_some() {
            self.seat_next().await;
            return;
        }
        if let Some(known) = self.processes.get(&process) {
            self.act(Input::Gone(Gone { rank: known.rank, ..gone }));
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
                        .filter(|it| it.rank == rank)
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
        let Some(rank) = self.processes.get(&process).map(|known| known.rank) else { return };
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
        let signal = match planned.map(|fault| (fault.target, fault.kind)) {
            Some((FaultTarget::Agent, FaultKind::Kill)) => Signal::KILL,
            Some((FaultTarget::Agent, FaultKind::Freeze)) => Signal::STOP,
            Some(_) | None => return,
        };
        let (node, seq) = (self.node.clone(), self.reporter.newest_seq());
        self.tasks.spawn(async move {
            let mut acked = node.spool.acked();
            drop(tokio::time::timeout(FAULT_LIMIT, acked.wait_for(|acked| seq <= *acked)).await);
            if let Err(error) = kill_process(getpid(), signal) {
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

/// Short, and different for every fence: the random end of the attempt's id, and the generation.
fn socket_name(fence: Fence) -> String {
    let id = fence.attempt_id.to_string();
    format!("{}-{}", &id[id.len().saturating_sub(12)..], fence.generation)
}

#[cfg(test)]
#[path = "drive_tests.rs"]
pub(crate) mod tests;
