//! The example's guests, end to end: samples as in the file, the loss as in the formula, spelt out or not.
#![expect(clippy::unwrap_used, reason = "tests")]

mod common;

use std::sync::Arc;

use common::{EXAMPLE, LIMITS, guest, quiet, repository};
use lockstep_sandbox::{
    BatchData, BatchTensor, BuiltLoss, GuestError, GuestErrorKind, Loader, LossGraph, Sandbox,
};
use lockstep_tensor::{Accumulate, GradBuffer, Layout, Meta, Replay, Tape};

const CLASSES: usize = 10;
const PIXELS: usize = 64;
const TRAIN_ROWS: usize = 1437;

fn open(config: &str, split: &str) -> Result<Loader, GuestError> {
    let sandbox = Sandbox::new(None).unwrap();
    let component = guest(&sandbox, EXAMPLE, "digits-loader.wasm");
    let data = repository().join(EXAMPLE).join("data");
    Loader::open(&sandbox, &component, LIMITS, config, split, &data, quiet())
}

/// Pixels with mean 0 and deviation 1, and label, of a row; read and computed here anew, in f64.
fn row(index: usize) -> (Vec<f32>, i64) {
    let text = std::fs::read_to_string(repository().join(EXAMPLE).join("data/digits.csv")).unwrap();
    let mut numbers: Vec<f64> =
        text.lines().nth(index).unwrap().split(',').map(|n| n.parse().unwrap()).collect();
    let label = numbers.pop().unwrap() as i64;
    let pixels: Vec<f64> = numbers.iter().map(|pixel| pixel / 16.0).collect();
    let mean = pixels.iter().sum::<f64>() / pixels.len() as f64;
    let squares = pixels.iter().map(|pixel| (pixel - mean).powi(2)).sum::<f64>();
    let deviation = (squares / pixels.len() as f64).sqrt();
    (pixels.iter().map(|pixel| ((pixel - mean) / (deviation + 1e-3)) as f32).collect(), label)
}

/// Whether two images are the same up to f32's own rounding of some 64 additions.
fn is_same(left: &[f32], right: &[f32]) -> bool {
    left.len() == right.len() && left.iter().zip(right).all(|(a, b)| (a - b).abs() < 1e-4)
}

fn floats(tensor: &BatchTensor) -> &[f32] {
    match &tensor.data {
        BatchData::F32(values) => values,
        BatchData::I64(_) => panic!("{} is no float", tensor.name),
    }
}

#[test]
fn samples_are_the_files_rows() {
    let (mut train, mut eval) = (open("{}", "train").unwrap(), open("{}", "eval").unwrap());
    assert_eq!((train.len().unwrap(), eval.len().unwrap()), (1437, 360));
    for (loader, first_row, indices) in
        [(&mut train, 0, [1436, 0, 7]), (&mut eval, TRAIN_ROWS, [359, 0, 0])]
    {
        let batch = loader.load(&indices, &[1, 2, 3], true).unwrap();
        let [x, y] = &batch.tensors[..] else { panic!("{batch:?}") };
        assert_eq!((x.name.as_str(), &x.shape[..]), ("x", &[3, PIXELS][..]));
        assert_eq!((y.name.as_str(), &y.shape[..]), ("y", &[3][..]));
        let rows = indices.map(|index| row(first_row + index as usize));
        let pixels: Vec<f32> = rows.iter().flat_map(|(pixels, _)| pixels.clone()).collect();
        assert!(is_same(floats(x), &pixels), "{x:?}\n{pixels:?}");
        assert_eq!(y.data, BatchData::I64(rows.iter().map(|(_, label)| *label).collect()));
    }
}

#[test]
fn augmentation_depends_on_the_seed_alone_and_spares_evaluation() {
    let config = r#"{"augment": true}"#;
    let mut loader = open(config, "train").unwrap();
    let indices = [5; 20];
    let seeds: Vec<u64> = (0..20).collect();
    let mut x = |seeds: &[u64], training| {
        let batch = loader.load(&indices, seeds, training).unwrap();
        floats(&batch.tensors[0]).to_vec()
    };
    let first = x(&seeds, true);
    assert_eq!(first, x(&seeds, true));
    let plain = row(5).0;
    assert!(first.chunks(PIXELS).all(|image| !is_same(image, &plain)), "every image is moved");
    assert!(
        first.chunks(PIXELS).skip(1).all(|image| image != &first[..PIXELS]),
        "each by its seed"
    );
    assert!(is_same(&x(&seeds, false), &plain.repeat(20)));
    let mut again = open(config, "train").unwrap();
    let batch = again.load(&indices, &seeds, true).unwrap();
    assert_eq!(floats(&batch.tensors[0]), first);
}

#[test]
fn what_is_wrong_is_said_with_its_kind() {
    let guest_error = |error: GuestError| match error {
        GuestError::Guest { kind, sample, message, .. } => (kind, sample, message),
        other => panic!("{other}"),
    };
    let (kind, _, message) = guest_error(open(r#"{"augmnt": true}"#, "train").unwrap_err());
    assert_eq!(kind, GuestErrorKind::Config);
    assert!(message.contains("augmnt"), "{message}");
    let (kind, _, message) = guest_error(open("{}", "test").unwrap_err());
    assert_eq!((kind, message.contains("\"test\"")), (GuestErrorKind::Data, true), "{message}");
    let mut loader = open("{}", "eval").unwrap();
    let (kind, sample, _) = guest_error(loader.load(&[0, 360], &[0, 0], false).unwrap_err());
    assert_eq!((kind, sample), (GuestErrorKind::Sample, Some(360)));
    assert!(loader.load(&[0], &[0], false).is_ok(), "an error of its own does not end a guest");
}

/// Folder and component.
const SPELT_OUT: [&str; 2] = [EXAMPLE, "cross-entropy.wasm"];
/// The same as one operation.
const FUSED: [&str; 2] = ["examples/fashion", "fashion-loss.wasm"];

fn build([folder, name]: [&str; 2], samples: usize, config: &str) -> Result<BuiltLoss, GuestError> {
    let sandbox = Sandbox::new(None).unwrap();
    let component = guest(&sandbox, folder, name);
    let outputs = [("logits".to_owned(), Meta::f32([samples, CLASSES]))];
    let batch =
        [("x".to_owned(), Meta::f32([samples, PIXELS])), ("y".to_owned(), Meta::i64([samples]))];
    LossGraph::build(&sandbox, &component, LIMITS, config, &outputs, &batch, quiet())
}

/// Sum, weight, accuracy's sum and weight, and the gradient of the sum.
fn replay(loss: &BuiltLoss, logits: &[f64], labels: &[i64]) -> ([f64; 4], Vec<f64>) {
    let samples = labels.len();
    let shape = vec![samples, CLASSES];
    let layout = Arc::new(Layout::new(vec![("logits".to_owned(), shape)]).unwrap());
    let mut tape = Tape::<f64>::new(Arc::clone(&layout));
    let output = tape.param(layout.id("logits").unwrap());
    let x = tape.input(&[samples, PIXELS], &vec![0.0; samples * PIXELS]).unwrap();
    let y = tape.index(&[samples], labels).unwrap();
    let names: Vec<&str> = loss.recipe.outputs().map(|(name, _)| name).collect();
    assert_eq!(names, ["sum", "weight", "metric/accuracy/sum", "metric/accuracy/weight"]);
    let mut replay = Replay::default();
    let inputs = [("logits", output), ("x", x), ("y", y)];
    loss.recipe.replay(&mut tape, &inputs, logits, &mut replay).unwrap();
    let values = replay.outputs();
    let numbers = [0, 1, 2, 3].map(|at: usize| tape.values(values[at]).unwrap()[0]);
    let mut gradients = GradBuffer::new(layout);
    let seeds: [(_, &[f64]); 1] = [(values[0], &[1.0])];
    tape.backward(&seeds, logits, Accumulate::Overwrite, &mut gradients).unwrap();
    (numbers, gradients.values().to_vec())
}

fn formula(logits: &[f64], labels: &[i64], smoothing: f64) -> f64 {
    let rows = logits.chunks(CLASSES).zip(labels);
    rows.map(|(row, &label)| {
        let log_total = row.iter().map(|logit| logit.exp()).sum::<f64>().ln();
        row.iter()
            .enumerate()
            .map(|(class, logit)| {
                let hit = f64::from(u8::from(class as i64 == label));
                let target = (1.0 - smoothing) * hit + smoothing / CLASSES as f64;
                target * (log_total - logit)
            })
            .sum::<f64>()
    })
    .sum()
}

#[test]
fn the_recorded_loss_is_the_formula_and_its_gradient_a_finite_difference() {
    let labels = [3, 0, 9];
    let mut logits: Vec<f64> = (0..30).map(|i| f64::from(i * 37 % 23) / 7.0 - 1.5).collect();
    logits[3] = 5.0;
    for (component, smoothing) in [(SPELT_OUT, 0.0), (SPELT_OUT, 0.1), (FUSED, 0.0), (FUSED, 0.1)] {
        let loss = build(component, 3, &format!("{{\"label_smoothing\": {smoothing}}}")).unwrap();
        assert_eq!(loss.metrics, ["accuracy"]);
        let ([sum, weight, right, count], gradient) = replay(&loss, &logits, &labels);
        let expected = formula(&logits, &labels, smoothing);
        assert!((sum - expected).abs() < 1e-12 * expected, "{sum} {expected}");
        assert_eq!((weight, right, count), (3.0, 1.0, 3.0));
        let step = 1e-5;
        for at in 0..logits.len() {
            let moved = |by: f64| {
                let mut logits = logits.clone();
                logits[at] += by;
                formula(&logits, &labels, smoothing)
            };
            let difference = (moved(step) - moved(-step)) / (2.0 * step);
            assert!((gradient[at] - difference).abs() < 1e-8, "{at}: {gradient:?} {difference}");
        }
    }
}

#[test]
fn a_loss_says_what_it_misses() {
    let error = build(SPELT_OUT, 3, r#"{"label_smoothing": 1.0}"#).unwrap_err();
    assert!(error.to_string().contains("label_smoothing is 1, expected 0 to below 1"), "{error}");
    let error = build(FUSED, 3, r#"{"label_smoothing": 1.5}"#).unwrap_err();
    assert!(error.to_string().contains("label_smoothing must be in 0..=1"), "{error}");
    let sandbox = Sandbox::new(None).unwrap();
    let component = guest(&sandbox, EXAMPLE, "cross-entropy.wasm");
    let outputs = [("logits".to_owned(), Meta::f32([3, CLASSES]))];
    let build = |batch: &[(String, Meta)]| {
        let error = LossGraph::build(&sandbox, &component, LIMITS, "{}", &outputs, batch, quiet());
        error.unwrap_err().to_string()
    };
    assert!(build(&[]).contains("there is no tensor \"y\"; there are []"));
    let wrong = build(&[("y".to_owned(), Meta::f32([3]))]);
    assert!(wrong.contains("gather of f32[3, 10], f32[3]"), "{wrong}");
    let double = build(&[("logits".to_owned(), Meta::i64([3]))]);
    assert!(double.contains("\"logits\" is given twice"), "{double}");
}
