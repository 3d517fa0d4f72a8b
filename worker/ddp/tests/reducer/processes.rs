//! The same with ranks as processes, which can be killed.

use std::{
    env, fs, io,
    io::Write,
    os::{fd::AsRawFd, unix::process::ExitStatusExt},
    process::{Child, Command, ExitStatus, Stdio},
    time::Duration,
};

use lockstep_shm::{FlightRecord, create_group_memory, inherited_group_memory};
use tempfile::TempDir;

use crate::work::{Fault, Report, Task, reference, train};

/// For runs in which nobody is to be missed.
const PATIENT: Duration = Duration::from_secs(30);
/// For runs in which somebody is.
const SHORT: Duration = Duration::from_secs(6);
/// What a deadline may be late by on a busy machine: less than the next deadline would take.
const SLACK: Duration = Duration::from_secs(10);

/// Whole and short last grains; 12, 12, 11, 5 and 1 of them. The last leaves ranks without any.
const BATCHES: [usize; 5] = [36, 35, 33, 13, 2];

/// One rank. Reads its task from standard input.
#[test]
#[ignore = "started by the other tests, as a process of its own"]
fn rank() {
    let mut line = String::new();
    io::stdin().read_line(&mut line).unwrap();
    let task: Task = serde_json::from_str(&line).unwrap();
    let fd = inherited_group_memory(task.group_fd).unwrap();
    let report = train(fd, &task);
    fs::write(&task.report, serde_json::to_vec(&report).unwrap()).unwrap();
}

struct Ranks {
    folder: TempDir,
    children: Vec<Child>,
}

impl Ranks {
    fn start(joining: &[usize], world: usize, configure: impl Fn(&mut Task)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let memory = create_group_memory().unwrap();
        let children = joining
            .iter()
            .map(|rank| {
                let mut task = Task {
                    rank: *rank,
                    world,
                    group_fd: memory.as_raw_fd(),
                    batches: BATCHES.to_vec(),
                    fixed_tree: true,
                    timeout: PATIENT,
                    record: folder.path().join(format!("record-{rank}")),
                    report: folder.path().join(format!("report-{rank}")),
                    fault: Fault::None,
                };
                configure(&mut task);
                let mut child = Command::new(env::current_exe().unwrap())
                    .args(["--exact", "processes::rank", "--ignored", "--nocapture"])
                    .stdin(Stdio::piped())
                    .stdout(Stdio::null())
                    .spawn()
                    .unwrap();
                let text = serde_json::to_string(&task).unwrap();
                writeln!(child.stdin.as_mut().unwrap(), "{text}").unwrap();
                child
            })
            .collect();
        Self { folder, children }
    }

    /// Waits for the `index`-th. Each has deadlines of its own.
    fn wait(&mut self, index: usize) -> ExitStatus {
        let child = &mut self.children[index];
        let stdin = child.stdin.take();
        let status = child.wait().unwrap();
        drop(stdin);
        status
    }

    fn report(&self, rank: usize) -> Report {
        let path = self.folder.path().join(format!("report-{rank}"));
        serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
    }

    fn record(&self, rank: usize) -> lockstep_shm::FlightPosition {
        let path = self.folder.path().join(format!("record-{rank}"));
        FlightRecord::open(path).unwrap().read().unwrap()
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        for child in &mut self.children {
            // Fails if it has ended, which is what is wanted.
            drop(child.kill());
            drop(child.wait());
        }
    }
}

/// A run in which all goes well and all see the same; what they saw.
fn undisturbed(world: usize, fixed_tree: bool) -> Report {
    let all: Vec<usize> = (0..world).collect();
    let mut ranks = Ranks::start(&all, world, |task| task.fixed_tree = fixed_tree);
    for rank in 0..world {
        let status = ranks.wait(rank);
        assert!(status.success(), "rank {rank}: {status}");
    }
    let first = ranks.report(0);
    assert_eq!((first.weights.len(), &first.failure), (BATCHES.len(), &None));
    for rank in 1..world {
        assert_eq!(ranks.report(rank), first, "rank {rank} of {world}");
    }
    first
}

fn assert_close(report: &Report, bound: f64) {
    let (weights, sums) = reference(&BATCHES);
    for (step, (got, expected)) in report.weights.iter().zip(&weights).enumerate() {
        let largest = expected.iter().fold(0.0, |largest: f64, value| largest.max(value.abs()));
        for (got, expected) in got.iter().zip(expected) {
            let got = f64::from(f32::from_bits(*got));
            let off = (got - expected).abs() / largest;
            assert!(off <= bound, "step {step}: {got} is off {expected} by {off}");
        }
    }
    for (got, expected) in report.sums.iter().zip(&sums) {
        let [loss, exact @ ..] = got;
        let [expected_loss, expected @ ..] = expected;
        assert!((loss - expected_loss).abs() / expected_loss <= bound, "{got:?} {expected:?}");
        assert_eq!(exact, expected, "weights and counts are exact");
    }
}

#[test]
fn the_fixed_tree_gives_the_same_bits_for_any_number_of_processes() {
    let alone = undisturbed(1, true);
    assert_close(&alone, 1e-5);
    for world in [2, 3, 4, 6] {
        assert_eq!(undisturbed(world, true), alone, "{world} ranks");
    }
}

#[test]
fn fast_sums_are_close_for_any_number_of_processes_and_repeatable() {
    for world in [1, 2, 3] {
        let report = undisturbed(world, false);
        assert_close(&report, 1e-5);
        assert_eq!(undisturbed(world, false), report, "{world} ranks, again");
    }
}

#[test]
fn a_rank_that_does_not_come_is_named_within_the_deadline() {
    let mut ranks = Ranks::start(&[0, 1, 2], 3, |task| {
        task.timeout = SHORT;
        if task.rank == 2 {
            task.fault = Fault::HangBefore { step: 1 };
        }
    });
    for rank in [0, 1] {
        assert!(ranks.wait(rank).success());
        let report = ranks.report(rank);
        let failure = report.failure.unwrap();
        assert_eq!((failure.missing, report.sums.len()), (vec![2], 1), "{}", failure.text);
        assert!(failure.text.contains("rank 2 has not entered bucket 1 of"), "{}", failure.text);
        assert!(failure.after < SHORT + SLACK, "{:?}", failure.after);
    }
    let record = ranks.record(2);
    assert_eq!((record.rank, record.step), (2, 0));
}

#[test]
fn a_killed_rank_is_named_and_leaves_its_record() {
    let mut ranks = Ranks::start(&[0, 1, 2], 3, |task| {
        task.timeout = SHORT;
        if task.rank == 1 {
            task.fault = Fault::KilledIn { step: 2 };
        }
    });
    assert_eq!(ranks.wait(1).signal(), Some(9));
    for rank in [0, 2] {
        assert!(ranks.wait(rank).success());
        let report = ranks.report(rank);
        let failure = report.failure.unwrap();
        assert_eq!((failure.missing, report.sums.len()), (vec![1], 2), "{}", failure.text);
        assert!(failure.after < SHORT + SLACK, "{:?}", failure.after);
    }
    let (dead, alive) = (ranks.record(1), ranks.record(0));
    assert_eq!((dead.pid, dead.step, alive.step), (ranks.children[1].id(), 2, 2));
    // Collectives of two whole steps; the survivor had entered the first of the third.
    let ([dead, ..], [alive, ..]) = (dead.lanes, alive.lanes);
    assert_eq!((dead.left, dead.entered), (alive.left, alive.left));
    assert!(alive.is_inside() && alive.entered == alive.left + 1, "{alive:?}");
}

#[test]
fn a_rank_that_never_starts_is_named_when_the_group_forms() {
    let mut ranks = Ranks::start(&[1, 2], 4, |task| task.timeout = SHORT);
    for index in [0, 1] {
        assert!(ranks.wait(index).success());
        let failure = ranks.report(index + 1).failure.unwrap();
        assert_eq!(failure.missing, [0, 3], "{}", failure.text);
        assert!(failure.after < SHORT + SLACK, "{:?}", failure.after);
    }
}

#[test]
fn another_model_is_refused_by_its_first_parameter_that_differs() {
    let mut ranks = Ranks::start(&[0, 1, 2], 3, |task| {
        if task.rank == 1 {
            task.fault = Fault::OtherModel;
        }
    });
    for rank in 0..3 {
        assert!(ranks.wait(rank).success());
        let failure = ranks.report(rank).failure.unwrap();
        assert_eq!(failure.parameter.as_deref(), Some("out.weight"), "{}", failure.text);
        assert!(failure.text.contains("[4, 24]") && failure.text.contains("[4, 16]"));
        assert!(failure.text.contains("rank 1 disagrees"), "{}", failure.text);
    }
}

#[test]
fn gradients_that_are_not_finite_are_seen_by_all_and_the_run_goes_on() {
    for fixed_tree in [true, false] {
        let mut ranks = Ranks::start(&[0, 1, 2], 3, |task| {
            task.fixed_tree = fixed_tree;
            if task.rank == 1 {
                task.fault = Fault::SpoiledIn { step: 1 };
            }
        });
        for rank in 0..3 {
            assert!(ranks.wait(rank).success());
            let report = ranks.report(rank);
            assert_eq!(report.non_finite, [(1, vec![1])]);
            assert_eq!((report.weights.len(), &report.weights[0]), (5, &report.weights[1]));
            assert_ne!(report.weights[1], report.weights[2]);
        }
    }
}

#[test]
fn a_vote_to_stop_stops_all_in_the_same_step() {
    let mut ranks = Ranks::start(&[0, 1, 2], 3, |task| {
        if task.rank == 2 {
            task.fault = Fault::StopsIn { step: 2 };
        }
    });
    for rank in 0..3 {
        assert!(ranks.wait(rank).success());
        let report = ranks.report(rank);
        assert_eq!((report.stopped_in, report.sums.len()), (Some(2), 3));
    }
}
