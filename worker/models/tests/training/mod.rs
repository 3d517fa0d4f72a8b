//! Five small models, one fixed batch each, and training steps on them.

use std::sync::Arc;

use lockstep_api::{ModelSpec, Precision};
use lockstep_models::{Mode, Model, Workspace};
use lockstep_tensor::{
    Accumulate, Clip, CrossEntropy, DType, Dims, GradBuffer, Meta, Op, Optimizer, OptimizerState,
    Recipe, RecipeBuilder, Replay, StepFactors, Tape, Threads, UpdatePlan, init,
};
use serde_json::{Value as Json, json};

const SEED: u64 = 7;
const BATCH: usize = 3;
const VOCABULARY: usize = 23;
const TIME: usize = 9;

pub(crate) const MODELS: [&str; 5] = ["mlp", "cnn", "resnet18", "gpt2", "bert"];

/// A job file's model. Those that can have dropout have it; `cnn` has a batch norm over images and one over rows.
fn spec(name: &str) -> Json {
    match name {
        "mlp" => json!({ "arch": "mlp", "inputs": 17, "hidden": [33, 20], "classes": 5 }),
        "cnn" => json!({ "arch": "layers", "input": [2, 12, 12], "layers": [
            { "conv2d": { "out": 6, "kernel": 3, "padding": 1 } }, "relu",
            { "conv2d": { "out": 8, "kernel": 3, "stride": 2, "groups": 2 } },
            "batch_norm", "relu",
            { "max_pool2d": { "kernel": 2 } }, "flatten",
            { "linear": { "out": 10 } }, "batch_norm", "relu",
            { "dropout": { "p": 0.25 } }, { "linear": { "out": 5 } },
        ] }),
        "resnet18" => json!({
            "arch": "resnet18", "input": [3, 8, 8], "classes": 5, "stem": "small",
        }),
        "gpt2" => json!({
            "arch": "gpt2", "vocab_size": VOCABULARY, "n_positions": TIME, "n_embd": 24,
            "n_layer": 3, "n_head": 2, "activation_function": "gelu_new", "resid_pdrop": 0.1,
            "embd_pdrop": 0.1, "attn_pdrop": 0.1,
        }),
        "bert" => json!({
            "arch": "bert", "vocab_size": VOCABULARY, "max_position_embeddings": TIME,
            "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 2,
            "intermediate_size": 48, "hidden_dropout_prob": 0.1,
            "attention_probs_dropout_prob": 0.1, "classes": 5,
        }),
        other => panic!("there is no model {other}"),
    }
}

/// The mean over rows of so many logits, as a loss guest would record it.
fn loss(shape: &[usize; 2]) -> Recipe {
    let mut builder = RecipeBuilder::new();
    let logits = builder.input("logits", Meta::f32(*shape)).unwrap();
    let labels = builder.input("labels", Meta::i64([shape[0]])).unwrap();
    let rule = CrossEntropy { label_smoothing: 0.1, ignore_index: None };
    let losses = builder.apply(Op::CrossEntropy(rule), &[logits, labels]).unwrap();
    let mean = builder.apply(Op::Mean, &[losses]).unwrap();
    builder.finish(vec![("mean".to_owned(), mean)]).unwrap()
}

/// A model, its batch and all it takes to train.
pub(crate) struct Training {
    model: Model,
    plan: UpdatePlan,
    pub(crate) weights: Vec<f32>,
    buffers: Vec<f32>,
    statistics: Vec<f64>,
    pub(crate) gradients: GradBuffer<f32>,
    state: OptimizerState<f32>,
    tape: Tape<f32>,
    workspace: Workspace<f32>,
    /// The mean cross entropy of `logits` and `labels`.
    loss: Recipe,
    replay: Replay,
    shape: Vec<usize>,
    floats: Vec<f32>,
    ints: Vec<i64>,
    labels: Vec<i64>,
    mode: Mode,
}

impl Training {
    pub(crate) fn new(name: &str, threads: Threads, checkpointing: bool) -> Self {
        let spec: ModelSpec = serde_json::from_value(spec(name)).unwrap();
        let model = Model::new(&spec).unwrap();
        let optimizer =
            Optimizer::AdamW { lr: 1e-3, betas: (0.9, 0.999), eps: 1e-8, weight_decay: 0.1 };
        let clip = Clip::GlobalNorm { max: 1.0 };
        let plan = UpdatePlan::new(optimizer, clip, &[], model.layout()).unwrap();
        let meta = model.inputs()[0].typical(BATCH);
        let stream = init::Stream::new(SEED, "batch");
        let fraction = |i: usize| stream.fraction(i as u64);
        let (mut floats, mut ints) = (Vec::new(), Vec::new());
        if meta.dtype == DType::I64 {
            ints.extend((0..meta.len()).map(|i| (fraction(i) * VOCABULARY as f64) as i64));
        } else {
            floats.extend((0..meta.len()).map(|i| (2.0 * fraction(i) - 1.0) as f32));
        }
        let output = &model.outputs()[0];
        let answers = if output.shape.len() == 1 { BATCH } else { BATCH * TIME };
        let labels = (0..answers).map(|i| (i * 7 % output.classes()) as i64).collect();
        Self {
            weights: model.initial_weights(SEED),
            buffers: model.initial_buffers(),
            statistics: vec![0.0; model.buffers().len()],
            gradients: GradBuffer::new(Arc::clone(model.layout())),
            state: plan.state(),
            tape: Tape::with_threads(Arc::clone(model.layout()), threads),
            workspace: model.workspace(),
            loss: loss(&[answers, output.classes()]),
            replay: Replay::default(),
            shape: meta.shape,
            mode: Mode::Train { key: SEED, precision: Precision::F32, checkpointing },
            model,
            plan,
            floats,
            ints,
            labels,
        }
    }

    /// Forward, backward and update. Returns the loss.
    pub(crate) fn step(&mut self) -> f32 {
        let Self { tape, weights, buffers, statistics, workspace, .. } = self;
        tape.clear();
        let x = if self.ints.is_empty() {
            tape.input(&self.shape, &self.floats).unwrap()
        } else {
            tape.index(&self.shape, &self.ints).unwrap()
        };
        let inputs = [(self.model.inputs()[0].name, x)];
        let logits = self.model.forward(tape, &inputs, weights, buffers, self.mode, workspace);
        let classes = self.model.outputs()[0].classes();
        let rows = Op::Reshape(Dims::from_iter([self.labels.len(), classes]));
        let logits = tape.apply(rows, &[logits.unwrap()], weights).unwrap();
        let labels = tape.index(&[self.labels.len()], &self.labels).unwrap();
        let inputs = [("logits", logits), ("labels", labels)];
        self.loss.replay(tape, &inputs, weights, &mut self.replay).unwrap();
        let loss = self.replay.outputs()[0];
        self.gradients.forget_order();
        let seeds: [(_, &[f32]); 1] = [(loss, &[1.0])];
        tape.backward(&seeds, weights, Accumulate::Overwrite, &mut self.gradients).unwrap();
        let value = tape.values(loss).unwrap()[0];
        self.model.batch_statistics(workspace, statistics);
        self.model.update_buffers(buffers, statistics);
        let factors = StepFactors { lr_factor: 1.0, grad_scale: 1.0 };
        self.plan.step(weights, self.gradients.values(), factors, &mut self.state).unwrap();
        value
    }
}
