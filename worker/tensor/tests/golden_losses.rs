//! A small perceptron trained with smoothed labels, against figures recorded with PyTorch.
#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

mod recording;

use std::sync::Arc;

use lockstep_tensor::{
    Accumulate, Activation, Clip, CrossEntropy, GradBuffer, Layout, Op, Optimizer, OptimizerState,
    Real, StepFactors, Tape, UpdatePlan, Value,
};
use recording::{Recording, assert_close};

const F64: &[u8] = include_bytes!("golden/mlp_f64.safetensors");
const CASES: &str = include_str!("golden/mlp.json");
const LAYERS: [&str; 3] = ["fc1", "fc2", "fc3"];
const CASE: &str = "sgd_label_smoothing";

struct Run<T: Real> {
    recording: Recording,
    weights: Vec<T>,
    tape: Tape<T>,
    gradients: GradBuffer<T>,
    loss: CrossEntropy,
}

impl<T: Real> Run<T> {
    fn new(loss: CrossEntropy) -> Self {
        let recording = Recording::read(F64);
        let names = LAYERS.iter().flat_map(|l| [format!("{l}.weight"), format!("{l}.bias")]);
        let start = |name: &str| format!("param.{name}");
        let shaped = names.map(|name| (name.clone(), recording.shape(&start(&name)).to_vec()));
        let layout = Arc::new(Layout::new(shaped.collect()).unwrap());
        let params = layout.params().iter();
        let weights = params.flat_map(|param| recording.values(&start(&param.name)));
        let weights = weights.map(|&w| T::from_f64(w)).collect();
        let (tape, gradients) = (Tape::new(Arc::clone(&layout)), GradBuffer::new(layout));
        Self { recording, weights, tape, gradients, loss }
    }

    /// Forward and backward of the mean loss of one batch; returns that.
    fn batch(&mut self, step: usize) -> f64 {
        self.tape.clear();
        let name = format!("input.{step}");
        let x: Vec<_> = self.recording.values(&name).iter().map(|&x| T::from_f64(x)).collect();
        let mut x = self.tape.input(self.recording.shape(&name), &x).unwrap();
        for (depth, layer) in LAYERS.iter().enumerate() {
            let [w, b] = ["weight", "bias"].map(|kind| {
                let id = self.tape.layout().id(&format!("{layer}.{kind}")).unwrap();
                self.tape.param(id)
            });
            let activation = if depth < 2 { Activation::Relu } else { Activation::None };
            x = self.apply(Op::Linear(activation), &[x, w, b]);
        }
        let (shape, labels) = &self.recording.ints[&format!("target.{step}")];
        let labels = self.tape.index(shape, labels).unwrap();
        let losses = self.apply(Op::CrossEntropy(self.loss), &[x, labels]);
        let loss = self.apply(Op::Mean, &[losses]);
        let (tape, sink) = (&mut self.tape, &mut self.gradients);
        tape.backward(&[(loss, &[T::ONE])], &self.weights, Accumulate::Overwrite, sink).unwrap();
        tape.values(loss).unwrap()[0].to_f64()
    }

    fn apply(&mut self, op: Op, inputs: &[Value]) -> Value {
        self.tape.apply(op, inputs, &self.weights).unwrap()
    }
}

fn five_steps_agree<T: Real>(bound: f64) {
    let cases: serde_json::Value = serde_json::from_str(CASES).unwrap();
    let case = &cases["cases"][CASE];
    let number = |value: &serde_json::Value| value.as_f64().unwrap();
    let label_smoothing = number(&case["label_smoothing"]);
    let (lr, momentum) = (number(&case["args"]["lr"]), number(&case["args"]["momentum"]));
    let mut run = Run::<T>::new(CrossEntropy { label_smoothing, ignore_index: None });
    let rule = Optimizer::Sgd { lr, momentum, dampening: 0.0, nesterov: false, weight_decay: 0.0 };
    let plan = UpdatePlan::new(rule, Clip::None, &[], run.tape.layout()).unwrap();
    let factors = StepFactors { lr_factor: 1.0, grad_scale: 1.0 };
    let mut state: OptimizerState<T> = plan.state();
    let losses = case["f64"]["loss"].as_array().unwrap();
    for (step, expected) in losses.iter().enumerate() {
        let loss = run.batch(step);
        assert_close(&format!("loss {step}"), [loss], &[number(expected)], bound);
        plan.step(&mut run.weights, run.gradients.values(), factors, &mut state).unwrap();
    }
    assert_eq!(state.step, 5);
    for param in run.tape.layout().params() {
        let name = format!("case.{CASE}.{}", param.name);
        let ours = run.weights[param.range.clone()].iter().map(|w| w.to_f64());
        assert_close(&name, ours, run.recording.values(&name), bound);
    }
}

#[test]
fn five_steps_with_smoothed_labels_agree_in_f32() {
    five_steps_agree::<f32>(2e-5);
}

#[test]
fn five_steps_with_smoothed_labels_agree_in_f64() {
    five_steps_agree::<f64>(1e-10);
}
