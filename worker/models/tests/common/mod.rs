//! What the tests of recorded figures have in common.
#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]
#![allow(dead_code, clippy::allow_attributes, reason = "each test file uses a part")]

pub(crate) mod files;

use std::{collections::HashMap, sync::Arc};

use lockstep_api::ModelSpec;
use lockstep_models::{Mode, Model};
use lockstep_tensor::{Accumulate, CrossEntropy, GradBuffer, Op, Real, Tape, Value};
use safetensors::{Dtype, SafeTensors};
use serde_json::json;

pub(crate) fn spec(value: serde_json::Value) -> ModelSpec {
    serde_json::from_value(value).unwrap()
}

pub(crate) fn gpt2(is_tied: bool) -> ModelSpec {
    spec(json!({
        "arch": "gpt2", "vocab_size": 17, "n_positions": 12, "n_embd": 16, "n_layer": 2, "n_head": 2,
        "n_inner": 24, "tie_word_embeddings": is_tied,
    }))
}

pub(crate) fn bert() -> ModelSpec {
    spec(json!({
        "arch": "bert", "vocab_size": 19, "max_position_embeddings": 12, "hidden_size": 16,
        "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24, "classes": 3,
    }))
}

pub(crate) fn vit() -> ModelSpec {
    spec(json!({
        "arch": "vit", "image_size": 8, "patch_size": 4, "hidden_dim": 16, "num_layers": 2, "num_heads": 2,
        "mlp_dim": 24, "classes": 5,
    }))
}

pub(crate) fn mlp() -> ModelSpec {
    spec(
        json!({ "arch": "mlp", "inputs": 5, "hidden": [7, 6], "classes": 4, "activation": "silu" }),
    )
}

pub(crate) fn layers() -> ModelSpec {
    spec(json!({ "arch": "layers", "input": [2, 9, 11], "layers": [
        { "conv2d": { "out": 6, "kernel": 3, "padding": 1, "bias": false } },
        "batch_norm",
        "relu",
        { "max_pool2d": { "kernel": 3, "stride": 2, "padding": 1 } },
        { "conv2d": { "out": 8, "kernel": 3, "padding": 2, "dilation": 2, "groups": 2 } },
        "gelu",
        { "avg_pool2d": { "kernel": 2 } },
        { "conv2d": { "out": 8, "kernel": 1 } },
        "relu",
        { "batch_norm": { "eps": 1e-3, "momentum": 0.25 } },
        { "adaptive_avg_pool2d": { "size": 2 } },
        "flatten",
        "layer_norm",
        { "linear": { "out": 12 } },
        "gelu_new",
        { "rms_norm": { "eps": 1e-6 } },
        { "linear": { "out": 10, "bias": false } },
        "silu",
        "batch_norm",
        { "linear": { "out": 9 } },
        "tanh",
        { "linear": { "out": 8 } },
        "sigmoid",
        { "linear": { "out": 3 } },
        "relu",
    ]}))
}

/// A recorded file: floats as f64, integers apart.
#[derive(Debug, Default)]
pub(crate) struct Recording {
    pub(crate) floats: HashMap<String, Vec<f64>>,
    pub(crate) ints: HashMap<String, (Vec<usize>, Vec<i64>)>,
    pub(crate) shapes: HashMap<String, Vec<usize>>,
}

impl Recording {
    pub(crate) fn read(bytes: &[u8]) -> Self {
        let mut recording = Self::default();
        for (name, view) in SafeTensors::deserialize(bytes).unwrap().tensors() {
            let (data, shape) = (view.data(), view.shape().to_vec());
            recording.shapes.insert(name.clone(), shape.clone());
            let floats = match view.dtype() {
                Dtype::F32 => numbers(data, |b| f64::from(f32::from_le_bytes(b))),
                Dtype::F64 => numbers(data, f64::from_le_bytes),
                Dtype::I64 => {
                    recording.ints.insert(name, (shape, numbers(data, i64::from_le_bytes)));
                    continue;
                }
                other => panic!("{name} is {other:?}"),
            };
            recording.floats.insert(name, floats);
        }
        recording
    }

    /// Compares ours with the f64 figures: in f64 within 1e-10 of the greatest, in f32 within 2e-5 of it or twice the
    /// library's own gap between f32 and f64.
    pub(crate) fn check<T: Real>(&self, name: &str, ours: &[T]) {
        let truth = &self.floats[&format!("f64.{name}")];
        check_numbers(name, ours, truth, &self.floats[&format!("f32.{name}")]);
    }
}

fn numbers<const N: usize, V>(data: &[u8], value: impl Fn([u8; N]) -> V) -> Vec<V> {
    data.chunks_exact(N).map(|bytes| value(bytes.try_into().unwrap())).collect()
}

pub(crate) fn check_numbers<T: Real>(name: &str, ours: &[T], truth: &[f64], single: &[f64]) {
    let greatest = truth.iter().fold(0.0_f64, |max, x| max.max(x.abs()));
    let gap = truth.iter().zip(single).fold(0.0_f64, |max, (a, b)| max.max((a - b).abs()));
    // Some gradients are 0 but for rounding; then what rounding leaves is compared with 1.
    let bound = if T::DTYPE == f32::DTYPE {
        (2e-5 * greatest).max(2.0 * gap)
    } else {
        (1e-10 * greatest).max(1e-15)
    };
    assert_eq!(ours.len(), truth.len(), "{name}");
    for (ours, truth) in ours.iter().zip(truth) {
        let ours = ours.to_f64();
        assert!((ours - truth).abs() <= bound, "{name}: {ours}, recorded {truth} ± {bound}");
    }
}

/// A model with numbers, on a tape.
pub(crate) struct Run<T: Real> {
    pub(crate) model: Model,
    pub(crate) weights: Vec<T>,
    pub(crate) buffers: Vec<T>,
    pub(crate) tape: Tape<T>,
    pub(crate) workspace: lockstep_models::Workspace<T>,
}

impl<T: Real> Run<T> {
    /// Loads a whole state dict.
    pub(crate) fn load(spec: &ModelSpec, bytes: &[u8]) -> Self {
        let model = Model::new(spec).unwrap();
        let (mut weights, mut buffers) = (model.initial_weights(0), model.initial_buffers());
        let report = model.load_weights(&mut weights, &mut buffers, bytes, true).unwrap();
        assert_eq!(report.loaded, model.layout().params().len() + model.buffers().params().len());
        Self::new(model, &weights, &buffers)
    }

    pub(crate) fn new(model: Model, weights: &[f32], buffers: &[f32]) -> Self {
        let convert = |values: &[f32]| values.iter().map(|&x| T::from_f64(x.into())).collect();
        let tape = Tape::new(Arc::clone(model.layout()));
        let workspace = model.workspace();
        Self { weights: convert(weights), buffers: convert(buffers), model, tape, workspace }
    }

    /// The last training pass's statistics into the running ones.
    pub(crate) fn update_buffers(&mut self) {
        let mut statistics = vec![0.0; self.buffers.len()];
        self.model.batch_statistics(&self.workspace, &mut statistics);
        self.model.update_buffers(&mut self.buffers, &statistics);
    }

    pub(crate) fn forward(&mut self, inputs: &Inputs<'_>, mode: Mode) -> Value {
        self.tape.clear();
        let mut values = Vec::new();
        for (name, shape, data) in &inputs.floats {
            let data: Vec<T> = data.iter().map(|&x| T::from_f64(x)).collect();
            values.push((*name, self.tape.input(shape, &data).unwrap()));
        }
        for (name, shape, data) in &inputs.ints {
            values.push((*name, self.tape.index(shape, data).unwrap()));
        }
        let Self { model, weights, buffers, tape, workspace } = self;
        model.forward(tape, &values, weights, buffers, mode, workspace).unwrap()
    }

    pub(crate) fn logits(&mut self, inputs: &Inputs<'_>, mode: Mode) -> Vec<T> {
        let logits = self.forward(inputs, mode);
        self.tape.values(logits).unwrap().to_vec()
    }

    /// Mean cross entropy of the logits and its gradients.
    pub(crate) fn step(&mut self, inputs: &Inputs<'_>, target: &[i64], mode: Mode) -> Step<T> {
        let logits = self.forward(inputs, mode);
        let output = self.tape.values(logits).unwrap().to_vec();
        let classes = *self.tape.meta(logits).unwrap().shape.last().unwrap();
        let flat = Op::Reshape([target.len(), classes].into_iter().collect());
        let flat = self.tape.apply(flat, &[logits], &self.weights).unwrap();
        let target = self.tape.index(&[target.len()], target).unwrap();
        let op = Op::CrossEntropy(CrossEntropy { label_smoothing: 0.0, ignore_index: None });
        let losses = self.tape.apply(op, &[flat, target], &self.weights).unwrap();
        let loss = self.tape.apply(Op::Mean, &[losses], &self.weights).unwrap();
        let value = self.tape.values(loss).unwrap()[0];
        let mut grads = GradBuffer::new(Arc::clone(self.model.layout()));
        let seeds: [(Value, &[T]); 1] = [(loss, &[T::ONE])];
        self.tape.backward(&seeds, &self.weights, Accumulate::Overwrite, &mut grads).unwrap();
        Step { logits: output, loss: value, grads }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Inputs<'a> {
    pub(crate) floats: Vec<(&'a str, Vec<usize>, &'a [f64])>,
    pub(crate) ints: Vec<(&'a str, Vec<usize>, &'a [i64])>,
}

impl<'a> Inputs<'a> {
    pub(crate) fn of(recording: &'a Recording) -> Self {
        let mut inputs = Self::default();
        for (name, data) in &recording.floats {
            if let Some(name) = name.strip_prefix("input.") {
                let shape = recording.shapes[&format!("input.{name}")].clone();
                inputs.floats.push((name, shape, data));
            }
        }
        for (name, (shape, data)) in &recording.ints {
            if let Some(name) = name.strip_prefix("input.") {
                inputs.ints.push((name, shape.clone(), data));
            }
        }
        inputs
    }
}

#[derive(Debug)]
pub(crate) struct Step<T> {
    pub(crate) logits: Vec<T>,
    pub(crate) loss: T,
    pub(crate) grads: GradBuffer<T>,
}
