//! Tiny models against what torchvision and Hugging Face compute with the same files: evaluation, training, gradients.
#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

mod common;

use common::{Inputs, Recording, Run};
use lockstep_api::{ModelSpec, Precision};
use lockstep_models::Mode;
use lockstep_tensor::Real;

macro_rules! file {
    ($name:literal) => {
        include_bytes!(concat!("golden/", $name, ".safetensors"))
    };
}

/// Loads the file, then compares everything that was recorded; with activation checkpointing the same bits come out.
fn check<T: Real>(spec: &ModelSpec, state: &[u8], run: &[u8]) {
    let recording = Recording::read(run);
    let inputs = Inputs::of(&recording);
    let target = &recording.ints["target"].1;
    let mut ours = Run::<T>::load(spec, state);
    let eval = ours.logits(&inputs, Mode::Eval);
    recording.check("eval_logits", &eval);

    let step = ours.step(&inputs, target, Mode::train(1));
    recording.check("logits", &step.logits);
    recording.check("loss", &[step.loss]);
    for id in ours.model.layout().ids() {
        let name = format!("grad.{}", ours.model.layout().param(id).unwrap().name);
        recording.check(&name, step.grads.of(id).unwrap());
    }

    let before = ours.buffers.clone();
    ours.update_buffers();
    for param in ours.model.buffers().params() {
        let name = format!("after.{}", param.name);
        if param.name.ends_with("num_batches_tracked") {
            assert_eq!(ours.buffers[param.range.clone()], [T::ONE], "{name}");
        } else {
            recording.check(&name, &ours.buffers[param.range.clone()]);
        }
    }

    let after = std::mem::replace(&mut ours.buffers, before);
    let mode = Mode::Train { key: 1, precision: Precision::F32, checkpointing: true };
    let again = ours.step(&inputs, target, mode);
    assert_eq!(again.logits, step.logits);
    assert_eq!(again.grads.values(), step.grads.values());
    assert_eq!(again.grads.ready_order(), step.grads.ready_order());
    ours.update_buffers();
    assert_eq!(ours.buffers, after);
}

fn check_both(spec: &ModelSpec, state: &[u8], run: &[u8]) {
    check::<f64>(spec, state, run);
    check::<f32>(spec, state, run);
}

#[test]
fn a_perceptron_is_that_of_torch() {
    check_both(&common::mlp(), file!("mlp"), file!("mlp_run"));
}

#[test]
fn a_list_of_every_kind_of_layer_is_that_of_torch() {
    check_both(&common::layers(), file!("layers"), file!("layers_run"));
}

#[test]
fn gpt2_with_a_tied_head_is_that_of_hugging_face() {
    check_both(&common::gpt2(true), file!("gpt2"), file!("gpt2_run"));
}

#[test]
fn gpt2_with_a_head_of_its_own_is_that_of_hugging_face() {
    check_both(&common::gpt2(false), file!("gpt2_untied"), file!("gpt2_untied_run"));
}

#[test]
fn bert_with_a_mask_and_two_segments_is_that_of_hugging_face() {
    check_both(&common::bert(), file!("bert"), file!("bert_run"));
}

#[test]
fn bert_without_mask_and_segments_is_that_of_hugging_face() {
    let (with_inputs, plain) =
        (Recording::read(file!("bert_run")), Recording::read(file!("bert_plain_run")));
    let mut inputs = Inputs::of(&with_inputs);
    inputs.ints.retain(|(name, ..)| *name == "input_ids");
    let mut ours = Run::<f64>::load(&common::bert(), file!("bert"));
    let logits = ours.logits(&inputs, Mode::Eval);
    plain.check("logits", &logits);
}

#[test]
fn a_vision_transformer_is_that_of_torchvision() {
    check_both(&common::vit(), file!("vit"), file!("vit_run"));
}

/// Parameters become ready in arena order, so that buckets fill from the front: the layout is the reverse of first use.
#[test]
fn gradients_become_ready_in_arena_order() {
    let cases: [(ModelSpec, &[u8], &[u8]); 5] = [
        (common::layers(), file!("layers"), file!("layers_run")),
        (common::gpt2(false), file!("gpt2_untied"), file!("gpt2_untied_run")),
        (common::gpt2(true), file!("gpt2"), file!("gpt2_run")),
        (common::bert(), file!("bert"), file!("bert_run")),
        (common::vit(), file!("vit"), file!("vit_run")),
    ];
    for (spec, state, run) in cases {
        let recording = Recording::read(run);
        let mut ours = Run::<f32>::load(&spec, state);
        let target = &recording.ints["target"].1;
        let step = ours.step(&Inputs::of(&recording), target, Mode::train(1));
        let expected: Vec<_> = ours.model.layout().ids().collect();
        assert_eq!(step.grads.ready_order(), expected, "{spec:?}");
    }
}
