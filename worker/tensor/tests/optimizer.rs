//! Update rules against their formulas, and states that are taken up again.
#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use lockstep_tensor::{
    Clip, GroupUpdate, Layout, Optimizer, OptimizerState, PIECE_LEN, ParamGroup, Real, StateError,
    StepFactors, UpdatePlan,
};

const SGD: Optimizer =
    Optimizer::Sgd { lr: 0.1, momentum: 0.0, dampening: 0.0, nesterov: false, weight_decay: 0.0 };
const MOMENTUM: Optimizer =
    Optimizer::Sgd { lr: 0.1, momentum: 0.9, dampening: 0.0, nesterov: false, weight_decay: 0.01 };
const NESTEROV: Optimizer =
    Optimizer::Sgd { lr: 0.1, momentum: 0.9, dampening: 0.0, nesterov: true, weight_decay: 0.01 };
const ADAM: Optimizer =
    Optimizer::Adam { lr: 0.1, betas: (0.9, 0.99), eps: 1e-3, weight_decay: 0.05, amsgrad: false };
const AMSGRAD: Optimizer =
    Optimizer::Adam { lr: 0.1, betas: (0.9, 0.5), eps: 1e-3, weight_decay: 0.0, amsgrad: true };
const ADAMW: Optimizer =
    Optimizer::AdamW { lr: 0.1, betas: (0.9, 0.99), eps: 1e-3, weight_decay: 0.05 };
const RMSPROP: Optimizer =
    Optimizer::RmsProp { lr: 0.1, alpha: 0.9, eps: 1e-3, momentum: 0.0, weight_decay: 0.05 };
const RMSPROP_MOMENTUM: Optimizer =
    Optimizer::RmsProp { lr: 0.1, alpha: 0.9, eps: 1e-3, momentum: 0.5, weight_decay: 0.0 };
const ADAGRAD: Optimizer = Optimizer::Adagrad { lr: 0.1, eps: 1e-3, weight_decay: 0.05 };
const LAMB: Optimizer =
    Optimizer::Lamb { lr: 0.1, betas: (0.9, 0.99), eps: 1e-3, weight_decay: 0.05 };
const LION: Optimizer = Optimizer::Lion { lr: 0.01, betas: (0.5, 0.9), weight_decay: 0.5 };

const ALL: [Optimizer; 11] =
    [SGD, MOMENTUM, NESTEROV, ADAM, AMSGRAD, ADAMW, RMSPROP, RMSPROP_MOMENTUM, ADAGRAD, LAMB, LION];

fn factors(grad_scale: f64) -> StepFactors {
    StepFactors { lr_factor: 1.0, grad_scale }
}

/// One parameter of so many elements, all of it decayed.
fn plan(optimizer: Optimizer, len: usize) -> UpdatePlan {
    let layout = Layout::new(vec![("w".to_owned(), vec![len, 1])]).unwrap();
    UpdatePlan::new(optimizer, Clip::None, &[], &layout).unwrap()
}

fn close(ours: &[f64], expected: &[f64]) {
    assert_eq!(ours.len(), expected.len());
    for (ours, expected) in ours.iter().zip(expected) {
        assert!((ours - expected).abs() < 1e-14, "{ours} {expected}");
    }
}

/// Numbers without a pattern, of both signs.
fn wave<T: Real>(len: usize, seed: f64) -> Vec<T> {
    (0..len).map(|i| T::from_f64((i as f64 * 0.37 + seed).sin())).collect()
}

#[test]
fn sgd_steps_against_the_scaled_gradient_and_keeps_nothing() {
    let plan = plan(SGD, 2);
    let mut state = plan.state();
    let mut weights = [1.0, 2.0];
    plan.step(&mut weights, &[4.0, -8.0], factors(0.25), &mut state).unwrap();
    close(&weights, &[0.9, 2.2]);
    assert_eq!(state, OptimizerState { step: 1, moments: Vec::new() });
}

#[test]
fn momentum_starts_as_the_gradient_and_decay_is_part_of_it() {
    let plan = plan(MOMENTUM, 1);
    let mut state = plan.state();
    let mut weights = [2.0];
    plan.step(&mut weights, &[6.0], factors(0.5), &mut state).unwrap();
    let first = 3.0 + 0.01 * 2.0;
    let after = 2.0 - 0.1 * first;
    close(&state.moments[0].1, &[first]);
    close(&weights, &[after]);
    plan.step(&mut weights, &[2.0], factors(0.5), &mut state).unwrap();
    let second = 0.9 * first + 1.0 + 0.01 * after;
    close(&state.moments[0].1, &[second]);
    close(&weights, &[after - 0.1 * second]);
}

/// A first buffer that is not zero, left over from elsewhere, must not leak into the first step.
#[test]
fn the_first_momentum_buffer_is_the_gradient_itself() {
    let dampened = Optimizer::Sgd {
        lr: 0.1,
        momentum: 0.9,
        dampening: 0.5,
        nesterov: false,
        weight_decay: 0.0,
    };
    let plan = plan(dampened, 1);
    let mut state = plan.state();
    state.moments[0].1[0] = 50.0;
    let mut weights = [0.0];
    plan.step(&mut weights, &[1.0], factors(1.0), &mut state).unwrap();
    close(&state.moments[0].1, &[1.0]);
    plan.step(&mut weights, &[1.0], factors(1.0), &mut state).unwrap();
    close(&state.moments[0].1, &[0.9 + 0.5]);
}

#[test]
fn adamw_corrects_both_moments_and_decays_apart_from_the_gradient() {
    let plan = plan(ADAMW, 1);
    let mut state = plan.state();
    let mut weights = [2.0];
    let (mut w, mut m, mut v) = (2.0_f64, 0.0_f64, 0.0_f64);
    for (t, g) in [(1, 3.0_f64), (2, -1.0), (3, 0.5)] {
        plan.step(&mut weights, &[2.0 * g], factors(0.5), &mut state).unwrap();
        w *= 1.0 - 0.1 * 0.05;
        m = 0.9 * m + 0.1 * g;
        v = 0.99 * v + 0.01 * g * g;
        let (m_hat, v_hat) = (m / (1.0 - 0.9_f64.powi(t)), v / (1.0 - 0.99_f64.powi(t)));
        w -= 0.1 * m_hat / (v_hat.sqrt() + 1e-3);
        close(&weights, &[w]);
    }
    assert_eq!(state.step, 3);
}

/// A large gradient, then small ones: the denominator must not shrink.
#[test]
fn amsgrad_keeps_the_greatest_second_moment() {
    let plan = plan(AMSGRAD, 1);
    let mut state = plan.state();
    let mut weights = [2.0];
    let (mut w, mut m, mut v, mut greatest) = (2.0_f64, 0.0_f64, 0.0_f64, 0.0_f64);
    for (t, g) in [(1, 3.0_f64), (2, 0.1), (3, 0.1), (4, 5.0)] {
        plan.step(&mut weights, &[g], factors(1.0), &mut state).unwrap();
        m = 0.9 * m + 0.1 * g;
        v = 0.5 * v + 0.5 * g * g;
        greatest = greatest.max(v);
        let m_hat = m / (1.0 - 0.9_f64.powi(t));
        let root = greatest.sqrt() / (1.0 - 0.5_f64.powi(t)).sqrt();
        w -= 0.1 * m_hat / (root + 1e-3);
        close(&weights, &[w]);
    }
    close(&state.moments[2].1, &[greatest]);
}

#[test]
fn rmsprop_without_momentum_keeps_one_moment() {
    let plan = plan(RMSPROP, 1);
    let mut state = plan.state();
    let mut weights = [2.0];
    let (mut w, mut v) = (2.0_f64, 0.0_f64);
    for g in [3.0_f64, -1.0, 0.5] {
        plan.step(&mut weights, &[g], factors(1.0), &mut state).unwrap();
        let g = g + 0.05 * w;
        v = 0.9 * v + 0.1 * g * g;
        w -= 0.1 * g / (v.sqrt() + 1e-3);
        close(&weights, &[w]);
    }
    close(&state.moments[0].1, &[v]);
}

/// Two parameters, one of them longer than a piece, and one without decay and so without ratio.
#[test]
fn lamb_scales_each_parameters_step_by_its_own_ratio() {
    let long = PIECE_LEN + 5;
    let shapes = vec![
        ("a".to_owned(), vec![3, 1]),
        ("b".to_owned(), vec![long, 1]),
        ("c".to_owned(), vec![7]),
    ];
    let layout = Layout::new(shapes).unwrap();
    let plan = UpdatePlan::new(LAMB, Clip::None, &[], &layout).unwrap();
    let mut weights: Vec<f64> = wave(layout.len(), 1.0);
    weights[layout.len() - 3..].iter_mut().for_each(|w| *w *= 100.0);
    let mut expected = weights.clone();
    let mut state = plan.state();
    let (mut m, mut v) = (vec![0.0; layout.len()], vec![0.0; layout.len()]);
    for t in 1..4 {
        let grads: Vec<f64> = wave(layout.len(), f64::from(t));
        plan.step(&mut weights, &grads, factors(0.5), &mut state).unwrap();
        for param in layout.params() {
            let decay = if param.name == "c" { 0.0 } else { 0.05 };
            let (mut of_w, mut of_u, mut steps) = (0.0, 0.0, Vec::new());
            for i in param.range.clone() {
                let g = 0.5 * grads[i];
                m[i] = 0.9 * m[i] + 0.1 * g;
                v[i] = 0.99 * v[i] + 0.01 * g * g;
                let m_hat = m[i] / (1.0 - 0.9_f64.powi(t));
                let v_hat = v[i] / (1.0 - 0.99_f64.powi(t));
                let u = m_hat / (v_hat.sqrt() + 1e-3) + decay * expected[i];
                of_w += expected[i] * expected[i];
                of_u += u * u;
                steps.push(u);
            }
            let ratio = if decay == 0.0 { 1.0 } else { of_w.sqrt() / of_u.sqrt() };
            for (i, u) in param.range.clone().zip(steps) {
                expected[i] -= 0.1 * ratio * u;
            }
        }
        for (ours, expected) in weights.iter().zip(&expected) {
            assert!((ours - expected).abs() <= 1e-12 * (1.0 + expected.abs()), "{ours} {expected}");
        }
    }
}

#[test]
fn a_lamb_step_of_zero_weights_has_a_ratio_of_one() {
    let plan = plan(LAMB, 2);
    let mut weights = [0.0, 0.0];
    plan.step(&mut weights, &[1.0, 0.0], factors(1.0), &mut plan.state()).unwrap();
    close(&weights, &[-0.1 / 1.001, 0.0]);
}

/// The second gradient of the first weight turns its direction under β1 and would not under β2.
#[test]
fn lion_steps_by_the_sign_alone() {
    let plan = plan(LION, 3);
    let mut state = plan.state();
    let mut weights = [1.0, 1.0, 1.0];
    let (mut w, mut m) = ([1.0_f64; 3], [0.0_f64; 3]);
    for grads in [[3.0, -1.0, 0.0], [-0.4, 20.0, 0.0], [-1.0, 0.0, 0.0]] {
        plan.step(&mut weights, &grads, factors(0.5), &mut state).unwrap();
        for i in 0..3 {
            let g = 0.5 * grads[i];
            let c: f64 = 0.5 * m[i] + 0.5 * g;
            let sign = if c == 0.0 { 0.0 } else { c.signum() };
            w[i] = w[i] * (1.0 - 0.01 * 0.5) - 0.01 * sign;
            m[i] = 0.9 * m[i] + 0.1 * g;
        }
        close(&weights, &w);
    }
    close(&state.moments[0].1, &m);
}

/// No rule may swallow what is wrong, and none may spread it to other elements.
#[test]
fn a_gradient_that_is_no_number_shows_in_its_weight_alone() {
    for optimizer in ALL.into_iter().filter(|&optimizer| optimizer != LAMB) {
        for clip in [Clip::None, Clip::Value { bound: 0.5 }] {
            let layout = Layout::new(vec![("w".to_owned(), vec![9, 1])]).unwrap();
            let plan = UpdatePlan::new(optimizer, clip, &[], &layout).unwrap();
            let mut weights = [1.0_f32; 9];
            let mut grads = [0.1_f32; 9];
            grads[4] = f32::NAN;
            plan.step(&mut weights, &grads, factors(1.0), &mut plan.state()).unwrap();
            let nan: Vec<_> = (0..9).filter(|&i| weights[i].is_nan()).collect();
            assert_eq!(nan, [4], "{optimizer:?}");
        }
    }
}

#[test]
fn a_kept_state_continues_with_the_same_bits() {
    for optimizer in ALL {
        let plan = plan(optimizer, 33);
        let run = |interrupted: bool| {
            let mut weights: Vec<f32> = wave(33, 0.5);
            let mut state = plan.state();
            for step in 0..6_u32 {
                if interrupted && step == 3 {
                    state = OptimizerState { step: state.step, moments: state.moments.clone() };
                    plan.check_state(&state).unwrap();
                }
                let grads: Vec<f32> = wave(33, 7.0 * f64::from(step));
                plan.step(&mut weights, &grads, factors(0.5), &mut state).unwrap();
            }
            weights.iter().map(|w| w.to_bits()).collect::<Vec<_>>()
        };
        assert_eq!(run(false), run(true));
    }
}

/// Where the arena is cut changes nothing, neither into segments nor into pieces. The middle one's decay
/// is lost in rounding, so that it is a segment of its own with the results of the others.
#[test]
fn each_element_is_updated_on_its_own() {
    let len = 2 * PIECE_LEN + 50;
    let whole = Layout::new(vec![("w".to_owned(), vec![len])]).unwrap();
    let shapes = [("x", 7), ("y", PIECE_LEN + 3), ("z", PIECE_LEN + 40)];
    let shapes = shapes.map(|(name, len)| (name.to_owned(), vec![len])).to_vec();
    let in_three = Layout::new(shapes).unwrap();
    let group = |pattern: &str, weight_decay| {
        let update = GroupUpdate::Train { lr_scale: 1.0, weight_decay: Some(weight_decay) };
        ParamGroup { pattern: pattern.to_owned(), update }
    };
    let run = |optimizer, layout, groups: &[ParamGroup], segments| {
        let plan = UpdatePlan::new(optimizer, Clip::None, groups, layout).unwrap();
        assert_eq!(plan.segments().len(), segments);
        let mut weights: Vec<f32> = wave(len, 0.1);
        let mut state = plan.state();
        for step in 0..3_u32 {
            let grads: Vec<f32> = wave(len, f64::from(step));
            plan.step(&mut weights, &grads, factors(0.5), &mut state).unwrap();
        }
        weights
    };
    for optimizer in ALL.into_iter().filter(|&optimizer| optimizer != LAMB) {
        let one = run(optimizer, &whole, &[group("*", 0.0)], 1);
        assert_eq!(one, run(optimizer, &in_three, &[group("*", 0.0)], 1));
        assert_eq!(one, run(optimizer, &in_three, &[group("y", 1e-30), group("*", 0.0)], 3));
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
    for (i, one) in ALL.iter().enumerate() {
        let names = one.moment_names();
        let plan = plan(*one, 4);
        for other in &ALL[..i] {
            let mut state = other.state::<f64>(4);
            let stepped = plan.step(&mut [1.0; 4], &[1.0; 4], factors(1.0), &mut state);
            assert_eq!(stepped.is_ok(), other.moment_names() == names);
        }
    }
}
