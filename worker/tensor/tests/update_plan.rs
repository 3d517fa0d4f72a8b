//! Parameter groups, clipping, and steps that are refused.
#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use lockstep_tensor::{
    Clip, GroupUpdate, Layout, Optimizer, PIECE_LEN, ParamGroup, StepError, StepFactors, UpdatePlan,
};

const ONE: StepFactors = StepFactors { lr_factor: 1.0, grad_scale: 1.0 };
const SGD: Optimizer =
    Optimizer::Sgd { lr: 1.0, momentum: 0.0, dampening: 0.0, nesterov: false, weight_decay: 0.0 };
const ADAMW: Optimizer =
    Optimizer::AdamW { lr: 1e-3, betas: (0.9, 0.999), eps: 1e-8, weight_decay: 0.1 };
const LAMB: Optimizer =
    Optimizer::Lamb { lr: 1e-3, betas: (0.9, 0.999), eps: 1e-6, weight_decay: 0.1 };
const LION: Optimizer = Optimizer::Lion { lr: 1e-4, betas: (0.9, 0.99), weight_decay: 0.1 };

fn layout(params: &[(&str, &[usize])]) -> Layout {
    let params = params.iter().map(|(name, shape)| ((*name).to_owned(), shape.to_vec()));
    Layout::new(params.collect()).unwrap()
}

/// In the arena, from its start: head.bias 3, head.weight 12, norm.weight 4, fc.bias 4, fc.weight 8.
fn small() -> Layout {
    layout(&[
        ("fc.weight", &[4, 2]),
        ("fc.bias", &[4]),
        ("norm.weight", &[4]),
        ("head.weight", &[3, 4]),
        ("head.bias", &[3]),
    ])
}

fn group(pattern: &str, update: GroupUpdate) -> ParamGroup {
    ParamGroup { pattern: pattern.to_owned(), update }
}

fn train(lr_scale: f64, weight_decay: Option<f64>) -> GroupUpdate {
    GroupUpdate::Train { lr_scale, weight_decay }
}

/// (start, end, lr_scale, weight_decay) of each segment.
fn segments(optimizer: Optimizer, groups: &[ParamGroup]) -> Vec<(usize, usize, f64, f64)> {
    let plan = UpdatePlan::new(optimizer, Clip::None, groups, &small()).unwrap();
    let segments = plan.segments().iter();
    segments.map(|s| (s.range.start, s.range.end, s.lr_scale, s.weight_decay)).collect()
}

fn refusal(optimizer: Optimizer, clip: Clip, groups: &[ParamGroup]) -> String {
    UpdatePlan::new(optimizer, clip, groups, &small()).unwrap_err().to_string()
}

#[test]
fn biases_and_norms_do_not_decay_by_default_where_decay_is_decoupled() {
    for optimizer in [ADAMW, LION] {
        let expected =
            [(0, 3, 1.0, 0.0), (3, 15, 1.0, 0.1), (15, 23, 1.0, 0.0), (23, 31, 1.0, 0.1)];
        assert_eq!(segments(optimizer, &[]), expected);
    }
    let adam = Optimizer::Adam {
        lr: 1e-3,
        betas: (0.9, 0.999),
        eps: 1e-8,
        weight_decay: 0.1,
        amsgrad: false,
    };
    assert_eq!(segments(adam, &[]), [(0, 31, 1.0, 0.1)]);
}

#[test]
fn lamb_has_a_segment_for_each_parameter() {
    let ranges: Vec<_> = segments(LAMB, &[]).iter().map(|s| (s.0, s.1, s.3)).collect();
    assert_eq!(ranges, [(0, 3, 0.0), (3, 15, 0.1), (15, 19, 0.0), (19, 23, 0.0), (23, 31, 0.1)]);
}

#[test]
fn the_first_group_that_fits_has_a_parameter() {
    let groups = [
        group("head.*", train(10.0, None)),
        group("*.bias", GroupUpdate::Frozen),
        group("*", train(0.5, Some(0.3))),
    ];
    let expected = [(0, 3, 10.0, 0.0), (3, 15, 10.0, 0.1), (15, 19, 0.5, 0.3), (23, 31, 0.5, 0.3)];
    assert_eq!(segments(ADAMW, &groups), expected);
}

#[test]
fn frozen_parameters_and_their_moments_stay_and_count_in_no_norm() {
    let groups = [group("norm.*", GroupUpdate::Frozen), group("*.weight", train(2.0, None))];
    for optimizer in [SGD, ADAMW, LAMB, LION] {
        let layout = small();
        let clip = Clip::GlobalNorm { max: 0.5 };
        let plan = UpdatePlan::new(optimizer, clip, &groups, &layout).unwrap();
        let mut state = plan.state::<f32>();
        let mut weights = vec![1.0_f32; layout.len()];
        let mut grads = vec![0.25_f32; layout.len()];
        grads[15..19].fill(f32::INFINITY);
        let report = plan.step(&mut weights, &grads, ONE, &mut state).unwrap();
        assert_eq!(report.grad_norm, Some(0.25 * 27.0_f64.sqrt()));
        for (i, &w) in weights.iter().enumerate() {
            assert_eq!(w == 1.0, (15..19).contains(&i), "{optimizer:?} {i}");
        }
        assert!(state.moments.iter().all(|(_, moment)| moment[15..19] == [0.0; 4]));
        assert!(state.moments.iter().all(|(_, moment)| moment[19] != 0.0));
    }
}

#[test]
fn the_learning_rate_is_the_product_of_its_factors() {
    let groups = [group("head.*", train(0.5, None)), group("fc.*", train(0.0, None))];
    let layout = small();
    let plan = UpdatePlan::new(SGD, Clip::None, &groups, &layout).unwrap();
    let mut weights = vec![0.0_f64; layout.len()];
    let factors = StepFactors { lr_factor: 0.25, grad_scale: 2.0 };
    plan.step(&mut weights, &vec![1.0; layout.len()], factors, &mut plan.state()).unwrap();
    assert_eq!((weights[0], weights[15], weights[30]), (-0.25, -0.5, 0.0));
}

#[test]
fn clipping_bounds_the_norm_or_each_element_of_the_mean_gradient() {
    let layout = layout(&[("w", &[2, 2])]);
    let grads = [6.0, -8.0, 0.2, 0.0];
    let step = |clip| {
        let plan = UpdatePlan::new(SGD, clip, &[], &layout).unwrap();
        let mut weights = [0.0_f64; 4];
        let factors = StepFactors { lr_factor: 1.0, grad_scale: 0.5 };
        let report = plan.step(&mut weights, &grads, factors, &mut plan.state()).unwrap();
        (weights, report.grad_norm)
    };
    assert_eq!(step(Clip::Value { bound: 1.0 }), ([-1.0, 1.0, -0.1, 0.0], None));
    let norm = 25.01_f64.sqrt();
    let (weights, given) = step(Clip::GlobalNorm { max: 1.0 });
    assert!((given.unwrap() - norm).abs() < 1e-14);
    for (w, g) in weights.iter().zip(grads) {
        assert!((w + g * 0.5 / (norm + 1e-6)).abs() < 1e-15);
    }
    // Below the bound nothing changes, not even by the 1e-6.
    assert_eq!(step(Clip::GlobalNorm { max: 100.0 }).0, step(Clip::None).0);
    assert_eq!(step(Clip::Value { bound: 100.0 }), step(Clip::None));
}

/// Squares that vanish in `f32`, and a length that is no multiple of a piece or of a lane.
#[test]
fn the_norm_is_formed_in_double_precision() {
    let len = PIECE_LEN + 13;
    let layout = layout(&[("w", &[len])]);
    let plan = UpdatePlan::new(SGD, Clip::None, &[], &layout).unwrap();
    let norm = plan.grad_norm(&vec![1e-30_f32; len], 2.0).unwrap();
    let expected = 2.0 * f64::from(1e-30_f32) * (len as f64).sqrt();
    assert!((norm / expected - 1.0).abs() < 1e-12, "{norm} {expected}");
    let spread: Vec<f64> = (0..len).map(|i| (i as f64).sqrt()).collect();
    let expected = ((len * (len - 1) / 2) as f64).sqrt();
    assert!((plan.grad_norm(&spread, 1.0).unwrap() / expected - 1.0).abs() < 1e-12);
}

#[test]
fn patterns_that_get_no_parameter_are_refused_by_name() {
    let frozen = |pattern| group(pattern, GroupUpdate::Frozen);
    assert_eq!(
        refusal(SGD, Clip::None, &[frozen("*.bias"), frozen("*.gamma")]),
        "pattern \"*.gamma\" of group 1 fits no parameter; there are fc.weight, fc.bias, norm.weight, \
         head.weight, head.bias"
    );
    assert_eq!(
        refusal(SGD, Clip::None, &[frozen("*"), frozen("*.bias")]),
        "all parameters that pattern \"*.bias\" of group 1 fits are in earlier groups"
    );
}

#[test]
fn settings_that_make_no_sense_are_refused_by_name() {
    let optimizer = |optimizer| refusal(optimizer, Clip::None, &[]);
    let sgd = |lr, momentum, dampening, nesterov| {
        optimizer(Optimizer::Sgd { lr, momentum, dampening, nesterov, weight_decay: 0.0 })
    };
    assert_eq!(sgd(f64::NAN, 0.0, 0.0, false), "optimizer.lr is NaN, expected 0 to 1000000");
    assert_eq!(
        sgd(0.1, 1.0, 0.0, false),
        "optimizer.momentum is 1, expected at least 0 and below 1"
    );
    assert_eq!(sgd(0.1, 0.0, 0.0, true), "optimizer.momentum is 0, expected above 0 with nesterov");
    assert_eq!(sgd(0.1, 0.9, 0.5, true), "optimizer.dampening is 0.5, expected 0 with nesterov");
    assert_eq!(
        optimizer(Optimizer::Lion { lr: 0.1, betas: (0.9, -0.5), weight_decay: 0.0 }),
        "optimizer.betas[1] is -0.5, expected at least 0 and below 1"
    );
    assert!(
        optimizer(Optimizer::Adagrad { lr: 0.1, eps: 0.0, weight_decay: 0.0 })
            .starts_with("optimizer.eps is 0, expected above 0")
    );
    assert_eq!(
        optimizer(Optimizer::Adagrad { lr: 0.1, eps: 1e-8, weight_decay: f64::INFINITY }),
        "optimizer.weight_decay is inf, expected 0 to 1000"
    );
    assert!(
        refusal(SGD, Clip::GlobalNorm { max: -1.0 }, &[])
            .starts_with("clip.max is -1, expected above 0")
    );
    assert!(
        refusal(SGD, Clip::Value { bound: f64::NAN }, &[])
            .starts_with("clip.bound is NaN, expected")
    );
    let groups = [group("*.bias", GroupUpdate::Frozen), group("*", train(-1.0, None))];
    assert_eq!(
        refusal(SGD, Clip::None, &groups),
        "groups[1].lr_scale is -1, expected 0 to 1000000"
    );
}

#[test]
fn a_refused_step_changes_nothing() {
    let layout = layout(&[("w", &[2, 1])]);
    let plan = UpdatePlan::new(ADAMW, Clip::None, &[], &layout).unwrap();
    let mut state = plan.state::<f32>();
    let mut weights = [1.0_f32, 2.0];
    let mut refused = |weights: &mut [f32], grads: &[f32], factors| {
        plan.step(weights, grads, factors, &mut state).unwrap_err()
    };
    assert_eq!(
        refused(&mut weights, &[1.0], ONE),
        StepError::Length { what: "gradients", given: 1, expected: 2 }
    );
    assert_eq!(
        refused(&mut weights[..1], &[1.0; 2], ONE),
        StepError::Weights { given: 1, expected: 2 }
    );
    for (lr_factor, grad_scale, message) in [
        (f64::NAN, 1.0, "lr_factor is NaN, expected 0 to 1000000"),
        (1.0, 0.0, "grad_scale is 0, expected above 0 and finite as f32"),
        (1.0, f64::INFINITY, "grad_scale is inf, expected above 0 and finite as f32"),
    ] {
        let factors = StepFactors { lr_factor, grad_scale };
        assert_eq!(refused(&mut weights, &[1.0; 2], factors).to_string(), message);
    }
    let clipped = UpdatePlan::new(ADAMW, Clip::GlobalNorm { max: 1.0 }, &[], &layout).unwrap();
    let infinite = clipped.step(&mut weights, &[1.0, f32::INFINITY], ONE, &mut state).unwrap_err();
    assert_eq!(infinite.to_string(), "the norm of the gradients is inf");
    assert!(clipped.step(&mut weights, &[f32::NAN, 1.0], ONE, &mut state).is_err());
    assert_eq!((weights, state), ([1.0, 2.0], plan.state()));
}
