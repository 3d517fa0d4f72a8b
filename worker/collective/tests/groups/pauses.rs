//! Announced pauses: who is waited for, how long, and who is not.

use std::{
    sync::Barrier,
    thread,
    time::{Duration, Instant},
};

use lockstep_collective::{CpuGroup, Formed, GroupError, ProcessGroup as _};
use lockstep_shm::{FlightKind, FlightOf, FlightRecord};

use crate::harness::{PATIENT, Site, as_ranks, plan};

/// The deadline of these groups.
const LIMIT: Duration = Duration::from_secs(2);

/// Busy for longer than others wait.
fn work(time: Duration) {
    thread::sleep(time);
}

/// Nodes, and the rank that is late: of one node, the only one of its node, one whose node another waits for.
const CASES: [(&[usize], usize); 6] =
    [(&[3], 1), (&[1, 1, 1], 2), (&[2, 1], 1), (&[2, 1], 2), (&[1, 2], 0), (&[1, 2], 2)];

/// All cases at once: most of the time passes in waiting.
fn in_every_case(body: impl Fn(&[usize], usize) + Sync) {
    thread::scope(|scope| {
        for (nodes, late) in CASES {
            let body = &body;
            scope.spawn(move || body(nodes, late));
        }
    });
}

fn form(site: &Site, rank: usize, nodes: &[usize]) -> CpuGroup {
    let Formed { group, .. } = site.form(rank, &plan(nodes, &[4]), LIMIT).unwrap();
    group
}

#[test]
fn a_rank_that_has_announced_a_pause_is_waited_for_beyond_the_deadline() {
    in_every_case(|nodes, late| {
        let site = Site::new(nodes);
        let all_are_done = Barrier::new(3);
        let errors = as_ranks(0..3, |rank| {
            let mut group = form(&site, rank, nodes);
            group.barrier().unwrap();
            if rank == late {
                group.announce_pause(4 * LIMIT);
                work(2 * LIMIT);
                group.end_pause();
                // Back, and at work for a while before it comes.
                work(LIMIT / 2);
            }
            let errors = (group.barrier().err(), group.barrier().err());
            // One that is dropped early is an abort to the others.
            all_are_done.wait();
            errors
        });
        for error in &errors {
            assert!(matches!(error, (None, None)), "{nodes:?}, rank {late}: {errors:?}");
        }
    });
}

#[test]
fn a_pause_that_runs_out_is_silence() {
    in_every_case(|nodes, late| {
        let site = Site::new(nodes);
        let (has_announced, others_are_done) = (Barrier::new(3), Barrier::new(3));
        let errors = as_ranks(0..3, |rank| {
            let mut group = form(&site, rank, nodes);
            group.barrier().unwrap();
            if rank == late {
                group.announce_pause(2 * LIMIT);
            }
            has_announced.wait();
            if rank == late {
                others_are_done.wait();
                return None;
            }
            let started = Instant::now();
            let error = group.barrier().err();
            let waited = started.elapsed();
            // One of them waits for the pause to run out; who waits for that one is told, or does so itself.
            assert!(3 * LIMIT / 2 < waited && waited < PATIENT, "{nodes:?}: {waited:?} {error:?}");
            others_are_done.wait();
            error
        });
        for rank in (0..3).filter(|rank| *rank != late) {
            let Some(GroupError::NotEntered { missing, .. }) = &errors[rank] else {
                panic!("{nodes:?}, rank {late} is late: {errors:?}");
            };
            assert_eq!(*missing, [late], "{nodes:?}: {errors:?}");
        }
    });
}

#[test]
fn a_rank_that_pauses_excuses_no_other() {
    for nodes in [&[3][..], &[1, 1, 1]] {
        let site = Site::new(nodes);
        let (has_announced, one_is_done) = (Barrier::new(3), Barrier::new(3));
        let errors = as_ranks(0..3, |rank| {
            let mut group = form(&site, rank, nodes);
            group.barrier().unwrap();
            if rank == 1 {
                group.announce_pause(4 * LIMIT);
            }
            has_announced.wait();
            let started = Instant::now();
            let error = (rank == 0).then(|| group.barrier().unwrap_err());
            assert!(rank != 0 || started.elapsed() < 2 * LIMIT, "{:?}", started.elapsed());
            one_is_done.wait();
            error
        });
        let Some(GroupError::NotEntered { missing, .. }) = &errors[0] else {
            panic!("{nodes:?}: {errors:?}")
        };
        assert_eq!(*missing, [2], "{nodes:?}: {errors:?}");
    }
}

#[test]
fn an_announcement_is_good_for_five_timeouts_at_most() {
    let site = Site::new(&[1]);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("record");
    let mut join = site.join(0, LIMIT);
    join.record = Some(FlightRecord::create(&path, 0).unwrap().into());
    let mut group = CpuGroup::form(&join, &plan(&[1], &[4])).unwrap().group;
    group.announce_pause(100 * LIMIT);
    let until = FlightRecord::open(&path).unwrap().read().unwrap().paused_until_ns;
    let left = Duration::from_nanos(until - lockstep_shm::monotonic_ns());
    assert!(4 * LIMIT < left && left <= 5 * LIMIT, "{left:?}");
    group.end_pause();
    assert_eq!(FlightRecord::open(&path).unwrap().read().unwrap().paused_until_ns, 0);
}

#[test]
fn the_flight_record_says_which_collective_a_rank_is_in() {
    let site = Site::new(&[2]);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("record");
    let is_about_to_enter = Barrier::new(2);
    as_ranks(0..2, |rank| {
        let mut join = site.join(rank, PATIENT);
        if rank == 0 {
            join.record = Some(FlightRecord::create(&path, 0).unwrap().into());
        }
        let mut group = CpuGroup::form(&join, &plan(&[2], &[4])).unwrap().group;
        group.barrier().unwrap();
        if rank == 1 {
            let reader = FlightRecord::open(&path).unwrap();
            is_about_to_enter.wait();
            let deadline = Instant::now() + PATIENT;
            while !reader.read().unwrap().lanes[0].is_inside() {
                assert!(Instant::now() < deadline);
                thread::yield_now();
            }
            let [lane, ..] = reader.read().unwrap().lanes;
            assert_eq!((lane.entered, lane.met, lane.left), (2, 1, 1));
            assert_eq!((lane.op.kind, lane.op.of), (FlightKind::Barrier, FlightOf::Numbers));
            group.barrier().unwrap();
            return;
        }
        is_about_to_enter.wait();
        group.barrier().unwrap();
        let [lane, ..] = FlightRecord::open(&path).unwrap().read().unwrap().lanes;
        assert_eq!((lane.entered, lane.met, lane.left), (2, 2, 2));
    });
}
