//! Communication hooks on real groups.

use std::num::NonZeroUsize;

use lockstep_ddp::{HookKind, ReducerConfig, Votes, hook::PowerSgdConfig};
use lockstep_tensor::{GradSink as _, ParamId};

use crate::ranks::{ARRANGEMENTS, config, do_grains, do_step, drawn, exact, layout, on_ranks};

/// Gradients of two steps with `hook`; the same on all ranks.
fn gradients(nodes: &[usize], hook: HookKind) -> Vec<Vec<f32>> {
    let config = ReducerConfig { hook, ..config() };
    // Of five grains rank 2 has one; of two it has none.
    let all = on_ranks(nodes, &config, |reducer| {
        [(0, 5), (1, 2)].map(|(step, grains)| {
            do_step(reducer, step, grains);
            reducer.gradients().to_vec()
        })
    });
    assert!(all.iter().all(|seen| *seen == all[0]), "ranks differ with {hook:?}");
    all[0].to_vec()
}

#[test]
fn half_precision_hooks_are_near_the_sum_and_the_same_over_any_nodes() {
    for (hook, bound) in [(HookKind::Bf16, 2e-2), (HookKind::F16, 3e-3)] {
        let alone = gradients(&[3], hook);
        for (step, grains) in [(0, 5), (1, 2)] {
            for (index, found) in alone[step].iter().enumerate() {
                let expected = exact(step as u64, grains, index);
                let error = (f64::from(*found) - expected).abs();
                assert!(error <= bound * grains as f64, "{found}, {expected} with {hook:?}");
            }
        }
        for nodes in ARRANGEMENTS {
            assert!(gradients(nodes, hook) == alone, "{nodes:?} with {hook:?}");
        }
    }
}

#[test]
fn power_sgd_runs_over_any_nodes_and_plain_parameters_are_exact() {
    let rank = NonZeroUsize::new(2).unwrap();
    let hook = HookKind::PowerSgd(PowerSgdConfig { rank, start_step: 1, ..Default::default() });
    for nodes in ARRANGEMENTS {
        let found = gradients(nodes, hook);
        let layout = layout();
        for (step, grains) in [(0, 5), (1, 2)] {
            for param in layout.params() {
                // In the first step everything travels as it is.
                if step == 1 && 1 < param.shape.len() {
                    continue;
                }
                for index in param.range.clone() {
                    let expected = exact(step as u64, grains, index);
                    let error = (f64::from(found[step][index]) - expected).abs();
                    assert!(error <= 1e-5, "{} in step {step}, {nodes:?}", param.name);
                }
            }
        }
    }
}

#[test]
fn what_is_left_over_is_the_same_sum_for_any_number_of_ranks() {
    let rank = NonZeroUsize::new(2).unwrap();
    let power_sgd = PowerSgdConfig {
        rank,
        start_step: 0,
        min_compression_rate: 1.0,
        ..PowerSgdConfig::default()
    };
    let config = ReducerConfig { hook: HookKind::PowerSgd(power_sgd), ..config() };
    let shared = on_ranks(&[1, 1], &config, |reducer| {
        do_step(reducer, 0, 5);
        let state = reducer.share_hook_state().unwrap();
        assert_eq!(reducer.share_hook_state().unwrap(), state, "it is shared already");
        state
    });
    assert_eq!(shared[0], shared[1]);
    assert!(shared[0].leftovers.iter().any(|leftover| 0.1 < leftover.abs()));
    for nodes in ARRANGEMENTS {
        let resumed = on_ranks(nodes, &config, |reducer| {
            reducer.restore_hook(shared[0].clone()).unwrap();
            reducer.share_hook_state().unwrap()
        });
        for state in resumed {
            assert_eq!((state.steps, &state.shared), (shared[0].steps, &shared[0].shared));
            for (found, expected) in state.leftovers.iter().zip(&shared[0].leftovers) {
                assert!((found - expected).abs() <= 1e-6 * expected.abs(), "{found}, {expected}");
            }
        }
    }
}

#[test]
fn without_communication_each_rank_keeps_its_own() {
    let config = ReducerConfig { hook: HookKind::Noop, ..config() };
    let found = on_ranks(&[2], &config, |reducer| {
        do_step(reducer, 0, 2);
        reducer.gradients()[11]
    });
    assert_eq!(found, [drawn(0, 0, 11), drawn(0, 1, 11)]);
}

#[test]
fn what_is_not_finite_is_found_with_its_rank_whatever_the_hook() {
    let rank = NonZeroUsize::new(2).unwrap();
    let power = HookKind::PowerSgd(PowerSgdConfig { rank, start_step: 0, ..Default::default() });
    for hook in [HookKind::Mean, HookKind::Bf16, HookKind::F16, power] {
        for nodes in [&[2][..], &[1, 1]] {
            let config = ReducerConfig { hook, ..config() };
            let outcomes = on_ranks(nodes, &config, |reducer| {
                for grain in reducer.begin_step(0, 2) {
                    if grain == 1 {
                        let mut sink = reducer.sink(grain);
                        for index in 0..layout().params().len() {
                            sink.grad(ParamId(index)).fill(f32::INFINITY);
                            sink.ready(ParamId(index));
                        }
                        reducer.finish_grain(grain, &Default::default());
                    } else {
                        do_grains(reducer, 0, grain..grain + 1);
                    }
                }
                let bad = reducer.finish_step(Votes::default()).unwrap();
                // The next step is not spoiled by what was left over.
                let good = do_step(reducer, 1, 2);
                (bad, good.non_finite, reducer.gradients().iter().all(|value| value.is_finite()))
            });
            for (bad, is_bad, is_finite) in outcomes {
                assert!(bad.non_finite && bad.non_finite_ranks == [1], "{hook:?}: {bad:?}");
                assert!(!is_bad && is_finite, "{hook:?}");
            }
        }
    }
}
