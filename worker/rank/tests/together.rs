//! What real ranks have in common: the statistics of a batch, what a hook leaves over, which parameters are used, and
//! the bits of their weights.
#![expect(clippy::unwrap_used, reason = "a test's way to fail")]

#[expect(dead_code, reason = "each test file uses its part")]
mod harness;

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;

use harness::jobs::{digits, digits_files, misbehaving, misbehaving_files};
use harness::{Gang, Outcome};
use lockstep_api::{FailureCode, JobSpec, Rank, RankMessage, Reduction};
use safetensors::SafeTensors;
use serde_json::{Value, json};

fn with(ranks: u32, settings: &[(&str, Value)]) -> JobSpec {
    let mut spec = serde_json::to_value(digits(ranks, Reduction::Fast, 2)).unwrap();
    for (path, value) in settings {
        *spec.pointer_mut(path).unwrap_or_else(|| panic!("{path}")) = value.clone();
    }
    let spec: JobSpec = serde_json::from_value(spec).unwrap();
    assert_eq!(spec.check(), []);
    spec
}

fn trained(spec: &JobSpec) -> Outcome {
    let outcome = Gang::start(spec, &digits_files(), None).finish();
    outcome.assert_success();
    outcome
}

/// Two batch norms, one of them computed twice.
fn normed(ranks: u32, micro_batch: u32, is_joint: bool) -> Vec<f64> {
    let model = json!({ "arch": "layers", "input": [64], "layers": [
        { "linear": { "out": 32 } }, "batch_norm", "relu",
        { "linear": { "out": 16 } }, "batch_norm", "relu", { "linear": { "out": 10 } },
    ] });
    let spec = with(
        ranks,
        &[
            ("/model", model),
            ("/train/micro_batch", json!(micro_batch)),
            ("/train/activation_checkpointing", json!(true)),
            ("/ddp/sync_batch_norm", json!(is_joint)),
        ],
    );
    trained(&spec).losses()
}

#[test]
fn joint_statistics_are_those_of_one_process_with_the_whole_batch() {
    let alone = normed(1, 128, false);
    assert_eq!(alone.len(), 24);
    // The last batch of a pass has 29 samples: then all ranks but the first stand in; with 64 the third one always does.
    for (ranks, micro_batch) in [(2, 64), (4, 32), (3, 64)] {
        let joint = normed(ranks, micro_batch, true);
        for (step, (joint, alone)) in joint.iter().zip(&alone).enumerate() {
            let off = (joint - alone).abs() / alone;
            assert!(off < 2e-4, "{ranks} ranks, step {step}: {joint}, {alone}");
        }
        let apart = normed(ranks, micro_batch, false);
        let off = |(apart, alone): (&f64, &f64)| (apart - alone).abs() / alone;
        let most = apart.iter().zip(&alone).map(off).fold(0.0, f64::max);
        assert!(2e-3 < most, "{ranks} ranks apart are within {most}");
    }
}

#[test]
fn what_power_sgd_leaves_over_comes_back_from_a_checkpoint() {
    let spec = with(
        2,
        &[
            ("/ddp/hook", json!("power-sgd")),
            ("/ddp/power_sgd", json!({ "rank": 2, "start_step": 3, "min_compression_rate": 1.0 })),
            ("/checkpoint/every_steps", json!(9)),
        ],
    );
    let whole = trained(&spec);
    let (step, path) = &whole.checkpoints()[0];
    assert_eq!(step.0, 9);
    let file = fs::read(path).unwrap();
    let tensors = SafeTensors::deserialize(&file).unwrap();
    for part in ["hook.shared", "hook.leftovers"] {
        let tensor = tensors.tensor(part).unwrap();
        assert!(tensor.data().iter().any(|octet| *octet != 0), "{part} is all zeros");
    }
    let rest = Gang::start(&spec, &digits_files(), Some(path)).finish();
    rest.assert_success();
    assert_eq!(rest.losses(), whole.losses()[9..]);
    let last = |outcome: &Outcome| fs::read(&outcome.checkpoints().last().unwrap().1).unwrap();
    assert_eq!(last(&rest), last(&whole));
}

/// Of 256 or fewer samples in batches of 128; a loss guest that looks away from batches of fewer than 16.
fn blind(samples: u64, is_static: bool) -> Outcome {
    let mut spec = misbehaving(2, json!({ "samples": samples }), json!({ "mode": "blind" }));
    spec.ddp.static_graph = is_static;
    Gang::start(&spec, &misbehaving_files("misbehaving-loss"), None).finish()
}

fn told(outcome: &Outcome, rank: usize) -> Vec<&str> {
    let said = outcome.messages[rank].iter().filter_map(|message| match message {
        RankMessage::Log { text, .. } if text.contains("does not depend on") => Some(text.as_str()),
        _ => None,
    });
    said.collect()
}

#[test]
fn a_static_graph_is_held_to_and_otherwise_unused_parameters_are_named_once() {
    // Both batches of a pass are whole: nothing to tell.
    let outcome = blind(256, true);
    outcome.assert_success();
    assert_eq!(told(&outcome, 0), [""; 0]);

    // 138: the second batch has one grain of 10 samples, which is rank 0's.
    let report = blind(138, true).failure(0).clone();
    assert_eq!((report.code, report.rank), (FailureCode::GuestShape, Some(Rank(0))));
    let expected = "the loss of a micro batch of rank 0 does not depend on `layers.0.weight`, that of the first one depends on it";
    assert!(report.message.contains(expected), "{}", report.message);
    assert_eq!(report.evidence["parameter"], json!("layers.0.weight"));
    blind(138, false).assert_success();

    // 20: all batches have one grain of 16 samples, rank 0's, and one of 4, rank 1's, which differ from the beginning.
    let report = blind(20, true).failure(1).clone();
    assert_eq!((report.code, report.rank), (FailureCode::GuestShape, Some(Rank(1))));
    assert!(report.message.starts_with("step 0: "), "{}", report.message);
    let outcome = blind(20, false);
    outcome.assert_success();
    assert_eq!(told(&outcome, 0), [""; 0]);
    let lines = told(&outcome, 1);
    assert_eq!(lines.len(), 1, "{lines:?}");
    let expected = "rank 1: the loss of its first micro batch does not depend on";
    assert!(lines[0].starts_with(expected) && lines[0].contains("`layers.0.weight`"), "{lines:?}");
}

#[test]
fn losses_that_depend_on_other_batch_norms_are_the_jobs_fault_and_nobody_waits() {
    let mut spec = misbehaving(2, json!({ "samples": 20 }), json!({ "mode": "blind" }));
    spec.ddp.sync_batch_norm = true;
    spec.timeouts.collective = "10m".to_owned();
    let mut json = serde_json::to_value(&spec).unwrap();
    json["model"] = json!({ "arch": "layers", "input": [64], "layers": [
        { "linear": { "out": 32 } }, "batch_norm", "relu", { "linear": { "out": 10 } },
    ] });
    let spec: JobSpec = serde_json::from_value(json).unwrap();
    assert_eq!(spec.check(), []);
    let outcome = Gang::start(&spec, &misbehaving_files("misbehaving-loss"), None).finish();
    for rank in 0..2 {
        let report = outcome.failure(rank);
        assert_eq!(report.code, FailureCode::GuestShape, "{report:#?}");
        assert!(report.message.contains("ddp.sync_batch_norm"), "{}", report.message);
    }
}

#[test]
fn the_log_says_how_ranks_train_together_and_what_has_no_effect() {
    let spec = with(
        3,
        &[
            ("/ddp/hook", json!("power-sgd")),
            ("/ddp/sync_batch_norm", json!(true)),
            ("/train/micro_batch", json!(64)),
        ],
    );
    let outcome = trained(&spec);
    let said = |rank: usize| -> Vec<&str> {
        let messages = outcome.messages[rank].iter();
        let texts = messages.filter_map(|message| match message {
            RankMessage::Log { text, .. } => Some(text.as_str()),
            _ => None,
        });
        texts.collect()
    };
    assert_eq!(
        said(0),
        [
            "3 ranks on 1 node, shared memory; 2 micro batches a step; 1 bucket of 0.01 MiB in all; the fast reduction; \
             PowerSGD of rank 1",
            "a step has no more than 2 micro batches for 3 ranks: 1 always idle",
            "ddp.power_sgd.start_step is 1000, the job has 24 steps: nothing is compressed",
            "ddp.sync_batch_norm has no effect: the model has no batch norms",
        ]
    );
    assert_eq!(said(1), [""; 0]);
}

/// Writes over every copy of `old` in the private memory of a process; says how many there were.
fn replace_in(pid: u32, old: &[u8], new: &[u8]) -> usize {
    let memory = File::options().read(true).write(true).open(format!("/proc/{pid}/mem")).unwrap();
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let private = maps.lines().filter(|line| line.contains(" rw-p ") && !line.contains("[stack"));
    let mut found = 0;
    for line in private {
        let (start, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
        let [start, end] = [start, end].map(|hex| u64::from_str_radix(hex, 16).unwrap());
        let mut octets = vec![0; usize::try_from(end - start).unwrap()];
        // What cannot be read holds no weights.
        if memory.read_exact_at(&mut octets, start).is_err() {
            continue;
        }
        let places = octets.windows(old.len()).enumerate().filter(|(_, window)| *window == old);
        for (place, _) in places {
            memory.write_all_at(new, start + place as u64).unwrap();
            found += 1;
        }
    }
    found
}

#[test]
fn one_bit_that_flips_in_one_ranks_weights_ends_the_job_and_names_it() {
    let spec = with(
        3,
        &[
            // So little that no weight moves: they are found in memory by their bits.
            ("/train/optimizer", json!({ "name": "sgd", "lr": 1e-30 })),
            ("/train/epochs", json!(100_000)),
            ("/checkpoint/every_steps", json!(5)),
            ("/ddp/compare_every", json!(10)),
        ],
    );
    let files = harness::Files { eval_dir: None, ..digits_files() };
    let mut gang = Gang::start(&spec, &files, None);
    gang.wait_for(|message| matches!(message, RankMessage::Checkpoint { .. }));
    let path = gang.first_checkpoint();
    let file = fs::read(path).unwrap();
    let tensors = SafeTensors::deserialize(&file).unwrap();
    let old = &tensors.tensor("layers.1.weight").unwrap().data()[..256];
    let mut new = old.to_vec();
    new[130] ^= 1;
    let flipped = replace_in(gang.pid(2), old, &new);
    assert!(0 < flipped, "the weights are not found");
    let outcome = gang.finish();
    for rank in 0..3 {
        let report = outcome.failure(rank);
        assert_eq!(report.code, FailureCode::Diverged, "{report:#?}");
        assert_eq!(report.rank, Some(Rank(2)), "{report:#?}");
        assert_eq!(report.evidence["parameters"], json!(["layers.1.weight", "layers.1.weight"]));
        assert!(report.message.contains("in bucket 1"), "{}", report.message);
    }
}
