//! Text of a language model's own: what the command line asks `lockstep-rank sample`, and what it answers.
//!
//! One JSON document on standard input; [`SampleEvent`]s on standard output, one JSON document a line, each as soon as
//! there is something to say.

use serde::{Deserialize, Serialize};

use crate::{ArchSpec, FieldError, ModelSpec};

/// Most tokens that one request makes.
pub const MAX_SAMPLE_TOKENS: u32 = 100_000;

/// What to go on with, and how. Paths are of files on this machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SampleRequest {
    /// A model that puts out the next token: `gpt2`.
    pub model: ModelSpec,
    /// A checkpoint of a job with that model.
    pub checkpoint_path: String,
    /// Which of the checkpoint's weights.
    pub weights: SampleWeights,
    /// What the text begins with: 1 to `n_positions` tokens, each below `vocab_size`.
    pub prompt_ids: Vec<u32>,
    /// How many tokens to make: 1 to [`MAX_SAMPLE_TOKENS`].
    pub tokens: u32,
    /// Logits are divided by it before they become probabilities; 0 always takes the likeliest token.
    pub temperature: f64,
    /// Only so many of the likeliest tokens are drawn from, 1 or more; absent, all.
    pub top_k: Option<u32>,
    /// The same request with the same seed makes the same tokens.
    pub seed: u64,
}

/// Which of a checkpoint's weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SampleWeights {
    /// Those after the last step.
    Last,
    /// Their running mean, which a job with `train.ema` keeps.
    Ema,
}

/// Something that was made, or why nothing more will be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum SampleEvent {
    /// The next token.
    Token {
        /// Below `vocab_size`.
        id: u32,
    },
    /// The request does not hold; nothing was made.
    Refused {
        /// At least one entry. Paths are of the request's fields.
        errors: Vec<FieldError>,
    },
    /// It cannot go on.
    Failed {
        /// One sentence for people.
        message: String,
    },
}

impl SampleRequest {
    /// What of the request does not hold, the file aside.
    pub fn check(&self) -> Vec<FieldError> {
        let mut errors = Vec::new();
        let mut refuse = |field: &str, message| errors.push(FieldError::new(field, message));
        if !(1..=MAX_SAMPLE_TOKENS).contains(&self.tokens) {
            refuse("tokens", format!("{}, expected 1 to {MAX_SAMPLE_TOKENS}", self.tokens));
        }
        if !self.temperature.is_finite() || self.temperature < 0.0 {
            refuse("temperature", format!("{}, expected a number from 0 up", self.temperature));
        }
        if self.top_k == Some(0) {
            refuse("top_k", "0, expected 1 or more".to_owned());
        }
        let ArchSpec::Gpt2(model) = &self.model.arch else {
            let arch = self.model.arch.name();
            refuse("model.arch", format!("{arch}, expected gpt2: only it puts out a next token"));
            return errors;
        };
        let (length, longest) = (self.prompt_ids.len(), model.n_positions);
        if length == 0 || u64::from(longest) < length as u64 {
            refuse(
                "prompt_ids",
                format!("{length} tokens, expected 1 to {longest} (model.n_positions)"),
            );
        }
        if let Some((at, id)) =
            self.prompt_ids.iter().enumerate().find(|(_, id)| model.vocab_size <= **id)
        {
            let expected = model.vocab_size;
            refuse(
                &format!("prompt_ids[{at}]"),
                format!("{id}, expected less than {expected} (model.vocab_size)"),
            );
        }
        errors
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn request() -> SampleRequest {
        let model = json!({
            "arch": "gpt2", "vocab_size": 128, "n_positions": 4, "n_embd": 8, "n_layer": 1, "n_head": 2
        });
        SampleRequest {
            model: serde_json::from_value(model).unwrap(),
            checkpoint_path: "/tmp/step-1.safetensors".to_owned(),
            weights: SampleWeights::Last,
            prompt_ids: vec![10],
            tokens: 5,
            temperature: 1.0,
            top_k: None,
            seed: 0,
        }
    }

    fn refusals(change: impl FnOnce(&mut SampleRequest)) -> Vec<String> {
        let mut request = request();
        change(&mut request);
        request.check().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn each_field_out_of_its_range_is_named_with_its_value_and_what_was_expected() {
        assert_eq!(request().check(), []);
        let expected = ["tokens: 0, expected 1 to 100000"];
        assert_eq!(refusals(|it| it.tokens = 0), expected);
        let expected = ["tokens: 100001, expected 1 to 100000"];
        assert_eq!(refusals(|it| it.tokens = 100_001), expected);
        for (value, shown) in [(-0.5, "-0.5"), (f64::NAN, "NaN"), (f64::INFINITY, "inf")] {
            let expected = [format!("temperature: {shown}, expected a number from 0 up")];
            assert_eq!(refusals(|it| it.temperature = value), expected);
        }
        assert_eq!(refusals(|it| it.top_k = Some(0)), ["top_k: 0, expected 1 or more"]);
        let expected = ["prompt_ids: 5 tokens, expected 1 to 4 (model.n_positions)"];
        assert_eq!(refusals(|it| it.prompt_ids = vec![1; 5]), expected);
        let expected = ["prompt_ids: 0 tokens, expected 1 to 4 (model.n_positions)"];
        assert_eq!(refusals(|it| it.prompt_ids.clear()), expected);
        let expected = ["prompt_ids[1]: 128, expected less than 128 (model.vocab_size)"];
        assert_eq!(refusals(|it| it.prompt_ids = vec![127, 128, 129]), expected);
    }

    #[test]
    fn a_model_that_puts_out_no_next_token_is_refused_by_its_name() {
        let mlp = json!({ "arch": "mlp", "inputs": 64, "classes": 10 });
        let found = refusals(|it| it.model = serde_json::from_value(mlp).unwrap());
        assert_eq!(found, ["model.arch: mlp, expected gpt2: only it puts out a next token"]);
    }
}
