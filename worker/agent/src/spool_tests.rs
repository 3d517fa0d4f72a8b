//! The spool: bounds, trimming, and a crash at any byte.

use lockstep_api::{ClockAnchor, Rank};
use proptest::prelude::*;

use super::*;
use crate::gang::tests::fence;

const CAP: u64 = 1 << 20;

fn folder() -> (tempfile::TempDir, Utf8PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = Utf8PathBuf::try_from(folder.path().join("reports.jsonl")).unwrap();
    (folder, path)
}

fn report(pid: i32) -> Report {
    Report::RankStarted { rank: Rank(0), pid }
}

fn append(spool: &Spool, pid: i32) -> i64 {
    match spool.append(fence(1, 1), report(pid)) {
        Kept::Yes(seq) => seq,
        Kept::TooMuch => unreachable!("neither log nor timeline was appended"),
    }
}

fn waiting(spool: &Spool) -> Vec<(i64, Report)> {
    let batch = spool.next_batch(usize::MAX, u64::MAX).unwrap();
    batch.into_iter().map(|it| (it.seq, it.report)).collect()
}

#[test]
fn batches_keep_to_both_limits_and_always_go_on() {
    let (_keep, path) = folder();
    let spool = Spool::open(&path, CAP).unwrap();
    for pid in 0..5 {
        append(&spool, pid);
    }
    assert_eq!(spool.next_batch(3, u64::MAX).unwrap().len(), 3);
    assert_eq!(spool.next_batch(3, 1).unwrap().len(), 1);
    spool.ack(4);
    assert_eq!(waiting(&spool), [(5, report(4))]);
    assert_eq!(*spool.acked().borrow(), 4);
    spool.ack(2);
    assert_eq!(*spool.acked().borrow(), 4);
}

#[test]
fn when_much_waits_logs_are_turned_away_and_ranks_held_back() {
    let (_keep, path) = folder();
    let spool = Spool::open(&path, 1000).unwrap();
    let log = || Report::Log { lines: Vec::new() };
    assert!(matches!(spool.append(fence(1, 1), log()), Kept::Yes(_)));
    while !spool.is_full() {
        append(&spool, 1);
    }
    assert_eq!(spool.append(fence(1, 1), log()), Kept::TooMuch);
    assert!(matches!(spool.append(fence(1, 1), Report::Finished), Kept::Yes(_)));
    spool.ack(*spool.newest().borrow());
    assert!(!spool.is_full());
    assert!(matches!(spool.append(fence(1, 1), log()), Kept::Yes(_)));
}

#[test]
fn timelines_are_turned_away_before_logs_are() {
    let (_keep, path) = folder();
    let spool = Spool::open(&path, 4000).unwrap();
    let clock = ClockAnchor { at: chrono::DateTime::UNIX_EPOCH, monotonic_ns: 0 };
    let timeline = || Report::Timeline { clock, steps: Vec::new() };
    let mut kept = 0;
    while let Kept::Yes(_) = spool.append(fence(1, 1), timeline()) {
        kept += 1;
    }
    assert!(1 < kept);
    let log = Report::Log { lines: Vec::new() };
    assert!(matches!(spool.append(fence(1, 1), log), Kept::Yes(_)));
}

#[test]
fn the_file_shrinks_when_it_was_acknowledged_and_keeps_what_was_not() {
    let (_keep, path) = folder();
    let spool = Spool::open(&path, u64::MAX).unwrap();
    for pid in 0..i32::try_from(COMPACT_BYTES / 100).unwrap() {
        append(&spool, pid);
    }
    let before = std::fs::metadata(&path).unwrap().len();
    assert!(COMPACT_BYTES < before);
    let newest = *spool.newest().borrow();
    spool.ack(newest - 2);
    assert!(std::fs::metadata(&path).unwrap().len() < 1000);
    let kept = waiting(&spool);
    assert_eq!(kept.len(), 2);
    assert_eq!(append(&spool, 7), newest + 1);
    drop(spool);
    let again = Spool::open(&path, u64::MAX).unwrap();
    assert_eq!(waiting(&again)[..2], kept);
    assert_eq!(append(&again, 8), newest + 2);
}

#[test]
fn numbers_go_on_above_what_the_server_has_seen_even_if_the_disk_lost_them() {
    let (_keep, path) = folder();
    let spool = Spool::open(&path, CAP).unwrap();
    append(&spool, 1);
    spool.adopt(50);
    assert_eq!(waiting(&spool), []);
    assert_eq!(append(&spool, 2), 51);
    drop(spool);
    let again = Spool::open(&path, CAP).unwrap();
    assert_eq!(append(&again, 3), 52);
    // A server that has seen less (it joined anew) changes nothing.
    again.adopt(0);
    assert_eq!(append(&again, 4), 53);
}

#[test]
fn a_file_that_is_no_spool_is_started_afresh() {
    let (_keep, path) = folder();
    for text in ["", "garbage", "garbage\n{}\n"] {
        std::fs::write(&path, text).unwrap();
        let spool = Spool::open(&path, CAP).unwrap();
        assert_eq!(append(&spool, 1), 1);
        drop(spool);
        assert_eq!(waiting(&Spool::open(&path, CAP).unwrap()), [(1, report(1))]);
    }
}

proptest! {
    /// The file is cut at any byte, as a crash might: what is left is a beginning of what waited, in order,
    /// whole; and appending goes on above it.
    #[test]
    fn a_crash_at_any_byte_leaves_a_beginning(
        count in 0..12i32,
        acked in 0..12i64,
        at in any::<prop::sample::Index>(),
    ) {
        let (_keep, path) = folder();
        let spool = Spool::open(&path, CAP).unwrap();
        let all: Vec<(i64, Report)> =
            (0..count).map(|pid| (append(&spool, pid), report(pid))).collect();
        spool.ack(acked.min(i64::from(count)));
        drop(spool);
        let bytes = std::fs::read(&path).unwrap();
        let cut = at.index(bytes.len() + 1);
        std::fs::write(&path, &bytes[..cut]).unwrap();

        let spool = Spool::open(&path, CAP).unwrap();
        let left = waiting(&spool);
        prop_assert!(all.starts_with(&left), "{left:?}");
        let whole = bytes[..cut].iter().filter(|byte| **byte == b'\n').count();
        prop_assert_eq!(left.len(), whole.saturating_sub(1));
        let next = append(&spool, 99);
        prop_assert!(left.last().is_none_or(|(seq, _)| *seq < next));
        drop(spool);
        let again = waiting(&Spool::open(&path, CAP).unwrap());
        prop_assert_eq!(&again[..left.len()], &left[..]);
        prop_assert_eq!(again.len(), left.len() + 1);
    }
}
