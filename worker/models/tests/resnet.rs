//! ResNets against torchvision's figures. Their weights are too many to record: both sides draw them from the generator.
#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

mod common;

use common::{Inputs, Run, check_numbers};
use lockstep_api::Precision;
use lockstep_models::{Mode, Model};
use lockstep_tensor::{Param, Real, init};
use serde_json::{Value, json};

const RECORDED: &str = include_str!("golden/resnet.json");

/// As `generated` in `record.py`.
fn generated(param: &Param) -> Vec<f32> {
    let mut values = vec![0.0_f64; param.range.len()];
    init::uniform(7, &param.name, 1.0, &mut values);
    let is_norm = param.shape.len() == 1 && param.name.ends_with("weight");
    let fan_in: usize = param.shape.iter().skip(1).product();
    let number = |u: f64| {
        if param.name.ends_with("num_batches_tracked") {
            0.0
        } else if is_norm || param.name.ends_with("running_var") {
            1.0 + 0.2 * u
        } else if 1 < param.shape.len() {
            u * (6.0 / fan_in as f64).sqrt()
        } else {
            0.2 * u
        }
    };
    values.into_iter().map(|u| number(u) as f32).collect()
}

fn arena(params: &[Param]) -> Vec<f32> {
    params.iter().flat_map(generated).collect()
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
}

/// The greatest difference between torchvision's own f32 and f64, as a part of the gradient's norm. In ResNet-50 it is
/// 2 %: norms over twelve elements each, and ReLUs that flip.
fn own_gap(case: &Value) -> f64 {
    let gradients =
        case["f64"].as_object().unwrap().iter().filter(|(name, _)| name.starts_with("grad."));
    let gaps = gradients.map(|(name, truth)| {
        let (truth, single) = (numbers(truth), numbers(&case["f32"][name]));
        (truth[0] - single[0]).abs() / truth[2]
    });
    gaps.fold(0.0, f64::max)
}

/// What one ReLU that rounding to f32 flips can do to a gradient: its share of the norm, where the last stage has as few as
/// 3 · 2 · 2 · 512 outputs. Three hundred thousand ReLUs always have some within rounding of 0; f64 has none, and is exact.
const ONE_FLIP: f64 = 0.03;

/// Product with a drawn vector, greatest element, norm: any wrong element shows in the first.
fn check_digest<T: Real>(case: &Value, gap: f64, name: &str, ours: &[T]) {
    let truth = numbers(&case["f64"][name]);
    let param = name.split_once('.').unwrap().1;
    let mut along = vec![0.0_f64; ours.len()];
    init::uniform(8, param, 1.0, &mut along);
    let product: f64 = ours.iter().zip(&along).map(|(x, u)| x.to_f64() * u).sum();
    let norm = ours.iter().map(|x| x.to_f64() * x.to_f64()).sum::<f64>().sqrt();
    let share = if T::DTYPE == f32::DTYPE { ONE_FLIP.max(2.0 * gap) } else { 1e-9 };
    let bound = share * truth[2];
    assert!((product - truth[0]).abs() <= bound, "{name}: {product}, recorded {truth:?} ± {bound}");
    assert!((norm - truth[2]).abs() <= bound, "{name}: norm {norm}, recorded {truth:?} ± {bound}");
}

fn check<T: Real>(case: &Value) {
    let spec = common::spec(json!({
        "arch": case["arch"], "stem": case["stem"], "input": case["input"], "classes": case["classes"],
    }));
    let model = Model::new(&spec).unwrap();
    let (weights, buffers) = (arena(model.layout().params()), arena(model.buffers().params()));
    let (batch, side) =
        (case["batch"].as_u64().unwrap() as usize, case["input"][1].as_u64().unwrap());
    let mut x = vec![0.0_f32; batch * 3 * (side * side) as usize];
    init::uniform(9, "x", 1.0, &mut x);
    let x: Vec<f64> = x.into_iter().map(f64::from).collect();
    let shape = vec![batch, 3, side as usize, side as usize];
    let inputs = Inputs { floats: vec![("x", shape, &x)], ints: Vec::new() };
    let classes = case["classes"].as_u64().unwrap() as usize;
    let target: Vec<i64> = (0..batch).map(|sample| (sample % classes) as i64).collect();

    let mut ours = Run::<T>::new(model, &weights, &buffers);
    let outputs = |name: &str, ours: &[T]| {
        check_numbers(name, ours, &numbers(&case["f64"][name]), &numbers(&case["f32"][name]));
    };
    outputs("eval_logits", &ours.logits(&inputs, Mode::Eval));
    let mode =
        Mode::Train { key: 0, precision: Precision::F32, checkpointing: T::DTYPE == f32::DTYPE };
    let step = ours.step(&inputs, &target, mode);
    outputs("logits", &step.logits);
    outputs("loss", &[step.loss]);
    let (layout, gap) = (ours.model.layout(), own_gap(case));
    for id in layout.ids() {
        let name = &layout.param(id).unwrap().name;
        check_digest(case, gap, &format!("grad.{name}"), step.grads.of(id).unwrap());
    }
    assert_eq!(step.grads.ready_order(), layout.ids().collect::<Vec<_>>());
    ours.update_buffers();
    for param in ours.model.buffers().params() {
        if !param.name.ends_with("num_batches_tracked") {
            let found = &ours.buffers[param.range.clone()];
            check_digest(case, gap, &format!("after.{}", param.name), found);
        }
    }
}

fn check_case(index: usize) {
    let cases: Value = serde_json::from_str(RECORDED).unwrap();
    check::<f64>(&cases[index]);
    check::<f32>(&cases[index]);
}

#[test]
fn resnet18_with_the_small_stem_is_that_of_torchvision() {
    check_case(0);
}

#[test]
fn resnet18_with_the_large_stem_is_that_of_torchvision() {
    check_case(1);
}

#[test]
fn resnet34_is_that_of_torchvision() {
    check_case(2);
}

#[test]
fn resnet50_is_that_of_torchvision() {
    check_case(3);
}
