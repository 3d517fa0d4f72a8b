//! The jobs of these tests, and where their components lie.

use std::fs;

use camino::{Utf8Path, Utf8PathBuf};
use lockstep_api::{Digest, JobSpec, Reduction};
use serde_json::{Value, json};

use super::Files;

/// Samples of the digits' splits.
pub(crate) const TRAIN_SAMPLES: u64 = 1437;
pub(crate) const EVAL_SAMPLES: u64 = 360;

/// Handwritten digits on `ranks` ranks: 12 steps an epoch of 8 grains, the last batch of 29 samples.
pub(crate) fn digits(ranks: u32, reduction: Reduction, epochs: u32) -> JobSpec {
    let mut spec =
        job(ranks, epochs, json!({ "augment": true }), json!({ "label_smoothing": 0.05 }));
    spec.ddp.reduction = reduction;
    spec
}

/// Made-up digits whose guests do what `config` says, 256 samples.
pub(crate) fn misbehaving(ranks: u32, loader: Value, loss: Value) -> JobSpec {
    job(ranks, 2, loader, loss)
}

fn job(ranks: u32, epochs: u32, loader: Value, loss: Value) -> JobSpec {
    let digest = Digest::of(b"a component");
    // A second for guests that are to run into it; the others may be kept waiting by a busy machine.
    let limits = |config: &Value| {
        let call_ms = if config["mode"] == "loop" { 1000 } else { 20_000 };
        json!({ "call_ms": call_ms, "memory_mib": 64, "output_mib": 16 })
    };
    let (loader_limits, loss_limits) = (limits(&loader), limits(&loss));
    let spec = json!({
        "name": "digits",
        "model": { "arch": "mlp", "inputs": 64, "hidden": [32, 32], "classes": 10 },
        "data": { "train": "digits", "eval": "digits" },
        "loader": { "component": digest, "config": loader, "limits": loader_limits },
        "loss": { "component": digest, "config": loss, "limits": loss_limits },
        "train": {
            "global_batch": 128, "micro_batch": 16, "epochs": epochs, "seed": 7,
            "optimizer": { "name": "adamw", "lr": 1e-2 }
        },
        "gang": { "ranks": ranks },
        "timeouts": { "collective": "20s" }
    });
    let spec: JobSpec = serde_json::from_value(spec).unwrap();
    assert_eq!(spec.check(), []);
    spec
}

/// Of the digits example, with evaluation.
pub(crate) fn digits_files() -> Files {
    let data = root().join("examples/digits/data");
    Files {
        loader: built("examples/digits/digits-loader.wasm"),
        loss: built("examples/digits/cross-entropy.wasm"),
        train_dir: data.clone(),
        eval_dir: Some(data),
    }
}

/// Of the guests that misbehave when told to, without evaluation.
pub(crate) fn misbehaving_files(loss: &str) -> Files {
    Files {
        loader: built("worker/sandbox/tests/guests/misbehaving-loader.wasm"),
        loss: built(&format!("worker/sandbox/tests/guests/{loss}.wasm")),
        train_dir: root().join("examples/digits/data"),
        eval_dir: None,
    }
}

pub(crate) fn built(path: &str) -> Utf8PathBuf {
    let path = root().join(path);
    assert!(fs::exists(&path).unwrap(), "{path} is missing: `cargo xtask setup` builds it");
    path
}

fn root() -> Utf8PathBuf {
    let folder = Utf8Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    folder.to_owned()
}
