//! A rank that cannot finish its step ends it for all, within that step.

use lockstep_ddp::{Intent, Votes};
use lockstep_tensor::{GradSink as _, ParamId};

use crate::ranks::{ARRANGEMENTS, config, do_grains, do_step, layout, on_ranks};

#[test]
fn out_of_memory_on_one_rank_ends_the_step_for_all_and_the_next_one_works() {
    for nodes in ARRANGEMENTS {
        let seen = on_ranks(nodes, &config(), |reducer| {
            let rank = reducer.rank();
            let grains = reducer.begin_step(0, 5);
            let outcome = if rank == 1 {
                // In the middle of its last backward, with buckets launched and others not.
                do_grains(reducer, 0, grains.start..grains.end - 1);
                let mut sink = reducer.sink(grains.end - 1);
                for index in 0..layout().params().len() - 1 {
                    sink.grad(ParamId(index)).fill(1.0);
                    sink.ready(ParamId(index));
                }
                let votes = Votes { intent: Intent::OutOfMemory, ..Votes::default() };
                reducer.give_up_step(votes).unwrap()
            } else {
                do_grains(reducer, 0, grains);
                reducer.finish_step(Votes::default()).unwrap()
            };
            let next = do_step(reducer, 1, 5);
            (outcome, next)
        });
        for (outcome, next) in seen {
            assert_eq!(outcome.out_of_memory_ranks, [1], "{nodes:?}");
            assert!(next.out_of_memory_ranks.is_empty() && !next.non_finite);
        }
    }
}

#[test]
fn a_step_can_be_given_up_before_its_first_grain() {
    let seen = on_ranks(&[1, 1], &config(), |reducer| {
        let grains = reducer.begin_step(0, 2);
        if reducer.rank() == 0 {
            do_grains(reducer, 0, grains);
            return reducer.finish_step(Votes::default()).unwrap();
        }
        reducer.give_up_step(Votes { intent: Intent::OutOfMemory, ..Votes::default() }).unwrap()
    });
    assert!(seen.iter().all(|outcome| outcome.out_of_memory_ranks == [1]));
}
