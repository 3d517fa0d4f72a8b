//! A small perceptron against figures recorded with PyTorch: forward, loss, gradients, five steps.
#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

mod recording;

use std::{ops::Range, sync::Arc};

use lockstep_tensor::{
    Accumulate, Activation, Clip, CrossEntropy, GradBuffer, GroupUpdate, Layout, LrCurve,
    LrSchedule, Op, Optimizer, ParamGroup, Real, StepFactors, Tape, UpdatePlan, Value, WarmUp,
};
use recording::Recording;

const F32: &[u8] = include_bytes!("golden/mlp_f32.safetensors");
const F64: &[u8] = include_bytes!("golden/mlp_f64.safetensors");
const CASES: &str = include_str!("golden/mlp.json");
const LAYERS: [&str; 3] = ["fc1", "fc2", "fc3"];
const BATCH: usize = 8;

/// What PyTorch got, and how far its own f32 run strays from it.
struct Golden {
    single: Recording,
    double: Recording,
}

impl Golden {
    fn read() -> Self {
        Self { single: Recording::read(F32), double: Recording::read(F64) }
    }

    fn check<T: Real>(&self, name: &str, ours: impl IntoIterator<Item = f64>) {
        let ours: Vec<_> = ours.into_iter().collect();
        check::<T>(name, self.double.values(name), self.single.values(name), &ours);
    }
}

/// In f32: 2e-5 of the greatest value, or twice PyTorch's own gap. In f64: 1e-10 of the greatest.
fn check<T: Real>(name: &str, truth: &[f64], single: &[f64], ours: &[f64]) {
    let greatest = truth.iter().fold(0.0_f64, |max, x| max.max(x.abs()));
    let gap = truth.iter().zip(single);
    let gap = gap.fold(0.0_f64, |max, (a, b)| max.max((a - b).abs()));
    let is_single = T::DTYPE == f32::DTYPE;
    let bound = if is_single { (2e-5 * greatest).max(2.0 * gap) } else { 1e-10 * greatest };
    assert_eq!(ours.len(), truth.len(), "{name}");
    for (ours, truth) in ours.iter().zip(truth) {
        assert!((ours - truth).abs() <= bound, "{name}: {ours}, {truth} ± {bound}");
    }
}

struct Run<'a, T: Real> {
    golden: &'a Golden,
    layout: Arc<Layout>,
    weights: Vec<T>,
    tape: Tape<T>,
    gradients: GradBuffer<T>,
    label_smoothing: Option<f64>,
}

impl<'a, T: Real> Run<'a, T> {
    fn new(golden: &'a Golden) -> Self {
        let names = LAYERS.iter().flat_map(|l| [format!("{l}.weight"), format!("{l}.bias")]);
        let shape = |name: &str| golden.double.shape(&format!("param.{name}")).to_vec();
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
        Self { golden, layout, weights, tape, gradients, label_smoothing: None }
    }

    /// Forward and backward of some samples of a batch; returns their outputs and their summed loss.
    fn grain(&mut self, step: usize, samples: Range<usize>, write: Accumulate) -> (Vec<f64>, f64) {
        self.tape.clear();
        let input = self.golden.double.values(&format!("input.{step}"));
        let columns = input.len() / BATCH;
        let input = &input[samples.start * columns..samples.end * columns];
        let input: Vec<_> = input.iter().map(|&x| T::from_f64(x)).collect();
        let mut x = self.tape.input(&[samples.len(), columns], &input).unwrap();
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
        let labels = &self.golden.double.ints[&format!("target.{step}")].1[samples];
        let labels = self.tape.index(&[labels.len()], labels).unwrap();
        let loss = self.loss(x, labels);
        let one = [T::ONE];
        let seeds: [(Value, &[T]); 1] = [(loss, &one)];
        let tape = &mut self.tape;
        let out = tape.values(x).unwrap().iter().map(|y| y.to_f64()).collect();
        tape.backward(&seeds, &self.weights, write, &mut self.gradients).unwrap();
        (out, tape.values(loss).unwrap()[0].to_f64())
    }

    /// The summed loss: in one operation if labels are smoothed, else by small ones.
    fn loss(&mut self, x: Value, labels: Value) -> Value {
        if let Some(label_smoothing) = self.label_smoothing {
            let settings = CrossEntropy { label_smoothing, ignore_index: None };
            let losses = self.apply(Op::CrossEntropy(settings), &[x, labels]);
            return self.apply(Op::Sum, &[losses]);
        }
        let log = self.apply(Op::LogSoftmax, &[x]);
        let picked = self.apply(Op::Gather, &[log, labels]);
        let sum = self.apply(Op::Sum, &[picked]);
        self.apply(Op::Neg, &[sum])
    }

    fn apply(&mut self, op: Op, inputs: &[Value]) -> Value {
        self.tape.apply(op, inputs, &self.weights).unwrap()
    }
}

fn first_batch_agrees<T: Real>() {
    let golden = Golden::read();
    let mut run = Run::<T>::new(&golden);
    let (out, loss) = run.grain(0, 0..BATCH, Accumulate::Overwrite);
    golden.check::<T>("out.0", out);
    golden.check::<T>("loss.0", [loss / BATCH as f64]);
    for id in run.layout.ids() {
        let name = &run.layout.param(id).unwrap().name;
        let gradient = run.gradients.of(id).unwrap();
        let mean = gradient.iter().map(|g| g.to_f64() / BATCH as f64);
        golden.check::<T>(&format!("grad.{name}"), mean);
    }
}

/// A recorded case: how it was trained, and what came out of it besides the weights.
struct Case {
    name: &'static str,
    record: serde_json::Value,
}

impl Case {
    fn read(name: &'static str) -> Self {
        let all: serde_json::Value = serde_json::from_str(CASES).unwrap();
        Self { name, record: all["cases"][name].clone() }
    }

    fn arg(&self, name: &str, default: f64) -> f64 {
        self.record["args"][name].as_f64().unwrap_or(default)
    }

    /// PyTorch's defaults where the recording has no argument.
    fn optimizer(&self) -> Optimizer {
        let is_set = |name: &str| self.record["args"][name].as_bool() == Some(true);
        let beta = |i: usize, default| self.record["args"]["betas"][i].as_f64().unwrap_or(default);
        let betas = (beta(0, 0.9), beta(1, 0.999));
        let (lr, eps) = (self.arg("lr", f64::NAN), self.arg("eps", 1e-8));
        let (momentum, weight_decay) = (self.arg("momentum", 0.0), self.arg("weight_decay", 0.0));
        match self.record["opt"].as_str().unwrap() {
            "SGD" => {
                let (dampening, nesterov) = (self.arg("dampening", 0.0), is_set("nesterov"));
                Optimizer::Sgd { lr, momentum, dampening, nesterov, weight_decay }
            }
            "Adam" => Optimizer::Adam { lr, betas, eps, weight_decay, amsgrad: is_set("amsgrad") },
            "AdamW" => Optimizer::AdamW { lr, betas, eps, weight_decay },
            "RMSprop" => Optimizer::RmsProp { lr, alpha: 0.99, eps, momentum, weight_decay },
            "Adagrad" => Optimizer::Adagrad { lr, eps: 1e-10, weight_decay },
            other => panic!("{other}"),
        }
    }

    /// PyTorch decays biases too.
    fn plan(&self, layout: &Layout) -> UpdatePlan {
        let number = |name: &str| self.record[name].as_f64();
        let clip = match (number("clip_norm"), number("clip_value")) {
            (Some(max), None) => Clip::GlobalNorm { max },
            (None, Some(bound)) => Clip::Value { bound },
            (None, None) => Clip::None,
            (Some(_), Some(_)) => panic!("two ways to clip"),
        };
        let weight_decay = Some(self.arg("weight_decay", 0.0));
        let update = GroupUpdate::Train { lr_scale: 1.0, weight_decay };
        let all = ParamGroup { pattern: "*".to_owned(), update };
        UpdatePlan::new(self.optimizer(), clip, &[all], layout).unwrap()
    }

    fn schedule(&self) -> LrSchedule {
        let Some(steps) = self.record["sched"]["warm"].as_u64() else {
            return LrSchedule::constant();
        };
        let rest = self.record["sched"]["total"].as_u64().unwrap() - steps;
        let cosine = LrCurve::Cosine { steps: rest, min_factor: 1e-5 / self.arg("lr", f64::NAN) };
        LrSchedule::new(Some(WarmUp { steps, start_factor: 0.25 }), cosine).unwrap()
    }

    /// One figure per step, within the tolerance of one that is a tensor.
    fn check<T: Real>(&self, figure: &str, ours: &[f64]) {
        let figures = |precision: &str| -> Vec<f64> {
            let list = self.record[precision][figure].as_array().unwrap();
            list.iter().map(|x| x.as_f64().unwrap()).collect()
        };
        check::<T>(&format!("{} {figure}", self.name), &figures("f64"), &figures("f32"), ours);
    }
}

fn five_steps_agree<T: Real>(name: &'static str) {
    let (golden, case) = (Golden::read(), Case::read(name));
    let mut run = Run::<T>::new(&golden);
    run.label_smoothing = case.record["label_smoothing"].as_f64();
    let (plan, schedule) = (case.plan(&run.layout), case.schedule());
    let mut state = plan.state::<T>();
    let grain_len = BATCH / case.record["micro"].as_u64().map_or(1, |micro| micro as usize);
    let (mut losses, mut norms, mut lrs) = (Vec::new(), Vec::new(), Vec::new());
    for step in 0..5 {
        let mut loss = 0.0;
        for start in (0..BATCH).step_by(grain_len) {
            let write = if start == 0 { Accumulate::Overwrite } else { Accumulate::Add };
            loss += run.grain(step, start..start + grain_len, write).1;
        }
        losses.push(loss / BATCH as f64);
        let lr_factor = schedule.factor(step as u64);
        let factors = StepFactors { lr_factor, grad_scale: 1.0 / BATCH as f64 };
        let grads = run.gradients.values();
        let norm = plan.grad_norm(grads, factors.grad_scale).unwrap();
        let report = plan.step(&mut run.weights, grads, factors, &mut state).unwrap();
        assert_eq!(report.grad_norm, case.record["clip_norm"].as_f64().map(|_| norm));
        norms.push(norm);
        lrs.push(case.arg("lr", f64::NAN) * lr_factor);
    }
    assert_eq!(state.step, 5);
    case.check::<T>("loss", &losses);
    case.check::<T>("grad_norm", &norms);
    case.check::<f64>("lr", &lrs);
    for param in run.layout.params() {
        let ours = run.weights[param.range.clone()].iter().map(|w| w.to_f64());
        golden.check::<T>(&format!("case.{name}.{}", param.name), ours);
    }
}

const CASES_OF_FIVE_STEPS: [&str; 16] = [
    "sgd",
    "sgd_momentum",
    "sgd_momentum_dampening",
    "sgd_nesterov_wd",
    "sgd_clip_value",
    "sgd_accumulate2",
    "adam",
    "adam_l2",
    "adam_amsgrad",
    "adamw",
    "adamw_betas",
    "adamw_clip_norm",
    "adamw_warm_cosine",
    "rmsprop",
    "adagrad",
    "sgd_label_smoothing",
];

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
    CASES_OF_FIVE_STEPS.into_iter().for_each(five_steps_agree::<f32>);
}

#[test]
fn weights_after_five_steps_agree_in_f64() {
    CASES_OF_FIVE_STEPS.into_iter().for_each(five_steps_agree::<f64>);
}
