//! `lockstep-rank check`, as the server runs it: what fits is summed up, what does not is refused by field.
#![expect(clippy::unwrap_used, reason = "a test's way to fail")]

#[expect(dead_code, reason = "each test file uses its part")]
mod harness;

use std::io::Write as _;
use std::process::{Command, Stdio};

use harness::Files;
use harness::jobs::{built, digits, digits_files, misbehaving, misbehaving_files};
use lockstep_api::{
    Activation, ArchSpec, CheckRequest, CheckResponse, CheckSummary, FieldError, JobSpec, MlpSpec,
    ModelSpec, Reduction,
};
use serde_json::json;

fn check(spec: &JobSpec, files: &Files) -> CheckResponse {
    check_from(spec, files, None)
}

fn check_from(spec: &JobSpec, files: &Files, init_path: Option<String>) -> CheckResponse {
    let request = CheckRequest {
        spec: spec.clone(),
        loader_path: files.loader.to_string(),
        loss_path: files.loss.to_string(),
        train_dir: files.train_dir.to_string(),
        eval_dir: files.eval_dir.as_ref().map(ToString::to_string),
        init_path,
        cache_dir: harness::cache_dir().into(),
    };
    let mut child = Command::new(env!("CARGO_BIN_EXE_lockstep-rank"))
        .arg("check")
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let text = serde_json::to_vec(&request).unwrap();
    child.stdin.take().unwrap().write_all(&text).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    serde_json::from_slice(&output.stdout).unwrap()
}

fn accepted(spec: &JobSpec, files: &Files) -> CheckSummary {
    match check(spec, files) {
        CheckResponse::Accepted(summary) => summary,
        CheckResponse::Refused { errors } => panic!("{errors:?}"),
    }
}

fn refused(spec: &JobSpec, files: &Files) -> FieldError {
    match check(spec, files) {
        CheckResponse::Accepted(summary) => panic!("{summary:?}"),
        CheckResponse::Refused { mut errors } => {
            assert_eq!(errors.len(), 1, "{errors:?}");
            errors.remove(0)
        }
    }
}

fn mlp(inputs: u32, hidden: Vec<u32>, classes: u32) -> ModelSpec {
    ArchSpec::Mlp(MlpSpec { inputs, hidden, classes, activation: Activation::Relu }).into()
}

fn model(inputs: u32, classes: u32) -> ModelSpec {
    mlp(inputs, vec![32, 32], classes)
}

#[test]
fn a_job_that_fits_is_summed_up() {
    let summary = accepted(&digits(2, Reduction::FixedTree, 20), &digits_files());
    assert_eq!((summary.train_samples, summary.eval_samples), (1437, Some(360)));
    assert_eq!(summary.steps_total, 20 * 12);
    assert_eq!(summary.parameter_count, 64 * 32 + 32 + 32 * 32 + 32 + 32 * 10 + 10);
    assert!((1 << 20..512 << 20).contains(&summary.rank_memory_bytes), "{summary:?}");
}

#[test]
fn a_raw_loss_is_accepted_as_well() {
    let spec = misbehaving(1, json!({}), json!({}));
    assert_eq!(accepted(&spec, &misbehaving_files("misbehaving-raw-loss")).eval_samples, None);
}

#[test]
fn inputs_of_another_length_are_refused_with_the_loaders_shape() {
    let mut spec = digits(1, Reduction::Fast, 1);
    spec.model = model(63, 10);
    let error = refused(&spec, &digits_files());
    assert_eq!(error.field, "model.inputs");
    assert_eq!(
        error.message,
        "expected 64, because the loader's tensor `x` is f32[16, 64]; found 63"
    );
}

#[test]
fn a_label_outside_of_the_classes_is_refused_with_the_sample() {
    let mut spec = digits(1, Reduction::Fast, 1);
    spec.model = model(64, 3);
    let error = refused(&spec, &digits_files());
    assert_eq!(error.field, "model.classes");
    assert!(error.message.contains("found 3 (labels 0 to 2)"), "{error}");
    assert!(error.message.contains("because sample "), "{error}");
}

fn layers(layers: serde_json::Value) -> ModelSpec {
    let model = json!({ "arch": "layers", "input": [64], "layers": layers });
    serde_json::from_value(model).unwrap()
}

#[test]
fn a_list_of_layers_is_refused_by_the_layer_that_makes_the_classes() {
    let mut spec = digits(1, Reduction::Fast, 1);
    spec.model = layers(json!([{ "linear": { "out": 8 } }, "relu", { "linear": { "out": 3 } }]));
    assert_eq!(refused(&spec, &digits_files()).field, "model.layers[2]");
}

#[test]
fn a_last_grain_that_the_model_cannot_take_is_refused() {
    let mut spec = digits(1, Reduction::Fast, 1);
    let list =
        json!([{ "linear": { "out": 8 } }, "batch_norm", "relu", { "linear": { "out": 10 } }]);
    spec.model = layers(list);
    accepted(&spec, &digits_files());
    // The last step of a pass has 29 samples: a grain of one is left, which has no variance.
    spec.train.micro_batch = 4;
    let error = refused(&spec, &digits_files());
    assert_eq!(error.field, "train.micro_batch");
    assert!(
        error.message.contains("found 4, which leaves one of 1 of the 1437 samples"),
        "{error}"
    );
}

#[test]
fn memory_is_counted_for_what_the_loader_makes_not_for_the_longest_that_the_model_takes() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("text.txt"), "In the beginning. ".repeat(400)).unwrap();
    let data = camino::Utf8Path::from_path(folder.path()).unwrap().to_owned();
    let files = Files {
        loader: built("examples/text/text-loader.wasm"),
        loss: built("examples/text/language-model.wasm"),
        train_dir: data,
        eval_dir: None,
    };
    let mut spec = digits(1, Reduction::Fast, 1);
    spec.data.eval = None;
    spec.loader.config = json!({ "length": 16, "shift": true });
    spec.loss.config = json!({});
    // 4096² pairs of positions would be 12 GiB.
    let model = json!({ "arch": "gpt2", "vocab_size": 128, "n_positions": 4096, "n_embd": 16,
                        "n_layer": 2, "n_head": 2 });
    spec.model = serde_json::from_value(model).unwrap();
    let summary = accepted(&spec, &files);
    assert!(summary.rank_memory_bytes < 128 << 20, "{summary:?}");
}

#[test]
fn a_job_without_end_is_refused() {
    let mut spec = misbehaving(1, json!({ "samples": u64::MAX / 2 }), json!({}));
    spec.train.epochs = 3;
    let error = refused(&spec, &misbehaving_files("misbehaving-loss"));
    assert_eq!(error.field, "train.epochs");
    assert!(error.message.starts_with("expected at most 1099511627776 steps, found "), "{error}");
}

#[test]
fn a_loss_whose_graph_outgrows_the_slot_is_refused_before_it_is_computed() {
    let spec = misbehaving(1, json!({}), json!({ "mode": "graph" }));
    let error = refused(&spec, &misbehaving_files("misbehaving-loss"));
    assert_eq!(error.field, "gang.slot.memory_mib");
    assert!(error.message.contains("the loss's graph needs 5"), "{error}");
}

#[test]
fn weights_of_which_none_is_the_models_are_refused_even_if_some_may_be_missing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weights.safetensors");
    let header = br#"{"other.weight":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header);
    bytes.extend_from_slice(&1_f32.to_le_bytes());
    std::fs::write(&path, bytes).unwrap();
    let mut spec = digits(1, Reduction::Fast, 1);
    spec.model.init_strict = false;
    let answer = check_from(&spec, &digits_files(), Some(path.to_str().unwrap().to_owned()));
    let CheckResponse::Refused { errors } = answer else { panic!("{answer:?}") };
    assert_eq!(errors[0].field, "model.init_from");
    assert!(errors[0].message.contains("expected at least one tensor"), "{errors:?}");
}

#[test]
fn components_in_each_others_place_are_refused() {
    let spec = digits(1, Reduction::Fast, 1);
    let right = digits_files();
    let files = Files { loader: right.loss.clone(), ..right.clone() };
    let error = refused(&spec, &files);
    assert_eq!(error.field, "loader.component");
    assert!(error.message.contains("expected a loader"), "{error}");
    let files = Files { loss: right.loader.clone(), ..right };
    assert_eq!(refused(&spec, &files).field, "loss.component");
}

#[test]
fn what_is_no_component_is_refused() {
    let spec = digits(1, Reduction::Fast, 1);
    let files = Files { loader: digits_files().train_dir.join("digits.csv"), ..digits_files() };
    assert_eq!(refused(&spec, &files).field, "loader.component");
}

#[test]
fn a_config_that_a_guest_refuses_is_named() {
    let mut spec = digits(1, Reduction::Fast, 1);
    spec.loss.config = json!({ "label_smoothing": 1.5 });
    let error = refused(&spec, &digits_files());
    assert_eq!(error.field, "loss.config");
    assert!(error.message.contains("label_smoothing is 1.5"), "{error}");
    spec = digits(1, Reduction::Fast, 1);
    spec.loader.config = json!({ "agument": true });
    assert_eq!(refused(&spec, &digits_files()).field, "loader.config");
}

#[test]
fn data_that_the_loader_cannot_read_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let empty = camino::Utf8Path::from_path(folder.path()).unwrap().to_owned();
    let files = Files { eval_dir: Some(empty), ..digits_files() };
    assert_eq!(refused(&digits(1, Reduction::Fast, 1), &files).field, "data.eval");
}

#[test]
fn guests_over_their_limits_are_refused_by_limit() {
    let loader = |mode: &str| {
        let spec = misbehaving(1, json!({ "mode": mode }), json!({}));
        refused(&spec, &misbehaving_files("misbehaving-loss"))
    };
    assert_eq!(loader("loop").field, "loader.limits.call_ms");
    assert_eq!(loader("bomb").field, "loader.limits.memory_mib");
    assert_eq!(loader("huge").field, "loader.limits.output_mib");
    assert_eq!(loader("overflow").field, "loader");
    let trap = loader("trap");
    assert_eq!(trap.field, "loader");
    assert!(trap.message.contains("told to trap"), "{trap}");
}

#[test]
fn a_loss_that_does_not_work_is_refused() {
    for (loss, mode) in [
        ("misbehaving-loss", "nan"),
        ("misbehaving-loss", "shape"),
        ("misbehaving-raw-loss", "nan"),
        ("misbehaving-raw-loss", "shape"),
    ] {
        let spec = misbehaving(1, json!({}), json!({ "mode": mode }));
        let error = refused(&spec, &misbehaving_files(loss));
        assert_eq!(error.field, "loss", "{loss} {mode}: {error}");
    }
}

#[test]
fn a_slot_that_is_too_small_is_refused_with_the_need() {
    let mut spec = digits(1, Reduction::Fast, 1);
    spec.model = mlp(64, vec![4096, 4096], 10);
    spec.gang.slot.memory_mib = 128;
    let error = refused(&spec, &digits_files());
    assert_eq!(error.field, "gang.slot.memory_mib");
    assert!(error.message.ends_with("found 128"), "{error}");
}

#[test]
fn a_group_without_parameters_and_a_warm_up_without_an_end_are_refused_by_their_fields() {
    let mut spec = digits(1, Reduction::Fast, 20);
    spec.train.groups =
        serde_json::from_value(json!([{ "match": "*" }, { "match": "x" }])).unwrap();
    let error = refused(&spec, &digits_files());
    assert_eq!(error.field, "train.groups[1].match");
    assert!(error.message.contains("layers.0.weight"), "{error}");
    spec.train.groups.clear();
    let steps = accepted(&spec, &digits_files()).steps_total;
    let warm_up = |steps: u64| json!({ "name": "cosine", "warmup_steps": steps });
    spec.train.schedule = serde_json::from_value(warm_up(steps - 1)).unwrap();
    accepted(&spec, &digits_files());
    spec.train.schedule = serde_json::from_value(warm_up(steps)).unwrap();
    let error = refused(&spec, &digits_files());
    assert_eq!(error.field, "train.schedule.warmup_steps");
    assert!(error.message.contains(&format!("the job's {steps} steps")), "{error}");
}
