//! Real ranks train with what a job may ask of the engine: running statistics, half precision, a mean of the weights.
#![expect(clippy::unwrap_used, reason = "a test's way to fail")]

#[expect(dead_code, reason = "each test file uses its part")]
mod harness;

use harness::jobs::{digits, digits_files};
use harness::{Gang, Outcome};
use lockstep_api::{FailureCode, JobSpec, RankMessage, Reduction, Step};
use serde_json::{Value, json};

fn with(ranks: u32, model: Value, train: Value, eval: Value) -> JobSpec {
    let mut spec = serde_json::to_value(digits(ranks, Reduction::Fast, 2)).unwrap();
    spec["model"] = model;
    spec["eval"] = eval;
    for (field, value) in train.as_object().unwrap() {
        spec["train"][field] = value.clone();
    }
    let spec: JobSpec = serde_json::from_value(spec).unwrap();
    assert_eq!(spec.check(), []);
    spec
}

fn last_checkpoint(outcome: &Outcome) -> Vec<u8> {
    std::fs::read(&outcome.checkpoints().last().unwrap().1).unwrap()
}

/// Statistics, dropout, f16 with a scale that is too high at first, clipping, a schedule, and a mean that is evaluated.
fn everything() -> JobSpec {
    let model = json!({ "arch": "layers", "input": [64], "layers": [
        { "linear": { "out": 32 } }, "batch_norm", "relu", { "dropout": { "p": 0.1 } }, { "linear": { "out": 10 } },
    ] });
    let train = json!({
        "precision": "f16", "loss_scale": { "initial": 8388608.0, "growth_interval": 3 },
        "clip_norm": 1.0, "schedule": { "name": "cosine", "warmup_steps": 4 }, "ema": { "decay": 0.9 },
        "activation_checkpointing": true,
    });
    let eval = json!({ "metrics": ["top5", "perplexity"], "use_ema": true });
    let mut spec = with(2, model, train, eval);
    spec.checkpoint.every_steps = Some(7);
    spec
}

#[test]
fn all_that_training_remembers_comes_back_from_a_checkpoint() {
    let spec = everything();
    let whole = Gang::start(&spec, &digits_files(), None).finish();
    whole.assert_success();
    let (_, metrics) = *whole.evaluations().last().unwrap();
    let names: Vec<&str> = metrics.iter().map(|metric| metric.name.as_str()).collect();
    assert_eq!(names, ["eval/loss", "eval/top5", "eval/perplexity", "eval/accuracy"]);
    assert!(metrics.iter().all(|metric| metric.value.is_some()), "{metrics:?}");
    for (step, path) in &whole.checkpoints()[..3] {
        let rest = Gang::start(&spec, &digits_files(), Some(path)).finish();
        rest.assert_success();
        let done = usize::try_from(step.0).unwrap();
        assert_eq!(rest.losses(), whole.losses()[done..], "from step {done}");
        assert_eq!(last_checkpoint(&rest), last_checkpoint(&whole), "from step {done}");
    }
}

#[test]
fn steps_that_a_scale_spoils_are_left_out_and_told() {
    let outcome = Gang::start(&everything(), &digits_files(), None).finish();
    outcome.assert_success();
    let told = outcome.messages[0].iter().filter_map(|message| match message {
        RankMessage::Log { text, .. } if text.contains("left out") => Some(text.as_str()),
        _ => None,
    });
    let told: Vec<&str> = told.collect();
    assert!(told[0].starts_with("step 0 is left out"), "{told:?}");
    // Twenty-four steps: some were left out, most were taken.
    assert!((2..12).contains(&told.len()), "{told:?}");
    let metrics = |step: usize| -> Vec<(&str, f64)> {
        let metrics = outcome.steps()[step].metrics.iter();
        metrics.map(|metric| (metric.name.as_str(), metric.value.unwrap())).collect()
    };
    let names = |step| metrics(step).into_iter().map(|(name, _)| name).collect::<Vec<_>>();
    assert_eq!(names(0), ["train/accuracy", "train/lr", "train/loss_scale"]);
    assert_eq!(names(4), ["train/accuracy", "train/lr", "train/grad_norm", "train/loss_scale"]);
    // Half way through four steps of warm-up; the schedule goes by steps, left out or not.
    assert_eq!(metrics(2)[1], ("train/lr", 0.5e-2));
    let norm = metrics(4)[2].1;
    assert!((1e-3..1e3).contains(&norm), "{norm}");
    let losses = outcome.losses();
    assert!(losses[23] < 0.9 * losses[0], "{losses:?}");
}

#[test]
fn a_job_whose_every_step_is_left_out_is_no_success() {
    let mut spec = everything();
    spec.train.max_steps = Some(5);
    let scale = spec.train.loss_scale.as_mut().unwrap();
    scale.initial = (1_u64 << 40) as f64;
    let outcome = Gang::start(&spec, &digits_files(), None).finish();
    let report = outcome.failure(0);
    assert_eq!(report.code, FailureCode::NonFinite);
    assert!(report.message.starts_with("all 5 steps were left out"), "{}", report.message);
}

#[test]
fn a_model_may_have_more_statistics_than_weights() {
    let model = json!({ "arch": "layers", "input": [64], "layers": ["batch_norm"] });
    let spec = with(2, model, json!({}), json!({}));
    let outcome = Gang::start(&spec, &digits_files(), None).finish();
    outcome.assert_success();
    assert_eq!(outcome.evaluations().last().unwrap().0, Step(24));
}

#[test]
fn with_the_fixed_tree_running_statistics_are_the_same_for_any_number_of_ranks() {
    let trained = |ranks, reduction: &str| {
        let model = json!({ "arch": "layers", "input": [64], "layers": [
            { "linear": { "out": 16 } }, "batch_norm", "relu", { "linear": { "out": 10 } },
        ] });
        let mut spec = with(ranks, model, json!({}), json!({}));
        spec.ddp.reduction = serde_json::from_value(json!(reduction)).unwrap();
        let outcome = Gang::start(&spec, &digits_files(), None).finish();
        outcome.assert_success();
        let evaluated = outcome.evaluations().last().unwrap().1.to_vec();
        (last_checkpoint(&outcome), evaluated)
    };
    let alone = trained(1, "fixed-tree");
    assert_eq!(trained(2, "fixed-tree"), alone);
    assert_eq!(trained(3, "fixed-tree"), alone);
    // With the fast one they are those of rank 0's grains.
    assert_ne!(trained(2, "fast").1, alone.1);
}
