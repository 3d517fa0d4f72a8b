//! Steps that f16 spoils: the scale of the loss was too high for their gradients.

use lockstep_api::{FailureCode, LogLevel, LogSource};
use lockstep_ddp::StepOutcome;
use lockstep_tensor::StepDecision;

use crate::failure::Failure;
use crate::train::Trainer;

/// A loss whose gradient is not finite at any scale is a mistake, not a matter of the scale.
const MAX_SKIPPED_STEPS: u32 = 64;

impl Trainer {
    /// What the loss's sum over a grain is multiplied by before backward: the scale of the loss, which is meant for means as in
    /// other frameworks, over the step's samples, rounded to a power of two. 1 without a scale.
    pub(crate) fn seed_scale(&self, step: u64) -> f64 {
        let samples = self.ready.schedule.place(step).sample_count;
        let scale = self.ready.loss_scale.as_ref();
        scale
            .map_or(1.0, |scale| scale.scale() / f64::from(1_u32 << samples.max(1).ilog2().min(31)))
    }

    /// Adds to a failure what was tried before.
    pub(crate) fn with_scale(&self, mut failure: Failure) -> Failure {
        if let Some(scale) = &self.ready.loss_scale
            && 0 < self.skipped_in_row
        {
            let (left_out, scale) = (self.skipped_in_row, scale.scale());
            failure.message += &format!(
                ", after {left_out} steps in a row were left out; the loss is scaled by {scale}"
            );
        }
        failure
    }

    /// A job whose every step was left out has not trained: that is no success.
    pub(crate) fn refuse_untrained(&self) -> Result<(), Failure> {
        let (done, total) = (self.ready.next_step, self.ready.schedule.steps_total());
        let Some(scale) = &self.ready.loss_scale else { return Ok(()) };
        if done < total || 0 < self.ready.optimizer_state.step {
            return Ok(());
        }
        let scale = scale.scale();
        let message = format!(
            "all {total} steps were left out: no gradient was finite, last with the loss scaled by {scale}; \
             a lower train.loss_scale.initial or more steps would help"
        );
        Err(Failure::new(FailureCode::NonFinite, message))
    }

    /// Takes the step's outcome into the scale of the loss, if there is one. Says whether the step is left out because
    /// the scale was too high: not if it never gets better.
    pub(crate) fn is_left_out(&mut self, step: u64, outcome: &StepOutcome) -> bool {
        let Some(loss_scale) = &mut self.ready.loss_scale else { return false };
        if !outcome.loss_sum.is_finite() {
            return false;
        }
        let scale = loss_scale.scale();
        let decision = loss_scale.update(outcome.non_finite);
        let next = loss_scale.scale();
        if decision == StepDecision::Take {
            self.skipped_in_row = 0;
            return false;
        }
        if self.skipped_in_row == MAX_SKIPPED_STEPS {
            return false;
        }
        self.skipped_in_row += 1;
        if self.is_reporter() {
            let text = format!(
                "step {step} is left out: a gradient is not finite with the loss scaled by {scale}, now by {next}"
            );
            self.link.log(LogSource::Rank, LogLevel::Info, &text);
        }
        true
    }
}
