//! Whole attempts with real processes: the rank is this test program again, told by the job's name what to do.
//! Components are in the cache beforehand, so no server is needed; what would go there is read from the spool.

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use lockstep_api::{Digest, FailureCode, RankConfig, RankExit, Step};
use lockstep_client::Client;
use lockstep_service::Clock;
use rustix::process::Pid;

use super::*;
use crate::cache::Cache;
use crate::control_group::tests::control_groups;
use crate::gang::tests::{assignment, fence};
use crate::network::Reach;
use crate::node::{Places, Server};
use crate::spawn::Spawner;
use crate::spool::Spool;

const LIMIT: Duration = Duration::from_secs(20);
/// A collective's timeout whose graces outlast whatever a rank does by itself on a machine under load.
pub(crate) const PATIENT: &str = "80s";
/// One whose graces are as short as they get.
const IMPATIENT: &str = "2s";
const HELPER: &str = "attempt::drive::tests::acts_as_a_rank";

struct Bench {
    node: Arc<Node>,
    assignment: Assignment,
    told: watch::Sender<Told>,
    positions: Arc<Positions>,
    task: tokio::task::JoinHandle<Ending>,
    _folder: tempfile::TempDir,
}

impl Bench {
    /// Starts an attempt of `count` ranks that behave like `what`.
    fn start(what: &str, count: i32, has_components: bool) -> Self {
        Self::on(test_node(what, count, has_components, PATIENT))
    }

    #[expect(clippy::disallowed_methods, reason = "the test ends with its runtime")]
    fn on((node, assignment, _, folder): TestNode) -> Self {
        let wanted = Arc::new(assignment.clone());
        let (told, receiver) = watch::channel(Told { order: Order::Run, verdict: None, wanted });
        let positions = Arc::new(Positions::default());
        let task = run(node.clone(), receiver, positions.clone());
        let task = tokio::spawn(task);
        Self { node, assignment, told, positions, task, _folder: folder }
    }

    fn tell(&self, order: Order) {
        self.told.send_modify(|told| told.order = order);
    }

    /// Waits for a report.
    async fn until(&self, is_it: impl Fn(&Report) -> bool) {
        let mut newest = self.node.spool.newest();
        tokio::time::timeout(LIMIT, async {
            while !self.reports().iter().any(&is_it) {
                newest.changed().await.unwrap();
            }
        })
        .await
        .unwrap_or_else(|_| panic!("not reported in time: {:#?}", self.reports()));
    }

    /// Waits until every rank has begun step 41.
    async fn until_midway(&self) {
        self.until(|report| matches!(report, Report::GroupFormed { .. })).await;
    }

    fn pid(&self, rank: i32) -> i32 {
        self.positions.pid(Rank(rank)).unwrap()
    }

    /// Of all generations of the attempt.
    fn reports(&self) -> Vec<Report> {
        let batch = self.node.spool.next_batch(usize::MAX, u64::MAX).unwrap();
        let of_the_attempt = |fence: Fence| fence.attempt_id == self.assignment.attempt_id;
        batch.into_iter().filter(|it| of_the_attempt(it.fence)).map(|it| it.report).collect()
    }

    /// The server wants this instead.
    fn want(&mut self, assignment: Assignment) {
        self.assignment = assignment.clone();
        self.told.send_modify(|told| told.wanted = Arc::new(assignment));
    }

    /// Waits for the end; then no process, folder, socket or control group is left.
    async fn end(self) -> Vec<Report> {
        let reports = |bench: &Self| bench.reports();
        let mut bench = self;
        let ended = tokio::time::timeout(LIMIT, &mut bench.task).await;
        ended.unwrap_or_else(|_| panic!("did not end: {:#?}", reports(&bench))).unwrap();
        for position in bench.positions.all() {
            assert_eq!(process_state(position.pid), None, "{position:?}");
        }
        for folder in [&bench.node.places.attempts, &bench.node.places.sockets] {
            assert_eq!(std::fs::read_dir(folder).unwrap().count(), 0, "{folder}");
        }
        assert_eq!(bench.node.control_groups.attempts(), [""; 0]);
        reports(&bench)
    }
}

/// A node, an assignment to it, what its tasks tell the session, and the folder of it all.
pub(crate) type TestNode =
    (Arc<Node>, Assignment, mpsc::UnboundedReceiver<Note>, tempfile::TempDir);

/// A node whose server is away, and an assignment of `count` ranks that behave like `what`.
pub(crate) fn test_node(
    what: &str,
    count: i32,
    has_components: bool,
    collective_timeout: &str,
) -> TestNode {
    let folder = tempfile::tempdir().unwrap();
    let base = Utf8PathBuf::try_from(folder.path().to_owned()).unwrap();
    let cache = Cache::open(&base.join("cache"), u64::MAX, Clock::system()).unwrap();
    let mut assignment = assignment(fence(7, 3), count, false);
    assignment.spec.name = what.to_owned();
    assignment.spec.timeouts.collective = collective_timeout.to_owned();
    for component in [&mut assignment.spec.loader.component, &mut assignment.spec.loss.component] {
        let digest = Digest::of(component.as_bytes());
        if has_components {
            let mut file = cache.new_file().unwrap();
            file.write_all(component.as_bytes()).unwrap();
            cache.insert(&digest, file).unwrap();
        }
        *component = digest.to_string();
    }
    let places = Places {
        rank_binary: rank_program(&base),
        attempts: base.join("attempts"),
        sockets: base.join("sockets"),
        compiled: base.join("compiled"),
    };
    for made in [&places.attempts, &places.sockets] {
        std::fs::create_dir(made).unwrap();
    }
    let (notes, noted) = mpsc::unbounded_channel();
    let node = Node {
        // Nobody listens on port 9 of this machine.
        server: Server::new(Client::new("http://127.0.0.1:9", "lsn_test").unwrap()),
        spool: Spool::open(&base.join("reports.jsonl"), 1 << 20).unwrap(),
        cache: Arc::new(cache),
        spawner: Spawner::start().unwrap(),
        control_groups: control_groups(&base),
        clock: Clock::system(),
        places,
        reach: Reach {
            node_name: "alpha".to_owned(),
            host: "one".to_owned(),
            advertised: None,
            server: "http://127.0.0.1:9".to_owned(),
        },
        notes,
    };
    (Arc::new(node), assignment, noted, folder)
}

/// A program that runs [`acts_as_a_rank`].
fn rank_program(folder: &camino::Utf8Path) -> Utf8PathBuf {
    let path = folder.join("rank");
    let own = std::env::current_exe().unwrap();
    let script =
        format!("#!/bin/sh\nexec '{}' --exact {HELPER} --ignored --nocapture\n", own.display());
    std::fs::write(&path, script).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).unwrap();
    path
}

/// A report in a few words.
pub(crate) fn short(report: &Report) -> String {
    match report {
        Report::RankListens { rank, .. } => format!("listens {rank}"),
        Report::Prepared => "prepared".to_owned(),
        Report::FaultInjected { index, .. } => format!("fault {index}"),
        Report::RankStarted { rank, .. } => format!("started {rank}"),
        Report::GroupFormed { .. } => "formed".to_owned(),
        Report::Steps { steps } => format!("steps {}", steps.len()),
        Report::Evaluated { .. } => "evaluated".to_owned(),
        Report::Log { .. } => "log".to_owned(),
        Report::Timeline { .. } => "timeline".to_owned(),
        Report::RankExited { rank, exit: RankExit { code, signal, .. }, .. } => {
            format!("exited {rank} {code:?} {signal:?}")
        }
        Report::Failed(failure) => format!("failed {}", failure.code),
        Report::Finished => "finished".to_owned(),
        Report::Stopped => "stopped".to_owned(),
    }
}

fn shorts(reports: &[Report]) -> Vec<String> {
    let is_told = |it: &&Report| !matches!(it, Report::Log { .. } | Report::Timeline { .. });
    reports.iter().filter(is_told).map(short).collect()
}

fn verdict(reports: &[Report]) -> FailureReport {
    let failed = reports.iter().find_map(|report| match report {
        Report::Failed(failure) => Some(failure.clone()),
        _ => None,
    });
    failed.unwrap_or_else(|| panic!("no verdict: {reports:#?}"))
}

#[tokio::test]
async fn ranks_that_finish_are_released_and_every_step_is_reported_in_order() {
    let reports = Bench::start("finish", 2, true).end().await;
    let said = shorts(&reports);
    // Rank 1 has nothing to wait for and may leave at any time.
    let of_rank_0: Vec<&String> = said.iter().filter(|it| !it.starts_with("exited 1")).collect();
    assert_eq!(of_rank_0[..3], ["started 0", "started 1", "formed"]);
    assert_eq!(of_rank_0[3], "steps 1", "the first step is reported at once: {said:?}");
    assert_eq!(said.last().unwrap(), "finished");
    for rank in [0, 1] {
        assert!(said.contains(&format!("exited {rank} Some(0) None")), "{said:?}");
    }
    let steps = reports.iter().flat_map(|report| match report {
        Report::Steps { steps } => steps.iter().map(|step| step.ledger.step.0).collect(),
        _ => Vec::new(),
    });
    assert_eq!(steps.collect::<Vec<_>>(), (0..1200).collect::<Vec<i64>>());
}

#[tokio::test]
async fn timelines_of_all_ranks_are_shipped_under_their_own_names_and_one_clock() {
    let reports = Bench::start("finish", 2, true).end().await;
    let mut clocks = Vec::new();
    let mut timed = Vec::new();
    for report in &reports {
        let Report::Timeline { clock, steps } = report else { continue };
        clocks.push(*clock);
        timed.extend(steps.iter().map(|step| (step.rank.0, step.step.0, step.spans.len())));
    }
    clocks.dedup();
    assert_eq!(clocks.len(), 1, "{clocks:?}");
    assert!(0 < clocks[0].monotonic_ns);
    timed.sort_unstable();
    assert_eq!(timed, [(0, 7, 1), (1, 7, 1)]);
    assert_eq!(reports.last(), Some(&Report::Finished));
}

#[tokio::test]
async fn a_rank_killed_from_outside_is_named_and_the_others_wait_for_what_the_server_says() {
    let bench = Bench::start("work", 2, true);
    bench.until_midway().await;
    let pid = bench.pid(1);
    kill(pid);
    bench.until(|report| matches!(report, Report::RankExited { .. })).await;
    assert!(process_state(bench.pid(0)).is_some());
    bench.tell(Order::Kill);
    let reports = bench.end().await;
    let verdict = verdict(&reports);
    assert_eq!(
        verdict.message,
        format!("rank 1 (pid {pid}) was killed by signal 9 (SIGKILL) at step 41 in phase backward")
    );
    let said = shorts(&reports);
    let end = ["failed peer_gone", "exited 1 None Some(9)", "exited 0 None Some(9)", "stopped"];
    assert_eq!(said[said.len() - 4..], end);
}

fn kill(pid: i32) {
    let pid = Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

#[tokio::test]
async fn the_next_group_has_the_ranks_that_live_and_a_new_process_for_each_that_is_replaced() {
    let mut bench = Bench::start("regroup", 3, true);
    bench.until_midway().await;
    let pids = [0, 1, 2].map(|rank| bench.pid(rank));
    // Rank 1 is stopped and has to be killed before its successor is started, rank 2 is dead.
    let stopped = Pid::from_raw(pids[1]).unwrap();
    rustix::process::kill_process(stopped, rustix::process::Signal::STOP).unwrap();
    kill(pids[2]);
    bench.until(|report| matches!(report, Report::RankExited { .. })).await;
    let mut next = bench.assignment.clone();
    next.generation = next.generation.next();
    next.steps_reported = Step(41);
    for (assigned, process) in next.ranks[1..].iter_mut().zip([3, 4]) {
        (assigned.process, assigned.heals) = (process, true);
    }
    bench.want(next);
    bench.until(|report| *report == Report::Finished).await;
    assert_eq!(bench.pid(0), pids[0], "whoever lives goes on");
    assert_ne!([bench.pid(1), bench.pid(2)], pids[1..]);
    assert_eq!(process_state(pids[1]), None);
    let reports = bench.end().await;
    let is_gone = |it: &&Report| matches!(it, Report::RankExited { process: 1, rank: Rank(1), .. });
    assert_eq!(reports.iter().filter(is_gone).count(), 1, "its slot waits for that");
    let said = shorts(&reports);
    let started = |rank| said.iter().filter(|it| **it == format!("started {rank}")).count();
    assert_eq!([started(0), started(1), started(2)], [1, 2, 2], "{said:?}");
    assert_eq!(said.iter().filter(|it| it.starts_with("failed")).count(), 1, "{said:?}");
}

#[tokio::test]
async fn ranks_of_a_smaller_group_move_up_and_are_told_of_by_their_processes() {
    let mut bench = Bench::start("work", 3, true);
    bench.until_midway().await;
    let pids = [0, 1, 2].map(|rank| bench.pid(rank));
    let mut next = bench.assignment.clone();
    (next.generation, next.world_size) = (next.generation.next(), 2);
    next.ranks.remove(0);
    for (rank, assigned) in (0..).zip(&mut next.ranks) {
        assigned.rank = Rank(rank);
    }
    bench.want(next);
    let left = |process, rank| move |it: &Report| matches!(it, Report::RankExited { process: p, rank: r, .. } if (*p, r.0) == (process, rank));
    bench.until(left(0, 0)).await;
    assert_eq!([bench.pid(0), bench.pid(1)], pids[1..]);
    kill(pids[2]);
    bench.until(left(2, 1)).await;
    bench.tell(Order::Kill);
    let reports = bench.end().await;
    let verdict = verdict(&reports);
    assert_eq!((verdict.code, verdict.rank), (FailureCode::PeerGone, Some(Rank(1))));
}

#[tokio::test]
async fn a_rank_is_not_gone_before_what_it_started_is() {
    let bench = Bench::start("parent", 1, true);
    bench.until(|report| matches!(report, Report::RankExited { .. })).await;
    let state = process_state(child_of(&bench.reports()));
    assert!(matches!(state, None | Some('Z')), "{state:?}");
    bench.end().await;
}

/// The process of which a rank has said that it started it.
fn child_of(reports: &[Report]) -> i32 {
    let child = reports.iter().find_map(|report| {
        let Report::Log { lines } = report else { return None };
        lines.iter().find_map(|line| line.text.strip_prefix("child ")?.parse::<i32>().ok())
    });
    child.expect("it has said whom it started")
}

#[tokio::test]
async fn what_left_the_process_group_is_gone_before_the_rank_is() {
    let bench = Bench::start("deserter", 1, true);
    let has_groups = bench.node.control_groups.kills_trees();
    bench.until(|report| matches!(report, Report::RankExited { .. })).await;
    let child = child_of(&bench.reports());
    let lives = !matches!(process_state(child), None | Some('Z'));
    if !has_groups {
        writeln!(std::io::stderr(), "no control groups can be made here: it gets away").unwrap();
        kill(child);
    }
    assert_eq!(lives, !has_groups);
    bench.end().await;
}

#[tokio::test]
async fn a_rank_that_uses_more_memory_than_its_job_has_is_killed_and_the_job_is_told_why() {
    let (node, mut assignment, noted, folder) = test_node("eat", 1, true, PATIENT);
    assignment.spec.gang.slot.memory_mib = 64;
    let is_limited = node.control_groups.limits_memory();
    let bench = Bench::on((node, assignment, noted, folder));
    bench.until(|report| matches!(report, Report::RankExited { .. })).await;
    if !is_limited {
        writeln!(std::io::stderr(), "memory cannot be limited here: it finishes").unwrap();
        assert_eq!(shorts(&bench.end().await).last().unwrap(), "finished");
        return;
    }
    bench.tell(Order::Kill);
    let verdict = verdict(&bench.end().await);
    assert_eq!((verdict.code, verdict.rank), (FailureCode::OutOfMemory, Some(Rank(0))));
    let exit = verdict.exit.unwrap();
    assert_eq!((exit.signal, exit.exceeded_memory_mib), (Some(9), Some(64)));
    assert!(verdict.message.contains("more than their 64 MiB"), "{}", verdict.message);
}

#[tokio::test]
async fn two_ranks_share_the_memory_of_two_slots_and_another_death_is_not_blamed_on_memory() {
    let (node, mut assignment, noted, folder) = test_node("eat", 2, true, PATIENT);
    // One of them alone eats more than its own.
    assignment.spec.gang.slot.memory_mib = 192;
    let bench = Bench::on((node, assignment, noted, folder));
    bench.until(|report| matches!(report, Report::RankExited { .. })).await;
    kill(bench.pid(1));
    bench.until(|report| matches!(report, Report::RankExited { process: 1, .. })).await;
    bench.tell(Order::Kill);
    let reports = bench.end().await;
    assert!(shorts(&reports).contains(&"exited 0 Some(0) None".to_owned()), "{reports:#?}");
    let verdict = verdict(&reports);
    assert_eq!((verdict.code, verdict.rank), (FailureCode::PeerGone, Some(Rank(1))));
}

#[tokio::test]
async fn a_rank_that_ends_badly_without_a_word_is_quoted() {
    let bench = Bench::start("panic", 1, true);
    bench.until(|report| matches!(report, Report::RankExited { .. })).await;
    bench.tell(Order::Kill);
    let reports = bench.end().await;
    let verdict = verdict(&reports);
    assert!(verdict.message.contains("ended with status 101"), "{verdict:#?}");
    assert!(verdict.evidence.to_string().contains("something is off"), "{verdict:#?}");
    let lines = reports.iter().flat_map(|report| match report {
        Report::Log { lines } => lines.clone(),
        _ => Vec::new(),
    });
    assert!(lines.into_iter().any(|line| line.text.contains("something is off")));
}

#[tokio::test]
async fn a_ranks_own_verdict_comes_before_its_exit() {
    let bench = Bench::start("fail", 2, true);
    bench.until(|report| matches!(report, Report::RankExited { .. })).await;
    bench.tell(Order::Kill);
    let reports = bench.end().await;
    let said = shorts(&reports);
    let at = |what: &str| {
        said.iter().position(|it| it == what).unwrap_or_else(|| panic!("{what}: {said:?}"))
    };
    assert!(at("failed guest_trap") < at("exited 1 Some(1) None"));
    assert_eq!(verdict(&reports).code, FailureCode::GuestTrap);
    assert_eq!(said.last().unwrap(), "stopped");
}

#[tokio::test]
async fn a_stopped_rank_that_others_wait_for_is_described() {
    let bench = Bench::start("complain", 2, true);
    bench.until_midway().await;
    let pid = bench.pid(1);
    let rank = Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(rank, rustix::process::Signal::STOP).unwrap();
    let is_stopped = async {
        while process_state(pid) != Some('T') {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(LIMIT, is_stopped).await.unwrap();
    // Rank 0 complains once it is asked to stop.
    bench.tell(Order::Stop);
    let verdict = verdict(&bench.end().await);
    assert_eq!(verdict.code, FailureCode::NotEntered);
    assert_eq!(
        verdict.message,
        format!(
            "rank 1 has not entered; rank 1 (pid {pid}) is in phase backward of step 41, stopped"
        )
    );
}

#[tokio::test]
async fn ranks_asked_to_stop_leave_by_themselves_and_stubborn_ones_are_killed() {
    for (what, timeout, exit) in
        [("obey", PATIENT, "Some(0) None"), ("work", IMPATIENT, "None Some(9)")]
    {
        let bench = Bench::on(test_node(what, 2, true, timeout));
        bench.until_midway().await;
        bench.tell(Order::Stop);
        let reports = bench.end().await;
        let said = shorts(&reports);
        assert!(said.contains(&format!("exited 0 {exit}")), "{what}: {said:?}");
        assert!(!said.iter().any(|it| it.starts_with("failed")), "{what}: {said:?}");
        assert_eq!(said.last().unwrap(), "stopped", "{what}");
    }
}

#[tokio::test]
async fn an_attempt_that_waits_for_its_files_can_be_taken_back() {
    // How far it has come when it is taken back differs from round to round.
    for _ in 0..50 {
        let bench = Bench::start("finish", 1, false);
        bench.told.send_modify(|told| {
            told.order = Order::Kill;
            told.verdict = Some(own_failure(FailureCode::NodeLost, "the node leaves".to_owned()));
        });
        assert_eq!(shorts(&bench.end().await), ["failed node_lost", "stopped"]);
    }
}

#[path = "../meet_tests.rs"]
mod meet_tests;
mod rank;

/// Not a test: the other side of the tests above. Says nothing and passes when it is run as one.
#[test]
#[ignore = "is started by the other tests as a rank"]
fn acts_as_a_rank() {
    let Ok(config) = serde_json::from_reader::<_, RankConfig>(std::io::stdin()) else { return };
    rank::leave(rank::act(&config));
}
