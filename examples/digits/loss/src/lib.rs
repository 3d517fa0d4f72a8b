//! Cross entropy, and a little for being too sure: large logits cost.
use lockstep_guest::{Built, Error, Loss, Tensor, Tensors, config, export_loss};

/// `loss.config` in the job file. What is not named here is refused at submit.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    penalty: f64,
}

struct Modest;

impl Loss for Modest {
    /// Called once per shape of batch. Nothing is computed here: the engine keeps the expression,
    /// runs it in every step and differentiates it.
    fn build(settings: &str, outputs: &Tensors, batch: &Tensors) -> Result<Built, Error> {
        let Config { penalty } = config(settings)?;
        let (logits, labels) = (outputs.get("logits")?, batch.get("y")?);
        let surprise = logits.log_softmax().gather(labels).sum().neg();
        let size = (logits * logits).sum().scale(penalty);
        // The loss of a step is Σ sum / Σ weight over all ranks: hand in sums, never means.
        let samples = || Tensor::number(labels.rows() as f32);
        let right = logits.argmax().equal(labels).sum();
        Ok(Built::new(&surprise + &size, samples()).metric("accuracy", right, samples()))
    }
}

export_loss!(Modest);
