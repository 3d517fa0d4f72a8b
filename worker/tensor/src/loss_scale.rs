//! The factor that keeps small `f16` gradients from vanishing.

use serde::{Deserialize, Serialize};

use crate::setting::{self, SettingError};

/// How the scale follows what the gradients bear. The defaults are PyTorch's `GradScaler`'s.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LossScaleSettings {
    /// Scale of the first step.
    pub initial: f64,
    /// What it is multiplied by after `growth_interval` good steps in a row. Above 1.
    pub growth_factor: f64,
    /// What it is multiplied by after a step with infinities or NaN. Between 0 and 1.
    pub backoff_factor: f64,
    /// Good steps in a row before it grows.
    pub growth_interval: u32,
}

impl Default for LossScaleSettings {
    fn default() -> Self {
        Self { initial: 65_536.0, growth_factor: 2.0, backoff_factor: 0.5, growth_interval: 2000 }
    }
}

/// What it remembers between steps; goes into checkpoints.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LossScaleState {
    /// The factor of the next step's loss.
    pub scale: f64,
    /// Steps without infinities or NaN since the scale last changed.
    pub good_steps: u32,
}

/// What to do with a step's gradients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum StepDecision {
    /// They are good: update the weights.
    Take,
    /// They are not: leave weights, moments and step count as they are.
    Skip,
}

/// Dynamic loss scale: the loss's gradient is multiplied by it, and the optimizer's `grad_scale`
/// divided by it. All ranks feed it the same answers, so all have the same scale.
///
/// A step with an infinity or NaN on any rank: `scale *= backoff_factor`, counting starts again.
/// After `growth_interval` good steps in a row: `scale *= growth_factor`, counting starts again.
///
/// The scale stays where `f32` holds both it and its inverse: it does not grow beyond 2¹²⁷ / 2, and
/// does not fall below the least normal number (PyTorch's falls to 0).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LossScale {
    settings: LossScaleSettings,
    state: LossScaleState,
}

/// The inverse of the greatest is still a normal number.
const SCALES: std::ops::RangeInclusive<f64> =
    f32::MIN_POSITIVE as f64..=1.0 / f32::MIN_POSITIVE as f64;

impl LossScale {
    /// Before the first step.
    pub fn new(settings: LossScaleSettings) -> Result<Self, SettingError> {
        let state = LossScaleState { scale: settings.initial, good_steps: 0 };
        Self::resume(settings, state)
    }

    /// Goes on from a kept state.
    pub fn resume(
        settings: LossScaleSettings,
        state: LossScaleState,
    ) -> Result<Self, SettingError> {
        let LossScaleSettings { initial, growth_factor, backoff_factor, growth_interval } =
            settings;
        setting::within("initial", initial, SCALES)?;
        if !(1.0 < growth_factor && growth_factor <= 1e6) {
            return Err(SettingError::new(
                "growth_factor",
                growth_factor,
                "above 1 and at most 1e6",
            ));
        }
        if !(0.0 < backoff_factor && backoff_factor < 1.0) {
            return Err(SettingError::new("backoff_factor", backoff_factor, "between 0 and 1"));
        }
        setting::count("growth_interval", growth_interval.into())?;
        setting::within("scale", state.scale, SCALES)?;
        Ok(Self { settings, state })
    }

    /// The factor of the next step's loss.
    pub fn scale(&self) -> f64 {
        self.state.scale
    }

    /// What to keep in a checkpoint.
    pub fn state(&self) -> LossScaleState {
        self.state
    }

    /// Takes in whether a step's gradients had infinities or NaN, on any rank.
    pub fn update(&mut self, found_non_finite: bool) -> StepDecision {
        let LossScaleState { scale, good_steps } = &mut self.state;
        if found_non_finite {
            *scale = (*scale * self.settings.backoff_factor).max(*SCALES.start());
            *good_steps = 0;
            return StepDecision::Skip;
        }
        *good_steps = good_steps.saturating_add(1);
        if self.settings.growth_interval <= *good_steps {
            let grown = *scale * self.settings.growth_factor;
            if SCALES.contains(&grown) {
                *scale = grown;
            }
            *good_steps = 0;
        }
        StepDecision::Take
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTINGS: LossScaleSettings = LossScaleSettings {
        initial: 8.0,
        growth_factor: 2.0,
        backoff_factor: 0.25,
        growth_interval: 3,
    };

    #[test]
    fn it_grows_after_good_steps_in_a_row_and_backs_off_at_once() {
        let mut scale = LossScale::new(SETTINGS).unwrap();
        let mut scales = Vec::new();
        for bad in [false, false, true, false, false, false, false, false, false, true, true] {
            let decision = scale.update(bad);
            assert_eq!(decision == StepDecision::Skip, bad);
            scales.push(scale.scale());
        }
        assert_eq!(scales, [8.0, 8.0, 2.0, 2.0, 2.0, 4.0, 4.0, 4.0, 8.0, 2.0, 0.5]);
    }

    #[test]
    fn it_stays_where_its_inverse_is_a_number() {
        let mut scale = LossScale::new(SETTINGS).unwrap();
        for _ in 0..1000 {
            assert_eq!(scale.update(true), StepDecision::Skip);
        }
        assert_eq!(scale.scale(), f64::from(f32::MIN_POSITIVE));
        for _ in 0..10_000 {
            assert_eq!(scale.update(false), StepDecision::Take);
        }
        let inverse = 1.0 / scale.scale() as f32;
        assert!(inverse.is_normal() && (scale.scale() as f32).is_finite());
        assert!(f64::from(f32::MAX) / 8.0 < scale.scale());
    }

    #[test]
    fn a_kept_state_goes_on_as_if_nothing_had_happened() {
        let mut undisturbed = LossScale::new(SETTINGS).unwrap();
        let mut kept = undisturbed;
        for step in 0..20 {
            let bad = step % 7 == 6;
            let text = serde_json::to_string(&kept.state()).unwrap();
            kept = LossScale::resume(SETTINGS, serde_json::from_str(&text).unwrap()).unwrap();
            assert_eq!(undisturbed.update(bad), kept.update(bad));
            assert_eq!(undisturbed, kept);
        }
    }

    #[test]
    fn settings_and_states_that_make_no_sense_are_refused_by_name() {
        let refused = |settings| LossScale::new(settings).unwrap_err().to_string();
        assert_eq!(
            refused(LossScaleSettings { growth_factor: 1.0, ..SETTINGS }),
            "growth_factor is 1, expected above 1 and at most 1e6"
        );
        assert_eq!(
            refused(LossScaleSettings { backoff_factor: f64::NAN, ..SETTINGS }),
            "backoff_factor is NaN, expected between 0 and 1"
        );
        assert!(
            refused(LossScaleSettings { initial: 0.0, ..SETTINGS }).starts_with("initial is 0")
        );
        assert_eq!(
            refused(LossScaleSettings { growth_interval: 0, ..SETTINGS }),
            "growth_interval is 0, expected at least 1"
        );
        let state = LossScaleState { scale: f64::INFINITY, good_steps: 0 };
        let refused = LossScale::resume(SETTINGS, state).unwrap_err();
        assert_eq!(refused.field, "scale");
    }
}
