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
    FlightEntry, FlightKind, FlightOf, FlightOp, FlightPosition, FlightRecord, RING_ENTRIES,
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
        record.enter(sequence, BUCKET);
        record.meet(sequence);
        record.leave(sequence);
    }
    record.enter(9, BUCKET);
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
        entered,
        met,
        left,
        op,
        entered_ns,
        updated_ns,
        phase_since_ns,
        paused_until_ns,
    } = position;
    assert_eq!((rank, pid, phase, step), (3, child.id(), 5, 41));
    assert_eq!((entered, met, left, op, paused_until_ns), (9, 8, 8, BUCKET, 77));
    assert!(position.is_inside());
    assert!(0 < phase_since_ns && phase_since_ns <= entered_ns && entered_ns <= updated_ns);

    let tail = FlightRecord::open(&path).unwrap().tail(3).unwrap();
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
    assert_eq!(reader.tail(16).unwrap(), []);
    let last = RING_ENTRIES as u64 + 5;
    for sequence in 1..=last {
        record.enter(sequence, BUCKET);
        record.leave(sequence);
    }
    let numbers = |count| -> Vec<u64> {
        reader.tail(count).unwrap().iter().map(|entry| entry.sequence).collect()
    };
    assert_eq!(numbers(3), [last - 2, last - 1, last]);
    assert_eq!(numbers(usize::MAX), (6..=last).collect::<Vec<_>>());
    assert!(!reader.read().unwrap().is_inside());
    // Of a group that formed anew: what the old one had left is no longer in the way.
    record.enter(1, FlightOp::default());
    let position = reader.read().unwrap();
    assert_eq!((position.entered, position.left), (1, 0));
    assert!(position.is_inside());
    assert_eq!(numbers(16), [1]);
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
