//! What breaks in an attempt as this node sees it: who broke first, whom to interrupt or kill, what to say. Pure.
//!
//! One verdict a group: the first `Failed` that is reported. A rank that complains of missing ranks may only be
//! seeing that another died, so its complaint is held for a moment; a death by signal that shows up meanwhile is
//! the cause and goes first. Exits that follow from a held complaint are held with it, so that none is taken for
//! the cause.
//!
//! What is left of a broken group is interrupted and waits: the server says whether the attempt goes on in another group
//! ([`Course::regroup`]) or is over.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use lockstep_api::{FailureCode, FailureReport, Phase, Rank, RankExit, Report, Step};
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::time::Instant;

/// How long a complaint of missing ranks waits for a death that explains it.
const HOLD: Duration = Duration::from_millis(100);

/// How long the ranks may take for what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Graces {
    /// From asking ranks to stop until they are killed.
    pub(crate) stop: Duration,
    /// From a rank's own verdict until it is killed, if it does not leave.
    pub(crate) leave: Duration,
}

/// A rank's process is gone.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Gone {
    pub(crate) process: i32,
    pub(crate) rank: Rank,
    pub(crate) pid: i32,
    pub(crate) exit: RankExit,
    /// The last lines of its standard error.
    pub(crate) last_words: Vec<String>,
}

/// What happened.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Input {
    /// A rank's own verdict: it leaves.
    Failed { by: Rank, report: FailureReport },
    /// A rank's group broke: it waits.
    Interrupted { by: Rank, report: FailureReport },
    /// A rank is gone.
    Gone(Gone),
    /// The agent itself cannot go on with the attempt.
    Broken(FailureReport),
    /// A rank's process is stopped, and nobody is left that would miss it.
    StandsStill(FailureReport),
    /// The server wants the ranks to leave after their step.
    StopAsked,
    /// The ranks must die: the attempt is no longer this node's.
    KillAsked,
    /// Time passed.
    Tick,
}

/// What to do, in order.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Action {
    Report(Report),
    /// Send every rank `Stop`.
    StopAll,
    /// Tell every rank that is alive that its group is lost.
    InterruptAll,
    /// Kill a rank.
    Kill(Rank),
    /// Kill every rank that is alive.
    KillAll,
}

/// How it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// All left with status 0.
    Finished,
    /// They are gone for another reason.
    Stopped,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// Training.
    Running,
    /// The group is lost, and the server has yet to say what comes next.
    Interrupted,
    /// Asked to leave.
    Stopping,
    /// Killed by us: whatever they say or however they leave is our doing.
    Killed,
}

/// Complaints of missing ranks that wait for their cause.
#[derive(Debug)]
struct Held {
    until: Instant,
    /// At most one of each rank: together they may say more than the first does.
    complaints: Vec<FailureReport>,
    /// Of ranks that left because of it.
    exits: Vec<Report>,
}

/// The ranks of one attempt on this node.
#[derive(Debug)]
pub(crate) struct Course {
    ranks: BTreeMap<Rank, Option<RankExit>>,
    /// Of these, those whose processes are to be started for the present group.
    unstarted: BTreeSet<Rank>,
    graces: Graces,
    mode: Mode,
    has_verdict: bool,
    held: Option<Held>,
    kill_at: Option<Instant>,
    /// Ranks that said that they leave, and when they are killed if they have not.
    leaving: BTreeMap<Rank, Instant>,
}

impl Course {
    pub(crate) fn new(ranks: &[Rank], graces: Graces) -> Self {
        let ranks = ranks.iter().map(|rank| (*rank, None)).collect();
        let mode = Mode::Running;
        let (leaving, unstarted) = (BTreeMap::new(), BTreeSet::new());
        let (has_verdict, held, kill_at) = (false, None, None);
        Self { ranks, unstarted, graces, mode, has_verdict, held, kill_at, leaving }
    }

    /// The next group of these ranks begins, with the rank that the process of each had before; none: it is started now.
    /// Whoever is to stop or die still is.
    ///
    /// Answers the exits that were held back: they count, whatever the group before came to.
    #[must_use]
    pub(crate) fn regroup(
        &mut self,
        ranks: impl IntoIterator<Item = (Rank, Option<Rank>)>,
    ) -> Vec<Report> {
        let (old, was_leaving) =
            (std::mem::take(&mut self.ranks), std::mem::take(&mut self.leaving));
        self.unstarted.clear();
        for (rank, before) in ranks {
            if before.is_none() {
                self.unstarted.insert(rank);
            }
            let exit = before.and_then(|before| old.get(&before).copied().flatten());
            self.ranks.insert(rank, exit);
            if let (None, Some(at)) = (exit, before.and_then(|before| was_leaving.get(&before))) {
                self.leaving.insert(rank, *at);
            }
        }
        if matches!(self.mode, Mode::Running | Mode::Interrupted) {
            (self.mode, self.has_verdict) = (Mode::Running, false);
            return self.held.take().map(|held| held.exits).unwrap_or_default();
        }
        Vec::new()
    }

    /// The processes of all its ranks are there.
    pub(crate) fn seated(&mut self) {
        self.unstarted.clear();
    }

    /// Ranks that were to be started will not be.
    fn forget_unstarted(&mut self) {
        let unstarted = std::mem::take(&mut self.unstarted);
        self.ranks.retain(|rank, _| !unstarted.contains(rank));
    }

    /// Whether it is known how the rank's process ended.
    pub(crate) fn has_exited(&self, rank: Rank) -> bool {
        self.ranks.get(&rank).is_some_and(Option::is_some)
    }

    /// Whether its ranks are to go on in the next group, if one comes.
    pub(crate) fn can_regroup(&self) -> bool {
        matches!(self.mode, Mode::Running | Mode::Interrupted)
    }

    /// When to call with [`Input::Tick`].
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let held = self.held.as_ref().map(|held| held.until);
        let leaving = self.leaving.values().min().copied();
        [held, self.kill_at, leaving].into_iter().flatten().min()
    }

    /// How it ended, once every rank is gone and nothing is held back.
    pub(crate) fn ending(&self) -> Option<Ending> {
        let is_waiting = self.held.is_some() || self.mode == Mode::Interrupted;
        if is_waiting || !self.ranks.values().all(Option::is_some) {
            return None;
        }
        let all_clean = self.ranks.values().flatten().all(|exit| exit.code == Some(0));
        let ran_through = self.mode == Mode::Running && !self.has_verdict;
        Some(if all_clean && ran_through { Ending::Finished } else { Ending::Stopped })
    }

    /// Takes one step.
    pub(crate) fn step(&mut self, input: Input, now: Instant) -> Vec<Action> {
        let mut actions = Vec::new();
        match input {
            Input::Failed { by, report } => self.failed(by, report, now, &mut actions),
            Input::Interrupted { by, report } => self.interrupted(by, report, now, &mut actions),
            Input::Gone(gone) => self.gone(gone, &mut actions),
            Input::Broken(report) => {
                self.verdict(report, &mut actions);
                self.kill(&mut actions);
            }
            // Whoever else has said what is wrong knows more.
            Input::StandsStill(report) => {
                if self.mode == Mode::Running && !self.has_verdict && self.held.is_none() {
                    self.verdict(report, &mut actions);
                    self.interrupt(&mut actions);
                }
            }
            Input::StopAsked if self.can_regroup() => {
                self.mode = Mode::Stopping;
                self.forget_unstarted();
                self.kill_by(now + self.graces.stop);
                actions.push(Action::StopAll);
            }
            Input::StopAsked => {}
            Input::KillAsked => {
                self.release(&mut actions);
                self.kill(&mut actions);
            }
            Input::Tick => self.tick(now, &mut actions),
        }
        actions
    }

    fn failed(&mut self, by: Rank, report: FailureReport, now: Instant, actions: &mut Vec<Action>) {
        if self.mode == Mode::Killed {
            return;
        }
        self.leaving.insert(by, now + self.graces.leave);
        if !self.has_verdict && self.complains_of_others(by, &report) {
            self.hold(report, now);
            return;
        }
        self.verdict(report, actions);
    }

    fn interrupted(
        &mut self,
        by: Rank,
        report: FailureReport,
        now: Instant,
        actions: &mut Vec<Action>,
    ) {
        // Of all others the reason is known: they were told, or are to go.
        if self.mode != Mode::Running {
            return;
        }
        if !self.has_verdict && self.complains_of_others(by, &report) {
            self.hold(report, now);
            return;
        }
        self.verdict(report, actions);
        self.interrupt(actions);
    }

    fn hold(&mut self, complaint: FailureReport, now: Instant) {
        let nothing = || Held { until: now + HOLD, complaints: Vec::new(), exits: Vec::new() };
        let held = self.held.get_or_insert_with(nothing);
        if held.complaints.len() < self.ranks.len() {
            held.complaints.push(complaint);
        }
    }

    fn gone(&mut self, gone: Gone, actions: &mut Vec<Action>) {
        let Gone { process, rank, exit, .. } = gone;
        self.ranks.insert(rank, Some(exit));
        self.leaving.remove(&rank);
        let is_bad = exit.code != Some(0);
        let report = Report::RankExited { process, rank, exit };
        if is_bad && self.mode != Mode::Killed && !self.has_verdict {
            match &mut self.held {
                // One that left by itself after its complaint was held did so because of it.
                Some(held) if exit.signal.is_none() => {
                    held.exits.push(report);
                    return;
                }
                _ => self.verdict(peer_gone(&gone), actions),
            }
        }
        actions.push(Action::Report(report));
        if is_bad && self.has_verdict {
            self.interrupt(actions);
        }
    }

    fn tick(&mut self, now: Instant, actions: &mut Vec<Action>) {
        if self.held.as_ref().is_some_and(|held| held.until <= now) {
            self.release(actions);
            self.interrupt(actions);
        }
        let overdue: Vec<Rank> =
            self.leaving.iter().filter(|(_, at)| **at <= now).map(|(rank, _)| *rank).collect();
        for rank in overdue {
            self.leaving.remove(&rank);
            if self.mode != Mode::Killed {
                actions.push(Action::Report(Report::Failed(self.overstays(rank))));
            }
            actions.push(Action::Kill(rank));
        }
        if self.kill_at.is_some_and(|at| at <= now) {
            self.kill(actions);
        }
    }

    /// Reports a failure, and after it complaints that were held: its effects.
    fn verdict(&mut self, report: FailureReport, actions: &mut Vec<Action>) {
        self.has_verdict = true;
        actions.push(Action::Report(Report::Failed(report)));
        self.release(actions);
    }

    /// Reports what was held back.
    fn release(&mut self, actions: &mut Vec<Action>) {
        if let Some(Held { until: _, complaints, exits }) = self.held.take() {
            self.has_verdict = true;
            let complaints = complaints.into_iter().map(Report::Failed);
            actions.extend(complaints.map(Action::Report));
            actions.extend(exits.into_iter().map(Action::Report));
        }
    }

    fn interrupt(&mut self, actions: &mut Vec<Action>) {
        match self.mode {
            Mode::Running => {
                self.mode = Mode::Interrupted;
                actions.push(Action::InterruptAll);
            }
            // They are to leave, and cannot agree on when any more.
            Mode::Stopping => self.kill(actions),
            Mode::Interrupted | Mode::Killed => {}
        }
    }

    fn kill(&mut self, actions: &mut Vec<Action>) {
        self.mode = Mode::Killed;
        self.kill_at = None;
        self.forget_unstarted();
        if self.ranks.values().any(Option::is_none) {
            actions.push(Action::KillAll);
        }
    }

    /// What there is to say of a rank that is killed because it has not left.
    fn overstays(&self, rank: Rank) -> FailureReport {
        let limit = self.graces.leave.as_secs_f64();
        let text =
            format!("rank {rank} did not leave within {limit:.1} s of its failure: it is killed");
        FailureReport { rank: Some(rank), ..own_failure(FailureCode::AbortHung, text) }
    }

    fn kill_by(&mut self, at: Instant) {
        self.kill_at = Some(self.kill_at.map_or(at, |old| old.min(at)));
    }

    /// Whether the report names other ranks as missing and one of this node may be the cause: itself missing, or the
    /// reason why one of another node left.
    fn complains_of_others(&self, by: Rank, report: &FailureReport) -> bool {
        1 < self.ranks.len() && report.missing_ranks().any(|rank| rank != by)
    }
}

fn peer_gone(gone: &Gone) -> FailureReport {
    let Gone { process: _, rank, pid, exit, last_words } = gone;
    let RankExit { code, signal, phase, step, exceeded_memory_mib: _ } = *exit;
    let how = match (signal, code) {
        (Some(signal), _) => format!("was killed by {}", signal_name(signal)),
        (None, Some(code)) => format!("ended with status {code}"),
        (None, None) => "ended in an unknown way".to_owned(),
    };
    let (code, why) = match exit.over_memory() {
        Some(why) => (FailureCode::OutOfMemory, format!(": {why}")),
        None => (FailureCode::PeerGone, String::new()),
    };
    let message = format!("rank {rank} (pid {pid}) {how} at step {step} in phase {phase}{why}");
    FailureReport {
        code,
        rank: Some(*rank),
        exit: Some(*exit),
        step: Some(step),
        phase: Some(phase),
        message,
        evidence: json!({ "pid": pid, "stderr": last_words }),
    }
}

/// `signal 9 (SIGKILL)`
fn signal_name(signal: i32) -> String {
    let name = match signal {
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        4 => "SIGILL",
        5 => "SIGTRAP",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL",
        11 => "SIGSEGV",
        13 => "SIGPIPE",
        14 => "SIGALRM",
        15 => "SIGTERM",
        24 => "SIGXCPU",
        25 => "SIGXFSZ",
        31 => "SIGSYS",
        _ => return format!("signal {signal}"),
    };
    format!("signal {signal} ({name})")
}

/// A failure that the agent found by itself.
pub(crate) fn own_failure(code: FailureCode, message: String) -> FailureReport {
    FailureReport {
        code,
        rank: None,
        exit: None,
        step: None,
        phase: None,
        message,
        evidence: Value::Null,
    }
}

/// How a rank left, and where it was. The kernel may have killed another process of its group for want of memory.
pub(crate) fn exit_of(
    status: std::process::ExitStatus,
    exceeded_memory_mib: Option<u32>,
    (phase, step): (Phase, Step),
) -> RankExit {
    use std::os::unix::process::ExitStatusExt as _;
    let (code, signal) = (status.code(), status.signal());
    let is_killed = signal == Some(Signal::KILL.as_raw());
    let exceeded_memory_mib = exceeded_memory_mib.filter(|_| is_killed);
    RankExit { code, signal, phase, step, exceeded_memory_mib }
}

#[cfg(test)]
#[path = "course_tests.rs"]
mod tests;
