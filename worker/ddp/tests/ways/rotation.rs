//! Buckets that go through several groups in turn.

use lockstep_ddp::{ReducerConfig, StepOutcome, Votes};
use lockstep_tensor::{GradSink as _, ParamId};

use crate::ranks::{ARRANGEMENTS, config, do_grain, do_step, layout, on_ranks};

fn through(groups: usize) -> ReducerConfig {
    ReducerConfig { groups, ..config() }
}

/// The bits of some steps' gradients.
fn steps(nodes: &[usize], groups: usize) -> Vec<Vec<u32>> {
    on_ranks(nodes, &through(groups), |reducer| {
        assert!(groups < reducer.plan().buckets.len(), "there is a bucket for every one");
        let mut bits = Vec::new();
        for (step, grains) in [(0, 7), (1, 2), (2, 12)] {
            let outcome = do_step(reducer, step, grains);
            assert!(!outcome.non_finite && outcome.diverged_ranks.is_empty());
            bits.extend(reducer.gradients().iter().map(|gradient| gradient.to_bits()));
        }
        bits
    })
}

#[test]
fn several_groups_give_the_bits_of_one() {
    for nodes in ARRANGEMENTS {
        let one = steps(nodes, 1);
        for groups in [2, 3] {
            assert_eq!(steps(nodes, groups), one, "{nodes:?}, {groups} groups");
        }
    }
}

/// What all ranks hear when rank 1 has an undefined gradient in one parameter.
fn undefined_in(nodes: &[usize], groups: usize, param: usize) -> Vec<StepOutcome> {
    on_ranks(nodes, &through(groups), |reducer| {
        let mut outcomes = Vec::new();
        for step in 0..2 {
            for grain in reducer.begin_step(step, 3) {
                if step == 0 && reducer.rank() == 1 {
                    let mut sink = reducer.sink(grain);
                    for index in 0..layout().params().len() {
                        sink.grad(ParamId(index)).fill(1.0);
                        if index == param {
                            sink.grad(ParamId(index))[0] = f32::NAN;
                        }
                        sink.ready(ParamId(index));
                    }
                    reducer.finish_grain(grain, &lockstep_ddp::GrainSums::default());
                } else {
                    do_grain(reducer, step, grain);
                }
            }
            outcomes.push(reducer.finish_step(Votes::default()).unwrap());
        }
        let last = outcomes.pop().unwrap();
        assert!(!last.non_finite, "it is of the step before");
        outcomes.remove(0)
    })
}

#[test]
fn what_any_group_finds_is_in_the_votes() {
    for nodes in ARRANGEMENTS {
        for param in 0..layout().params().len() {
            for outcome in undefined_in(nodes, 2, param) {
                assert!(outcome.non_finite, "{nodes:?}, parameter {param}");
                assert_eq!(outcome.non_finite_ranks, [1], "{nodes:?}, parameter {param}");
            }
        }
    }
}
