//! The part of a job's settings that decides its curve: what a checkpoint must agree with to be resumed from.

use lockstep_api::JobSpec;
use serde_json::{Map, Value, json};

use crate::CheckpointError;

/// Model, data, guests, batches, seed and optimizer. Length, number of ranks, limits and timeouts may change.
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
        },
        "ddp": { "reduction": spec.ddp.reduction },
    })
}

/// Compares field by field, so that the refusal can name one.
pub(crate) fn compare(checkpoint: &Value, job: &Value) -> Result<(), CheckpointError> {
    match first_difference("", checkpoint, job) {
        None => Ok(()),
        Some((field, checkpoint, job)) => Err(CheckpointError::Settings { field, checkpoint, job }),
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
    fn a_field_that_only_one_side_has_is_a_difference() {
        let error = compare(&json!({}), &json!({ "seed": 7 })).unwrap_err().to_string();
        assert_eq!(error, "`seed` differs: the checkpoint was made with null, the job has 7");
    }
}
