//! In which order buckets are launched, and what a step tells of them.

use lockstep_ddp::{GrainSums, Reducer, ReducerConfig, Reduction, Votes};
use lockstep_tensor::{GradSink as _, ParamId};

use crate::ranks::{config, do_step, drawn, layout, on_ranks};

/// A step whose parameters become ready in `order`.
fn step_in(reducer: &mut Reducer, step: u64, order: &[usize]) -> Vec<usize> {
    for grain in reducer.begin_step(step, 3) {
        let mut sink = reducer.sink(grain);
        for index in order {
            let range = layout().params()[*index].range.clone();
            for (grad, at) in sink.grad(ParamId(*index)).iter_mut().zip(range) {
                *grad = drawn(step, grain, at);
            }
            sink.ready(ParamId(*index));
        }
        reducer.finish_grain(grain, &GrainSums::default());
    }
    let outcome = reducer.finish_step(Votes::default()).unwrap();
    for span in &outcome.buckets {
        assert!(0 < span.ready_ns && span.launched_ns <= span.done_ns, "{span:?}");
        assert!(span.ready_ns <= span.launched_ns, "{span:?}");
    }
    outcome.buckets.iter().map(|span| span.bucket).collect()
}

#[test]
fn after_the_first_step_buckets_are_launched_as_they_became_ready_on_rank_0() {
    for nodes in [&[3][..], &[2, 1]] {
        let seen = on_ranks(nodes, &config(), |reducer| {
            let params = layout().params().len();
            let buckets = reducer.plan().buckets.len();
            assert!(3 <= buckets);
            // Rank 0 sees another order than the plan's, and others another one still.
            let backwards: Vec<usize> = (0..params).rev().collect();
            let forwards: Vec<usize> = (0..params).collect();
            let own = if reducer.rank() == 0 { &backwards } else { &forwards };
            let first = step_in(reducer, 0, own);
            let second = step_in(reducer, 1, own);
            let third = step_in(reducer, 2, own);
            (buckets, [first, second, third], reducer.gradients().to_vec())
        });
        for (buckets, [first, second, third], gradients) in &seen {
            assert!(first.iter().copied().eq(0..*buckets), "{first:?}");
            assert!(second.iter().copied().eq((0..*buckets).rev()), "{second:?}");
            assert_eq!(second, third);
            assert_eq!(*gradients, seen[0].2);
        }
    }
}

#[test]
fn twelve_grains_give_the_same_bits_over_any_ranks_and_nodes() {
    let config = ReducerConfig { reduction: Reduction::FixedTree, ..config() };
    let gradients = |nodes: &[usize]| {
        let all = on_ranks(nodes, &config, |reducer| {
            do_step(reducer, 0, 12);
            do_step(reducer, 1, 7);
            reducer.gradients().iter().map(|value| value.to_bits()).collect::<Vec<_>>()
        });
        assert!(all.iter().all(|bits| *bits == all[0]));
        all[0].clone()
    };
    let alone = gradients(&[1]);
    for nodes in [
        &[2][..],
        &[3],
        &[4],
        &[6],
        &[1, 1],
        &[1, 1, 1],
        &[1, 1, 1, 1],
        &[1; 6],
        &[2, 2],
        &[1, 2],
        &[3, 1],
        &[2, 2, 2],
        &[4, 2],
    ] {
        assert!(gradients(nodes) == alone, "{nodes:?}");
    }
}
