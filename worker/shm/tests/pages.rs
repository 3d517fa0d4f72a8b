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
    ArenaShape, CONTROL_BYTES, Mapping, NodeArenas, OwnArena, Waited, create_group_memory,
    group_memory_bytes, inherited_group_memory, inherited_socket, size_group_memory, wait_until,
    wake_all,
};

fn sized(shape: ArenaShape) -> OwnedFd {
    let fd = create_group_memory().unwrap();
    size_group_memory(&fd, CONTROL_BYTES + shape.bytes()).unwrap();
    fd
}

fn mapped(fd: &OwnedFd, shape: ArenaShape, rank: usize) -> (OwnArena, NodeArenas) {
    let bytes = CONTROL_BYTES + shape.bytes();
    let map = Arc::new(Mapping::of_file(fd, bytes, CONTROL_BYTES).unwrap());
    let (arena, mut lanes) = map.take_floats(shape, rank, 1).unwrap();
    (arena, lanes.remove(0))
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
#[should_panic(expected = "a lease of another arena")]
fn a_lease_is_good_for_its_own_arena_only() {
    let (mut arena, _own) = mapped(&sized(SHAPE), SHAPE, 0);
    let (_, mut others) = mapped(&sized(SHAPE), SHAPE, 0);
    others.floats_mut(&arena.lease(0..1, 10..20));
}

#[test]
#[should_panic(expected = "lane 1 with a lease for 0")]
fn a_lease_is_good_for_its_own_lane_only() {
    let bytes = CONTROL_BYTES + SHAPE.bytes();
    let map = Arc::new(Mapping::of_file(sized(SHAPE), bytes, CONTROL_BYTES).unwrap());
    let (mut arena, mut lanes) = map.take_floats(SHAPE, 0, 2).unwrap();
    let lease = arena.lease_for(1, 0..1, 10..20);
    lanes[1].floats_mut(&lease).fill(1.0);
    drop(lease);
    lanes[1].floats_mut(&arena.lease(0..1, 10..20));
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
    assert!(map.take_floats(SHAPE, 0, 1).is_ok());
    assert!(map.take_floats(SHAPE, 0, 1).is_err());
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
fn an_inherited_socket_is_taken_over_once_and_nothing_else_is_taken_for_one() {
    let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    let fd = std::os::fd::IntoRawFd::into_raw_fd(socket);
    let taken = std::net::TcpListener::from(inherited_socket(fd).unwrap());
    assert_eq!(taken.local_addr().unwrap(), address);
    assert!(inherited_socket(fd).unwrap_err().to_string().ends_with("was taken over before"));
    let memory = create_group_memory().unwrap();
    assert!(inherited_socket(memory.as_raw_fd()).is_err());
    assert!(inherited_socket(987_654).is_err());
}
