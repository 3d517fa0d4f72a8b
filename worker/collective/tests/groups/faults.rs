//! What each rank is told when something goes wrong, and whom it names.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    sync::{
        Barrier,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use lockstep_collective::{
    CpuGroup, Dtype, Formed, GroupError, OwnArena, Phase, ProcessGroup, ReduceOp, Span, SumOrder,
    What,
};
use sha2::{Digest as _, Sha256};

use crate::harness::{PATIENT, SHORT, Site, as_ranks, plan};

/// One of several arrangements of three ranks.
const ARRANGEMENTS: [&[usize]; 4] = [&[3], &[1, 1, 1], &[2, 1], &[1, 2]];

fn reduce(group: &mut CpuGroup, arena: &mut OwnArena) -> Option<GroupError> {
    let lease = arena.lease(0..1, 4..9);
    let (what, span) = (What::Bucket(1), Span::floats(4..9));
    let order = SumOrder::in_rank_order(0..group.world_size());
    group.all_reduce(what, lease, span, ReduceOp::Sum, &order).err()
}

#[test]
fn a_rank_that_does_not_enter_is_named_by_all_others() {
    // One of the same node, of another one, the only one of its node.
    for (nodes, late) in
        [(&[3][..], &[1][..]), (&[1, 1, 1], &[2]), (&[2, 1], &[1, 2]), (&[1, 2], &[1, 2])]
    {
        for late in late.iter().copied() {
            let plan = plan(nodes, &[4, 5]);
            let site = Site::new(nodes);
            let (all_have_formed, others_are_done) = (Barrier::new(3), Barrier::new(3));
            // One that entered a little later is told by the first whose time is over.
            let longest = AtomicU64::new(0);
            let errors = as_ranks(0..3, |rank| {
                let Formed { mut group, mut arena, .. } = site.form(rank, &plan, SHORT).unwrap();
                all_have_formed.wait();
                if rank == late {
                    others_are_done.wait();
                    return reduce(&mut group, &mut arena);
                }
                let started = Instant::now();
                let error = reduce(&mut group, &mut arena);
                let waited = started.elapsed();
                longest.fetch_max(waited.as_millis() as u64, Ordering::Relaxed);
                assert!(waited < PATIENT, "{error:?}");
                // Dead from now on, at once, with the same answer.
                let again = group.barrier().err();
                assert_eq!(format!("{again:?}"), format!("{error:?}"));
                others_are_done.wait();
                error
            });
            assert!(SHORT.as_millis() <= longest.into_inner().into(), "{nodes:?}");
            for rank in (0..3).filter(|rank| *rank != late) {
                let Some(GroupError::NotEntered { missing, at, .. }) = &errors[rank] else {
                    panic!("{nodes:?}, rank {late} is late: {:?}", errors[rank]);
                };
                assert_eq!(*missing, [late], "{nodes:?}: {:?}", errors[rank]);
                assert!(at.what.ends_with("bucket 2 of 2 (p1)") && at.sequence == 1, "{at:?}");
                let text = errors[rank].as_ref().unwrap().to_string();
                assert!(text.starts_with(&format!("rank {late} has not entered ")), "{text}");
            }
            // The late one does not go on alone.
            let late = errors[late].as_ref().unwrap();
            assert!(late.is_retryable(), "{late:?}");
        }
    }
}

#[test]
#[should_panic(expected = "leased to the communication thread")]
fn a_range_of_a_failed_collective_stays_leased() {
    let plan = plan(&[2], &[4, 5]);
    let site = Site::new(&plan.nodes);
    let mut formed = as_ranks(0..2, |rank| site.form(rank, &plan, SHORT).unwrap());
    let Formed { group, arena, .. } = &mut formed[0];
    assert!(reduce(group, arena).is_some());
    arena.floats(0, 5..6);
}

#[test]
fn an_abort_wakes_everybody_and_can_be_repeated() {
    for nodes in ARRANGEMENTS {
        let plan = plan(nodes, &[4]);
        let site = Site::new(nodes);
        let all_have_formed = Barrier::new(3);
        let errors = as_ranks(0..3, |rank| {
            let Formed { mut group, .. } = site.form(rank, &plan, PATIENT).unwrap();
            all_have_formed.wait();
            if rank == 2 {
                let aborter = group.aborter();
                aborter.abort();
                aborter.abort();
            }
            group.barrier().unwrap_err()
        });
        for rank in 0..2 {
            assert!(
                matches!(errors[rank], GroupError::Aborted { by: Some(2) }),
                "{nodes:?}: {errors:?}"
            );
        }
        assert!(matches!(errors[2], GroupError::Aborted { by: None }), "{nodes:?}: {errors:?}");
    }
}

#[test]
fn a_group_dropped_in_use_is_an_abort_and_one_that_is_left_is_not() {
    let plan = plan(&[2], &[4]);
    for leaves in [true, false] {
        let site = Site::new(&plan.nodes);
        let results = as_ranks(0..2, |rank| {
            let Formed { mut group, .. } = site.form(rank, &plan, SHORT).unwrap();
            group.barrier().unwrap();
            match (rank, leaves) {
                (0, _) => group.barrier(),
                (_, true) => {
                    Box::new(group).leave();
                    Ok(())
                }
                (_, false) => Ok(()),
            }
        });
        match &results[0] {
            Err(GroupError::NotEntered { missing, .. }) => assert!(leaves && *missing == [1]),
            Err(GroupError::Aborted { by: Some(1) }) => assert!(!leaves),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_connection_that_closes_names_its_rank_at_once() {
    for nodes in [&[1, 1, 1][..], &[2, 1]] {
        let plan = plan(nodes, &[4, 5]);
        let site = Site::new(nodes);
        let started = Instant::now();
        let errors = as_ranks(0..3, |rank| {
            let Formed { mut group, mut arena, .. } = site.form(rank, &plan, PATIENT).unwrap();
            group.barrier().unwrap();
            if rank == 2 {
                // Leaves while the others go on: to them it is as if its process had ended.
                Box::new(group).leave();
                return None;
            }
            reduce(&mut group, &mut arena)
        });
        assert!(started.elapsed() < PATIENT);
        for error in errors.iter().take(2) {
            let Some(GroupError::PeerGone { rank: 2, at, .. }) = error else {
                panic!("{nodes:?}: {errors:?}");
            };
            assert_eq!(at.sequence, 2, "{at:?}");
        }
    }
}

#[test]
fn ranks_in_different_places_are_told_so() {
    for nodes in [&[2][..], &[1, 1]] {
        let plan = plan(nodes, &[4, 5]);
        let site = Site::new(nodes);
        let errors = as_ranks(0..2, |rank| {
            let Formed { mut group, mut arena, .. } = site.form(rank, &plan, PATIENT).unwrap();
            group.barrier().unwrap();
            if rank == 0 {
                group.barrier().unwrap_err()
            } else {
                reduce(&mut group, &mut arena).unwrap()
            }
        });
        // The second to look may see that the first has given up.
        let diverged = errors.iter().find_map(|error| match error {
            GroupError::Diverged { rank, ours, theirs, sequence: 2 } => {
                Some((*rank, ours.clone(), theirs.clone()))
            }
            _ => None,
        });
        let (barrier, bucket) = ("a barrier".to_owned(), "bucket 2 of 2 (p1)".to_owned());
        match diverged.unwrap() {
            (1, ours, theirs) => assert_eq!((ours, theirs), (barrier, bucket)),
            (_, ours, theirs) => assert_eq!((ours, theirs), (bucket, barrier)),
        }
    }
}

#[test]
fn other_numbers_in_the_same_collective_are_told_with_both_sides() {
    for nodes in [&[2][..], &[1, 1]] {
        for (dtype, len, said) in
            [(Dtype::Bf16, 4, "the sum of 4 bf16"), (Dtype::F32, 3, "the sum of 3 f32")]
        {
            let plan = plan(nodes, &[4]);
            let site = Site::new(nodes);
            let errors = as_ranks(0..2, |rank| {
                let Formed { mut group, mut arena, .. } = site.form(rank, &plan, PATIENT).unwrap();
                let (dtype, len) = if rank == 0 { (Dtype::F32, 4) } else { (dtype, len) };
                let span = Span { first: 0, dtype, len };
                let (lease, order) = (arena.lease(0..1, 0..4), SumOrder::in_rank_order(0..2));
                group.all_reduce(What::Weights, lease, span, ReduceOp::Sum, &order).unwrap_err()
            });
            let told = errors.iter().find_map(|error| match error {
                GroupError::NumbersMismatch { rank, at, ours, theirs } => {
                    Some((*rank, at.what.clone(), ours.clone(), theirs.clone()))
                }
                _ => None,
            });
            let (rank, what, ours, theirs) = told.unwrap_or_else(|| panic!("{errors:?}"));
            assert_eq!(what, "an all-reduce of the weights");
            let usual = "the sum of 4 f32";
            let expected = if rank == 1 { (usual, said) } else { (said, usual) };
            assert_eq!((&*ours, &*theirs), expected);
        }
    }
}

/// The first words of rank 1 to rank 0, by somebody who knows the key or has heard them.
pub(crate) fn call(far: SocketAddr) -> (TcpStream, snow::HandshakeState) {
    let mut hello = [0; 24];
    hello[..4].copy_from_slice(b"LKSH");
    // Generation 1, from rank 1, to rank 0.
    (hello[8], hello[16]) = (1, 1);
    let mut hash = Sha256::new();
    hash.update(b"lockstep ranks");
    hash.update(1_u64.to_le_bytes());
    hash.update(b"a key");
    let psk: [u8; 32] = hash.finalize().into();
    let protocol = "Noise_NNpsk0_25519_ChaChaPoly_SHA256".parse().unwrap();
    let builder = snow::Builder::new(protocol).psk(0, &psk).unwrap();
    let mut state = builder.prologue(&hello).unwrap().build_initiator().unwrap();
    let mut message = [0; 48];
    state.write_message(&[], &mut message).unwrap();
    let mut stream = TcpStream::connect(far).unwrap();
    stream.write_all(&hello).unwrap();
    stream.write_all(&message).unwrap();
    (stream, state)
}

/// Says all the words of a rank that knows the key.
fn greet(far: SocketAddr) -> TcpStream {
    let (mut stream, mut state) = call(far);
    let mut answer = [0; 64];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(answer[0], 1, "let in");
    state.read_message(&answer[16..], &mut []).unwrap();
    let mut proof = [0; 16];
    state.into_transport_mode().unwrap().write_message(&[], &mut proof).unwrap();
    stream.write_all(&proof).unwrap();
    stream
}

#[test]
fn a_rank_that_sends_garbage_is_named() {
    let plan = plan(&[1, 1], &[4, 5]);
    for (garbage, said) in [
        (vec![7; 100], "07, 07, 07"),
        // A head of ours with numbers where a note belongs.
        (
            {
                let mut head = vec![0; 56];
                head[..4].copy_from_slice(b"LKS2");
                (head[4], head[8]) = (1, 1);
                head
            },
            "",
        ),
    ] {
        let site = Site::new(&plan.nodes);
        let errors = as_ranks(0..2, |rank| {
            if rank == 0 {
                return site.form(0, &plan, PATIENT).map(drop).err();
            }
            let mut stream = greet(site.address(0));
            stream.write_all(&garbage).unwrap();
            // Until it is hung up on.
            stream.set_read_timeout(Some(PATIENT)).unwrap();
            drop(stream.read_to_end(&mut Vec::new()));
            None
        });
        match &errors[0] {
            Some(GroupError::Garbage { rank: 1, detail, at }) if !said.is_empty() => {
                assert!(detail.contains(said), "{detail}");
                assert_eq!((at.sequence, at.phase), (0, Phase::Exchanging));
            }
            Some(GroupError::Diverged { rank: 1, .. }) if said.is_empty() => {}
            other => panic!("{other:?}"),
        }
    }
}
