//! Ranks as copies of one another: that they are is compared now and then, and where they may go their own way for
//! some steps, they are brought together again.

use lockstep_api::{FailureCode, Rank};
use lockstep_ddp::{StepOutcome, of_floats};
use serde_json::json;

use crate::failure::Failure;
use crate::train::Trainer;

impl Trainer {
    /// Whether the gradient of `step` stays each rank's own.
    pub(crate) fn is_local(&self, step: u64) -> bool {
        1 < self.spec.ddp.sync_every && self.spec.ddp.sync_from <= step
    }

    /// Of the weights, in steps in which they are compared; 0 in all others. While ranks go their own way that is put
    /// off until they are together again.
    pub(crate) fn weights_digest(&mut self, step: u64) -> u64 {
        let every = self.spec.ddp.compare_every;
        self.is_comparison_due |= 0 < every && 0 < step && step.is_multiple_of(every);
        if !self.is_comparison_due || self.has_strayed {
            return 0;
        }
        self.is_comparison_due = false;
        of_floats(&self.ready.engine.weights)
    }

    /// Ranks whose digests differ end the job: the step is not applied.
    pub(crate) fn refuse_divergence(
        &mut self,
        step: u64,
        outcome: &StepOutcome,
    ) -> Result<(), Failure> {
        if outcome.diverged_ranks.is_empty() {
            return Ok(());
        }
        let found = self.ready.reducer.divergence(&self.ready.engine.weights);
        let found = found.map_err(|error| Failure::of_group(&error))?;
        let ranks = &outcome.diverged_ranks;
        let (message, evidence) = match found {
            Some(it) => {
                let (first, last) = &it.params;
                (
                    format!(
                        "step {step}: the weights of rank {} are not those of the others, from `{first}` to `{last}` in bucket {}",
                        Listed(&it.ranks),
                        it.bucket + 1,
                    ),
                    json!({
                        "ranks": it.ranks, "bucket": it.bucket, "parameters": [first, last],
                        "range": [it.range.start, it.range.end], "step": step,
                    }),
                )
            }
            None => (
                format!(
                    "step {step}: rank {} has reduced other buckets than the others",
                    Listed(ranks)
                ),
                json!({ "ranks": ranks, "step": step }),
            ),
        };
        let failure = Failure::new(FailureCode::Diverged, message).with_evidence(evidence);
        Err(match ranks.first().map(|rank| i32::try_from(*rank)) {
            Some(Ok(rank)) => failure.of_rank(Rank(rank)),
            Some(Err(_)) | None => failure,
        })
    }

    /// After a step in which ranks went their own way: brings the weights together if it is time.
    pub(crate) fn gather_strays(&mut self, step: u64) -> Result<(), Failure> {
        self.has_strayed |= self.is_local(step);
        let since = step + 1 - self.spec.ddp.sync_from.min(step + 1);
        if self.has_strayed && since.is_multiple_of(u64::from(self.spec.ddp.sync_every)) {
            self.average_weights()?;
        }
        Ok(())
    }

    /// Before anything that takes one rank's state for everybody's: weights and moments are their mean.
    pub(crate) fn gather_all(&mut self) -> Result<(), Failure> {
        if self.spec.ddp.sync_every == 1 {
            return Ok(());
        }
        self.average_weights()?;
        for (_, moment) in &mut self.ready.optimizer_state.moments {
            let averaged = self.ready.reducer.average(moment);
            averaged.map_err(|error| Failure::of_group(&error))?;
        }
        Ok(())
    }

    fn average_weights(&mut self) -> Result<(), Failure> {
        self.has_strayed = false;
        let averaged = self.ready.reducer.average(&mut self.ready.engine.weights);
        averaged.map_err(|error| Failure::of_group(&error))
    }
}

/// "2", "1, 3".
struct Listed<'a>(&'a [usize]);

impl std::fmt::Display for Listed<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ranks: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&ranks.join(", "))
    }
}
