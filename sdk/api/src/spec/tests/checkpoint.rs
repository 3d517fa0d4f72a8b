//! When the state is saved, and which checkpoints are kept.

use super::{MLP, SGD, errors, job, written};
use crate::{BestMode, BestSpec, CheckpointSpec};

fn checkpoint(lines: &str) -> CheckpointSpec {
    let job = job(MLP, SGD, &format!("[checkpoint]\n{lines}")).unwrap();
    assert_eq!(job.check(), vec![]);
    written(&job);
    job.checkpoint
}

fn checkpoint_errors(lines: &str) -> Vec<String> {
    errors(job(MLP, SGD, &format!("[checkpoint]\n{lines}")))
}

#[test]
fn by_default_the_two_newest_are_kept_and_no_best() {
    let spec = checkpoint("");
    assert_eq!(spec, CheckpointSpec::default());
    assert_eq!((spec.every_steps, spec.keep_last, spec.keep_best), (None, 2, 0));
    assert_eq!(spec.best, BestSpec { metric: "eval/loss".to_owned(), mode: BestMode::Min });
    let spec = checkpoint("keep_best = 3\nbest = { metric = \"eval/accuracy\", mode = \"max\" }");
    assert_eq!((spec.keep_best, spec.best.mode), (3, BestMode::Max));
    assert_eq!(checkpoint("best = { mode = \"max\" }").best.metric, "eval/loss");
}

#[test]
fn each_refusal_names_the_field_the_value_and_what_was_expected() {
    for (lines, expected) in [
        ("keep_last = 0", "checkpoint.keep_last: expected 1 to 100, got 0"),
        ("keep_best = 21", "checkpoint.keep_best: expected 0 to 20, got 21"),
        (
            "best = { metric = \"train/loss\" }",
            "checkpoint.best.metric: expected the name of an evaluation's value, \"eval/…\", of at most 64 bytes, got \
             \"train/loss\"",
        ),
    ] {
        assert_eq!(checkpoint_errors(lines), [expected]);
    }
    for lines in ["best = { metric = \"eval/\" }", "best = { metric = \"eval/a\\nb\" }"] {
        assert_eq!(checkpoint_errors(lines).len(), 1, "{lines}");
    }
    let long = format!("best = {{ metric = \"eval/{}\" }}", "x".repeat(60));
    assert_eq!(checkpoint_errors(&long).len(), 1);
    let error = checkpoint_errors("best = { mode = \"most\" }").join("");
    assert!(error.starts_with("checkpoint.best.mode: ") && error.contains("most"), "{error}");
}

#[test]
fn the_best_want_an_evaluation() {
    let mut job = job(MLP, SGD, "[checkpoint]\nkeep_best = 1").unwrap();
    assert_eq!(job.check(), vec![]);
    job.data.eval = None;
    assert_eq!(errors(Ok(job)), ["checkpoint.keep_best: expected 0 without data.eval, got 1"]);
}
