//! Steps that f16 spoils: the scale of the loss was too high for their gradients.

use lockstep_api::{LogLevel, LogSource};
use lockstep_ddp::StepOutcome;
use lockstep_tensor::StepDecision;

use crate::train::Trainer;

/// A loss whose gradient is not finite at any scale is a mistake, not a matter of the scale.
const MAX_SKIPPED_STEPS: u32 = 64;

impl Trainer {
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
        self.skipped_in_row += 1;
        if MAX_SKIPPED_STEPS < self.skipped_in_row {
            return false;
        }
        if self.is_reporter() {
            let text = format!(
                "step {step} is left out: a gradient is not finite with the loss scaled by {scale}, now by {next}"
            );
            self.link.log(LogSource::Rank, LogLevel::Info, &text);
        }
        true
    }
}
