//! The optimizer's state in parts: each rank updates its own, and all have the same weights.

use lockstep_ddp::{Reducer, ReducerConfig, Reduction};
use lockstep_tensor::{Clip, GroupUpdate, Optimizer, ParamGroup, StepFactors, UpdatePlan};

use crate::ranks::{ARRANGEMENTS, config, do_step, layout, on_ranks};

const GRAINS: [usize; 4] = [6, 5, 2, 4];

fn plan(clip: Clip) -> UpdatePlan {
    let adam = Optimizer::AdamW { lr: 0.01, betas: (0.9, 0.99), eps: 1e-8, weight_decay: 0.1 };
    let slow = GroupUpdate::Train { lr_scale: 0.5, weight_decay: None };
    let groups = [ParamGroup { pattern: "*.bias".to_owned(), update: slow }];
    UpdatePlan::new(adam, clip, &groups, &layout()).unwrap()
}

fn initial() -> Vec<f32> {
    (0..layout().len()).map(|index| (index % 17) as f32 / 10.0 - 0.8).collect()
}

fn factors(weight: f64) -> StepFactors {
    StepFactors { lr_factor: 1.0, grad_scale: 1.0 / weight }
}

/// Every rank updates everything. Answers the weights.
fn whole(reducer: &mut Reducer) -> Vec<f32> {
    let plan = plan(Clip::None);
    let (mut weights, mut state) = (initial(), plan.state());
    for (step, grains) in (0..).zip(GRAINS) {
        let weight = do_step(reducer, step, grains).weight;
        plan.step(&mut weights, reducer.gradients(), factors(weight), &mut state).unwrap();
    }
    weights
}

/// Every rank updates its parts. Answers the weights and how many elements of state the rank keeps.
fn in_parts(reducer: &mut Reducer) -> (Vec<f32>, usize) {
    let parts = reducer.own_parts();
    let plan = plan(Clip::None).within(&parts).unwrap();
    let (mut weights, mut state) = (initial(), plan.state());
    let pack = |values: &[f32]| -> Vec<f32> {
        parts.iter().flat_map(|part| values[part.clone()].iter().copied()).collect()
    };
    for (step, grains) in (0..).zip(GRAINS) {
        let weight = do_step(reducer, step, grains).weight;
        let (mut own, gradients) = (pack(&weights), pack(reducer.gradients()));
        plan.step(&mut own, &gradients, factors(weight), &mut state).unwrap();
        let mut packed = own.into_iter();
        for index in parts.iter().cloned().flatten() {
            weights[index] = packed.next().unwrap();
        }
        reducer.all_gather(&mut weights).unwrap();
    }
    let kept = state.moments.iter().map(|(_, moment)| moment.len()).sum();
    (weights, kept)
}

#[test]
fn sharded_training_has_the_weights_of_whole_and_a_share_of_the_state() {
    for nodes in ARRANGEMENTS {
        let world: usize = nodes.iter().sum();
        for reduction in [Reduction::Fast, Reduction::FixedTree] {
            let config = ReducerConfig { reduction, ..config() };
            let expected = on_ranks(nodes, &config, whole);
            let sharded = ReducerConfig { is_sharded: true, ..config };
            let found = on_ranks(nodes, &sharded, in_parts);
            let moments = 2 * layout().len();
            // Parts begin at cache lines, so that a rank may have a few elements more of each bucket.
            let share = moments.div_ceil(world) + 2 * 16 * 5;
            assert_eq!(found.iter().map(|(_, kept)| kept).sum::<usize>(), moments);
            for (weights, kept) in found {
                assert!(kept <= share, "{kept} of {moments}");
                assert!(weights == expected[0], "{nodes:?} {reduction:?}");
            }
        }
    }
}
