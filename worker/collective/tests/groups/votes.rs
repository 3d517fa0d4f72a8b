//! Votes and the board.

use lockstep_collective::{
    Ballot, Formed, Intent, ProcessGroup, ReduceOp, Span, SumOrder, Tally, What,
};

use crate::harness::{BALLOT, PATIENT, Site, as_ranks, plan};

/// Votes one after another of three ranks over some nodes; the same on all of them.
fn tallies(nodes: &[usize], votes: &(dyn Fn(usize) -> Vec<(Ballot, bool)> + Sync)) -> Vec<Tally> {
    let plan = plan(nodes, &[40]);
    let site = Site::new(nodes);
    let all = as_ranks(0..3, |rank| {
        let Formed { mut group, mut arena, .. } = site.form(rank, &plan, PATIENT).unwrap();
        let order = SumOrder::in_rank_order(0..3);
        let mut vote = |(ballot, is_spoiled): (Ballot, bool)| {
            arena.floats_mut(0, 0..40).fill(1.0);
            if is_spoiled {
                arena.floats_mut(0, 39..40)[0] = f32::INFINITY;
            }
            let (lease, span) = (arena.lease(0..1, 0..40), Span::floats(0..40));
            group.all_reduce_and_vote(0, lease, span, &order, ballot).unwrap().1
        };
        let tallies: Vec<Tally> = votes(rank).into_iter().map(&mut vote).collect();
        group.barrier().unwrap();
        Box::new(group).leave();
        tallies
    });
    assert!(all.iter().all(|tallies| *tallies == all[0]), "{all:?}");
    all[0].clone()
}

const ARRANGEMENTS: [&[usize]; 4] = [&[3], &[1, 1, 1], &[2, 1], &[1, 2]];

#[test]
fn votes_are_counted_alike_on_all_ranks() {
    for nodes in ARRANGEMENTS {
        let counted = tallies(nodes, &|rank| {
            let stop = Ballot {
                intent: if rank == 1 { Intent::Stop } else { Intent::GoOn },
                grains: if rank == 2 { 0..0 } else { 0..1 },
                ..BALLOT
            };
            vec![
                (BALLOT, false),
                (stop, false),
                (Ballot { non_finite: rank == 2, ..BALLOT }, false),
                (BALLOT, rank == 1),
                (
                    Ballot {
                        intent: if rank == 0 { Intent::OutOfMemory } else { Intent::GoOn },
                        ..BALLOT
                    },
                    false,
                ),
                (Ballot { digest: if rank == 1 { 8 } else { 9 }, ..BALLOT }, false),
                (BALLOT, false),
            ]
        });
        let [quiet, stop, loss, gradient, memory, digest, again] = counted[..] else { panic!() };
        assert_eq!((quiet, quiet), (Tally { with_data: 3, ..Tally::default() }, again));
        assert_eq!(stop, Tally { stop: true, with_data: 2, ..Tally::default() });
        assert_eq!(loss, Tally { non_finite: true, non_finite_ranks: 0b100, ..quiet });
        assert_eq!(gradient, Tally { non_finite: true, non_finite_ranks: 0b010, ..quiet });
        assert_eq!(memory, Tally { out_of_memory_ranks: 0b001, ..quiet });
        assert_eq!(digest, Tally { digest_ranks: 0b010, ..quiet });
    }
}

#[test]
fn a_spoiled_number_is_laid_to_its_rank_whoever_adds_it_up() {
    // Large enough that parts go directly, and sums of a node as one.
    for nodes in [&[4][..], &[2, 2], &[1, 3], &[1, 1, 1, 1]] {
        let plan = plan(nodes, &[40_000]);
        for spoiled in 0..4 {
            let site = Site::new(nodes);
            let order = SumOrder::by_node(&site.topology, |_| true);
            let tallies = as_ranks(0..4, |rank| {
                let Formed { mut group, mut arena, .. } = site.form(rank, &plan, PATIENT).unwrap();
                arena.floats_mut(0, 0..40_000).fill(1.0);
                for at in [5, 30_011] {
                    if rank == spoiled {
                        arena.floats_mut(0, at..at + 1)[0] = f32::NAN;
                    }
                }
                let (lease, span) = (arena.lease(0..1, 0..40_000), Span::floats(0..40_000));
                let tally = group.all_reduce_and_vote(0, lease, span, &order, BALLOT).unwrap().1;
                group.barrier().unwrap();
                Box::new(group).leave();
                tally
            });
            let expected = Tally {
                non_finite: true,
                non_finite_ranks: 1 << spoiled,
                with_data: 4,
                ..Tally::default()
            };
            assert!(tallies.iter().all(|tally| *tally == expected), "{nodes:?}: {tallies:?}");
        }
    }
}

#[test]
fn the_rows_of_all_ranks_are_on_every_board() {
    for nodes in ARRANGEMENTS {
        let plan = plan(nodes, &[8]);
        let site = Site::new(nodes);
        let sums = as_ranks(0..3, |rank| {
            let Formed { mut group, mut arena, board } = site.form(rank, &plan, PATIENT).unwrap();
            let mut sums = Vec::new();
            for step in 0..3 {
                // Rank 1 has none.
                let grains = [0..2, 2..2, 2..5][rank].clone();
                for grain in grains.clone() {
                    board.write(step, grain, &[0.1 + grain as f64, step as f64]);
                }
                let ballot = Ballot { step, grains_total: 5, grains, ..BALLOT };
                let (lease, span) = (arena.lease(0..1, 0..8), Span::floats(0..8));
                let order = SumOrder::in_rank_order(0..3);
                drop(group.all_reduce_and_vote(0, lease, span, &order, ballot).unwrap());
                sums.push(board.sum(step, 5));
            }
            group.barrier().unwrap();
            Box::new(group).leave();
            sums
        });
        let column = (0..5).fold(0.0, |sum, grain| sum + (0.1 + f64::from(grain)));
        for (step, sum) in sums[0].iter().enumerate() {
            assert_eq!(*sum, [column, 5.0 * step as f64], "{nodes:?}");
        }
        assert!(sums.iter().all(|sum| *sum == sums[0]));
    }
}

#[test]
fn ranks_in_different_steps_do_not_apply_them() {
    for nodes in [&[2][..], &[1, 1]] {
        let plan = plan(nodes, &[4]);
        let site = Site::new(nodes);
        let errors = as_ranks(0..2, |rank| {
            let Formed { mut group, mut arena, .. } = site.form(rank, &plan, PATIENT).unwrap();
            let (lease, span) = (arena.lease(0..1, 0..4), Span::floats(0..4));
            let ballot = Ballot { step: 5 + rank as u64, ..BALLOT };
            let order = SumOrder::in_rank_order(0..2);
            group.all_reduce_and_vote(0, lease, span, &order, ballot).unwrap_err()
        });
        for error in errors {
            let text = error.to_string();
            assert!(text.contains("step 5 of 3 grains") && text.contains("step 6"), "{text}");
        }
    }
}

#[test]
fn numbers_between_steps_may_be_infinite_without_spoiling_the_next_vote() {
    for nodes in ARRANGEMENTS {
        let plan = plan(nodes, &[40]);
        let site = Site::new(nodes);
        let tallies = as_ranks(0..3, |rank| {
            let Formed { mut group, mut arena, .. } = site.form(rank, &plan, PATIENT).unwrap();
            let order = SumOrder::in_rank_order(0..3);
            let span = Span::floats(0..40);
            arena.floats_mut(0, 0..40).fill(f32::INFINITY);
            let lease = arena.lease(0..1, 0..40);
            drop(group.all_reduce(What::Numbers, lease, span, ReduceOp::Sum, &order).unwrap());
            arena.floats_mut(0, 0..40).fill(1.0);
            let lease = arena.lease(0..1, 0..40);
            let tally = group.all_reduce_and_vote(0, lease, span, &order, BALLOT).unwrap().1;
            group.barrier().unwrap();
            Box::new(group).leave();
            tally
        });
        assert!(tallies.iter().all(|tally| !tally.non_finite), "{nodes:?}: {tallies:?}");
    }
}
