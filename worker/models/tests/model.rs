//! Building, dropout, half precision, inputs that do not fit.
#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

mod common;

use common::{Inputs, Run};
use lockstep_api::{ArchSpec, ModelSpec, Precision};
use lockstep_models::{Extent, Mode, Model};
use lockstep_tensor::{DType, Meta, OpError, Tape};
use serde_json::json;

fn refusal(settings: serde_json::Value) -> String {
    Model::new(&common::spec(settings)).unwrap_err().to_string()
}

#[test]
fn a_model_that_cannot_be_built_is_refused_by_its_field() {
    let gpt2 = json!({ "arch": "gpt2", "vocab_size": 9, "n_positions": 4, "n_embd": 10, "n_layer": 1, "n_head": 3 });
    assert_eq!(refusal(gpt2), "model.n_head: expected a divisor of model.n_embd = 10, got 3");
    let mlp = json!({ "arch": "mlp", "inputs": 4, "hidden": [3, 0], "classes": 2 });
    assert_eq!(refusal(mlp), "model.hidden[1]: expected 1 or more, got 0");
    let huge = json!({ "arch": "mlp", "inputs": 4294967295_u32, "hidden": [4294967295_u32], "classes": 2 });
    assert!(refusal(huge).starts_with("model: the parameters have more than"));
    let vit = json!({ "arch": "vit", "image_size": 30, "patch_size": 16, "hidden_dim": 8, "num_layers": 1,
        "num_heads": 2, "mlp_dim": 8, "classes": 2 });
    assert_eq!(
        refusal(vit),
        "model.patch_size: expected a divisor of model.image_size = 30, got 16"
    );
    let dropout =
        json!({ "arch": "layers", "input": [4], "layers": [{ "dropout": { "p": 1.0 } }] });
    assert_eq!(
        refusal(dropout),
        "model.layers[0].dropout.p: expected 0 or more and less than 1, got 1"
    );
    let misfit = json!({ "arch": "layers", "input": [3, 4, 4], "layers": [
        { "conv2d": { "out": 8, "kernel": 7 } } ] });
    assert!(
        refusal(misfit)
            .starts_with("model.layers[0].conv2d.kernel: expected a window of at most 4")
    );
    let stride = json!({ "arch": "layers", "input": [3, 4, 4], "layers": [
        { "conv2d": { "out": 8, "kernel": 1, "stride": 0 } } ] });
    assert_eq!(refusal(stride), "model.layers[0].conv2d.stride: expected 1 or more, got 0");
}

#[test]
fn the_perceptron_has_the_documented_names_and_numbers() {
    let model = Model::new(&common::spec(
        json!({ "arch": "mlp", "inputs": 2, "hidden": [2], "classes": 1 }),
    ))
    .unwrap();
    let shapes: Vec<_> =
        model.layout().params().iter().map(|p| (p.name.as_str(), p.shape.as_slice())).collect();
    assert_eq!(
        shapes,
        [
            ("layers.1.bias", &[1][..]),
            ("layers.1.weight", &[1, 2]),
            ("layers.0.bias", &[2]),
            ("layers.0.weight", &[2, 2]),
        ]
    );
    //                b1   w1          b0          w0
    let weights = [0.5, 10.0, 100.0, 1.0, -9.0, 1.0, 2.0, 3.0, 4.0];
    let mut run = Run::<f32>::new(model, &weights, &[]);
    let inputs = Inputs { floats: vec![("x", vec![1, 2], &[1.0, 1.0])], ints: Vec::new() };
    // Hidden: relu(1 + 2 + 1) = 4, relu(3 + 4 - 9) = 0.
    assert_eq!(run.logits(&inputs, Mode::Eval), [40.5]);
}

fn ids() -> Vec<i64> {
    (0..27).map(|place| place * 5 % 17).collect()
}

fn with_dropout(change: impl Fn(&mut ArchSpec)) -> Run<f64> {
    let mut spec = common::gpt2(true);
    change(&mut spec.arch);
    let model = Model::new(&spec).unwrap();
    let weights = model.initial_weights(2);
    Run::new(model, &weights, &[])
}

#[test]
fn dropout_is_a_function_of_the_key_and_absent_in_evaluation() {
    let ids = ids();
    let inputs = Inputs { floats: Vec::new(), ints: vec![("input_ids", vec![3, 9], &ids)] };
    let mut plain = with_dropout(|_| ());
    let mut dropped = with_dropout(|arch| {
        if let ArchSpec::Gpt2(spec) = arch {
            (spec.embd_pdrop, spec.resid_pdrop, spec.attn_pdrop) = (0.1, 0.1, 0.1);
        }
    });
    let eval = dropped.logits(&inputs, Mode::Eval);
    assert_eq!(eval, plain.logits(&inputs, Mode::Eval));
    let first = dropped.logits(&inputs, Mode::train(1));
    assert_eq!(first, dropped.logits(&inputs, Mode::train(1)));
    assert_ne!(first, dropped.logits(&inputs, Mode::train(2)));
    assert_ne!(first, eval);
    // Recomputation draws the same masks.
    let target: Vec<i64> = ids.iter().map(|id| (id + 1) % 17).collect();
    let step = dropped.step(&inputs, &target, Mode::train(1));
    let again = Mode::Train { key: 1, precision: Precision::F32, checkpointing: true };
    let again = dropped.step(&inputs, &target, again);
    assert_eq!(step.grads.values(), again.grads.values());
}

/// With dropout of the attention's probabilities attention is made of other operations; with a probability
/// that drops nothing they must come to the same.
#[test]
fn attention_spelt_out_is_attention_in_one() {
    let tiny = 1e-14;
    let ids = ids();
    let inputs = Inputs { floats: Vec::new(), ints: vec![("input_ids", vec![3, 9], &ids)] };
    let mut plain = with_dropout(|_| ());
    let mut spelt = with_dropout(|arch| {
        if let ArchSpec::Gpt2(spec) = arch {
            spec.attn_pdrop = tiny;
        }
    });
    compare(&mut plain, &mut spelt, &inputs, &ids);

    let bert = |p: f64| {
        let mut spec = common::bert();
        if let ArchSpec::Bert(spec) = &mut spec.arch {
            spec.attention_probs_dropout_prob = p;
        }
        let model = Model::new(&spec).unwrap();
        let weights = model.initial_weights(2);
        Run::<f64>::new(model, &weights, &[])
    };
    let mask: Vec<i64> = (0..27).map(|place| i64::from(place % 9 < 5 + place / 9)).collect();
    let ints = vec![("input_ids", vec![3, 9], &ids[..]), ("attention_mask", vec![3, 9], &mask[..])];
    let inputs = Inputs { floats: Vec::new(), ints };
    compare(&mut bert(0.0), &mut bert(tiny), &inputs, &[0, 1, 2]);
}

fn compare(plain: &mut Run<f64>, spelt: &mut Run<f64>, inputs: &Inputs<'_>, target: &[i64]) {
    let plain = plain.step(inputs, target, Mode::train(1));
    let spelt = spelt.step(inputs, target, Mode::train(1));
    for (a, b) in
        [(&plain.logits[..], &spelt.logits[..]), (plain.grads.values(), spelt.grads.values())]
    {
        assert!(a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-12), "{a:?} {b:?}");
    }
}

#[test]
fn half_precision_rounds_operands_and_results_of_products_only() {
    let specs: [(ModelSpec, &[u8], &[u8]); 3] = [
        (
            common::mlp(),
            include_bytes!("golden/mlp.safetensors"),
            include_bytes!("golden/mlp_run.safetensors"),
        ),
        (
            common::gpt2(true),
            include_bytes!("golden/gpt2.safetensors"),
            include_bytes!("golden/gpt2_run.safetensors"),
        ),
        (
            common::bert(),
            include_bytes!("golden/bert.safetensors"),
            include_bytes!("golden/bert_run.safetensors"),
        ),
    ];
    for (spec, state, run) in specs {
        let recording = common::Recording::read(run);
        let (inputs, target) = (Inputs::of(&recording), &recording.ints["target"].1);
        let mut run = Run::<f32>::load(&spec, state);
        let full = run.step(&inputs, target, Mode::train(1));
        for (precision, bits, step) in
            [(Precision::Bf16, 16, 1.0 / 256.0), (Precision::F16, 13, 1.0 / 2048.0)]
        {
            let mode = |checkpointing| Mode::Train { key: 1, precision, checkpointing };
            let half = run.step(&inputs, target, mode(false));
            let greatest = full.logits.iter().fold(0.0_f32, |max, x| max.max(x.abs()));
            for (half, full) in half.logits.iter().zip(&full.logits) {
                assert_eq!(half.to_bits() << (32 - bits), 0, "{half} has more than 16 bits");
                assert!(
                    (half - full).abs() < 16.0 * step * greatest,
                    "{precision:?}: {half} {full}"
                );
            }
            assert_ne!(half.logits, full.logits);
            let again = run.step(&inputs, target, mode(true));
            assert_eq!(again.grads.values(), half.grads.values());
        }
    }
}

#[test]
fn inputs_and_outputs_are_described_and_those_that_do_not_fit_are_refused() {
    let model = Model::new(&common::bert()).unwrap();
    let names: Vec<_> = model.inputs().iter().map(|it| (it.name, it.is_required)).collect();
    assert_eq!(names, [("input_ids", true), ("attention_mask", false), ("token_type_ids", false)]);
    assert_eq!(model.outputs()[0].shape, [Extent::Exactly(3)]);
    let input = &model.inputs()[0];
    assert_eq!((input.dtype, &input.shape[..]), (DType::I64, &[Extent::AtMost(12)][..]));
    input.check(&Meta::i64([4, 12]), 4).unwrap();
    let error = input.check(&Meta::i64([4, 13]), 4).unwrap_err();
    assert_eq!(error.to_string(), "the tensor `input_ids` is i64[4, 13], expected i64[4, 1 to 12]");
    assert_eq!(error.axis, Some(0));
    assert_eq!(input.check(&Meta::f32([4, 12]), 4).unwrap_err().axis, None);

    let (weights, mut workspace) = (model.initial_weights(0), model.workspace());
    let mut tape = Tape::new(std::sync::Arc::clone(model.layout()));
    let long = tape.index(&[1, 13], &[0; 13]).unwrap();
    let short = tape.index(&[1, 3], &[0; 3]).unwrap();
    let mask = tape.index(&[1, 4], &[1; 4]).unwrap();
    let mut forward = |inputs: &[(&str, lockstep_tensor::Value)]| {
        model.forward(&mut tape, inputs, &weights, &[], Mode::Eval, &mut workspace)
    };
    let missing = OpError::MissingInput { name: "input_ids".to_owned() };
    assert_eq!(forward(&[("x", short)]), Err(missing));
    assert!(matches!(forward(&[("input_ids", long)]), Err(OpError::InputMeta { .. })));
    let both = forward(&[("input_ids", short), ("attention_mask", mask)]);
    assert!(matches!(both, Err(OpError::InputMeta { name, .. }) if name == "attention_mask"));
    forward(&[("input_ids", short), ("labels", mask)]).unwrap();
}

#[test]
fn evaluation_without_the_models_buffers_is_an_error() {
    let model = Model::new(&common::layers()).unwrap();
    let (weights, mut workspace) = (model.initial_weights(0), model.workspace());
    let mut tape = Tape::new(std::sync::Arc::clone(model.layout()));
    let x = tape.input(&[1, 2, 9, 11], &[0.0; 198]).unwrap();
    let result =
        model.forward(&mut tape, &[("x", x)], &weights, &[0.0; 2], Mode::Eval, &mut workspace);
    assert!(matches!(result, Err(OpError::DataLength { what: "buffers", .. })), "{result:?}");
}
