//! Which steps are timed.

use serde::{Deserialize, Serialize};

/// Of which steps every rank keeps its timeline. Evaluations and checkpoints are kept of all steps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TraceSpec {
    /// The first so many steps of every attempt. 0: none; 0 to 10000.
    pub first_steps: u64,
    /// And every so-manieth step. 0: none. With both 0 nothing is timed at all.
    pub every_steps: u64,
}

impl Default for TraceSpec {
    fn default() -> Self {
        Self { first_steps: 20, every_steps: 100 }
    }
}

impl TraceSpec {
    /// Whether anything is timed.
    pub fn is_on(&self) -> bool {
        0 < self.first_steps || 0 < self.every_steps
    }

    /// Whether `step` is timed in an attempt that began with `first_step`.
    pub fn wants(&self, step: u64, first_step: u64) -> bool {
        let is_among_first = step.saturating_sub(first_step) < self.first_steps;
        is_among_first || (0 < self.every_steps && step.is_multiple_of(self.every_steps))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timed(first_steps: u64, every_steps: u64, first_step: u64) -> Vec<u64> {
        let spec = TraceSpec { first_steps, every_steps };
        (first_step..20).filter(|step| spec.wants(*step, first_step)).collect()
    }

    #[test]
    fn the_first_steps_of_an_attempt_and_every_so_manieth_are_timed_and_none_with_two_zeros() {
        assert_eq!(timed(3, 5, 0), [0, 1, 2, 5, 10, 15]);
        assert_eq!(timed(2, 0, 11), [11, 12]);
        assert_eq!(timed(0, 10, 3), [10]);
        assert!(timed(0, 0, 0).is_empty());
        assert!(!TraceSpec { first_steps: 0, every_steps: 0 }.is_on());
    }
}
