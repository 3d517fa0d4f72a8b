//! The cases: models of job files, a fixed synthetic batch each, and one training step.

use std::sync::Arc;

use anyhow::{Context as _, anyhow};
use lockstep_api::ModelSpec;
use lockstep_models::{Mode, Model, Workspace};
use lockstep_tensor::{
    Clip, CrossEntropy, DType, Dims, Layout, Op, Optimizer, OptimizerState, StepFactors, Tape,
    Threads, UpdatePlan, init,
};
use serde_json::{Value as Json, json};

use crate::gradients::Gradients;

const SEED: u64 = 7;
/// Of the language models.
const VOCABULARY: f64 = 512.0;
const SGD: Optimizer =
    Optimizer::Sgd { lr: 0.01, momentum: 0.0, dampening: 0.0, nesterov: false, weight_decay: 0.0 };
const ADAMW: Optimizer =
    Optimizer::AdamW { lr: 3e-4, betas: (0.9, 0.999), eps: 1e-8, weight_decay: 0.01 };

/// One case, set up.
pub(crate) enum Case {
    /// A model in training.
    Training(Box<Training>),
    /// A product of two square matrices.
    Product(Box<Product>),
}

impl Case {
    /// `gradients` makes what the gradients of a model come together in.
    pub(crate) fn new(
        name: &str,
        threads: usize,
        gradients: impl Fn(&Arc<Layout>) -> anyhow::Result<Gradients>,
    ) -> anyhow::Result<Self> {
        let threads = Threads::new(threads)?;
        if let Some(side) = name.strip_prefix("gemm-") {
            let side = side.parse().with_context(|| format!("the side of {name}"))?;
            return Ok(Self::Product(Box::new(Product::new(side, threads)?)));
        }
        let (family, batch) = name.rsplit_once('-').context("a case is named MODEL-BATCH")?;
        let batch = batch.parse().with_context(|| format!("the batch of {name}"))?;
        let (model, optimizer) = model(family).ok_or_else(|| anyhow!("there is no case {name}"))?;
        let training = Training::new(model, optimizer, batch, threads, gradients);
        Ok(Self::Training(Box::new(training.with_context(|| format!("setting up {name}"))?)))
    }

    /// One step; ends when its number is in hand.
    pub(crate) fn step(&mut self) -> anyhow::Result<f32> {
        match self {
            Self::Training(training) => training.step(),
            Self::Product(product) => product.step(),
        }
    }
}

fn model(family: &str) -> Option<(Json, Optimizer)> {
    let momentum = Optimizer::Sgd {
        lr: 0.01,
        momentum: 0.9,
        dampening: 0.0,
        nesterov: false,
        weight_decay: 0.0,
    };
    Some(match family {
        "mlp" => {
            (json!({ "arch": "mlp", "inputs": 784, "hidden": [1024, 1024], "classes": 10 }), SGD)
        }
        "cnn" => {
            let conv = |out: u32| json!({ "conv2d": { "out": out, "kernel": 3, "padding": 1 } });
            let layers = json!([
                conv(32), "relu", conv(64), "relu",
                { "max_pool2d": { "kernel": 2 } }, "flatten", { "linear": { "out": 10 } },
            ]);
            (json!({ "arch": "layers", "input": [1, 28, 28], "layers": layers }), SGD)
        }
        "resnet18" => {
            let spec =
                json!({ "arch": "resnet18", "input": [3, 32, 32], "classes": 10, "stem": "small" });
            (spec, momentum)
        }
        "gpt" => {
            let spec = json!({
                "arch": "gpt2", "vocab_size": 512, "n_positions": 128, "n_embd": 256, "n_layer": 4,
                "n_head": 4, "activation_function": "gelu", "tie_word_embeddings": false,
            });
            (spec, ADAMW)
        }
        "bert" => {
            let spec = json!({
                "arch": "bert", "vocab_size": 512, "max_position_embeddings": 128, "hidden_size": 256,
                "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024, "classes": 2,
            });
            (spec, ADAMW)
        }
        _ => return None,
    })
}

/// A model, its batch and all it takes to train.
pub(crate) struct Training {
    model: Model,
    plan: UpdatePlan,
    weights: Vec<f32>,
    buffers: Vec<f32>,
    statistics: Vec<f64>,
    gradients: Gradients,
    state: OptimizerState,
    tape: Tape<f32>,
    workspace: Workspace<f32>,
    input: &'static str,
    shape: Vec<usize>,
    floats: Vec<f32>,
    ints: Vec<i64>,
    labels: Vec<i64>,
}

impl Training {
    fn new(
        spec: Json,
        optimizer: Optimizer,
        batch: usize,
        threads: Threads,
        gradients: impl Fn(&Arc<Layout>) -> anyhow::Result<Gradients>,
    ) -> anyhow::Result<Self> {
        let spec: ModelSpec = serde_json::from_value(spec)?;
        let model = Model::new(&spec)?;
        let plan = UpdatePlan::new(optimizer, Clip::None, &[], model.layout())?;
        let (weights, buffers) = (model.initial_weights(SEED), model.initial_buffers());
        let input = &model.inputs()[0];
        let (name, meta) = (input.name, input.typical(batch));
        let classes = model.outputs()[0].classes();
        let stream = init::Stream::new(SEED, "batch");
        let fraction = |i: usize| stream.fraction(i as u64);
        let (mut floats, mut ints) = (Vec::new(), Vec::new());
        if meta.dtype == DType::I64 {
            ints.extend((0..meta.len()).map(|i| (fraction(i) * VOCABULARY) as i64));
        } else {
            floats.extend((0..meta.len()).map(|i| (2.0 * fraction(i) - 1.0) as f32));
        }
        let answers = batch * positions(&model, &meta.shape);
        let labels = (0..answers).map(|i| (i * 7 % classes) as i64).collect();
        let state = plan.state();
        let gradients = gradients(model.layout())?;
        let tape = Tape::with_threads(Arc::clone(model.layout()), threads);
        let workspace = model.workspace();
        let shape = meta.shape;
        Ok(Self {
            model,
            plan,
            weights,
            statistics: vec![0.0; buffers.len()],
            buffers,
            gradients,
            state,
            tape,
            workspace,
            input: name,
            shape,
            floats,
            ints,
            labels,
        })
    }

    fn step(&mut self) -> anyhow::Result<f32> {
        let Self { tape, weights, buffers, statistics, workspace, .. } = self;
        tape.clear();
        let x = if self.ints.is_empty() {
            tape.input(&self.shape, &self.floats)?
        } else {
            tape.index(&self.shape, &self.ints)?
        };
        let mode = Mode::train(SEED);
        let inputs = [(self.input, x)];
        let logits = self.model.forward(tape, &inputs, weights, buffers, mode, workspace)?;
        let answers = self.labels.len();
        let classes = self.model.outputs()[0].classes();
        let rows = Op::Reshape(Dims::from_iter([answers, classes]));
        let logits = tape.apply(rows, &[logits], weights)?;
        let labels = tape.index(&[answers], &self.labels)?;
        // One operation, as in the losses of the fashion and text examples.
        let rule = CrossEntropy { label_smoothing: 0.0, ignore_index: None };
        let losses = tape.apply(Op::CrossEntropy(rule), &[logits, labels], weights)?;
        let loss = tape.apply(Op::Mean, &[losses], weights)?;
        let grad_scale = self.gradients.backward(tape, loss, weights)?;
        let value = tape.values(loss)?[0];
        self.model.batch_statistics(workspace, statistics);
        self.model.update_buffers(buffers, statistics);
        let factors = StepFactors { lr_factor: 1.0, grad_scale };
        self.plan.step(weights, self.gradients.values(), factors, &mut self.state)?;
        Ok(value)
    }
}

/// Answers of a model for each sample: 1, or one for each token.
fn positions(model: &Model, shape: &[usize]) -> usize {
    if model.outputs()[0].shape.len() == 1 { 1 } else { shape[1] }
}

/// Two square matrices.
pub(crate) struct Product {
    layout: Arc<Layout>,
    tape: Tape<f32>,
    weights: Vec<f32>,
}

impl Product {
    fn new(side: usize, threads: Threads) -> anyhow::Result<Self> {
        let named = ["a", "b"].map(|name| (name.to_owned(), vec![side, side]));
        let layout = Arc::new(Layout::new(named.to_vec())?);
        let stream = init::Stream::new(SEED, "product");
        let weights = (0..layout.len()).map(|i| stream.fraction(i as u64) as f32).collect();
        let tape = Tape::with_threads(Arc::clone(&layout), threads);
        Ok(Self { layout, tape, weights })
    }

    fn step(&mut self) -> anyhow::Result<f32> {
        self.tape.clear();
        let [a, b] = ["a", "b"].map(|name| self.layout.id(name));
        let a = self.tape.param(a.context("a is laid out")?);
        let b = self.tape.param(b.context("b is laid out")?);
        let c = self.tape.apply(Op::MatMul, &[a, b], &self.weights)?;
        Ok(self.tape.values(c)?[0])
    }
}
