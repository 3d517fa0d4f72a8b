//! The part of a job's settings that decides its curve: what a checkpoint must agree with to be resumed from.

use lockstep_api::{DdpSpec, Hook, JobSpec, ModelSpec, OptimizerSpec, Precision, ScheduleSpec};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::CheckpointError;

/// Model, data, guests, batches, seed and all that makes a step of a gradient. Length, number of ranks, threads,
/// evaluation, limits and timeouts may change. A schedule that ends with the job changes with its length.
pub fn curve_settings(spec: &JobSpec) -> Value {
    json!({
        "model": spec.model,
        "data": { "train": spec.data.train },
        "loader": { "component": spec.loader.component, "config": spec.loader.config },
        "loss": { "component": spec.loss.component, "config": spec.loss.config },
        "train": {
            "global_batch": spec.train.global_batch,
            "micro_batch": spec.train.micro_batch,
            "seed": spec.train.seed,
            "optimizer": spec.train.optimizer,
            "groups": spec.train.groups,
            "schedule": spec.train.schedule,
            "clip_norm": spec.train.clip_norm,
            "clip_value": spec.train.clip_value,
            "ema": spec.train.ema,
            "precision": spec.train.precision,
            "loss_scale": spec.train.loss_scale,
        },
        "ddp": ddp_settings(&spec.ddp),
    })
}

/// Taken apart, so that a new setting is decided on or does not compile.
fn ddp_settings(ddp: &DdpSpec) -> Value {
    let DdpSpec {
        reduction,
        hook,
        power_sgd,
        sync_every,
        sync_from,
        uneven,
        sync_batch_norm,
        // How, not what: but for the order of additions, which changes with the number of ranks as well.
        bucket_mib: _,
        first_bucket_mib: _,
        groups: _,
        transport: _,
        encrypt: _,
        shard: _,
        digest: _,
        compare_every: _,
        static_graph: _,
    } = ddp;
    json!({
        "reduction": reduction,
        "hook": hook,
        "power_sgd": (*hook == Hook::PowerSgd).then_some(power_sgd),
        "sync_every": sync_every,
        "sync_from": (1 < *sync_every).then_some(sync_from),
        "uneven": uneven,
        "sync_batch_norm": sync_batch_norm,
    })
}

/// Compares field by field, so that the refusal can name one.
pub(crate) fn compare(checkpoint: &Value, job: &Value) -> Result<(), CheckpointError> {
    match first_difference("", &complete(checkpoint), &complete(job)) {
        None => Ok(()),
        Some((field, checkpoint, job)) => Err(CheckpointError::Settings { field, checkpoint, job }),
    }
}

/// The settings with the defaults of fields that an older version did not have, as it behaved then.
fn complete(settings: &Value) -> Value {
    let mut settings = settings.clone();
    if let Some(model) = settings.get_mut("model") {
        rewrite::<ModelSpec>(model);
    }
    if let Some(Value::Object(train)) = settings.get_mut("train") {
        if let Some(optimizer) = train.get_mut("optimizer") {
            rewrite::<OptimizerSpec>(optimizer);
        }
        train.entry("schedule").or_insert_with(|| json!(ScheduleSpec::default()));
        train.entry("precision").or_insert_with(|| json!(Precision::default()));
    }
    if let Some(Value::Object(ddp)) = settings.get_mut("ddp") {
        let DdpSpec { hook, sync_every, uneven, sync_batch_norm, .. } = DdpSpec::default();
        for (name, value) in [
            ("hook", json!(hook)),
            ("power_sgd", Value::Null),
            ("sync_every", json!(sync_every)),
            ("sync_from", Value::Null),
            ("uneven", json!(uneven)),
            ("sync_batch_norm", json!(sync_batch_norm)),
        ] {
            ddp.entry(name).or_insert(value);
        }
    }
    settings
}

/// What cannot be read stays as it is: it differs from whatever can.
fn rewrite<T: DeserializeOwned + Serialize>(value: &mut Value) {
    if let Ok(written) = T::deserialize(&*value).and_then(serde_json::to_value) {
        *value = written;
    }
}

fn first_difference(path: &str, left: &Value, right: &Value) -> Option<(String, String, String)> {
    match (left, right) {
        (Value::Object(left), Value::Object(right)) => differing_key(path, left, right),
        _ if left == right => None,
        _ => Some((path.to_owned(), left.to_string(), right.to_string())),
    }
}

fn differing_key(
    path: &str,
    left: &Map<String, Value>,
    right: &Map<String, Value>,
) -> Option<(String, String, String)> {
    let keys = left.keys().chain(right.keys().filter(|key| !left.contains_key(*key)));
    keys.into_iter().find_map(|key| {
        let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        let value = |side: &Map<String, Value>| side.get(key).cloned().unwrap_or(Value::Null);
        first_difference(&path, &value(left), &value(right))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_difference_is_named_by_its_path() {
        let file = json!({ "train": { "seed": 7, "optimizer": { "name": "sgd", "lr": 0.1 } } });
        let mut job = file.clone();
        assert!(compare(&file, &job).is_ok());
        job["train"]["optimizer"]["lr"] = json!(0.2);
        let error = compare(&file, &job).unwrap_err().to_string();
        assert_eq!(
            error,
            "`train.optimizer.lr` differs: the checkpoint was made with 0.1, the job has 0.2"
        );
    }

    #[test]
    fn settings_of_before_a_field_was_there_have_its_default() {
        let file = json!({
            "model": { "arch": "mlp", "inputs": 2, "hidden": [], "classes": 2 },
            "train": { "seed": 7, "optimizer": { "name": "sgd", "lr": 0.1, "momentum": 0.0, "weight_decay": 0.0 } },
        });
        let mut job = file.clone();
        job["model"]["activation"] = json!("relu");
        job["model"]["init_strict"] = json!(true);
        job["model"]["init_from"] = json!(null);
        job["train"]["optimizer"]["nesterov"] = json!(false);
        job["train"]["schedule"] =
            json!({ "name": "constant", "warmup_steps": 0, "warmup_start_factor": 0.0 });
        job["train"]["precision"] = json!("f32");
        job["train"]["clip_norm"] = json!(null);
        assert!(compare(&file, &job).is_ok());
        job["train"]["precision"] = json!("bf16");
        let error = compare(&file, &job).unwrap_err().to_string();
        assert!(error.starts_with("`train.precision` differs"), "{error}");
        job["model"]["activation"] = json!("tanh");
        let error = compare(&file, &job).unwrap_err().to_string();
        assert!(error.starts_with("`model.activation` differs"), "{error}");
    }

    #[test]
    fn a_field_that_only_one_side_has_is_a_difference() {
        let error = compare(&json!({}), &json!({ "seed": 7 })).unwrap_err().to_string();
        assert_eq!(error, "`seed` differs: the checkpoint was made with null, the job has 7");
    }
}
