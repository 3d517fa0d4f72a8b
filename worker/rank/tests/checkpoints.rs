//! What a checkpoint costs the ranks is told, and what does not restore to the saved state is not trained on.
#![expect(clippy::unwrap_used, reason = "a test's way to fail")]

#[expect(dead_code, reason = "each test file uses its part")]
mod harness;

use camino::Utf8Path;
use harness::Gang;
use harness::jobs::{digits, digits_files};
use lockstep_api::{FailureCode, JobSpec, Reduction};
use serde_json::Value;

fn job() -> JobSpec {
    let mut spec = digits(2, Reduction::FixedTree, 2);
    spec.checkpoint.every_steps = Some(7);
    spec
}

#[test]
fn the_step_after_a_checkpoint_tells_how_long_it_held_the_ranks() {
    let outcome = Gang::start(&job(), &digits_files(), None).finish();
    outcome.assert_success();
    let stalls = outcome.steps().into_iter().filter_map(|step| {
        let stall = step.metrics.iter().find(|it| it.name == "train/checkpoint_stall_ms")?;
        Some((step.ledger.step.0, stall.value.unwrap()))
    });
    let stalls: Vec<(i64, f64)> = stalls.collect();
    // No step follows the last one, after step 24.
    assert_eq!(stalls.iter().map(|(step, _)| *step).collect::<Vec<_>>(), [7, 14, 21]);
    assert!(stalls.iter().all(|(_, ms)| 0.0 < *ms && *ms < 10_000.0), "{stalls:?}");
}

/// Flips the lowest bit of a tensor's first number. Answers the tensor's name.
fn flip(path: &Utf8Path, is_wanted: impl Fn(&str) -> bool) -> String {
    let mut bytes = std::fs::read(path).unwrap();
    let len = usize::try_from(u64::from_le_bytes(bytes[..8].try_into().unwrap())).unwrap();
    let header: Value = serde_json::from_slice(&bytes[8..8 + len]).unwrap();
    let mut tensors = header.as_object().unwrap().iter();
    let (name, tensor) = tensors.find(|(name, _)| is_wanted(name)).unwrap();
    let offset = tensor["data_offsets"][0].as_u64().unwrap();
    bytes[8 + len + usize::try_from(offset).unwrap()] ^= 1;
    std::fs::write(path, bytes).unwrap();
    name.clone()
}

#[test]
fn a_state_that_is_not_the_saved_one_is_not_trained_on() {
    let whole = Gang::start(&job(), &digits_files(), None).finish();
    let path = whole.assert_success().checkpoints()[0].1.clone();
    let name = flip(&path, |name| name.starts_with("optimizer.m."));
    let outcome = Gang::start(&job(), &digits_files(), Some(&path)).finish();
    assert!(outcome.steps().is_empty(), "{name} was changed");
    let report = outcome.failure(0);
    assert_eq!(report.code, FailureCode::CheckpointFailed);
    assert!(report.message.starts_with("`optimizer.m` restored from "), "{report:?}");
    assert!(outcome.statuses.iter().all(|status| status.code() == Some(1)));
}
