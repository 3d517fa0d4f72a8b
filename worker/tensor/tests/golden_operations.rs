//! Single operations against results and gradients recorded with PyTorch.
#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

mod recording;

use std::sync::Arc;

use lockstep_tensor::{
    Accumulate, BatchNorm, CrossEntropy, GradBuffer, LayerNorm, Layout, Op, Real, RmsNorm, Tape,
    norm::{batch_statistics, update_running},
};
use recording::Recording;

const FILE: &[u8] = include_bytes!("golden/operations.safetensors");

fn bound<T: Real>() -> f64 {
    if T::DTYPE == f32::DTYPE { 3e-6 } else { 1e-12 }
}

/// Asserts that no number is further from the truth than `bound` times the greatest of the truth.
fn assert_close(what: &str, ours: impl IntoIterator<Item = f64>, truth: &[f64], bound: f64) {
    let greatest = truth.iter().fold(0.0_f64, |max, x| max.max(x.abs()));
    let ours: Vec<_> = ours.into_iter().collect();
    assert_eq!(ours.len(), truth.len(), "{what}");
    for (place, (ours, truth)) in ours.iter().zip(truth).enumerate() {
        let gap = (ours - truth).abs();
        assert!(gap <= bound * greatest, "{what}, {place}: {ours}, {truth}, at most {greatest}");
    }
}

/// Compares one case in f32 and f64.
fn check(case: &str, op: &Op, inputs: &[&str]) {
    check_in::<f32>(case, op, inputs);
    check_in::<f64>(case, op, inputs);
}

fn check_in<T: Real>(case: &str, op: &Op, inputs: &[&str]) {
    let recording = Recording::read(FILE);
    let key = |name: &str| format!("{case}.{name}");
    let shape = |name: &&str| ((*name).to_owned(), recording.shape(&key(name)).to_vec());
    let layout = Arc::new(Layout::new(inputs.iter().map(shape).collect()).unwrap());
    let mut weights = vec![T::ZERO; layout.len()];
    for param in layout.params() {
        let values = recording.values(&key(&param.name));
        for (weight, &value) in weights[param.range.clone()].iter_mut().zip(values) {
            *weight = T::from_f64(value);
        }
    }
    let mut tape = Tape::new(Arc::clone(&layout));
    let ids: Vec<_> = inputs.iter().map(|name| layout.id(name).unwrap()).collect();
    let mut values: Vec<_> = ids.iter().map(|&id| tape.param(id)).collect();
    if let Some((shape, ints)) = recording.ints.get(&key("ints")) {
        values.push(tape.index(shape, ints).unwrap());
    }
    let y = tape.apply(op.clone(), &values, &weights).unwrap();
    assert_eq!(tape.meta(y).unwrap().shape, recording.shape(&key("y")), "{case}");
    let ours = tape.values(y).unwrap().iter().map(|y| y.to_f64());
    assert_close(&key("y"), ours, recording.values(&key("y")), bound::<T>());
    if let Op::BatchNorm(_) = op {
        check_running::<T>(case, &recording, tape.saved(y).unwrap());
    }

    let grad: Vec<_> = recording.values(&key("grad")).iter().map(|&g| T::from_f64(g)).collect();
    let mut gradients = GradBuffer::new(Arc::clone(&layout));
    gradients.values_mut().fill(T::from_f64(f64::NAN));
    tape.backward(&[(y, &grad)], &weights, Accumulate::Overwrite, &mut gradients).unwrap();
    for (name, id) in inputs.iter().zip(ids) {
        let ours = gradients.of(id).unwrap().iter().map(|g| g.to_f64());
        let name = key(&format!("d{name}"));
        assert_close(&name, ours, recording.values(&name), 4.0 * bound::<T>());
    }
}

/// Running statistics, which were 0.1 and 0.9 before, after one batch with momentum 0.1.
fn check_running<T: Real>(case: &str, recording: &Recording, saved: &[T]) {
    let shape = recording.shape(&format!("{case}.x"));
    let mut mean = vec![T::from_f64(0.1); shape[1]];
    let mut variance = vec![T::from_f64(0.9); shape[1]];
    let mut batch = [vec![0.0; shape[1]], vec![0.0; shape[1]]];
    batch_statistics(saved, batch.each_mut().map(Vec::as_mut_slice));
    for (running, batch) in [&mut mean, &mut variance].into_iter().zip(&batch) {
        update_running(running, batch, 0.1);
    }
    for (name, ours) in [("running_mean", mean), ("running_var", variance)] {
        let name = format!("{case}.{name}");
        assert_close(&name, ours.iter().map(|x| x.to_f64()), recording.values(&name), bound::<T>());
    }
}

#[test]
fn batch_norm_agrees_by_the_batchs_and_by_given_statistics() {
    let cases = [
        ("batch_norm_4d", false, false),
        ("batch_norm_2d", false, true),
        ("batch_norm_3d", true, true),
    ];
    for (case, residual, relu) in cases {
        let settings = BatchNorm { eps: 1e-5, relu };
        let mut inputs = vec!["x", "weight", "bias", "residual"];
        inputs.truncate(if residual { 4 } else { 3 });
        check(case, &Op::BatchNorm(settings), &inputs);
        inputs.splice(3..3, ["mean", "variance"]);
        check(&format!("{case}_inference"), &Op::BatchNormInference(settings), &inputs);
    }
}

#[test]
fn norms_of_rows_agree() {
    check("layer_norm", &Op::LayerNorm(LayerNorm { eps: 1e-5 }), &["x", "weight", "bias"]);
    check("rms_norm", &Op::RmsNorm(RmsNorm { eps: 1e-6 }), &["x", "weight"]);
}

#[test]
fn softmax_and_its_logarithm_agree() {
    check("softmax", &Op::Softmax, &["x"]);
    check("log_softmax", &Op::LogSoftmax, &["x"]);
}

#[test]
fn losses_agree() {
    for (case, label_smoothing) in [("cross_entropy", 0.0), ("cross_entropy_smooth", 0.2)] {
        let settings = CrossEntropy { label_smoothing, ignore_index: Some(-100) };
        check(case, &Op::CrossEntropy(settings), &["x"]);
    }
    check("mse_loss", &Op::MseLoss, &["x", "target"]);
    check("bce_with_logits", &Op::BceWithLogits, &["x", "target"]);
    check("kl_div", &Op::KlDiv, &["x", "target"]);
}

#[test]
fn embedding_agrees() {
    check("embedding", &Op::Embedding, &["table"]);
}
