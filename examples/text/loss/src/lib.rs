//! Cross entropy of the token at every position: `logits` [n, T, V] and the tokens `y` [n, T], in nats a token.

use lockstep_guest::{Built, Error, Loss, Tensor, Tensors, config, export_loss};

/// Settings, `loss.config` in the job: none.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {}

struct LanguageModel;

impl Loss for LanguageModel {
    fn build(settings: &str, outputs: &Tensors, batch: &Tensors) -> Result<Built, Error> {
        let Config {} = config(settings)?;
        let (logits, tokens) = (outputs.get("logits")?, batch.get("y")?);
        let (shape, targets) = (logits.shape(), tokens.shape());
        let [samples, length, vocabulary] = shape[..] else {
            return Err(Error::data(format!("logits are {shape:?}, expected [n, T, V]")));
        };
        if targets != [samples, length] {
            let message =
                format!("y is {targets:?}, expected {:?} for logits {shape:?}", [samples, length]);
            return Err(Error::data(message));
        }
        let count = samples * length;
        let (logits, tokens) = (logits.reshape(&[count, vocabulary]), tokens.reshape(&[count]));
        let losses = logits.cross_entropy(&tokens, 0.0, None);
        Ok(Built::new(losses.sum(), Tensor::number(count as f32)))
    }
}

export_loss!(LanguageModel);
