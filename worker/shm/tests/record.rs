//! The flight record outlives its writer.
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::{
    env,
    io::{self, BufRead, Write},
    os::unix::process::ExitStatusExt,
    path::Path,
    process::{Child, Command, Stdio},
    thread,
};

use lockstep_shm::{
    FlightEntry, FlightKind, FlightLane, FlightOf, FlightOp, FlightPosition, FlightRecord, LANES,
    RING_ENTRIES,
};

const BUCKET: FlightOp =
    FlightOp { kind: FlightKind::AllReduce, of: FlightOf::Bucket { index: 2, count: 9 } };

/// The other process: writes the record that standard input names, says so, and waits to be killed.
#[test]
#[ignore = "started by another test, as a process of its own"]
fn writer() {
    let mut path = String::new();
    io::stdin().lock().read_line(&mut path).unwrap();
    let record = FlightRecord::create(path.trim_end(), 3).unwrap();
    record.set_step(41);
    record.set_phase(5);
    for sequence in 1..=8 {
        record.enter(0, sequence, BUCKET);
        record.meet(0, sequence);
        record.leave(0, sequence);
    }
    record.enter(0, 9, BUCKET);
    record.set_paused_until(77);
    io::stderr().write_all(b"written\n").unwrap();
    thread::park();
}

fn start_writer(path: &Path) -> Child {
    let mut child = Command::new(env::current_exe().unwrap())
        .args(["--exact", "writer", "--ignored", "--nocapture"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    writeln!(child.stdin.as_mut().unwrap(), "{}", path.display()).unwrap();
    child
}

#[test]
fn a_killed_process_leaves_its_last_position() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("record");
    let mut child = start_writer(&path);
    let stderr = io::BufReader::new(child.stderr.take().unwrap());
    assert!(stderr.lines().any(|line| line.unwrap() == "written"));
    child.kill().unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(9));

    let position = FlightRecord::open(&path).unwrap().read().unwrap();
    let FlightPosition {
        rank,
        pid,
        phase,
        step,
        lanes,
        updated_ns,
        phase_since_ns,
        paused_until_ns,
    } = position;
    assert_eq!((rank, pid, phase, step, paused_until_ns), (3, child.id(), 5, 41, 77));
    let FlightLane { entered, met, left, op, entered_ns } = lanes[0];
    assert_eq!((entered, met, left, op), (9, 8, 8, BUCKET));
    assert!(lanes[0].is_inside());
    assert!(0 < phase_since_ns && phase_since_ns <= entered_ns && entered_ns <= updated_ns);

    let tail = FlightRecord::open(&path).unwrap().tail(0, 3).unwrap();
    let [FlightEntry { sequence: 7, .. }, before, last] = &tail[..] else { panic!("{tail:?}") };
    assert!(before.entered_ns <= before.met_ns && before.met_ns <= before.left_ns);
    assert_eq!((last.sequence, last.step, last.op), (9, 41, BUCKET));
    assert_eq!((last.entered_ns, last.met_ns, last.left_ns), (entered_ns, 0, 0));
}

#[test]
fn the_ring_keeps_the_last_collectives_and_another_group_begins_again_from_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("record");
    let record = FlightRecord::create(&path, 0).unwrap();
    let reader = FlightRecord::open(&path).unwrap();
    assert_eq!(reader.tail(0, 16).unwrap(), []);
    let last = RING_ENTRIES as u64 + 5;
    for sequence in 1..=last {
        record.enter(0, sequence, BUCKET);
        record.leave(0, sequence);
    }
    let numbers = |count| -> Vec<u64> {
        reader.tail(0, count).unwrap().iter().map(|entry| entry.sequence).collect()
    };
    assert_eq!(numbers(3), [last - 2, last - 1, last]);
    assert_eq!(numbers(usize::MAX), (6..=last).collect::<Vec<_>>());
    assert!(!reader.read().unwrap().lanes[0].is_inside());
    // Of a group that formed anew: what the old one had left is no longer in the way.
    record.enter(0, 1, FlightOp::default());
    let [lane, ..] = reader.read().unwrap().lanes;
    assert_eq!((lane.entered, lane.left, lane.is_inside()), (1, 0, true));
    assert_eq!(numbers(16), [1]);
}

#[test]
fn every_lane_has_numbers_and_a_past_of_its_own_and_one_too_many_is_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("record");
    let record = FlightRecord::create(&path, 0).unwrap();
    let reader = FlightRecord::open(&path).unwrap();
    for lane in 0..=LANES {
        for sequence in 1..=lane as u64 + 1 {
            record.enter(lane, sequence, BUCKET);
            record.meet(lane, sequence);
            record.leave(lane, sequence);
        }
    }
    record.enter(2, 4, FlightOp::default());
    let lanes = reader.read().unwrap().lanes;
    let far = lanes.map(|it| (it.entered, it.met, it.left));
    let expected: [(u64, u64, u64); LANES] = std::array::from_fn(|lane| match lane as u64 + 1 {
        3 => (4, 3, 3),
        last => (last, last, last),
    });
    assert_eq!(far, expected);
    assert!(lanes[2].is_inside() && lanes[2].op != lanes[1].op && !lanes[1].is_inside());
    for (lane, (entered, ..)) in expected.into_iter().enumerate() {
        let past = reader.tail(lane, usize::MAX).unwrap();
        let numbers: Vec<u64> = past.iter().map(|entry| entry.sequence).collect();
        assert_eq!(numbers, (1..=entered).collect::<Vec<_>>());
    }
    assert_eq!(reader.tail(LANES, 3).unwrap(), []);
    record.set_step(7);
    record.forget_lanes();
    let position = reader.read().unwrap();
    assert_eq!((position.lanes, position.step), ([FlightLane::default(); LANES], 7));
    assert_eq!(reader.tail(2, 3).unwrap(), []);
}

#[test]
fn a_reader_follows_a_living_writer_and_a_new_writer_starts_afresh() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("record");
    let first = FlightRecord::create(&path, 0).unwrap();
    let reader = FlightRecord::open(&path).unwrap();
    assert_eq!(reader.read().unwrap().step, -1);
    first.set_step(12);
    let seen = reader.read().unwrap();
    first.set_phase(2);
    let later = reader.read().unwrap();
    assert_eq!((seen.step, seen.phase, later.phase), (12, 0, 2));
    assert!(seen.updated_ns <= later.updated_ns);
    drop(first);
    let second = FlightRecord::create(&path, 1).unwrap();
    let position = FlightRecord::open(&path).unwrap().read().unwrap();
    assert_eq!((position.rank, position.step), (1, -1));
    second.set_phase(1);
}

#[test]
fn another_file_is_no_record() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("other");
    std::fs::write(&path, [b'x'; 4096]).unwrap();
    let error = FlightRecord::open(&path).unwrap().read().unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    std::fs::write(&path, b"short").unwrap();
    assert!(FlightRecord::open(&path).unwrap().read().is_err());
}
