//! Guests that misbehave: each ends as the error that names what it did, in time.
#![expect(clippy::unwrap_used, reason = "tests")]

mod common;

use std::time::{Duration, Instant};

use camino::Utf8Path;
use common::{LIMITS, Lines, TEST_GUESTS, guest, quiet};
use lockstep_sandbox::{
    Batch, BatchData, BatchTensor, BuiltLoss, GuestError, GuestErrorKind, Limits, Loader, LogLevel,
    LogSink, LossGraph, RawLoss, RawOutput, Sandbox, World,
};
use lockstep_tensor::Meta;

const SAMPLES: usize = 4;

fn load_with(mode: &str, limits: Limits, log: LogSink) -> Result<Batch, GuestError> {
    let sandbox = Sandbox::new(None).unwrap();
    let component = guest(&sandbox, TEST_GUESTS, "misbehaving-loader.wasm");
    let config = format!("{{\"mode\": \"{mode}\", \"after_calls\": 1}}");
    let data = Utf8Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/common");
    let mut loader = Loader::open(&sandbox, &component, limits, &config, "train", &data, log)?;
    let indices: Vec<u64> = (0..SAMPLES as u64).collect();
    let good = loader.load(&indices, &indices, true);
    assert!(good.is_ok(), "the first call behaves: {good:?}");
    let answer = loader.load(&indices, &indices, true);
    if matches!(answer, Err(GuestError::Trap { .. } | GuestError::TimeLimit { .. })) {
        let next = loader.len().unwrap_err();
        assert!(matches!(&next, GuestError::Host(why) if why.contains("spent")), "{next}");
    }
    answer
}

fn load(mode: &str) -> GuestError {
    load_with(mode, LIMITS, quiet()).unwrap_err()
}

fn build(mode: &str) -> Result<BuiltLoss, GuestError> {
    let sandbox = Sandbox::new(None).unwrap();
    let component = guest(&sandbox, TEST_GUESTS, "misbehaving-loss.wasm");
    let config = format!("{{\"mode\": \"{mode}\"}}");
    let outputs = [("logits".to_owned(), Meta::f32([SAMPLES, 10]))];
    let batch = [("y".to_owned(), Meta::i64([SAMPLES]))];
    LossGraph::build(&sandbox, &component, LIMITS, &config, &outputs, &batch, quiet())
}

fn compute(mode: &str) -> Result<RawOutput, GuestError> {
    let sandbox = Sandbox::new(None).unwrap();
    let component = guest(&sandbox, TEST_GUESTS, "misbehaving-raw-loss.wasm");
    let config = format!("{{\"mode\": \"{mode}\"}}");
    let mut loss = RawLoss::open(&sandbox, &component, LIMITS, &config, quiet())?;
    let (name, shape) = ("y".to_owned(), vec![SAMPLES]);
    let labels = BatchTensor { name, shape, data: BatchData::I64(vec![3; SAMPLES]) };
    let logits = [0.0; 10 * SAMPLES];
    loss.compute(&[("logits", &[SAMPLES, 10], &logits)], &Batch { tensors: vec![labels] })
}

#[test]
fn the_three_kinds_are_told_apart() {
    let sandbox = Sandbox::new(None).unwrap();
    for (name, world) in [
        ("misbehaving-loader.wasm", World::Loader),
        ("misbehaving-loss.wasm", World::Loss),
        ("misbehaving-raw-loss.wasm", World::LossRaw),
    ] {
        assert_eq!(guest(&sandbox, TEST_GUESTS, name).world().unwrap(), world);
    }
    let loss = guest(&sandbox, TEST_GUESTS, "misbehaving-loss.wasm");
    let data = Utf8Path::new("/");
    let error = Loader::open(&sandbox, &loss, LIMITS, "{}", "train", data, quiet()).unwrap_err();
    assert_eq!(error, GuestError::Host("the component is a loss, not a loader".to_owned()));
}

#[test]
fn an_endless_loop_ends_at_the_limit() {
    let limit = Duration::from_secs(2);
    let start = Instant::now();
    let error = load_with("loop", Limits { call_time: limit, ..LIMITS }, quiet()).unwrap_err();
    let (took, what) = (start.elapsed(), "loader.load".to_owned());
    assert_eq!(error, GuestError::TimeLimit { what, limit });
    assert!(limit <= took, "{took:?}");
}

/// Of this thread's work: a busy machine does not lengthen it.
fn thread_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap()
}

#[test]
fn a_call_is_stopped_within_a_second_of_its_limit() {
    let sandbox = Sandbox::new(None).unwrap();
    let component = guest(&sandbox, TEST_GUESTS, "misbehaving-loader.wasm");
    let limit = Duration::from_secs(2);
    let limits = Limits { call_time: limit, ..LIMITS };
    let data = Utf8Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/common");
    let config = r#"{"mode": "loop"}"#;
    let mut loader =
        Loader::open(&sandbox, &component, limits, config, "train", &data, quiet()).unwrap();
    let (start, worked) = (Instant::now(), thread_time());
    let error = loader.load(&[0], &[0], true).unwrap_err();
    let (took, worked) = (start.elapsed(), thread_time() - worked);
    assert!(matches!(error, GuestError::TimeLimit { .. }), "{error}");
    assert!(limit <= took, "{took:?}");
    assert!(worked < limit + Duration::from_secs(1), "{worked:?}");
}

#[test]
fn endless_allocation_ends_at_the_limit_and_says_how_much_was_asked() {
    let GuestError::MemoryLimit { what, asked, limit } = load("bomb") else { panic!() };
    assert_eq!((what.as_str(), limit), ("loader.load", LIMITS.memory_bytes));
    assert!(limit < asked && asked < 2 * limit, "{asked}");
}

#[test]
fn a_panic_keeps_its_message() {
    let lines = Lines::default();
    let error = load_with("trap", LIMITS, lines.sink()).unwrap_err();
    let GuestError::Trap { what, message } = error else { panic!("{error}") };
    assert_eq!(what, "loader.load");
    assert!(message.contains("told to trap"), "{message}");
    let lines = lines.take();
    assert_eq!(lines[0], (LogLevel::Info, "opened train".to_owned()));
    assert_eq!(lines[1], (LogLevel::Error, message));
}

#[test]
fn endless_recursion_is_a_stack_overflow() {
    let what = "loader.load".to_owned();
    assert_eq!(load("overflow"), GuestError::StackOverflow { what });
}

#[test]
fn a_guests_own_error_arrives_with_its_kind_and_sample() {
    let GuestError::Guest { what, kind, sample, message } = load("error") else { panic!() };
    assert_eq!((what.as_str(), kind, sample), ("loader.load", GuestErrorKind::Sample, Some(17)));
    assert_eq!(message, "told to fail");
}

#[test]
fn a_tensor_of_another_shape_than_its_bytes_is_refused() {
    let error = load("shape");
    assert!(matches!(error, GuestError::Shape { .. }), "{error}");
    assert!(error.to_string().contains("\"x\" is 1024 bytes, expected 1040 bytes"), "{error}");
}

#[test]
fn output_is_limited_over_all_tensors_of_a_call() {
    let GuestError::OutputLimit { what, asked, limit } = load("huge") else { panic!() };
    assert_eq!((what.as_str(), limit), ("loader.load", LIMITS.output_bytes));
    assert!(asked.is_some_and(|asked| limit < asked), "{asked:?}");
}

#[test]
fn a_loader_may_hand_out_what_is_no_number() {
    let batch = load_with("nan", LIMITS, quiet()).unwrap();
    let BatchData::F32(x) = &batch.tensors[0].data else { panic!() };
    assert!(x.iter().all(|x| x.is_nan()));
}

#[test]
fn a_flood_of_lines_is_cut() {
    let lines = Lines::default();
    load_with("chatter", LIMITS, lines.sink()).unwrap();
    let lines = lines.take();
    assert!(lines.len() < 200, "{}", lines.len());
    assert!(lines.last().unwrap().1.contains("dropped"));
}

#[test]
fn a_loss_that_misbehaves_is_named_alike() {
    assert!(
        matches!(build("trap"), Err(GuestError::Trap { message, .. }) if message.contains("told"))
    );
    assert!(matches!(build("overflow"), Err(GuestError::StackOverflow { .. })));
    assert!(matches!(build("bomb"), Err(GuestError::MemoryLimit { .. })));
    assert!(matches!(build("error"), Err(GuestError::Guest { .. })));
    let error = build("shape").unwrap_err();
    assert!(matches!(error, GuestError::Operation { .. }), "{error}");
    assert!(error.to_string().contains("matmul of f32[4, 10], f32[4, 10]"), "{error}");
    let error = build("huge").unwrap_err();
    assert!(matches!(error, GuestError::OutputLimit { asked: Some(_), .. }), "{error}");
    assert!(build("nan").is_ok(), "shapes are fine; the numbers show later");
    assert_eq!(build("none").unwrap().metrics, ["accuracy"]);
}

#[test]
fn a_raw_loss_that_misbehaves_is_named_alike() {
    assert!(
        matches!(compute("trap"), Err(GuestError::Trap { message, .. }) if message.contains("told"))
    );
    assert!(matches!(compute("overflow"), Err(GuestError::StackOverflow { .. })));
    assert!(matches!(compute("bomb"), Err(GuestError::MemoryLimit { .. })));
    let error = compute("shape").unwrap_err();
    assert!(error.to_string().contains("\"logits\" is 1 numbers, expected 40 numbers"), "{error}");
    let error = compute("nan").unwrap_err();
    assert!(matches!(error, GuestError::NonFinite { .. }), "{error}");
    assert!(error.to_string().contains("the gradient of \"logits\" at 0 is NaN"), "{error}");
    let error = compute("huge").unwrap_err();
    let (what, limit) = ("loss-raw.compute".to_owned(), LIMITS.output_bytes);
    assert_eq!(error, GuestError::OutputLimit { what, asked: None, limit });
}

#[test]
fn a_raw_loss_is_the_cross_entropy_it_says() {
    let output = compute("none").unwrap();
    let expected = SAMPLES as f64 * 10_f64.ln();
    assert!((output.sum - expected).abs() < 1e-5, "{}", output.sum);
    assert_eq!((output.weight, &output.metrics[0]), (4.0, &("accuracy".to_owned(), 0.0, 4.0)));
    let (name, grad) = &output.grads[0];
    assert_eq!(name, "logits");
    assert!((grad[0] - 0.1).abs() < 1e-6 && (grad[3] + 0.9).abs() < 1e-6, "{grad:?}");
}
