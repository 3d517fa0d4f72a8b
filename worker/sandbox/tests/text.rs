//! The text example's guests: stretches of the text, and the loss as in the formula.
#![expect(clippy::unwrap_used, reason = "tests")]

mod common;

use std::sync::Arc;

use camino::Utf8Path;
use common::{LIMITS, guest, quiet};
use lockstep_sandbox::{BatchData, BuiltLoss, GuestError, Loader, LossGraph, Sandbox};
use lockstep_tensor::{Accumulate, GradBuffer, Layout, Meta, Replay, Tape};

const TEXT: &str = "examples/text";

/// Text of so many characters; which one is where is easy to see.
fn text(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at % 127) as u8).collect()
}

fn open(bytes: &[u8], config: &str, split: &str) -> Result<Loader, GuestError> {
    let folder = tempfile::tempdir().unwrap();
    let folder = Utf8Path::from_path(folder.path()).unwrap();
    std::fs::write(folder.join("text.txt"), bytes).unwrap();
    let sandbox = Sandbox::new(None).unwrap();
    let component = guest(&sandbox, TEXT, "text-loader.wasm");
    Loader::open(&sandbox, &component, LIMITS, config, split, folder, quiet())
}

/// Inputs and targets of a batch, a stretch each.
fn load(loader: &mut Loader, indices: &[u64], training: bool) -> Vec<(Vec<i64>, Vec<i64>)> {
    let seeds: Vec<u64> = (7..).take(indices.len()).collect();
    let batch = loader.load(indices, &seeds, training).unwrap();
    let [x, y] = &batch.tensors[..] else { panic!("{batch:?}") };
    assert_eq!((x.name.as_str(), y.name.as_str()), ("input_ids", "y"));
    assert_eq!((x.shape[0], &x.shape), (indices.len(), &y.shape));
    let (BatchData::I64(inputs), BatchData::I64(targets)) = (&x.data, &y.data) else {
        panic!("{batch:?}")
    };
    let stretches = inputs.chunks(x.shape[1]).zip(targets.chunks(x.shape[1]));
    stretches.map(|(inputs, targets)| (inputs.to_vec(), targets.to_vec())).collect()
}

fn tokens(bytes: &[u8]) -> Vec<i64> {
    bytes.iter().map(|&byte| i64::from(byte)).collect()
}

#[test]
fn a_sample_is_a_stretch_and_the_characters_after_it() {
    let bytes = text(1000);
    let config = r#"{"length": 8}"#;
    // 950 characters and 50, a twentieth: cells of 8, and one character after the last.
    let (mut train, mut eval) =
        (open(&bytes, config, "train").unwrap(), open(&bytes, config, "eval").unwrap());
    assert_eq!((train.len().unwrap(), eval.len().unwrap()), (118, 6));
    for (loader, start, indices) in [(&mut train, 0, [117, 0, 5]), (&mut eval, 950, [5, 0, 0])] {
        let found = load(loader, &indices, true);
        let expected = indices.map(|index| {
            let at = start + 8 * index as usize;
            (tokens(&bytes[at..at + 8]), tokens(&bytes[at + 1..at + 9]))
        });
        assert_eq!(found, expected);
    }
    assert!(train.load(&[118], &[0], true).unwrap_err().to_string().contains("no such stretch"));
}

#[test]
fn a_shifted_sample_begins_within_its_cell_and_stays_in_its_split() {
    let bytes = text(1000);
    let mut loader = open(&bytes, r#"{"length": 8, "shift": true}"#, "train").unwrap();
    let indices: Vec<u64> = [vec![3; 200], vec![117; 200]].concat();
    let found = load(&mut loader, &indices, true);
    assert_eq!(load(&mut loader, &indices, true), found, "the seeds decide");
    let starts = |stretches: &[(Vec<i64>, Vec<i64>)], within: std::ops::Range<usize>| {
        let mut starts: Vec<usize> = stretches
            .iter()
            .map(|(inputs, targets)| {
                let at = within
                    .clone()
                    .find(|&at| *inputs == tokens(&bytes[at..at + 8]))
                    .expect("a stretch of the cell");
                assert_eq!(*targets, tokens(&bytes[at + 1..at + 9]));
                at
            })
            .collect();
        starts.sort_unstable();
        starts.dedup();
        starts
    };
    assert_eq!(starts(&found[..200], 24..32), (24..32).collect::<Vec<_>>());
    // The last stretch of 950 characters begins at 941: one has to come after it.
    assert_eq!(starts(&found[200..], 936..942), (936..942).collect::<Vec<_>>());
    let plain = load(&mut loader, &[3], false);
    assert_eq!(plain[0].0, tokens(&bytes[24..32]), "evaluation is not shifted");
}

#[test]
fn a_text_or_a_setting_that_does_not_fit_is_refused() {
    let error = |bytes: &[u8], config, split| open(bytes, config, split).unwrap_err().to_string();
    let bytes = text(1000);
    let expect = |found: String, part: &str| assert!(found.contains(part), "{found}");
    expect(error(&bytes, r#"{"length": 0}"#, "train"), "length is 0, expected 1 to 65536");
    expect(error(&bytes, "{}", "train"), "length");
    expect(error(&bytes, r#"{"length": 50}"#, "eval"), "has 50 characters for eval");
    expect(error(&bytes, r#"{"length": 8}"#, "test"), "no split \"test\"");
    let mut foreign = bytes;
    foreign[960] = 0xc3;
    expect(error(&foreign, r#"{"length": 8}"#, "eval"), "byte 195 at 960, expected ASCII");
    assert!(open(&foreign, r#"{"length": 8}"#, "train").is_ok());
}

fn build(logits: &[usize], y: &[usize]) -> Result<BuiltLoss, GuestError> {
    let sandbox = Sandbox::new(None).unwrap();
    let component = guest(&sandbox, TEXT, "language-model.wasm");
    let outputs = [("logits".to_owned(), Meta::f32(logits))];
    let batch = [("y".to_owned(), Meta::i64(y))];
    LossGraph::build(&sandbox, &component, LIMITS, "{}", &outputs, &batch, quiet())
}

/// Minus the sum of the logarithms of the targets' probabilities.
fn formula(logits: &[f64], targets: &[i64], vocabulary: usize) -> f64 {
    let rows = logits.chunks(vocabulary).zip(targets);
    rows.map(|(row, &target)| {
        row.iter().map(|logit| logit.exp()).sum::<f64>().ln() - row[target as usize]
    })
    .sum()
}

#[test]
fn the_recorded_loss_is_the_formula_and_its_gradient_a_finite_difference() {
    let (shape, targets) = ([2, 3, 5], [4, 0, 2, 2, 1, 3]);
    let logits: Vec<f64> = (0..30).map(|i| f64::from(i * 37 % 23) / 7.0 - 1.5).collect();
    let loss = build(&shape, &shape[..2]).unwrap();
    let layout = Arc::new(Layout::new(vec![("logits".to_owned(), shape.to_vec())]).unwrap());
    let mut tape = Tape::<f64>::new(Arc::clone(&layout));
    let output = tape.param(layout.id("logits").unwrap());
    let y = tape.index(&shape[..2], &targets).unwrap();
    let names: Vec<&str> = loss.recipe.outputs().map(|(name, _)| name).collect();
    assert_eq!(names, ["sum", "weight"]);
    let mut replay = Replay::default();
    let inputs = [("logits", output), ("y", y)];
    loss.recipe.replay(&mut tape, &inputs, &logits, &mut replay).unwrap();
    let values = replay.outputs();
    let sum = tape.values(values[0]).unwrap()[0];
    let expected = formula(&logits, &targets, 5);
    assert!((sum - expected).abs() < 1e-12 * expected, "{sum} {expected}");
    assert_eq!(tape.values(values[1]).unwrap(), [6.0], "every position counts");

    let mut gradients = GradBuffer::new(layout);
    let seeds: [(_, &[f64]); 1] = [(values[0], &[1.0])];
    tape.backward(&seeds, &logits, Accumulate::Overwrite, &mut gradients).unwrap();
    let step = 1e-5;
    for at in 0..logits.len() {
        let moved = |by: f64| {
            let mut logits = logits.clone();
            logits[at] += by;
            formula(&logits, &targets, 5)
        };
        let difference = (moved(step) - moved(-step)) / (2.0 * step);
        assert!((gradients.values()[at] - difference).abs() < 1e-8, "{at}: {difference}");
    }
}

#[test]
fn a_loss_of_other_shapes_is_refused() {
    let error = |logits: &[usize], y: &[usize]| build(logits, y).unwrap_err().to_string();
    assert!(error(&[6, 5], &[6]).contains("logits are [6, 5], expected [n, T, V]"));
    let found = error(&[2, 3, 5], &[2, 4]);
    assert!(found.contains("y is [2, 4], expected [2, 3] for logits [2, 3, 5]"), "{found}");
}
