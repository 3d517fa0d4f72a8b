//! A model with its numbers: forward, loss and backward of some samples of a recorded batch.

use std::{collections::HashMap, marker::PhantomData, ops::Range, sync::Arc};

use lockstep_tensor::{
    Accumulate, BatchNorm, CrossEntropy, GradBuffer, Layout, Op, Real, Tape, Value,
    norm::{batch_statistics, update_running},
};

use super::{nets::Net, tolerance::Golden};

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Mode {
    Train,
    Eval,
}

/// What layers are computed with.
pub(crate) struct Graph<T: Real> {
    pub(crate) layout: Arc<Layout>,
    pub(crate) weights: Vec<T>,
    /// Running statistics of batch norms.
    pub(crate) buffers: HashMap<String, Vec<T>>,
    pub(crate) tape: Tape<T>,
    mode: Mode,
    activations: Vec<(String, Value)>,
}

impl<T: Real> Graph<T> {
    pub(crate) fn apply(&mut self, op: Op, inputs: &[Value]) -> Value {
        self.tape.apply(op, inputs, &self.weights).unwrap()
    }

    pub(crate) fn param(&mut self, name: &str) -> Value {
        let id = self.layout.id(name).unwrap_or_else(|| panic!("no {name}"));
        self.tape.param(id)
    }

    /// An operation on `x` and the layer's weight and bias.
    pub(crate) fn layer(&mut self, op: Op, x: Value, layer: &str) -> Value {
        let [w, b] = ["weight", "bias"].map(|kind| self.param(&format!("{layer}.{kind}")));
        self.apply(op, &[x, w, b])
    }

    /// By the batch's statistics, which are taken into the running ones; in evaluation by the latter.
    pub(crate) fn batch_norm(&mut self, x: Value, layer: &str) -> Value {
        let settings = BatchNorm { eps: 1e-5, relu: false };
        let [mean, variance, batches] = ["running_mean", "running_var", "num_batches_tracked"]
            .map(|kind| format!("{layer}.{kind}"));
        if self.mode == Mode::Eval {
            let [mean, variance] = [mean, variance].map(|name| {
                let running = &self.buffers[&name];
                self.tape.input(&[running.len()], running).unwrap()
            });
            let [w, b] = ["weight", "bias"].map(|kind| self.param(&format!("{layer}.{kind}")));
            return self.apply(Op::BatchNormInference(settings), &[x, w, b, mean, variance]);
        }
        let y = self.layer(Op::BatchNorm(settings), x, layer);
        let channels = self.buffers[&mean].len();
        let [mean, variance, batches] =
            self.buffers.get_disjoint_mut([&mean, &variance, &batches]).map(Option::unwrap);
        let mut batch = [vec![0.0; channels], vec![0.0; channels]];
        let saved = self.tape.saved(y).unwrap();
        batch_statistics(saved, batch.each_mut().map(Vec::as_mut_slice));
        update_running(mean, &batch[0], 0.1);
        update_running(variance, &batch[1], 0.1);
        batches[0] += T::from_f64(1.0);
        y
    }

    /// Notes an activation under its name in the recording.
    pub(crate) fn note(&mut self, name: impl Into<String>, value: Value) {
        self.activations.push((name.into(), value));
    }

    pub(crate) fn values(&self, value: Value) -> Vec<f64> {
        self.tape.values(value).unwrap().iter().map(|x| x.to_f64()).collect()
    }
}

/// What comes out of forward and backward of some samples.
pub(crate) struct Grain {
    pub(crate) out: Vec<f64>,
    /// The sum over all targets.
    pub(crate) loss: f64,
    pub(crate) activations: Vec<(String, Vec<f64>)>,
}

pub(crate) struct Run<'a, N, T: Real> {
    pub(crate) golden: &'a Golden,
    pub(crate) graph: Graph<T>,
    pub(crate) gradients: GradBuffer<T>,
    pub(crate) label_smoothing: Option<f64>,
    net: PhantomData<N>,
}

impl<'a, N: Net, T: Real> Run<'a, N, T> {
    pub(crate) fn new(golden: &'a Golden) -> Self {
        let double = &golden.double;
        let shape = |name: &str| double.shape(&format!("param.{name}")).to_vec();
        let params = N::params().into_iter().map(|name| (name.clone(), shape(&name))).collect();
        let layout = Arc::new(Layout::new(params).unwrap());
        let recorded = double.floats.keys().filter(|name| name.starts_with("param."));
        assert_eq!(layout.params().len(), recorded.count());
        let numbers = |x: &[f64]| x.iter().map(|&x| T::from_f64(x)).collect::<Vec<_>>();
        let mut weights = vec![T::ZERO; layout.len()];
        for param in layout.params() {
            let start = numbers(double.values(&format!("param.{}", param.name)));
            weights[param.range.clone()].copy_from_slice(&start);
        }
        let buffer = |name: &String| name.strip_prefix("buf.").map(str::to_owned);
        let statistics = double.floats.iter();
        let mut buffers: HashMap<_, _> = statistics
            .filter_map(|(name, (_, values))| Some((buffer(name)?, numbers(values))))
            .collect();
        let counts = double.ints.keys().filter_map(|name| Some((buffer(name)?, vec![T::ZERO])));
        buffers.extend(counts);
        let tape = Tape::new(Arc::clone(&layout));
        let gradients = GradBuffer::new(Arc::clone(&layout));
        let (mode, activations) = (Mode::Train, Vec::new());
        let graph = Graph { layout, weights, buffers, tape, mode, activations };
        Self { golden, graph, gradients, label_smoothing: None, net: PhantomData }
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.graph.layout
    }

    /// The model's outputs for some samples of a batch, `[targets, classes]`.
    pub(crate) fn forward(&mut self, step: usize, samples: Range<usize>, mode: Mode) -> Value {
        let graph = &mut self.graph;
        graph.tape.clear();
        graph.activations.clear();
        graph.mode = mode;
        let (name, double) = (format!("input.{step}"), &self.golden.double);
        let input = if let Some((shape, values)) = double.floats.get(&name) {
            let (shape, values) = cut(shape, values, samples);
            let values: Vec<_> = values.iter().map(|&x| T::from_f64(x)).collect();
            graph.tape.input(&shape, &values)
        } else {
            let (shape, ids) = &double.ints[&name];
            let (shape, ids) = cut(shape, ids, samples);
            graph.tape.index(&shape, ids)
        };
        N::forward(graph, input.unwrap())
    }

    /// Forward and backward of some samples of a batch.
    pub(crate) fn grain(&mut self, step: usize, samples: Range<usize>, write: Accumulate) -> Grain {
        let (x, loss) = self.forward_and_loss(step, samples);
        let graph = &mut self.graph;
        let noted = graph.activations.iter();
        let activations = noted.map(|(name, value)| (name.clone(), graph.values(*value))).collect();
        let (out, one) = (graph.values(x), [T::ONE]);
        let seeds: [(Value, &[T]); 1] = [(loss, &one)];
        graph.tape.backward(&seeds, &graph.weights, write, &mut self.gradients).unwrap();
        Grain { out, loss: graph.values(loss)[0], activations }
    }

    /// The outputs of some samples of a batch in training, and the summed loss.
    pub(crate) fn forward_and_loss(
        &mut self,
        step: usize,
        samples: Range<usize>,
    ) -> (Value, Value) {
        let x = self.forward(step, samples.clone(), Mode::Train);
        let targets = &self.golden.double.ints[&format!("target.{step}")].1;
        let each = targets.len() / self.golden.batch();
        let targets = &targets[samples.start * each..samples.end * each];
        let targets = self.graph.tape.index(&[targets.len()], targets).unwrap();
        (x, self.loss(x, targets))
    }

    /// The summed loss: in one operation if labels are smoothed, else by small ones.
    fn loss(&mut self, x: Value, targets: Value) -> Value {
        let graph = &mut self.graph;
        if let Some(label_smoothing) = self.label_smoothing {
            let settings = CrossEntropy { label_smoothing, ignore_index: None };
            let losses = graph.apply(Op::CrossEntropy(settings), &[x, targets]);
            return graph.apply(Op::Sum, &[losses]);
        }
        let log = graph.apply(Op::LogSoftmax, &[x]);
        let picked = graph.apply(Op::Gather, &[log, targets]);
        let sum = graph.apply(Op::Sum, &[picked]);
        graph.apply(Op::Neg, &[sum])
    }
}

/// Some samples of a tensor whose first axis they are.
fn cut<'a, V>(shape: &[usize], values: &'a [V], samples: Range<usize>) -> (Vec<usize>, &'a [V]) {
    let each = values.len() / shape[0];
    let mut shape = shape.to_vec();
    shape[0] = samples.len();
    (shape, &values[samples.start * each..samples.end * each])
}
