//! Softmax cross entropy of `logits` [n, classes] and the labels `y` [n], and accuracy: what the digits' loss spells
//! out, as the engine's one operation for it.

use lockstep_guest::{Built, Error, Loss, Tensor, Tensors, config, export_loss};

/// Settings, `loss.config` in the job.
#[derive(serde::Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Config {
    /// How much of each label is spread over all classes: 0 (none) to 1.
    label_smoothing: f64,
}

struct CrossEntropy;

impl Loss for CrossEntropy {
    fn build(settings: &str, outputs: &Tensors, batch: &Tensors) -> Result<Built, Error> {
        let Config { label_smoothing } = config(settings)?;
        let (logits, labels) = (outputs.get("logits")?, batch.get("y")?);
        // A smoothing that makes no sense is refused here, by name.
        let losses = logits.cross_entropy(labels, label_smoothing, None);
        let right = logits.argmax().equal(labels).sum();
        let samples = || Tensor::number(labels.rows() as f32);
        Ok(Built::new(losses.sum(), samples()).metric("accuracy", right, samples()))
    }
}

export_loss!(CrossEntropy);
