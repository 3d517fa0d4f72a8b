//! A small perceptron against figures recorded with PyTorch: forward, loss, gradients, five steps.
#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::{collections::HashMap, sync::Arc};

use lockstep_tensor::{
    Accumulate, Activation, GradBuffer, Layout, Op, Optimizer, OptimizerState, Real, Tape, Value,
};
use safetensors::{Dtype, SafeTensors};

const F32: &[u8] = include_bytes!("golden/mlp_f32.safetensors");
const F64: &[u8] = include_bytes!("golden/mlp_f64.safetensors");
const CASES: &str = include_str!("golden/mlp.json");
const LAYERS: [&str; 3] = ["fc1", "fc2", "fc3"];
const BATCH: usize = 8;

/// A recording: floats as f64, integers apart.
struct Recording {
    floats: HashMap<String, (Vec<usize>, Vec<f64>)>,
    ints: HashMap<String, Vec<i64>>,
}

impl Recording {
    fn read(bytes: &[u8]) -> Self {
        let file = SafeTensors::deserialize(bytes).unwrap();
        let mut recording = Self { floats: HashMap::new(), ints: HashMap::new() };
        for (name, view) in file.tensors() {
            let data = view.data();
            let floats = match view.dtype() {
                Dtype::F32 => numbers(data, |b| f64::from(f32::from_le_bytes(b))),
                Dtype::F64 => numbers(data, f64::from_le_bytes),
                Dtype::I64 => {
                    recording.ints.insert(name, numbers(data, i64::from_le_bytes));
                    continue;
                }
                other => panic!("{name} is {other:?}"),
            };
            recording.floats.insert(name, (view.shape().to_vec(), floats));
        }
        recording
    }

    fn values(&self, name: &str) -> &[f64] {
        &self.floats.get(name).unwrap_or_else(|| panic!("no {name}")).1
    }
}

fn numbers<const N: usize, V>(data: &[u8], value: impl Fn([u8; N]) -> V) -> Vec<V> {
    data.chunks_exact(N).map(|bytes| value(bytes.try_into().unwrap())).collect()
}

/// What PyTorch got, and how far its own f32 run strays from it.
struct Golden {
    single: Recording,
    double: Recording,
}

impl Golden {
    fn read() -> Self {
        Self { single: Recording::read(F32), double: Recording::read(F64) }
    }

    /// In f32: 2e-5 of the greatest value, or twice PyTorch's own gap. In f64: 1e-10 of the greatest.
    fn check<T: Real>(&self, name: &str, ours: impl IntoIterator<Item = f64>) {
        let truth = self.double.values(name);
        let greatest = truth.iter().fold(0.0_f64, |max, x| max.max(x.abs()));
        let gap = truth.iter().zip(self.single.values(name));
        let gap = gap.fold(0.0_f64, |max, (a, b)| max.max((a - b).abs()));
        let single = T::DTYPE == f32::DTYPE;
        let bound = if single { (2e-5 * greatest).max(2.0 * gap) } else { 1e-10 * greatest };
        let ours: Vec<_> = ours.into_iter().collect();
        assert_eq!(ours.len(), truth.len(), "{name}");
        for (ours, truth) in ours.iter().zip(truth) {
            assert!((ours - truth).abs() <= bound, "{name}: {ours}, {truth} ± {bound}");
        }
    }
}

struct Run<'a, T: Real> {
    golden: &'a Golden,
    layout: Arc<Layout>,
    weights: Vec<T>,
    tape: Tape<T>,
    gradients: GradBuffer<T>,
}

impl<'a, T: Real> Run<'a, T> {
    fn new(golden: &'a Golden) -> Self {
        let names = LAYERS.iter().flat_map(|l| [format!("{l}.weight"), format!("{l}.bias")]);
        let shape = |name: &str| golden.double.floats[&format!("param.{name}")].0.clone();
        let params = names.map(|name| (name.clone(), shape(&name))).collect();
        let layout = Arc::new(Layout::new(params).unwrap());
        let mut weights = vec![T::ZERO; layout.len()];
        for param in layout.params() {
            let start = golden.double.values(&format!("param.{}", param.name));
            for (w, &start) in weights[param.range.clone()].iter_mut().zip(start) {
                *w = T::from_f64(start);
            }
        }
        let tape = Tape::new(Arc::clone(&layout));
        let gradients = GradBuffer::new(Arc::clone(&layout));
        Self { golden, layout, weights, tape, gradients }
    }

    /// Forward and backward of one batch; returns its outputs and its summed loss.
    fn grain(&mut self, step: usize) -> (Vec<f64>, f64) {
        self.tape.clear();
        let input = self.golden.double.values(&format!("input.{step}"));
        let input: Vec<_> = input.iter().map(|&x| T::from_f64(x)).collect();
        let mut x = self.tape.input(&[BATCH, input.len() / BATCH], &input).unwrap();
        for (depth, layer) in LAYERS.iter().enumerate() {
            if 0 < depth {
                x = self.apply(Op::Relu, &[x]);
            }
            let [w, b] = ["weight", "bias"].map(|kind| {
                let id = self.layout.id(&format!("{layer}.{kind}")).unwrap();
                self.tape.param(id)
            });
            x = self.apply(Op::Linear(Activation::None), &[x, w, b]);
        }
        let labels = &self.golden.double.ints[&format!("target.{step}")];
        let labels = self.tape.index(&[BATCH], labels).unwrap();
        let log = self.apply(Op::LogSoftmax, &[x]);
        let picked = self.apply(Op::Gather, &[log, labels]);
        let sum = self.apply(Op::Sum, &[picked]);
        let loss = self.apply(Op::Neg, &[sum]);
        let one = [T::ONE];
        let seeds: [(Value, &[T]); 1] = [(loss, &one)];
        let tape = &mut self.tape;
        let out = tape.values(x).unwrap().iter().map(|y| y.to_f64()).collect();
        tape.backward(&seeds, &self.weights, Accumulate::Overwrite, &mut self.gradients).unwrap();
        (out, tape.values(loss).unwrap()[0].to_f64())
    }

    fn apply(&mut self, op: Op, inputs: &[Value]) -> Value {
        self.tape.apply(op, inputs, &self.weights).unwrap()
    }
}

fn first_batch_agrees<T: Real>() {
    let golden = Golden::read();
    let mut run = Run::<T>::new(&golden);
    let (out, loss) = run.grain(0);
    golden.check::<T>("out.0", out);
    golden.check::<T>("loss.0", [loss / BATCH as f64]);
    for id in run.layout.ids() {
        let name = &run.layout.param(id).unwrap().name;
        let gradient = run.gradients.of(id).unwrap();
        let mean = gradient.iter().map(|g| g.to_f64() / BATCH as f64);
        golden.check::<T>(&format!("grad.{name}"), mean);
    }
}

fn five_steps_agree<T: Real>(case: &str, optimizer: Optimizer, loss_bound: f64) {
    let golden = Golden::read();
    let cases: serde_json::Value = serde_json::from_str(CASES).unwrap();
    let losses = cases["cases"][case]["f64"]["loss"].as_array().unwrap();
    let mut run = Run::<T>::new(&golden);
    let mut state: OptimizerState<T> = optimizer.state(run.layout.len());
    let scale = T::from_f64(1.0 / BATCH as f64);
    assert_eq!(losses.len(), 5);
    for (step, expected) in losses.iter().enumerate() {
        let loss = run.grain(step).1 / BATCH as f64;
        let expected = expected.as_f64().unwrap();
        assert!((loss - expected).abs() < loss_bound, "{case} {step}: {loss} {expected}");
        optimizer.step(&mut run.weights, run.gradients.values(), scale, &mut state);
    }
    assert_eq!(state.step, 5);
    for param in run.layout.params() {
        let ours = run.weights[param.range.clone()].iter().map(|w| w.to_f64());
        golden.check::<T>(&format!("case.{case}.{}", param.name), ours);
    }
}

/// The settings of the recorded cases, from the recording itself.
fn optimizer(case: &str) -> Optimizer {
    let cases: serde_json::Value = serde_json::from_str(CASES).unwrap();
    let case = &cases["cases"][case];
    let number = |name: &str, default: f64| case["args"][name].as_f64().unwrap_or(default);
    let (lr, weight_decay) = (number("lr", f64::NAN), number("weight_decay", f64::NAN));
    match case["opt"].as_str().unwrap() {
        "SGD" => {
            let weight_decay = if weight_decay.is_nan() { 0.0 } else { weight_decay };
            Optimizer::Sgd { lr, momentum: number("momentum", 0.0), weight_decay }
        }
        "AdamW" => {
            let betas = &case["args"]["betas"];
            let beta = |i: usize, default| betas[i].as_f64().unwrap_or(default);
            let betas = (beta(0, 0.9), beta(1, 0.999));
            Optimizer::AdamW { lr, betas, eps: number("eps", 1e-8), weight_decay }
        }
        other => panic!("{other}"),
    }
}

#[test]
fn outputs_loss_and_gradients_agree_in_f32() {
    first_batch_agrees::<f32>();
}

#[test]
fn outputs_loss_and_gradients_agree_in_f64() {
    first_batch_agrees::<f64>();
}

#[test]
fn weights_after_five_steps_agree_in_f32() {
    for case in ["sgd", "sgd_momentum", "adamw", "adamw_betas"] {
        five_steps_agree::<f32>(case, optimizer(case), 1e-5);
    }
}

#[test]
fn weights_after_five_steps_agree_in_f64() {
    for case in ["sgd", "sgd_momentum", "adamw", "adamw_betas"] {
        five_steps_agree::<f64>(case, optimizer(case), 1e-10);
    }
}
