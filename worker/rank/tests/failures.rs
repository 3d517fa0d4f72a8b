//! Whatever breaks in a rank ends as one named failure, in bounded time.
#![expect(clippy::unwrap_used, reason = "a test's way to fail")]

#[expect(dead_code, reason = "each test file uses its part")]
mod harness;

use harness::jobs::{digits, digits_files, misbehaving, misbehaving_files};
use harness::{Gang, Outcome};
use lockstep_api::{
    FailureCode, FailureReport, JobSpec, Phase, Rank, RankMessage, Reduction, Step,
};
use serde_json::{Value, json};

fn fails(spec: &JobSpec, loss: &str) -> Outcome {
    let outcome = Gang::start(spec, &misbehaving_files(loss), None).finish();
    for status in &outcome.statuses {
        assert_eq!(status.code(), Some(1));
    }
    outcome
}

/// The loader works for the first epoch of two steps (8 calls a step), then not.
fn loader_fails(mode: &str) -> FailureReport {
    let spec = misbehaving(1, json!({ "mode": mode, "after_calls": 20 }), json!({}));
    fails(&spec, "misbehaving-loss").failure(0).clone()
}

fn loss_fails(mode: &str) -> FailureReport {
    let spec = misbehaving(1, json!({}), json!({ "mode": mode }));
    fails(&spec, "misbehaving-loss").failure(0).clone()
}

#[test]
fn a_loader_that_traps_is_named_with_rank_step_phase_and_samples() {
    let report = loader_fails("trap");
    assert_eq!(report.code, FailureCode::GuestTrap);
    assert_eq!(
        (report.rank, report.step, report.phase),
        (Some(Rank(0)), Some(Step(2)), Some(Phase::Data))
    );
    assert!(
        report.message.contains("loader") && report.message.contains("told to trap"),
        "{report:?}"
    );
    assert_eq!(report.evidence["samples"].as_array().map(Vec::len), Some(16));
}

#[test]
fn a_loader_that_never_returns_passes_its_time_limit() {
    let report = loader_fails("loop");
    assert_eq!(report.code, FailureCode::GuestTimeLimit);
    assert_eq!(report.evidence["limit"], json!({ "call_ms": 1000 }));
}

#[test]
fn a_loader_that_eats_memory_passes_its_memory_limit() {
    let report = loader_fails("bomb");
    assert_eq!(report.code, FailureCode::GuestMemoryLimit);
    assert_eq!(report.evidence["limit"]["memory_bytes"], json!(64 << 20));
}

#[test]
fn a_loader_that_recurses_without_end_overflows_its_stack() {
    assert_eq!(loader_fails("overflow").code, FailureCode::GuestStackOverflow);
}

#[test]
fn a_loader_that_puts_out_too_much_passes_its_output_limit() {
    assert_eq!(loader_fails("huge").code, FailureCode::GuestOutputLimit);
}

#[test]
fn a_loader_of_the_wrong_shape_is_told_both_shapes() {
    let report = loader_fails("shape");
    assert_eq!(report.code, FailureCode::GuestShape);
    assert!(report.message.contains("65"), "{}", report.message);
}

#[test]
fn a_loaders_own_error_comes_through_with_the_sample() {
    let report = loader_fails("error");
    assert_eq!(report.code, FailureCode::GuestError);
    assert_eq!(report.evidence["sample"], json!(17));
    assert!(report.message.contains("told to fail"), "{}", report.message);
}

#[test]
fn a_loss_that_traps_or_loops_is_named() {
    let trap = loss_fails("trap");
    assert_eq!((trap.code, trap.phase), (FailureCode::GuestTrap, Some(Phase::Forward)));
    assert!(trap.message.contains("loss"), "{}", trap.message);
    assert_eq!(loss_fails("loop").code, FailureCode::GuestTimeLimit);
}

#[test]
fn a_loss_that_is_not_a_number_stops_all_ranks_before_the_step_is_applied() {
    let spec = misbehaving(2, json!({}), json!({ "mode": "nan" }));
    let outcome = fails(&spec, "misbehaving-loss");
    assert_eq!(outcome.steps(), Vec::<&lockstep_api::StepReport>::new());
    for rank in 0..2 {
        let report = outcome.failure(rank);
        assert_eq!(report.code, FailureCode::NonFinite);
        assert_eq!((report.rank, report.step), (Some(Rank(0)), Some(Step(0))));
        assert_eq!(report.evidence["ranks"], json!([0, 1]));
    }
}

#[test]
fn a_raw_loss_that_is_not_a_number_is_named_too() {
    let config = json!({ "mode": "nan", "after_calls": 10 });
    let spec = misbehaving(1, json!({}), config);
    let report = fails(&spec, "misbehaving-raw-loss").failure(0).clone();
    assert_eq!((report.code, report.step), (FailureCode::NonFinite, Some(Step(1))));
}

#[test]
fn a_raw_loss_trains_as_well_as_a_kept_graph() {
    let spec = misbehaving(2, json!({}), json!({}));
    let run = |loss| {
        let outcome = Gang::start(&spec, &misbehaving_files(loss), None).finish();
        outcome.assert_success();
        outcome.losses()
    };
    for (kept, raw) in run("misbehaving-loss").iter().zip(run("misbehaving-raw-loss")) {
        assert!((kept - raw).abs() / kept < 1e-4, "{kept} and {raw}");
    }
}

#[test]
fn one_ranks_failure_reaches_the_others_as_an_effect() {
    // Rank 1 has the grains 4 to 7 of each step; its loader fails in its third step, rank 0's in its own third.
    let spec = misbehaving(2, json!({ "mode": "trap", "after_calls": 9 }), json!({}));
    let outcome = fails(&spec, "misbehaving-loss");
    for rank in 0..2 {
        let code = outcome.failure(rank).code;
        let is_expected = matches!(code, FailureCode::GuestTrap | FailureCode::PeerGone);
        assert!(is_expected, "{:?}", outcome.failure(rank));
    }
}

#[test]
fn a_stopped_rank_is_named_by_the_others_within_the_timeout() {
    let mut spec = digits(2, Reduction::Fast, 5000);
    spec.timeouts.collective = "10s".to_owned();
    let mut gang = Gang::start(&spec, &digits_files(), None);
    // The second step: by then nobody is in the pause of the first any more.
    gang.wait_for(|message| matches!(message, RankMessage::Step(it) if it.ledger.step == Step(1)));
    let signal = |name: &str, pid: u32| {
        let status = std::process::Command::new("kill").args([name, &pid.to_string()]).status();
        assert!(status.unwrap().success());
    };
    let pid = gang.pid(1);
    signal("-STOP", pid);
    gang.wait_for(|message| matches!(message, RankMessage::Interrupted { .. }));
    gang.kill(1);
    let outcome = gang.finish();
    let report = outcome.failure(0);
    assert_eq!((report.code, report.rank), (FailureCode::NotEntered, Some(Rank(1))));
    let evidence = &report.evidence;
    assert_eq!((&evidence["missing"], &evidence["by"]), (&json!([1]), &json!(0)), "{evidence}");
    assert!(report.message.contains("rank 1 has not entered"), "{}", report.message);
}

#[test]
fn a_checkpoint_of_another_job_is_refused_by_field() {
    let mut spec = digits(1, Reduction::Fast, 1);
    let done = Gang::start(&spec, &digits_files(), None).finish();
    let (_, path) = done.assert_success().checkpoints().pop().unwrap();
    spec.train.seed = 8;
    let outcome = Gang::start(&spec, &digits_files(), Some(&path)).finish();
    let report = outcome.failure(0);
    assert_eq!(report.code, FailureCode::CheckpointFailed);
    assert!(report.message.contains("`train.seed` differs"), "{}", report.message);
    assert_eq!(report.evidence, Value::Null);
}

#[test]
fn a_label_outside_of_the_classes_is_named_with_its_sample() {
    let mut spec = digits(1, Reduction::Fast, 1);
    let lockstep_api::ArchSpec::Mlp(mlp) = &mut spec.model.arch else { panic!("{:?}", spec.model) };
    mlp.classes = 9;
    let outcome = Gang::start(&spec, &digits_files(), None).finish();
    let report = outcome.failure(0);
    assert_eq!(report.code, FailureCode::GuestShape);
    assert_eq!((&report.evidence["label"], &report.evidence["classes"]), (&json!(9), &json!(9)));
}
