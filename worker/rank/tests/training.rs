//! Real ranks train the digits job: the same curve for any number of them, every sample used once, a resumed
//! job goes on as an undisturbed one, a stopped one leaves together.
#![expect(clippy::unwrap_used, reason = "a test's way to fail")]

#[expect(dead_code, reason = "each test file uses its part")]
mod harness;

use std::collections::BTreeSet;

use harness::jobs::{
    EVAL_SAMPLES, TRAIN_SAMPLES, digits, digits_files, misbehaving, misbehaving_files,
};
use harness::{Files, Gang, Outcome};
use lockstep_api::{AgentMessage, RankCount, RankMessage, Reduction, Step};
use serde_json::json;

fn train(ranks: u32, reduction: Reduction) -> Outcome {
    let spec = digits(ranks, reduction, 2);
    let outcome = Gang::start(&spec, &digits_files(), None).finish();
    outcome.assert_success();
    outcome
}

#[test]
fn with_the_fixed_tree_any_number_of_ranks_gives_the_same_bits() {
    let alone = train(1, Reduction::FixedTree);
    assert_eq!(alone.steps().len(), 24);
    let bits = |outcome: &Outcome| -> Vec<u64> {
        outcome.losses().into_iter().map(f64::to_bits).collect()
    };
    for ranks in [2, 3] {
        let gang = train(ranks, Reduction::FixedTree);
        assert_eq!(bits(&gang), bits(&alone), "{ranks} ranks");
        assert_eq!(gang.evaluations(), alone.evaluations(), "{ranks} ranks");
        for (step, other) in gang.steps().iter().zip(alone.steps()) {
            assert_eq!((&step.ledger, &step.metrics), (&other.ledger, &other.metrics));
        }
    }
}

#[test]
fn with_the_fast_reduction_curves_agree_closely() {
    let alone = train(1, Reduction::Fast).losses();
    for ranks in [2, 3] {
        for (step, (gang, alone)) in
            train(ranks, Reduction::Fast).losses().iter().zip(&alone).enumerate()
        {
            let relative = (gang - alone).abs() / alone;
            assert!(relative < 1e-5, "step {step} of {ranks} ranks: {gang} and {alone}");
        }
    }
}

#[test]
fn every_position_is_in_the_ledger_once_and_the_curve_falls() {
    let outcome = train(2, Reduction::Fast);
    let mut used = BTreeSet::new();
    for (index, step) in outcome.steps().iter().enumerate() {
        assert_eq!(step.ledger.step, Step(i64::try_from(index).unwrap()));
        let positions =
            step.ledger.first_position..step.ledger.first_position + step.ledger.sample_count;
        for position in positions {
            assert!(used.insert((step.ledger.data_epoch, position)), "{position} is used twice");
        }
    }
    let samples = i64::try_from(TRAIN_SAMPLES).unwrap();
    let all: BTreeSet<(i64, i64)> =
        (0..2).flat_map(|epoch| (0..samples).map(move |position| (epoch, position))).collect();
    assert_eq!(used, all);
    let formed =
        RankMessage::Formed { step: Step(0), samples_per_epoch: samples, steps_total: Step(24) };
    assert_eq!(outcome.messages[0][0], formed);
    let losses = outcome.losses();
    assert!(losses[23] < losses[0], "{losses:?}");
    let at: Vec<Step> = outcome.evaluations().iter().map(|(step, _)| *step).collect();
    assert_eq!(at, [Step(12), Step(24)], "after each data epoch");
}

#[test]
fn evaluation_counts_every_sample_once() {
    let outcome = train(3, Reduction::Fast);
    let (_, metrics) = outcome.evaluations()[1];
    let names: Vec<&str> = metrics.iter().map(|metric| metric.name.as_str()).collect();
    assert_eq!(names, ["eval/loss", "eval/accuracy"]);
    let right = metrics[1].value.unwrap() * EVAL_SAMPLES as f64;
    assert!((right - right.round()).abs() < 1e-9, "{right} of {EVAL_SAMPLES} are right");
}

#[test]
fn twenty_epochs_recognise_nine_digits_of_ten() {
    let mut spec = digits(2, Reduction::FixedTree, 20);
    spec.loader.config = json!({ "augment": false });
    let outcome = Gang::start(&spec, &digits_files(), None).finish();
    let (step, metrics) = *outcome.assert_success().evaluations().last().unwrap();
    assert_eq!((step, metrics[1].name.as_str()), (Step(240), "eval/accuracy"));
    // The evaluation split is of other writers: a linear model ends at 89 %.
    assert!(0.9 < metrics[1].value.unwrap(), "{metrics:?}");
}

#[test]
fn a_job_that_resumes_from_a_checkpoint_goes_on_bit_for_bit_on_another_number_of_ranks() {
    let mut spec = digits(2, Reduction::FixedTree, 2);
    spec.checkpoint.every_steps = Some(7);
    let whole = Gang::start(&spec, &digits_files(), None).finish();
    whole.assert_success();
    let checkpoints = whole.checkpoints();
    let at: Vec<Step> = checkpoints.iter().map(|(step, _)| *step).collect();
    assert_eq!(at, [Step(7), Step(14), Step(21), Step(24)]);

    spec.gang.ranks = RankCount::Fixed(3);
    let rest = Gang::start(&spec, &digits_files(), Some(&checkpoints[0].1)).finish();
    rest.assert_success();
    assert_eq!(rest.steps()[0].ledger.step, Step(7));
    assert_eq!(rest.losses(), whole.losses()[7..]);
    assert_eq!(rest.evaluations(), whole.evaluations());
    let last = |outcome: &Outcome| std::fs::read(&outcome.checkpoints().last().unwrap().1).unwrap();
    assert_eq!(last(&rest), last(&whole), "the last checkpoints have the same bytes");
}

#[test]
fn told_to_stop_one_rank_all_leave_after_the_same_step_with_a_checkpoint() {
    let spec = digits(2, Reduction::FixedTree, 2000);
    // An evaluation would carry the vote too.
    let files = Files { eval_dir: None, ..digits_files() };
    let mut gang = Gang::start(&spec, &files, None);
    gang.wait_for(
        |message| matches!(message, RankMessage::Step(step) if step.ledger.step == Step(20)),
    );
    gang.say(1, &AgentMessage::Stop);
    let outcome = gang.finish();
    outcome.assert_success();
    let done = outcome.steps().len();
    assert!(done < 24_000, "{done} steps");
    let (step, path) = outcome.checkpoints().pop().unwrap();
    assert_eq!(step, Step(i64::try_from(done).unwrap()));
    assert!(path.exists());
}

#[test]
fn no_rank_outlives_its_agent_not_even_inside_a_guest() {
    let mut spec = misbehaving(2, json!({ "mode": "loop", "after_calls": 4 }), json!({}));
    spec.loader.limits.call_ms = 600_000;
    spec.timeouts.collective = "10m".to_owned();
    let mut gang = Gang::start(&spec, &misbehaving_files("misbehaving-loss"), None);
    gang.wait_for(|message| matches!(message, RankMessage::Step(_)));
    gang.hang_up();
    for status in gang.finish().statuses {
        assert_eq!(status.code(), Some(3));
    }
}
