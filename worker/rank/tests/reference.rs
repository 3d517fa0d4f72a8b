//! The gang against the plainest possible program: one process, the whole data as one batch, no guests, no grains,
//! no reduction. Independent of the order of samples, because every step uses all of them.
#![expect(clippy::unwrap_used, reason = "a test's way to fail")]

#[expect(dead_code, reason = "each test file uses its part")]
mod harness;

use std::sync::Arc;

use harness::Gang;
use harness::jobs::{misbehaving, misbehaving_files};
use lockstep_api::Reduction;
use lockstep_tensor::{
    Accumulate, Activation, Clip, GradBuffer, Layout, Op, Optimizer, StepFactors, Tape, UpdatePlan,
    init,
};
use serde_json::json;

const STEPS: u32 = 6;
/// Of the made-up digits.
const SAMPLES: usize = 256;

#[test]
fn a_gang_follows_the_curve_of_one_plain_process() {
    let expected = plain_losses();
    for (ranks, reduction) in
        [(1, Reduction::Fast), (3, Reduction::Fast), (2, Reduction::FixedTree)]
    {
        let mut spec = misbehaving(ranks, json!({}), json!({}));
        spec.ddp.reduction = reduction;
        spec.model = serde_json::from_value(
            json!({ "arch": "mlp", "inputs": 64, "hidden": [32], "classes": 10 }),
        )
        .unwrap();
        spec.train.epochs = STEPS;
        spec.train.global_batch = 256;
        // Ten full grains and one of six samples.
        spec.train.micro_batch = 25;
        spec.train.optimizer = serde_json::from_value(
            json!({ "name": "sgd", "lr": 0.2, "momentum": 0.9, "weight_decay": 1e-3 }),
        )
        .unwrap();
        let outcome = Gang::start(&spec, &misbehaving_files("misbehaving-loss"), None).finish();
        let losses = outcome.assert_success().losses();
        assert_eq!(losses.len(), expected.len());
        for (loss, expected) in losses.iter().zip(&expected) {
            let relative = (loss - expected).abs() / expected;
            assert!(relative < 1e-5, "{ranks} ranks: {losses:?} and {expected:?}");
        }
    }
}

/// Mean cross entropy before each step of stochastic gradient descent on the whole training split.
fn plain_losses() -> Vec<f64> {
    let (pixels, labels) = data();
    let shapes = [
        ("layers.0.weight", vec![32, 64]),
        ("layers.0.bias", vec![32]),
        ("layers.1.weight", vec![10, 32]),
        ("layers.1.bias", vec![10]),
    ];
    let named = shapes.map(|(name, shape)| (name.to_owned(), shape)).to_vec();
    let layout = Arc::new(Layout::new(named).unwrap());
    let mut weights = vec![0.0_f32; layout.len()];
    for param in layout.params() {
        let inputs = if param.name.starts_with("layers.0") { 64 } else { 32 };
        init::kaiming_uniform(7, &param.name, inputs, &mut weights[param.range.clone()]);
    }
    let sgd = Optimizer::Sgd {
        lr: 0.2,
        momentum: 0.9,
        dampening: 0.0,
        nesterov: false,
        weight_decay: 1e-3,
    };
    let plan = UpdatePlan::new(sgd, Clip::None, &[], &layout).unwrap();
    let mut state = plan.state();
    let mut gradients = GradBuffer::new(Arc::clone(&layout));
    let mut tape = Tape::new(Arc::clone(&layout));
    let mut losses = Vec::new();
    for _ in 0..STEPS {
        tape.clear();
        let [w0, b0, w1, b1] =
            ["layers.0.weight", "layers.0.bias", "layers.1.weight", "layers.1.bias"]
                .map(|name| tape.param(layout.id(name).unwrap()));
        let x = tape.input(&[SAMPLES, 64], &pixels).unwrap();
        let y = tape.index(&[SAMPLES], &labels).unwrap();
        let mut apply = |op, inputs: &[_]| tape.apply(op, inputs, &weights).unwrap();
        let hidden = apply(Op::Linear(Activation::None), &[x, w0, b0]);
        let hidden = apply(Op::Relu, &[hidden]);
        let logits = apply(Op::Linear(Activation::None), &[hidden, w1, b1]);
        let log_p = apply(Op::LogSoftmax, &[logits]);
        let picked = apply(Op::Gather, &[log_p, y]);
        let mean = apply(Op::Mean, &[picked]);
        let loss = apply(Op::Neg, &[mean]);
        losses.push(f64::from(tape.values(loss).unwrap()[0]));
        tape.backward(&[(loss, &[1.0])], &weights, Accumulate::Overwrite, &mut gradients).unwrap();
        let factors = StepFactors { lr_factor: 1.0, grad_scale: 1.0 };
        plan.step(&mut weights, gradients.values(), factors, &mut state).unwrap();
    }
    losses
}

/// As the guest makes it up.
fn data() -> (Vec<f32>, Vec<i64>) {
    let pixel = |at: usize| ((at / 64 * 31 + at % 64 * 7) % 17) as f32 / 16.0;
    ((0..SAMPLES * 64).map(pixel).collect(), (0..256).map(|sample| sample % 10).collect())
}
