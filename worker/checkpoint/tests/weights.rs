//! The model of a checkpoint is read without what trained it; another model is refused by the first differing field.
#![expect(clippy::unwrap_used, reason = "a test's way to fail")]

use std::collections::BTreeMap;

use camino::{Utf8Path, Utf8PathBuf};
use lockstep_api::{ModelSpec, Step};
use lockstep_checkpoint::{
    CheckpointError, FORMAT_VERSION, Meta, State, WeightsMut, WeightsOf, load_weights, save,
};
use lockstep_tensor::{Layout, OptimizerState};
use serde_json::json;

fn layout(names: &[&str]) -> Layout {
    Layout::new(names.iter().map(|name| ((*name).to_owned(), vec![2])).collect()).unwrap()
}

fn model(inputs: u32) -> ModelSpec {
    serde_json::from_value(json!({ "arch": "mlp", "inputs": inputs, "classes": 2 })).unwrap()
}

/// Weights 1 to 4, running statistics 5 and 6, moments 9, the mean of the weights ten times the weights.
fn saved(folder: &tempfile::TempDir, average: bool) -> Utf8PathBuf {
    let path = Utf8Path::from_path(folder.path()).unwrap().join("step-3.safetensors");
    let (layout, buffer_layout) = (layout(&["w", "b"]), layout(&["mean"]));
    let optimizer = OptimizerState { step: 3, moments: vec![("m".to_owned(), vec![9.0; 4])] };
    let state = State {
        layout: &layout,
        weights: &[1.0, 2.0, 3.0, 4.0],
        buffer_layout: &buffer_layout,
        buffers: &[5.0, 6.0],
        average: average.then_some(&[10.0, 20.0, 30.0, 40.0]),
        hook: None,
        optimizer: &optimizer,
    };
    let meta = Meta {
        version: FORMAT_VERSION,
        step: Step(3),
        data_epoch: 0,
        next_position: 96,
        samples_per_epoch: 1437,
        optimizer_step: 3,
        loss_scale: None,
        settings: json!({ "model": model(2), "train": { "seed": 7 } }),
        digests: BTreeMap::new(),
    };
    save(&path, &state, &meta).unwrap();
    path
}

fn read(
    path: &Utf8Path,
    model: &ModelSpec,
    which: WeightsOf,
    names: &[&str],
) -> Result<(Meta, Vec<f32>, Vec<f32>), CheckpointError> {
    let (layout, buffer_layout) = (layout(names), layout(&["mean"]));
    let (mut weights, mut buffers) = (vec![0.0; layout.len()], vec![0.0; buffer_layout.len()]);
    let mut state = WeightsMut {
        layout: &layout,
        weights: &mut weights,
        buffer_layout: &buffer_layout,
        buffers: &mut buffers,
    };
    let meta = load_weights(path, model, which, &mut state)?;
    Ok((meta, weights, buffers))
}

#[test]
fn weights_or_their_mean_are_read_and_the_optimizer_s_state_is_passed_over() {
    let folder = tempfile::tempdir().unwrap();
    let path = saved(&folder, true);
    let (meta, weights, buffers) =
        read(&path, &model(2), WeightsOf::LastStep, &["w", "b"]).unwrap();
    assert_eq!((meta.step, weights), (Step(3), vec![1.0, 2.0, 3.0, 4.0]));
    assert_eq!(buffers, [5.0, 6.0]);
    let (_, weights, buffers) = read(&path, &model(2), WeightsOf::Average, &["w", "b"]).unwrap();
    assert_eq!((weights, buffers), (vec![10.0, 20.0, 30.0, 40.0], vec![5.0, 6.0]));
}

#[test]
fn a_mean_that_was_not_kept_another_model_and_another_tensor_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = saved(&folder, false);
    let refusal = |model: &ModelSpec, which, names: &[&str]| {
        read(&path, model, which, names).unwrap_err().to_string()
    };
    let found = refusal(&model(2), WeightsOf::Average, &["w", "b"]);
    assert!(found.starts_with("tensor `ema."), "{found}");
    assert!(found.ends_with("expected F32 [2], found nothing"), "{found}");
    assert_eq!(
        refusal(&model(3), WeightsOf::LastStep, &["w", "b"]),
        "`model.inputs` differs: the checkpoint was made with 2, the job has 3"
    );
    assert_eq!(
        refusal(&model(2), WeightsOf::LastStep, &["w"]),
        "tensor `b`: expected nothing, found F32 [2]"
    );
    let path = path.with_file_name("missing.safetensors");
    let found = read(&path, &model(2), WeightsOf::LastStep, &["w", "b"]).unwrap_err().to_string();
    assert_eq!(found, format!("cannot read {path}"));
}
