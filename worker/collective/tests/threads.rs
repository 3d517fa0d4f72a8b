//! Groups of threads: each rank maps the memory for itself, as a process would.
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::{
    ops::Range,
    os::fd::OwnedFd,
    sync::Barrier,
    thread,
    time::{Duration, Instant},
};

use lockstep_collective::{
    Ballot, Bucket, Formed, GroupError, Plan, PlanParam, ProcessGroup, ShmGroup, SumOrder,
};
use lockstep_shm::create_group_memory;
use proptest::prelude::*;

/// Long enough for a loaded machine; no test that passes waits for it.
const PATIENT: Duration = Duration::from_secs(30);
/// For tests that wait until it is over.
const SHORT: Duration = Duration::from_secs(4);

/// One bucket of each of these lengths, one parameter in each.
fn plan(world: usize, lens: &[usize]) -> Plan {
    let mut arena_len = 0;
    let bucket = |(index, len): (usize, &usize)| {
        arena_len += len;
        let params = vec![PlanParam { name: format!("p{index}"), shape: vec![*len] }];
        Bucket { range: arena_len - len..arena_len, params }
    };
    let buckets = lens.iter().enumerate().map(bucket).collect();
    Plan {
        world,
        arena_len,
        slots: 1,
        reduction: "fast".to_owned(),
        grain_rows: 8,
        grain_columns: 2,
        buckets,
    }
}

/// Runs `body` as every one of `ranks`, on threads, and returns the answers in their order.
fn as_ranks<T: Send>(ranks: Range<usize>, body: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let body = &body;
    thread::scope(|scope| {
        let threads: Vec<_> = ranks.map(|rank| scope.spawn(move || body(rank))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn form(fd: &OwnedFd, rank: usize, plan: &Plan, timeout: Duration) -> Result<Formed, GroupError> {
    ShmGroup::form(fd, rank, plan.world, plan, timeout, None)
}

fn value(rank: usize, index: usize) -> f32 {
    (index * 7 + rank * 13 + 1) as f32 / (3 + rank) as f32
}

const BALLOT: Ballot =
    Ballot { step: 5, grains_total: 3, grains: 1, stop: false, non_finite: false };

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn a_sum_is_in_rank_order_and_the_same_everywhere(
        world in 1..7_usize,
        lens in proptest::collection::vec(0..400_usize, 1..5),
    ) {
        let plan = plan(world, &lens);
        let fd = create_group_memory().unwrap();
        let results = as_ranks(0..world, |rank| {
            let Formed { mut group, mut arena, .. } = form(&fd, rank, &plan, PATIENT).unwrap();
            for (index, float) in arena.floats_mut(0, 0..plan.arena_len).iter_mut().enumerate() {
                *float = value(rank, index);
            }
            let order = SumOrder::in_rank_order(0..world);
            for (index, bucket) in plan.buckets.iter().enumerate() {
                let lease = arena.lease(0..1, bucket.range.clone());
                group.all_reduce(index, lease, &order).unwrap();
            }
            group.leave();
            arena.floats(0, 0..plan.arena_len).to_vec()
        });
        let expected: Vec<f32> = (0..plan.arena_len)
            .map(|index| (1..world).fold(value(0, index), |sum, rank| sum + value(rank, index)))
            .collect();
        for result in results {
            prop_assert_eq!(&result, &expected);
        }
    }
}

#[test]
fn f64_sums_are_exact_where_one_rank_has_the_value() {
    let plan = plan(3, &[1]);
    let fd = create_group_memory().unwrap();
    let results = as_ranks(0..3, |rank| {
        let Formed { mut group, .. } = form(&fd, rank, &plan, PATIENT).unwrap();
        // More than one round's worth.
        let mut values: Vec<f64> = (0..150)
            .map(|index| if index % 3 == rank { 0.1 + index as f64 } else { 0.0 })
            .collect();
        for _ in 0..4 {
            let mut again = values.clone();
            group.all_reduce_f64(&mut again).unwrap();
            values.fill(0.0);
            values.iter_mut().zip(again).skip(rank).step_by(3).for_each(|(v, a)| *v = a);
        }
        group.all_reduce_f64(&mut values).unwrap();
        group.leave();
        values
    });
    let expected: Vec<f64> = (0..150).map(|index| 0.1 + f64::from(index)).collect();
    assert!(results.iter().all(|values| *values == expected));
}

#[test]
fn a_broadcast_gives_everybody_what_the_root_has() {
    let plan = plan(3, &[100]);
    let fd = create_group_memory().unwrap();
    as_ranks(0..3, |rank| {
        let Formed { mut group, mut arena, .. } = form(&fd, rank, &plan, PATIENT).unwrap();
        let mut values: Vec<f32> = (0..90).map(|index| value(rank, index)).collect();
        arena.floats_mut(0, 5..95).copy_from_slice(&values);
        let lease = arena.lease(0..1, 5..95);
        group.broadcast(2, lease, &mut values).unwrap();
        group.leave();
        assert!(values.iter().enumerate().all(|(index, got)| *got == value(2, index)));
    });
}

#[test]
fn votes_are_counted_alike_on_all_ranks() {
    let plan = plan(3, &[40]);
    let fd = create_group_memory().unwrap();
    let tallies = as_ranks(0..3, |rank| {
        let Formed { mut group, mut arena, .. } = form(&fd, rank, &plan, PATIENT).unwrap();
        let order = SumOrder::in_rank_order(0..3);
        let mut vote = |ballot: Ballot, spoiled: Option<usize>| {
            arena.floats_mut(0, 0..40).fill(1.0);
            if let Some(index) = spoiled {
                arena.floats_mut(0, index..index + 1)[0] = f32::INFINITY;
            }
            let lease = arena.lease(0..1, 0..40);
            group.all_reduce_and_vote(0, lease, &order, ballot).unwrap()
        };
        let quiet = vote(BALLOT, None);
        let stop = vote(Ballot { stop: rank == 1, grains: u64::from(rank != 2), ..BALLOT }, None);
        let loss = vote(Ballot { non_finite: rank == 2, ..BALLOT }, None);
        let gradient = vote(BALLOT, (rank == 1).then_some(39));
        let quiet_again = vote(BALLOT, None);
        group.leave();
        [quiet, stop, loss, gradient, quiet_again]
    });
    let [quiet, stop, loss, gradient, quiet_again] = tallies[0];
    assert!(tallies.iter().all(|tally| *tally == tallies[0]));
    assert!(!quiet.stop && !quiet.non_finite && quiet.with_data == 3 && quiet == quiet_again);
    assert!(stop.stop && !stop.non_finite && stop.with_data == 2);
    assert!(loss.non_finite && loss.non_finite_ranks == 0b100);
    assert!(gradient.non_finite && gradient.non_finite_ranks == 0b010);
}

#[test]
fn a_rank_that_does_not_enter_is_named_by_all_others() {
    let plan = plan(3, &[4, 5]);
    let fd = create_group_memory().unwrap();
    let (all_have_formed, others_are_done) = (Barrier::new(3), Barrier::new(3));
    let errors = as_ranks(0..3, |rank| {
        let Formed { mut group, mut arena, .. } = form(&fd, rank, &plan, SHORT).unwrap();
        all_have_formed.wait();
        if rank == 1 {
            others_are_done.wait();
            return group.barrier().err();
        }
        let started = Instant::now();
        let lease = arena.lease(0..1, 4..9);
        let error = group.all_reduce(1, lease, &SumOrder::in_rank_order(0..3)).err();
        assert!((SHORT..PATIENT).contains(&started.elapsed()));
        // Dead from now on, at once, with the same answer.
        let again = group.barrier().err();
        assert_eq!(format!("{again:?}"), format!("{error:?}"));
        others_are_done.wait();
        error
    });
    for rank in [0, 2] {
        let Some(GroupError::NotEntered { missing, what, .. }) = &errors[rank] else {
            panic!("{:?}", errors[rank]);
        };
        assert_eq!((missing.as_slice(), what.as_str()), (&[1][..], "bucket 2 of 2 (p1)"));
    }
    // The late one does not go on alone.
    assert!(matches!(errors[1], Some(GroupError::Aborted { by: Some(0 | 2) })), "{errors:?}");
    let text = errors[0].as_ref().unwrap().to_string();
    assert!(text.starts_with("rank 1 has not entered bucket 2 of 2 (p1) for "), "{text}");
}

#[test]
#[should_panic(expected = "leased to the communication thread")]
fn a_range_of_a_failed_collective_stays_leased() {
    let plan = plan(2, &[4]);
    let fd = create_group_memory().unwrap();
    let mut formed = as_ranks(0..2, |rank| form(&fd, rank, &plan, SHORT).unwrap());
    let Formed { group, arena, .. } = &mut formed[0];
    let lease = arena.lease(0..1, 0..4);
    assert!(group.all_reduce(0, lease, &SumOrder::in_rank_order(0..2)).is_err());
    arena.floats(0, 0..1);
}

#[test]
fn an_abort_wakes_everybody_and_can_be_repeated() {
    let plan = plan(3, &[4]);
    let fd = create_group_memory().unwrap();
    let errors = as_ranks(0..3, |rank| {
        let Formed { mut group, .. } = form(&fd, rank, &plan, PATIENT).unwrap();
        if rank == 2 {
            let aborter = group.aborter();
            aborter.abort();
            aborter.abort();
        }
        group.barrier().unwrap_err()
    });
    assert!(matches!(errors[0], GroupError::Aborted { by: Some(2) }), "{errors:?}");
    assert!(matches!(errors[1], GroupError::Aborted { by: Some(2) }), "{errors:?}");
    assert!(matches!(errors[2], GroupError::Aborted { by: None }), "{errors:?}");
}

#[test]
fn a_group_dropped_in_use_is_an_abort_and_one_that_is_left_is_not() {
    let plan = plan(2, &[4]);
    for leaves in [true, false] {
        let fd = create_group_memory().unwrap();
        let results = as_ranks(0..2, |rank| {
            let Formed { mut group, .. } = form(&fd, rank, &plan, SHORT).unwrap();
            group.barrier().unwrap();
            match (rank, leaves) {
                (0, _) => group.barrier(),
                (_, true) => {
                    group.leave();
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
fn ranks_in_different_places_are_told_so() {
    let plan = plan(2, &[4]);
    let fd = create_group_memory().unwrap();
    let errors = as_ranks(0..2, |rank| {
        let Formed { mut group, mut arena, .. } = form(&fd, rank, &plan, PATIENT).unwrap();
        group.barrier().unwrap();
        if rank == 0 {
            group.barrier().unwrap_err()
        } else {
            let lease = arena.lease(0..1, 0..4);
            group.all_reduce(0, lease, &SumOrder::in_rank_order(0..2)).unwrap_err()
        }
    });
    // The second to look may see that the first has given up.
    let diverged = errors.iter().find_map(|error| match error {
        GroupError::Diverged { rank, ours, theirs } => Some((*rank, ours.clone(), theirs.clone())),
        _ => None,
    });
    let (barrier, bucket) = ("a barrier".to_owned(), "bucket 1 of 1 (p0)".to_owned());
    match diverged.unwrap() {
        (1, ours, theirs) => assert_eq!((ours, theirs), (barrier, bucket)),
        (_, ours, theirs) => assert_eq!((ours, theirs), (bucket, barrier)),
    }
}

#[test]
fn ranks_in_different_steps_do_not_apply_them() {
    let plan = plan(2, &[4]);
    let fd = create_group_memory().unwrap();
    let errors = as_ranks(0..2, |rank| {
        let Formed { mut group, mut arena, .. } = form(&fd, rank, &plan, PATIENT).unwrap();
        let lease = arena.lease(0..1, 0..4);
        let ballot = Ballot { step: 5 + rank as u64, ..BALLOT };
        group.all_reduce_and_vote(0, lease, &SumOrder::in_rank_order(0..2), ballot).unwrap_err()
    });
    let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
    let is_named = |text: &String| text.contains("step 5 of 3 grains") && text.contains("step 6");
    assert!(texts.iter().any(is_named), "{texts:?}");
}

#[test]
fn those_who_do_not_join_are_named() {
    let plan = plan(4, &[4]);
    // Rank 0 among the missing, and not.
    for (joining, absent) in [(0..2, vec![2, 3]), (1..3, vec![0, 3])] {
        let fd = create_group_memory().unwrap();
        let errors = as_ranks(joining, |rank| form(&fd, rank, &plan, SHORT).unwrap_err());
        for error in errors {
            let GroupError::FormationTimeout { missing, waited } = error else {
                panic!("{error:?}");
            };
            assert_eq!(missing, absent);
            assert!((SHORT..PATIENT).contains(&waited));
        }
    }
}

#[test]
fn a_different_plan_is_reported_alike_on_all_ranks() {
    let usual = plan(3, &[4, 6]);
    let mut other = usual.clone();
    other.buckets[1].params[0].shape = vec![2, 3];
    let fd = create_group_memory().unwrap();
    let errors = as_ranks(0..3, |rank| {
        let plan = if rank == 2 { &other } else { &usual };
        form(&fd, rank, plan, PATIENT).unwrap_err()
    });
    for error in errors {
        let GroupError::PlanMismatch { rank: 2, parameter, rank_zero, other } = error else {
            panic!("{error:?}");
        };
        assert_eq!(parameter, "p1");
        assert_eq!(
            (rank_zero.as_str(), other.as_str()),
            ("p1 [6] in bucket 2", "p1 [2, 3] in bucket 2")
        );
    }
}

#[test]
fn a_rank_joins_once_and_memory_is_used_once() {
    let plan = plan(1, &[4]);
    let fd = create_group_memory().unwrap();
    let first = form(&fd, 0, &plan, PATIENT).unwrap();
    let error = form(&fd, 0, &plan, PATIENT).unwrap_err();
    assert!(matches!(error, GroupError::Io { operation: "joining the group", .. }), "{error:?}");
    // The one who was there is not disturbed.
    let Formed { mut group, .. } = first;
    group.barrier().unwrap();
}

#[test]
fn two_groups_in_one_process_do_not_meet() {
    let plan = plan(2, &[64]);
    let (one, two) = (create_group_memory().unwrap(), create_group_memory().unwrap());
    let sums = as_ranks(0..4, |thread| {
        let (fd, rank, factor) =
            if thread < 2 { (&one, thread, 1.0) } else { (&two, thread - 2, 10.0) };
        let Formed { mut group, mut arena, .. } = form(fd, rank, &plan, PATIENT).unwrap();
        let order = SumOrder::in_rank_order(0..2);
        for _ in 0..50 {
            arena.floats_mut(0, 0..64).fill(factor);
            let lease = arena.lease(0..1, 0..64);
            group.all_reduce(0, lease, &order).unwrap();
            assert_eq!(arena.floats(0, 0..64), [2.0 * factor; 64]);
        }
        group.leave();
        arena.floats(0, 0..1)[0]
    });
    assert_eq!(sums, [2.0, 2.0, 20.0, 20.0]);
}

#[test]
fn many_rounds_lose_no_wake_up() {
    let plan = plan(4, &[4]);
    let fd = create_group_memory().unwrap();
    as_ranks(0..4, |rank| {
        let Formed { mut group, .. } = form(&fd, rank, &plan, PATIENT).unwrap();
        for round in 0..2000 {
            let mut sum = [f64::from(round)];
            group.all_reduce_f64(&mut sum).unwrap();
            assert_eq!(sum, [4.0 * f64::from(round)]);
        }
        group.leave();
    });
}
