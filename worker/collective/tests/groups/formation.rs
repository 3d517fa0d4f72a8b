//! How groups form, and who is not let in.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    sync::Barrier,
    time::Duration,
};

use lockstep_collective::{CpuGroup, Formed, GroupError, ProcessGroup};

use crate::harness::{PATIENT, SHORT, Site, as_ranks, plan};

#[test]
fn those_who_do_not_join_are_named() {
    // The node's leader among the missing, and not.
    for (joining, absent) in [(0..2, vec![2, 3]), (1..3, vec![0, 3])] {
        let plan = plan(&[4], &[4]);
        let site = Site::new(&plan.nodes);
        let errors = as_ranks(joining, |rank| site.form(rank, &plan, SHORT).unwrap_err());
        let mut longest = Duration::ZERO;
        for error in errors {
            let GroupError::FormationTimeout { missing, waited } = error else {
                panic!("{error:?}");
            };
            assert_eq!(missing, absent);
            longest = longest.max(waited);
        }
        // One that came a little later is told by the first whose time is over.
        assert!((SHORT..PATIENT).contains(&longest), "{longest:?}");
    }
}

#[test]
fn ranks_may_take_longer_to_meet_than_to_meet_again() {
    for nodes in [&[2][..], &[1, 1]] {
        let plan = plan(nodes, &[4]);
        let site = Site::new(nodes);
        let limit = Duration::from_millis(500);
        let all_are_done = Barrier::new(2);
        let met = as_ranks(0..2, |rank| {
            if rank == 1 {
                std::thread::sleep(2 * limit);
            }
            let mut join = site.join(rank, limit);
            join.formation = PATIENT;
            let met = CpuGroup::form(&join, &plan);
            all_are_done.wait();
            met.map(drop)
        });
        assert!(met.iter().all(Result::is_ok), "{nodes:?}: {met:?}");
    }
}

#[test]
fn a_node_that_does_not_come_is_named_by_its_rank() {
    let plan = plan(&[1, 1], &[4]);
    let site = Site::new(&plan.nodes);
    let error = site.form(0, &plan, SHORT).unwrap_err();
    assert!(
        matches!(&error, GroupError::FormationTimeout { missing, .. } if *missing == [1]),
        "{error:?}"
    );
    // Its socket is there, but nobody answers.
    let error = site.form(1, &plan, SHORT).unwrap_err();
    assert!(matches!(error, GroupError::Unreachable { rank: 0, .. }), "{error:?}");
}

#[test]
fn a_different_plan_is_reported_alike_on_all_ranks() {
    for nodes in [&[3][..], &[1, 1, 1], &[2, 1]] {
        let usual = plan(nodes, &[4, 6]);
        let mut other = usual.clone();
        other.buckets[1].params[0].shape = vec![2, 3];
        let site = Site::new(nodes);
        let errors = as_ranks(0..3, |rank| {
            let plan = if rank == 2 { &other } else { &usual };
            site.form(rank, plan, PATIENT).unwrap_err()
        });
        for error in errors {
            let GroupError::PlanMismatch { rank: 2, parameter, rank_zero, other } = error else {
                panic!("{nodes:?}: {error:?}");
            };
            assert_eq!(parameter, "p1");
            assert_eq!(
                (rank_zero.as_str(), other.as_str()),
                ("p1 [6] in bucket 2", "p1 [2, 3] in bucket 2")
            );
        }
    }
}

#[test]
fn a_rank_joins_once_and_memory_is_used_once() {
    let plan = plan(&[1], &[4]);
    let site = Site::new(&plan.nodes);
    let first = site.form(0, &plan, PATIENT).unwrap();
    let error = site.form(0, &plan, PATIENT).unwrap_err();
    assert!(matches!(error, GroupError::Io { operation: "joining the group", .. }), "{error:?}");
    // The one who was there is not disturbed.
    let Formed { mut group, .. } = first;
    group.barrier().unwrap();
}

#[test]
fn a_rank_of_an_earlier_generation_is_told_so_and_the_group_forms_without_it() {
    let plan = plan(&[1, 1], &[4]);
    let site = Site::new(&plan.nodes);
    // The same ranks of a generation ago: own pages, the present group's sockets.
    let old = Site::new(&plan.nodes);
    let mut stale = old.network(1, 6);
    stale.endpoints[0] = vec![site.address(0)];
    let is_told = Barrier::new(2);
    let results = as_ranks(0..3, |thread| {
        if thread == 2 {
            let error = old.form_over(1, &plan, PATIENT, stale_of(&stale)).map(drop).unwrap_err();
            is_told.wait();
            return error;
        }
        if thread == 1 {
            // Until then rank 0 listens.
            is_told.wait();
        }
        let network = site.network(thread, 7);
        let Formed { mut group, .. } = site.form_over(thread, &plan, PATIENT, network).unwrap();
        group.barrier().unwrap();
        Box::new(group).leave();
        GroupError::Aborted { by: None }
    });
    let stale = &results[2];
    assert!(
        matches!(stale, GroupError::StaleGeneration { rank: 0, ours: 6, theirs: 7 }),
        "{stale:?}"
    );
}

fn stale_of(network: &lockstep_collective::Network) -> lockstep_collective::Network {
    lockstep_collective::Network {
        listener: network.listener.try_clone().unwrap(),
        endpoints: network.endpoints.clone(),
        key: network.key.clone(),
        links: network.links.clone(),
        ..*network
    }
}

#[test]
fn strangers_are_hung_up_on_and_keep_nobody_out() {
    let plan = plan(&[1, 1], &[4]);
    let site = Site::new(&plan.nodes);
    // One talks nonsense, one says nothing at all.
    let mut loud = TcpStream::connect(site.address(0)).unwrap();
    loud.write_all(&[b'x'; 200]).unwrap();
    let _silent = TcpStream::connect(site.address(0)).unwrap();
    as_ranks(0..2, |rank| {
        let Formed { mut group, .. } = site.form(rank, &plan, PATIENT).unwrap();
        group.barrier().unwrap();
        Box::new(group).leave();
    });
    loud.set_read_timeout(Some(PATIENT)).unwrap();
    let mut answer = Vec::new();
    // Closed with what was not read still there: a reset is as good as an end.
    drop(loud.read_to_end(&mut answer));
    assert!(answer.is_empty(), "{answer:?}");
}

#[test]
fn whoever_does_not_know_the_key_is_not_let_in() {
    let plan = plan(&[1, 1], &[4]);
    let site = Site::new(&plan.nodes);
    let errors = as_ranks(0..2, |rank| {
        let mut network = site.network(rank, 1);
        if rank == 1 {
            network.key = b"another key".to_vec();
        }
        site.form_over(rank, &plan, SHORT, network).unwrap_err()
    });
    assert!(
        matches!(&errors[0], GroupError::FormationTimeout { missing, .. } if *missing == [1]),
        "{errors:?}"
    );
    assert!(matches!(errors[1], GroupError::Unreachable { rank: 0, .. }), "{errors:?}");
}

#[test]
fn a_rank_that_misses_another_node_tells_its_own() {
    let plan = plan(&[2, 1], &[4]);
    let site = Site::new(&plan.nodes);
    let errors = as_ranks(0..2, |rank| {
        let timeout = if rank == 0 { PATIENT } else { SHORT };
        site.form(rank, &plan, timeout).unwrap_err()
    });
    for (rank, error) in errors.iter().enumerate() {
        match error {
            GroupError::FormationTimeout { missing, waited } => {
                assert_eq!(*missing, [2], "rank {rank}");
                assert!(*waited < PATIENT, "rank {rank} waited {waited:?}");
            }
            other => panic!("rank {rank}: {other:?}"),
        }
    }
}

#[test]
fn whoever_only_repeats_what_a_rank_has_said_does_not_take_its_place() {
    let plan = plan(&[1, 1], &[4]);
    let site = Site::new(&plan.nodes);
    let (mut stream, _) = crate::faults::call(site.address(0));
    as_ranks(0..2, |rank| {
        let Formed { mut group, .. } = site.form(rank, &plan, PATIENT).unwrap();
        group.barrier().unwrap();
        Box::new(group).leave();
    });
    // It was answered, could not say more, and was hung up on.
    stream.set_read_timeout(Some(PATIENT)).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    assert_eq!(answer.len(), 64);
}
