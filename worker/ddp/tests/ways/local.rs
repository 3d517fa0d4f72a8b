//! Steps whose gradient stays at home, and the mean of weights over the ranks.

use lockstep_ddp::Votes;

use crate::ranks::{ARRANGEMENTS, config, do_grains, drawn, layout, on_ranks};

#[test]
fn a_local_step_keeps_each_ranks_gradient_and_counts_everybodys_sums() {
    for nodes in ARRANGEMENTS {
        let seen = on_ranks(nodes, &config(), |reducer| {
            // Grains 0 and 1, 2 and 3, and 4; the last rank has one.
            let grains = reducer.begin_local_step(3, 5);
            do_grains(reducer, 3, grains.clone());
            let outcome = reducer.finish_step(Votes::default()).unwrap();
            (grains, reducer.gradients()[100], outcome)
        });
        for (grains, gradient, outcome) in seen {
            let own: f32 = grains.clone().map(|grain| drawn(3, grain, 100)).sum();
            assert_eq!(gradient, own);
            assert_eq!((outcome.weight, outcome.loss_sum), (15.0, 2.5));
            assert_eq!(outcome.own_weight, grains.map(|grain| 1.0 + grain as f64).sum::<f64>());
        }
    }
}

#[test]
fn a_rank_without_grains_has_a_gradient_of_zero() {
    let seen = on_ranks(&[3], &config(), |reducer| {
        // What lies in the arena from the step before is nobody's gradient.
        crate::ranks::do_step(reducer, 0, 3);
        let grains = reducer.begin_local_step(1, 2);
        do_grains(reducer, 1, grains.clone());
        let outcome = reducer.finish_step(Votes::default()).unwrap();
        (grains.len(), reducer.gradients().to_vec(), outcome.own_weight)
    });
    assert!(seen[2].0 == 0 && seen[2].1.iter().all(|value| *value == 0.0) && seen[2].2 == 0.0);
}

#[test]
fn a_mean_of_weights_is_the_same_everywhere() {
    for nodes in ARRANGEMENTS {
        let all = on_ranks(nodes, &config(), |reducer| {
            let rank = reducer.rank();
            // Longer than the arena, so that it goes by pieces.
            let mut values: Vec<f32> =
                (0..3 * layout().len() / 2).map(|index| (index * (rank + 1)) as f32).collect();
            reducer.average(&mut values).unwrap();
            values
        });
        for (index, value) in all[0].iter().enumerate() {
            let expected = 2.0 * index as f32;
            assert!((value - expected).abs() <= 1e-6 * expected, "{value}, {expected}");
        }
        assert!(all.iter().all(|values| *values == all[0]));
    }
}
