//! A checkpoint goes to disk and comes back, or is refused with the name of what does not fit.
#![expect(clippy::unwrap_used, reason = "a test's way to fail")]

use std::collections::BTreeMap;
use std::sync::OnceLock;

use camino::{Utf8Path, Utf8PathBuf};
use lockstep_api::Step;
use lockstep_checkpoint::{CheckpointError, FORMAT_VERSION, Meta, State, StateMut, load, save};
use lockstep_tensor::{Layout, LossScaleState, OptimizerState};
use proptest::prelude::*;
use serde_json::json;

fn layout() -> Layout {
    let shapes = [("layers.0.weight", vec![3, 2]), ("layers.0.bias", vec![3]), ("scale", vec![])];
    Layout::new(shapes.map(|(name, shape)| (name.to_owned(), shape)).to_vec()).unwrap()
}

fn moments(layout: &Layout, names: &[&str]) -> OptimizerState {
    let moments = names.iter().map(|name| ((*name).to_owned(), vec![0.0; layout.len()])).collect();
    OptimizerState { step: 0, moments }
}

/// A model without running statistics.
fn no_buffers() -> &'static Layout {
    static EMPTY: OnceLock<Layout> = OnceLock::new();
    EMPTY.get_or_init(|| Layout::new(vec![]).unwrap())
}

fn plain<'a>(layout: &'a Layout, weights: &'a [f32], optimizer: &'a OptimizerState) -> State<'a> {
    State {
        layout,
        weights,
        buffer_layout: no_buffers(),
        buffers: &[],
        average: None,
        hook: None,
        optimizer,
    }
}

fn plain_mut<'a>(
    layout: &'a Layout,
    weights: &'a mut [f32],
    optimizer: &'a mut OptimizerState,
) -> StateMut<'a> {
    let (buffer_layout, buffers) = (no_buffers(), &mut [][..]);
    StateMut { layout, weights, buffer_layout, buffers, average: None, hook: None, optimizer }
}

fn meta() -> Meta {
    Meta {
        version: FORMAT_VERSION,
        step: Step(40),
        data_epoch: 3,
        next_position: 512,
        samples_per_epoch: 1437,
        optimizer_step: 40,
        loss_scale: None,
        settings: json!({ "train": { "seed": 7 } }),
        digests: BTreeMap::new(),
    }
}

/// As it was before [`save`] added digests.
fn without_digests(loaded: Meta) -> Meta {
    assert!(!loaded.digests.is_empty());
    Meta { digests: BTreeMap::new(), ..loaded }
}

fn folder() -> (tempfile::TempDir, Utf8PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = Utf8Path::from_path(folder.path()).unwrap().join("step-40.safetensors");
    (folder, path)
}

#[test]
fn a_setting_of_any_number_comes_back() {
    let (_guard, path) = folder();
    let layout = layout();
    let (optimizer, weights) = (moments(&layout, &["m"]), vec![0.0; layout.len()]);
    let state = plain(&layout, &weights, &optimizer);
    // Numbers that a parser which rounds twice never settles on.
    for lr in [6.0197803126197815e-9, 1e-50, f64::MIN_POSITIVE, f64::MAX] {
        let meta = Meta { settings: json!({ "train": { "optimizer": { "lr": lr } } }), ..meta() };
        save(&path, &state, &meta).unwrap();
    }
}

/// Saves a number for each parameter, with moments `m` and `v` of zeros.
fn saved(path: &Utf8Path) {
    let layout = layout();
    let optimizer = moments(&layout, &["m", "v"]);
    let mut weights = vec![0.0; layout.len()];
    for (param, value) in layout.params().iter().zip([1.0, 2.0, 3.0]) {
        weights[param.range.clone()].fill(value);
    }
    save(path, &plain(&layout, &weights, &optimizer), &meta()).unwrap();
}

fn load_into(path: &Utf8Path, layout: &Layout, names: &[&str]) -> Result<Meta, CheckpointError> {
    let mut optimizer = moments(layout, names);
    let mut weights = vec![0.0; layout.len()];
    let mut state = plain_mut(layout, &mut weights, &mut optimizer);
    load(path, &meta().settings, &mut state)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn every_bit_comes_back(bits in proptest::collection::vec(any::<u32>(), 30)) {
        let (_guard, path) = folder();
        let layout = layout();
        let values: Vec<f32> = bits.into_iter().map(f32::from_bits).collect();
        let (weights, rest) = values.split_at(layout.len());
        let mut optimizer = moments(&layout, &["m", "v"]);
        for (moment, (_, values)) in optimizer.moments.iter_mut().enumerate() {
            values.copy_from_slice(&rest[moment * layout.len()..][..layout.len()]);
        }
        save(&path, &plain(&layout, weights, &optimizer), &meta()).unwrap();

        let mut loaded = moments(&layout, &["m", "v"]);
        let mut loaded_weights = vec![0.0; layout.len()];
        let mut state =
            plain_mut(&layout, &mut loaded_weights, &mut loaded);
        let found = load(&path, &meta().settings, &mut state).unwrap();
        prop_assert_eq!(without_digests(found), meta());
        let as_bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        prop_assert_eq!(as_bits(&loaded_weights), as_bits(weights));
        prop_assert_eq!(loaded.step, 40);
        for ((_, found), (_, expected)) in loaded.moments.iter().zip(&optimizer.moments) {
            prop_assert_eq!(as_bits(found), as_bits(expected));
        }
    }
}

#[test]
fn the_same_state_gives_the_same_bytes_and_leaves_nothing_else_behind() {
    let (guard, path) = folder();
    saved(&path);
    let first = std::fs::read(&path).unwrap();
    saved(&path);
    assert_eq!(first, std::fs::read(&path).unwrap());
    assert_eq!(std::fs::read_dir(guard.path()).unwrap().count(), 1);
}

#[test]
fn a_shape_that_differs_is_refused_with_both_shapes() {
    let (_guard, path) = folder();
    saved(&path);
    let shapes = [("layers.0.weight", vec![2, 3]), ("layers.0.bias", vec![3]), ("scale", vec![])];
    let other = Layout::new(shapes.map(|(name, shape)| (name.to_owned(), shape)).to_vec()).unwrap();
    let error = load_into(&path, &other, &["m", "v"]).unwrap_err().to_string();
    assert_eq!(error, "tensor `layers.0.weight`: expected F32 [2, 3], found F32 [3, 2]");
}

#[test]
fn a_missing_moment_and_one_too_many_are_refused_by_name() {
    let (_guard, path) = folder();
    saved(&path);
    let error = load_into(&path, &layout(), &["momentum"]).unwrap_err().to_string();
    assert_eq!(error, "tensor `optimizer.m.layers.0.bias`: expected nothing, found F32 [3]");
    let error = load_into(&path, &layout(), &["m", "v", "w"]).unwrap_err().to_string();
    assert!(error.contains("tensor `optimizer.w.") && error.ends_with("found nothing"), "{error}");
}

#[test]
fn another_jobs_checkpoint_is_refused_with_the_field_that_differs() {
    let (_guard, path) = folder();
    saved(&path);
    let layout = layout();
    let mut optimizer = moments(&layout, &["m", "v"]);
    let mut weights = vec![1.0; layout.len()];
    let mut state = plain_mut(&layout, &mut weights, &mut optimizer);
    let error = load(&path, &json!({ "train": { "seed": 8 } }), &mut state).unwrap_err();
    assert!(matches!(&error, CheckpointError::Settings { field, .. } if field == "train.seed"));
    assert!(weights.iter().all(|weight| *weight == 1.0), "nothing was touched");
}

#[test]
fn a_torn_or_foreign_file_is_refused() {
    let (_guard, path) = folder();
    saved(&path);
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
    let error = load_into(&path, &layout(), &["m", "v"]).unwrap_err();
    assert!(matches!(error, CheckpointError::Format { .. }), "{error}");
    let none = Vec::<(&str, safetensors::tensor::TensorView<'_>)>::new();
    std::fs::write(&path, safetensors::serialize(none, None).unwrap()).unwrap();
    let error = load_into(&path, &layout(), &["m", "v"]).unwrap_err();
    assert!(matches!(error, CheckpointError::Meta { .. }), "{error}");
}

#[test]
fn a_newer_format_is_refused_by_its_number() {
    let (_guard, path) = folder();
    let layout = layout();
    let optimizer = moments(&layout, &[]);
    let weights = vec![0.0; layout.len()];
    let newer = Meta { version: 2, ..meta() };
    let state = plain(&layout, &weights, &optimizer);
    // Saving reads back through the same door as loading, so the refusal comes at once.
    let error = save(&path, &state, &newer).unwrap_err().to_string();
    assert!(error.contains("has format version 2, expected 1"), "{error}");
    assert!(!path.exists());
}

#[test]
fn running_statistics_and_the_mean_of_the_weights_come_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = Utf8Path::from_path(dir.path()).unwrap().join("step.safetensors");
    let layout = Layout::new(vec![("w".to_owned(), vec![2])]).unwrap();
    let buffer_layout = Layout::new(vec![("bn.running_mean".to_owned(), vec![3])]).unwrap();
    let optimizer = moments(&layout, &["m"]);
    let loss_scale = Some(LossScaleState { scale: 1024.0, good_steps: 7 });
    let meta = Meta { loss_scale, ..meta() };
    let state = State {
        layout: &layout,
        weights: &[1.0, 2.0],
        buffer_layout: &buffer_layout,
        buffers: &[3.0, 4.0, 5.0],
        average: Some(&[6.0, 7.0]),
        hook: None,
        optimizer: &optimizer,
    };
    save(&path, &state, &meta).unwrap();
    let (mut weights, mut buffers, mut average) = ([0.0; 2], [0.0; 3], [0.0; 2]);
    let mut optimizer = moments(&layout, &["m"]);
    let mut state = StateMut {
        layout: &layout,
        weights: &mut weights,
        buffer_layout: &buffer_layout,
        buffers: &mut buffers,
        average: Some(&mut average),
        hook: None,
        optimizer: &mut optimizer,
    };
    assert_eq!(without_digests(load(&path, &meta.settings, &mut state).unwrap()), meta);
    assert_eq!((weights, buffers, average), ([1.0, 2.0], [3.0, 4.0, 5.0], [6.0, 7.0]));

    let mut weights = [0.0; 2];
    let mut state = plain_mut(&layout, &mut weights, &mut optimizer);
    let error = load(&path, &meta.settings, &mut state).unwrap_err().to_string();
    assert!(error.contains("bn.running_mean"), "a model without them refuses the file: {error}");
}

/// Flips the lowest bit of a tensor's first number, as a disk might: the file stays a safetensors file.
fn flip(path: &Utf8Path, tensor: &str) {
    let mut bytes = std::fs::read(path).unwrap();
    let len = usize::try_from(u64::from_le_bytes(bytes[..8].try_into().unwrap())).unwrap();
    let header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + len]).unwrap();
    let offset = header[tensor]["data_offsets"][0].as_u64().unwrap();
    bytes[8 + len + usize::try_from(offset).unwrap()] ^= 1;
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn a_state_that_is_not_the_saved_one_is_refused_with_the_part_that_differs() {
    let (_guard, path) = folder();
    for (tensor, part) in [
        ("scale", "weights"),
        ("optimizer.m.layers.0.bias", "optimizer.m"),
        ("optimizer.v.scale", "optimizer.v"),
    ] {
        saved(&path);
        load_into(&path, &layout(), &["m", "v"]).unwrap();
        flip(&path, tensor);
        let error = load_into(&path, &layout(), &["m", "v"]).unwrap_err();
        assert!(
            matches!(&error, CheckpointError::Restored { part: it, .. } if it == part),
            "{error}"
        );
        assert!(error.to_string().starts_with(&format!("`{part}` restored from ")), "{error}");
    }
}

#[test]
fn a_digest_does_not_depend_on_where_a_parameter_lies_in_the_arena() {
    let (_guard, path) = folder();
    saved(&path);
    let shapes = [("scale", vec![]), ("layers.0.weight", vec![3, 2]), ("layers.0.bias", vec![3])];
    let other = Layout::new(shapes.map(|(name, shape)| (name.to_owned(), shape)).to_vec()).unwrap();
    load_into(&path, &other, &["m", "v"]).unwrap();
}
