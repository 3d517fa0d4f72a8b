//! Which of several failures is the verdict, and how it is said.
//!
//! # Cause and symptom
//!
//! A rank that waits for a peer in vain knows that something is wrong, not what. Such a failure is a *symptom*: it is
//! filed and waits for [`crate::Timeouts::snapshot`]. If in that time a process turns out to have died by a signal or a
//! panic, that death is the verdict and the symptom its effect. If none does, the symptom is all there is to know and
//! becomes the verdict. Everything else is a *cause* and is the verdict at once.
//!
//! Which deaths count depends on who tells them. At a node that has complained they count if the symptom does not clear
//! them. A node that has told of nothing yet speaks of what it saw first, whomever others miss: of a chain of ranks that
//! left one because of the other, every complaint names the next.

use std::collections::BTreeSet;

use lockstep_api::{FailureCode, FailureReport, Lane, NodeId, Rank, RankExit};

use crate::arrival::numbered;

/// Exit status of a panic in Rust.
const PANIC_STATUS: i32 = 101;
/// Exit status of a rank whose agent closed the socket.
const AGENT_GONE_STATUS: i32 = 3;

/// A failure and the node that it is about.
#[derive(Debug, Clone, PartialEq)]
pub struct Failure {
    /// What is known.
    pub report: FailureReport,
    /// Where it happened.
    pub node: Option<NodeId>,
}

/// How a failure is filed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// The attempt's one verdict.
    Verdict,
    /// A consequence of the verdict; or a symptom, as long as there is none.
    Effect,
}

/// How much a failure says about its own origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grade {
    /// The origin itself.
    Cause,
    /// What the origin did to others.
    Symptom,
}

/// How much `report` says about its own origin; see the module's text.
pub fn grade(report: &FailureReport) -> Grade {
    match report.exit {
        Some(RankExit { signal: Some(_), .. } | RankExit { code: Some(PANIC_STATUS), .. }) => {
            return Grade::Cause;
        }
        Some(RankExit { code: Some(code), .. }) if code != 0 => {
            // The rank has said why in a failure of its own, which counts more and may be on its way.
            return Grade::Symptom;
        }
        Some(_) | None => {}
    }
    match report.code {
        FailureCode::PeerGone
        | FailureCode::NotEntered
        | FailureCode::RendezvousTimeout
        | FailureCode::ReformTimeout
        | FailureCode::PeerUnreachable
        | FailureCode::AbortHung => Grade::Symptom,
        FailureCode::LinkOrDeviceStall
        | FailureCode::CommError
        | FailureCode::Mismatch
        | FailureCode::NodeLost
        | FailureCode::InterfaceUnreachable
        | FailureCode::PlanMismatch
        | FailureCode::Diverged
        | FailureCode::NonFinite
        | FailureCode::GuestTrap
        | FailureCode::GuestTimeLimit
        | FailureCode::GuestMemoryLimit
        | FailureCode::GuestStackOverflow
        | FailureCode::GuestOutputLimit
        | FailureCode::GuestShape
        | FailureCode::GuestError
        | FailureCode::PrepareFailed
        | FailureCode::CheckpointFailed
        | FailureCode::HealFailed
        | FailureCode::OutOfMemory
        | FailureCode::RankError => Grade::Cause,
    }
}

/// The ranks that a failure says are missing or gone: whoever repairs replaces them. None, if it does not know.
pub fn culprits(report: &FailureReport) -> BTreeSet<Rank> {
    report.missing_ranks().chain(report.rank).collect()
}

/// Whether `symptom` leaves it open that `death` caused it. One that names ranks clears all others.
pub fn could_be_caused_by(symptom: &FailureReport, death: &FailureReport) -> bool {
    let mut named: BTreeSet<Rank> = symptom.missing_ranks().collect();
    if named.is_empty() {
        named.extend(symptom.rank);
    }
    death.rank.is_none_or(|rank| named.is_empty() || named.contains(&rank))
}

/// The failure of a rank whose process left in another way than it should have.
pub fn of_exit(rank: Rank, node_name: &str, exit: RankExit) -> FailureReport {
    let code = match exit {
        RankExit { exceeded_memory_mib: Some(_), .. } => FailureCode::OutOfMemory,
        RankExit { signal: Some(_), .. } => FailureCode::PeerGone,
        RankExit { code: Some(AGENT_GONE_STATUS), .. } => FailureCode::PeerGone,
        RankExit { .. } => FailureCode::RankError,
    };
    FailureReport {
        code,
        rank: Some(rank),
        exit: Some(exit),
        step: Some(exit.step),
        phase: Some(exit.phase),
        message: exit_sentence(rank, node_name, exit),
        evidence: Default::default(),
    }
}

/// A node's own report of a rank that is gone, told like those of the server: with the node's name.
pub fn with_node_name(mut report: FailureReport, node_name: &str) -> FailureReport {
    if let (FailureCode::PeerGone | FailureCode::OutOfMemory, Some(rank), Some(exit)) =
        (report.code, report.rank, report.exit)
    {
        report.message = exit_sentence(rank, node_name, exit);
    }
    report
}

/// The failure of a node that does not answer, was restarted or was replaced.
pub fn of_node(message: String) -> FailureReport {
    FailureReport {
        code: FailureCode::NodeLost,
        rank: None,
        exit: None,
        step: None,
        phase: None,
        message,
        evidence: Default::default(),
    }
}

/// The failure of ranks (and their nodes' names) that did not say in time where they listen. There is at least one. `code`: of an
/// attempt's first group, or of one in the place of another.
pub fn of_rendezvous(code: FailureCode, missing: &[(Rank, &str)]) -> FailureReport {
    let (named, ranks) = (named(missing), numbers(missing));
    FailureReport {
        code,
        rank: missing.first().map(|(rank, _)| *rank),
        exit: None,
        step: None,
        phase: None,
        message: format!(
            "the group could not form: {} did not say in time where {}",
            named.join(", "),
            if missing.len() == 1 { "it listens" } else { "they listen" }
        ),
        evidence: [("missing".to_owned(), ranks)].into_iter().collect(),
    }
}

/// `rank 1 on node alpha`, of each.
fn named(ranks: &[(Rank, &str)]) -> Vec<String> {
    ranks.iter().map(|(rank, node)| format!("rank {rank} on node {node}")).collect()
}

fn numbers(ranks: &[(Rank, &str)]) -> Vec<i32> {
    ranks.iter().map(|(rank, _)| rank.0).collect()
}

/// The failure of links that carry nothing, by their ends (with the names of their nodes), of which `complaint` was one sign.
pub fn of_stall(
    ends: &[(Rank, &str)],
    (lane, collective): (Lane, i64),
    complaint: &FailureReport,
) -> FailureReport {
    let (named, ranks) = (named(ends), numbers(ends));
    let what = complaint.evidence.get("what").and_then(serde_json::Value::as_str);
    FailureReport {
        code: FailureCode::LinkOrDeviceStall,
        rank: None,
        exit: None,
        step: complaint.step,
        phase: complaint.phase,
        message: format!(
            "{} have entered {} ({}) and hear nothing of each other: the link between them or one of their devices stands still",
            named.join(" and "),
            what.unwrap_or("the same collective"),
            numbered(lane, collective),
        ),
        evidence: serde_json::json!({ "between": ranks, "lane": lane, "collective": collective, "what": what }),
    }
}

/// The failure of ranks (and their nodes' names) whose processes are stopped, when `complaint` missed others. There is at least one.
pub fn of_stopped(stopped: &[(Rank, &str)], complaint: &FailureReport) -> FailureReport {
    let ranks = numbers(stopped);
    FailureReport {
        code: FailureCode::NotEntered,
        rank: stopped.first().map(|(rank, _)| *rank),
        message: format!("stopped: {}; so {}", named(stopped).join(", "), complaint.message),
        evidence: serde_json::json!({ "missing": ranks, "lane": complaint.evidence.get("lane") }),
        ..complaint.clone()
    }
}

/// `rank 1 on node alpha was ended by SIGKILL (9) in step 12, phase backward`
pub fn exit_sentence(rank: Rank, node_name: &str, exit: RankExit) -> String {
    let how = match exit {
        RankExit { signal: Some(signal), .. } => {
            format!("was ended by {} ({signal})", signal_name(signal))
        }
        RankExit { code: Some(PANIC_STATUS), .. } => {
            format!("panicked (exit status {PANIC_STATUS})")
        }
        RankExit { code: Some(code), .. } => format!("left with exit status {code}"),
        RankExit { .. } => "is gone".to_owned(),
    };
    let RankExit { step, phase, .. } = exit;
    let why = exit.over_memory().map(|why| format!(": {why},")).unwrap_or_default();
    format!("rank {rank} on node {node_name} {how}{why} in step {step}, phase {phase}")
}

/// A signal's name on Linux.
pub fn signal_name(signal: i32) -> &'static str {
    /// In order, from 1.
    const NAMES: [&str; 31] = [
        "SIGHUP",
        "SIGINT",
        "SIGQUIT",
        "SIGILL",
        "SIGTRAP",
        "SIGABRT",
        "SIGBUS",
        "SIGFPE",
        "SIGKILL",
        "SIGUSR1",
        "SIGSEGV",
        "SIGUSR2",
        "SIGPIPE",
        "SIGALRM",
        "SIGTERM",
        "SIGSTKFLT",
        "SIGCHLD",
        "SIGCONT",
        "SIGSTOP",
        "SIGTSTP",
        "SIGTTIN",
        "SIGTTOU",
        "SIGURG",
        "SIGXCPU",
        "SIGXFSZ",
        "SIGVTALRM",
        "SIGPROF",
        "SIGWINCH",
        "SIGIO",
        "SIGPWR",
        "SIGSYS",
    ];
    let index = signal.checked_sub(1).and_then(|index| usize::try_from(index).ok());
    index.and_then(|index| NAMES.get(index)).copied().unwrap_or("signal")
}

#[cfg(test)]
mod tests {
    use lockstep_api::{Phase, Step};

    use super::*;

    fn exit(code: Option<i32>, signal: Option<i32>) -> RankExit {
        let (phase, step) = (Phase::Backward, Step(12));
        RankExit { code, signal, phase, step, exceeded_memory_mib: None }
    }

    #[test]
    fn a_death_by_signal_is_told_with_rank_node_signal_step_and_phase() {
        let report = of_exit(Rank(1), "alpha", exit(None, Some(9)));
        assert_eq!(
            report.message,
            "rank 1 on node alpha was ended by SIGKILL (9) in step 12, phase backward"
        );
        assert_eq!((report.code, grade(&report)), (FailureCode::PeerGone, Grade::Cause));
    }

    #[test]
    fn a_death_for_want_of_memory_is_the_jobs_fault_and_says_how_much_it_had() {
        let killed = RankExit { exceeded_memory_mib: Some(1024), ..exit(None, Some(9)) };
        let report = of_exit(Rank(1), "alpha", killed);
        assert_eq!(
            report.message,
            "rank 1 on node alpha was ended by SIGKILL (9): the job's ranks there used more than their 1024 MiB of \
             memory (gang.slot.memory_mib), in step 12, phase backward"
        );
        assert_eq!((report.code, grade(&report)), (FailureCode::OutOfMemory, Grade::Cause));
        assert_eq!(report.code.blame(), lockstep_api::Blame::User);
        let mut told = report.clone();
        told.message = "in the agent's words".to_owned();
        assert_eq!(with_node_name(told, "alpha"), report);
    }

    #[test]
    fn exit_statuses_have_their_codes() {
        let panic = of_exit(Rank(0), "a", exit(Some(101), None));
        assert_eq!((panic.code, grade(&panic)), (FailureCode::RankError, Grade::Cause));
        let mut told = panic.clone();
        (told.code, told.message) = (FailureCode::PeerGone, "in the agent's words".to_owned());
        assert_eq!(grade(&told), Grade::Cause);
        assert!(with_node_name(told, "alpha").message.starts_with("rank 0 on node alpha panicked"));
        let orphan = of_exit(Rank(0), "a", exit(Some(3), None));
        assert_eq!((orphan.code, grade(&orphan)), (FailureCode::PeerGone, Grade::Symptom));
        let failed = of_exit(Rank(0), "a", exit(Some(1), None));
        assert_eq!((failed.code, grade(&failed)), (FailureCode::RankError, Grade::Symptom));
    }

    #[test]
    fn a_symptom_that_names_a_rank_clears_the_others() {
        let mut symptom = of_node(String::new());
        symptom.code = FailureCode::NotEntered;
        let death = |rank| of_exit(Rank(rank), "a", exit(None, Some(9)));
        assert!(could_be_caused_by(&symptom, &death(0)), "one that names nobody clears nobody");
        symptom.rank = Some(Rank(2));
        assert!(could_be_caused_by(&symptom, &death(2)));
        assert!(!could_be_caused_by(&symptom, &death(0)));
        symptom.evidence = [("missing".to_owned(), vec![0, 1])].into_iter().collect();
        assert!(could_be_caused_by(&symptom, &death(0)), "the list counts more than the one name");
        assert!(!could_be_caused_by(&symptom, &death(2)));
    }

    #[test]
    fn signals_have_names() {
        assert_eq!(signal_name(9), "SIGKILL");
        assert_eq!(signal_name(11), "SIGSEGV");
        assert_eq!(signal_name(31), "SIGSYS");
        for odd in [0, -1, 32, i32::MIN] {
            assert_eq!(signal_name(odd), "signal");
        }
    }
}
