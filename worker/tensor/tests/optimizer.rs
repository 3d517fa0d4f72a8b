//! Update rules against their formulas, and states that are taken up again.

use lockstep_tensor::{Optimizer, OptimizerState, StateError};

const SGD: Optimizer = Optimizer::Sgd { lr: 0.1, momentum: 0.0, weight_decay: 0.0 };
const MOMENTUM: Optimizer = Optimizer::Sgd { lr: 0.1, momentum: 0.9, weight_decay: 0.01 };
const ADAMW: Optimizer =
    Optimizer::AdamW { lr: 0.1, betas: (0.9, 0.99), eps: 1e-3, weight_decay: 0.05 };

fn close(ours: &[f64], expected: &[f64]) {
    for (ours, expected) in ours.iter().zip(expected) {
        assert!((ours - expected).abs() < 1e-14, "{ours} {expected}");
    }
}

#[test]
fn sgd_steps_against_the_scaled_gradient_and_keeps_nothing() {
    let mut state = SGD.state(2);
    let mut weights = [1.0, 2.0];
    SGD.step(&mut weights, &[4.0, -8.0], 0.25, &mut state);
    close(&weights, &[0.9, 2.2]);
    assert_eq!(state, OptimizerState { step: 1, moments: Vec::new() });
}

#[test]
fn momentum_starts_as_the_gradient_and_decay_is_part_of_it() {
    let mut state = MOMENTUM.state(1);
    let mut weights = [2.0];
    MOMENTUM.step(&mut weights, &[6.0], 0.5, &mut state);
    let first = 3.0 + 0.01 * 2.0;
    let after = 2.0 - 0.1 * first;
    close(&state.moments[0].1, &[first]);
    close(&weights, &[after]);
    MOMENTUM.step(&mut weights, &[2.0], 0.5, &mut state);
    let second = 0.9 * first + 1.0 + 0.01 * after;
    close(&state.moments[0].1, &[second]);
    close(&weights, &[after - 0.1 * second]);
}

/// A first buffer that is not zero, left over from elsewhere, must not leak into the first step.
#[test]
fn the_first_momentum_buffer_is_the_gradient_itself() {
    let mut state = MOMENTUM.state(1);
    state.moments[0].1[0] = 50.0;
    let mut weights = [0.0];
    MOMENTUM.step(&mut weights, &[1.0], 1.0, &mut state);
    close(&state.moments[0].1, &[1.0]);
}

#[test]
fn adamw_corrects_both_moments_and_decays_apart_from_the_gradient() {
    let mut state = ADAMW.state(1);
    let mut weights = [2.0];
    let (mut w, mut m, mut v) = (2.0_f64, 0.0_f64, 0.0_f64);
    for (t, g) in [(1, 3.0_f64), (2, -1.0), (3, 0.5)] {
        ADAMW.step(&mut weights, &[2.0 * g], 0.5, &mut state);
        w *= 1.0 - 0.1 * 0.05;
        m = 0.9 * m + 0.1 * g;
        v = 0.99 * v + 0.01 * g * g;
        let (m_hat, v_hat) = (m / (1.0 - 0.9_f64.powi(t)), v / (1.0 - 0.99_f64.powi(t)));
        w -= 0.1 * m_hat / (v_hat.sqrt() + 1e-3);
        close(&weights, &[w]);
    }
    assert_eq!(state.step, 3);
}

#[test]
fn a_kept_state_continues_with_the_same_bits() {
    for optimizer in [SGD, MOMENTUM, ADAMW] {
        let grads = |step: u64| -> Vec<f32> {
            (0..33).map(|i| (i as f32 + 7.0 * step as f32).sin()).collect()
        };
        let run = |interrupted: bool| {
            let mut weights: Vec<f32> = (0..33).map(|i| (i as f32).cos()).collect();
            let mut state = optimizer.state(33);
            for step in 0..6 {
                if interrupted && step == 3 {
                    state = OptimizerState { step: state.step, moments: state.moments.clone() };
                    optimizer.check_state(&state, 33).unwrap();
                }
                optimizer.step(&mut weights, &grads(step), 0.5, &mut state);
            }
            weights.iter().map(|w| w.to_bits()).collect::<Vec<_>>()
        };
        assert_eq!(run(false), run(true));
    }
}

/// The arena is one range; any cut of it gives the same numbers.
#[test]
fn each_element_is_updated_on_its_own() {
    for optimizer in [SGD, MOMENTUM, ADAMW] {
        let grads: Vec<f32> = (0..50).map(|i| (i as f32 * 0.3).sin()).collect();
        let run = |cut: usize| {
            let mut weights: Vec<f32> = (0..50).map(|i| (i as f32).cos()).collect();
            let (left, right) = weights.split_at_mut(cut);
            let mut states = (optimizer.state(cut), optimizer.state(50 - cut));
            for _ in 0..3 {
                optimizer.step(left, &grads[..cut], 0.5, &mut states.0);
                optimizer.step(right, &grads[cut..], 0.5, &mut states.1);
            }
            weights
        };
        assert_eq!(run(0), run(17));
    }
}

#[test]
fn states_of_another_optimizer_or_model_are_refused() {
    let state = ADAMW.state::<f32>(4);
    assert_eq!(ADAMW.check_state(&state, 4), Ok(()));
    let refused = MOMENTUM.check_state(&state, 4).unwrap_err().to_string();
    assert_eq!(refused, r#"the optimizer keeps ["momentum"], the state has ["m", "v"]"#);
    let refused = ADAMW.check_state(&state, 5).unwrap_err();
    assert_eq!(refused, StateError::Length { name: "m".to_owned(), expected: 5, given: 4 });
    assert!(SGD.check_state(&MOMENTUM.state::<f32>(4), 4).is_err());
}
