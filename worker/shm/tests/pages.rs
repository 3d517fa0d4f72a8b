//! Shared pages: two mappings of one file behave as two processes would.
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::{
    fs::File,
    os::fd::{AsRawFd, OwnedFd},
    sync::{Arc, atomic::Ordering},
    thread,
    time::{Duration, Instant},
};

use lockstep_shm::{
    ArenaShape, CONTROL_BYTES, Mapping, OwnArena, Source, SumOp, Summer, Waited,
    create_group_memory, group_memory_bytes, inherited_group_memory, size_group_memory, wait_until,
    wake_all,
};
use proptest::prelude::*;

fn sized(shape: ArenaShape) -> OwnedFd {
    let fd = create_group_memory().unwrap();
    size_group_memory(&fd, CONTROL_BYTES + shape.bytes()).unwrap();
    fd
}

fn mapped(fd: &OwnedFd, shape: ArenaShape, rank: usize) -> (OwnArena, Summer) {
    let bytes = CONTROL_BYTES + shape.bytes();
    let map = Arc::new(Mapping::of_file(fd, bytes, CONTROL_BYTES).unwrap());
    map.take_floats(shape, rank).unwrap()
}

const SHAPE: ArenaShape = ArenaShape { ranks: 1, slots: 2, len: 100 };

#[test]
#[should_panic(expected = "leased to the communication thread")]
fn a_leased_range_cannot_be_read() {
    let (mut arena, _) = mapped(&sized(SHAPE), SHAPE, 0);
    let _lease = arena.lease(0..1, 10..20);
    arena.floats(0, 19..30);
}

#[test]
#[should_panic(expected = "leased to the communication thread")]
fn a_leased_range_cannot_be_written() {
    let (mut arena, _) = mapped(&sized(SHAPE), SHAPE, 0);
    let _lease = arena.lease(0..2, 10..20);
    arena.floats_mut(1, 0..11);
}

#[test]
#[should_panic(expected = "leased to the communication thread")]
fn a_range_is_not_leased_twice() {
    let (mut arena, _) = mapped(&sized(SHAPE), SHAPE, 0);
    let _lease = arena.lease(0..1, 10..20);
    let _again = arena.lease(0..1, 15..16);
}

#[test]
fn beside_a_lease_and_after_it_the_arena_is_free() {
    let (mut arena, _) = mapped(&sized(SHAPE), SHAPE, 0);
    let lease = arena.lease(0..1, 10..20);
    arena.floats_mut(0, 0..10).fill(1.0);
    arena.floats_mut(0, 20..100).fill(1.0);
    arena.floats_mut(1, 0..100).fill(2.0);
    drop(lease);
    arena.add(0, 1, 10..20);
    assert_eq!(
        arena.floats(0, 9..21),
        [1.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 1.0]
    );
}

#[test]
fn the_floats_of_a_mapping_are_handed_out_once() {
    let fd = sized(SHAPE);
    let bytes = CONTROL_BYTES + SHAPE.bytes();
    let map = Arc::new(Mapping::of_file(&fd, bytes, CONTROL_BYTES).unwrap());
    assert!(map.take_floats(SHAPE, 0).is_ok());
    assert!(map.take_floats(SHAPE, 0).is_err());
}

#[test]
fn the_memory_is_sized_once_and_cannot_shrink() {
    let fd = create_group_memory().unwrap();
    assert_eq!(group_memory_bytes(&fd).unwrap(), CONTROL_BYTES);
    size_group_memory(&fd, 2 * CONTROL_BYTES).unwrap();
    assert!(size_group_memory(&fd, 3 * CONTROL_BYTES).is_err());
    assert!(File::from(fd).set_len(0).is_err());
}

#[test]
fn only_group_memory_is_taken_for_group_memory() {
    let fd = create_group_memory().unwrap();
    let opened = inherited_group_memory(fd.as_raw_fd()).unwrap();
    let ours = Mapping::of_file(&fd, CONTROL_BYTES, CONTROL_BYTES).unwrap();
    let theirs = Mapping::of_file(&opened, CONTROL_BYTES, CONTROL_BYTES).unwrap();
    ours.u32_at(0).store(7, Ordering::Release);
    assert_eq!(theirs.u32_at(0).load(Ordering::Acquire), 7);

    let file = tempfile::tempfile().unwrap();
    assert!(inherited_group_memory(file.as_raw_fd()).is_err());
    assert!(inherited_group_memory(987_654).is_err());
}

#[test]
fn a_file_that_is_too_short_is_not_mapped() {
    let fd = create_group_memory().unwrap();
    assert!(Mapping::of_file(&fd, CONTROL_BYTES + 1, CONTROL_BYTES).is_err());
}

#[test]
fn a_sleeper_is_woken_through_another_mapping() {
    let fd = create_group_memory().unwrap();
    let ours = Mapping::of_file(&fd, CONTROL_BYTES, CONTROL_BYTES).unwrap();
    let theirs = Mapping::of_file(&fd, CONTROL_BYTES, CONTROL_BYTES).unwrap();
    let sleeper = thread::spawn(move || {
        let word = theirs.u32_at(64);
        let deadline = Instant::now() + Duration::from_secs(20);
        while word.load(Ordering::Acquire) == 0 {
            if wait_until(word, 0, deadline) == Waited::TimedOut {
                return false;
            }
        }
        true
    });
    ours.u32_at(64).store(1, Ordering::Release);
    wake_all(ours.u32_at(64));
    assert!(sleeper.join().unwrap());
}

#[test]
fn a_wait_ends_at_its_deadline() {
    let fd = create_group_memory().unwrap();
    let map = Mapping::of_file(&fd, CONTROL_BYTES, CONTROL_BYTES).unwrap();
    let started = Instant::now();
    let deadline = started + Duration::from_millis(50);
    while wait_until(map.u32_at(0), 0, deadline) != Waited::TimedOut {}
    assert!(Duration::from_millis(50) <= started.elapsed());
}

#[test]
fn what_is_not_finite_is_found_with_its_rank() {
    let shape = ArenaShape { ranks: 3, slots: 1, len: 5000 };
    let fd = sized(shape);
    let mut ranks: Vec<_> = (0..3).map(|rank| mapped(&fd, shape, rank)).collect();
    ranks[2].0.floats_mut(0, 4000..4001)[0] = f32::NAN;
    let program: Vec<SumOp> = (0..3)
        .map(|rank| Source { rank, slot: 0 })
        .map(|source| if source.rank == 0 { SumOp::Push(source) } else { SumOp::AddSource(source) })
        .collect();
    let (arena, summer) = &mut ranks[0];
    let lease = arena.lease(0..1, 0..5000);
    let clean = summer.sum(&lease, 0..4000, &program);
    assert!(!clean.is_non_finite && clean.ranks == 0);
    let found = summer.sum(&lease, 4000..5000, &program);
    assert!(found.is_non_finite && found.ranks == 0b100, "{found:?}");

    // Both are finite, their sum is not: nobody's fault.
    for (arena, _) in &mut ranks[1..] {
        arena.floats_mut(0, 0..1)[0] = f32::MAX;
    }
    let found = ranks[0].1.sum(&lease, 0..1, &program);
    assert!(found.is_non_finite && found.ranks == 0, "{found:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn a_sum_is_that_of_its_program_to_the_bit(
        ranks in 1..5_usize,
        len in 0..5000_usize,
        from in 0..200_usize,
        seed in any::<u32>(),
    ) {
        let shape = ArenaShape { ranks, slots: 2, len };
        let fd = sized(shape);
        let value = |rank: usize, slot: usize, index: usize| {
            let bits = (index as u32 * 8 + slot as u32 * 4 + rank as u32).wrapping_mul(seed | 1);
            (bits >> 8) as f32 / 1000.0 - 5000.0
        };
        let mut arenas: Vec<_> = (0..ranks).map(|rank| mapped(&fd, shape, rank)).collect();
        for (rank, (arena, _)) in arenas.iter_mut().enumerate() {
            for slot in 0..2 {
                for (index, float) in arena.floats_mut(slot, 0..len).iter_mut().enumerate() {
                    *float = value(rank, slot, index);
                }
            }
        }
        // (r0s0 + r0s1), and to it in turn (r1s0 + r1s1) …
        let mut program = Vec::new();
        for rank in 0..ranks {
            program.push(SumOp::Push(Source { rank, slot: 0 }));
            program.push(SumOp::AddSource(Source { rank, slot: 1 }));
            if 0 < rank {
                program.push(SumOp::Add);
            }
        }
        let range = from.min(len)..len;
        {
            let (arena, summer) = &mut arenas[0];
            let lease = arena.lease(0..2, 0..len);
            summer.sum(&lease, range.clone(), &program);
        }
        for (rank, (arena, _)) in arenas.iter().enumerate() {
            for (index, float) in arena.floats(0, 0..len).iter().enumerate() {
                let expected = if range.contains(&index) {
                    let pair = |rank| value(rank, 0, index) + value(rank, 1, index);
                    (1..ranks).fold(pair(0), |sum, rank| sum + pair(rank))
                } else {
                    value(rank, 0, index)
                };
                prop_assert_eq!(float.to_bits(), expected.to_bits());
            }
            prop_assert!(arena.floats(1, 0..len).iter().enumerate().all(|(i, v)| *v == value(rank, 1, i)));
        }
    }
}
