//! Softmax cross entropy of `logits` [n, classes] and the labels `y` [n], and accuracy. Spelt out, to show how an
//! expression is made; `examples/fashion/loss` has the same in one operation.

use lockstep_guest::{Built, Error, Loss, Tensor, Tensors, config, export_loss};

/// Settings, `loss.config` in the job.
#[derive(serde::Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Config {
    /// How much of each label is spread over all classes: 0 (none) to below 1.
    label_smoothing: f64,
}

struct CrossEntropy;

impl Loss for CrossEntropy {
    fn build(settings: &str, outputs: &Tensors, batch: &Tensors) -> Result<Built, Error> {
        let Config { label_smoothing: smoothing } = config(settings)?;
        if !(0.0..1.0).contains(&smoothing) {
            let message = format!("label_smoothing is {smoothing}, expected 0 to below 1");
            return Err(Error::Config(message));
        }
        let (logits, labels) = (outputs.get("logits")?, batch.get("y")?);
        let classes = logits.shape().last().copied().unwrap_or(1);
        let log_p = logits.log_softmax();
        let of_labels = log_p.gather(labels).sum().scale(1.0 - smoothing);
        let of_all = log_p.sum().scale(smoothing / f64::from(classes));
        let right = logits.argmax().equal(labels).sum();
        let samples = || Tensor::number(labels.rows() as f32);
        Ok(Built::new((&of_labels + &of_all).neg(), samples()).metric("accuracy", right, samples()))
    }
}

export_loss!(CrossEntropy);
