//! A learning rate that falls when a metric no longer improves.

use serde::{Deserialize, Serialize};

use crate::setting::{self, SettingError};

/// When and how far the learning rate falls. PyTorch's `ReduceLROnPlateau`, with `min_factor` in
/// the place of `min_lr`, and without `eps`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PlateauSettings {
    /// Which way the metric improves.
    pub goal: Goal,
    /// What the factor is multiplied by when it falls. Between 0 and 1.
    pub factor: f64,
    /// Observations without improvement that are borne; one more and it falls.
    pub patience: u32,
    /// How much better than the best counts as improvement.
    pub threshold: Threshold,
    /// Observations after a fall during which none counts as bad.
    pub cooldown: u32,
    /// The factor does not fall below this.
    pub min_factor: f64,
}

/// Which way a metric improves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Goal {
    /// Losses.
    Min,
    /// Accuracies.
    Max,
}

/// How much better than the best so far a metric must be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Threshold {
    /// metric < best · (1 - x), or best · (1 + x) < metric.
    Relative(f64),
    /// metric < best - x, or best + x < metric.
    Absolute(f64),
}

impl Default for PlateauSettings {
    /// PyTorch's.
    fn default() -> Self {
        Self {
            goal: Goal::Min,
            factor: 0.1,
            patience: 10,
            threshold: Threshold::Relative(1e-4),
            cooldown: 0,
            min_factor: 0.0,
        }
    }
}

/// What it remembers between observations; goes into checkpoints.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlateauState {
    /// Factor of the base learning rate.
    pub factor: f64,
    /// The best metric so far.
    pub best: Option<f64>,
    /// Observations in a row without improvement.
    pub bad: u32,
    /// Observations of the cooldown that are left.
    pub cooldown_left: u32,
}

/// The learning rate's factor under a metric. One observation does, in this order:
///
/// ```text
/// better than the best?   best = metric, bad = 0      otherwise   bad += 1
/// in the cooldown?        cooldown_left -= 1, bad = 0
/// patience < bad?         factor = max(factor · settings.factor, min_factor)
///                         cooldown_left = cooldown, bad = 0
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Plateau {
    settings: PlateauSettings,
    state: PlateauState,
}

impl Plateau {
    /// Before the first observation.
    pub fn new(settings: PlateauSettings) -> Result<Self, SettingError> {
        let state = PlateauState { factor: 1.0, best: None, bad: 0, cooldown_left: 0 };
        Self::resume(settings, state)
    }

    /// Goes on from a kept state.
    pub fn resume(settings: PlateauSettings, state: PlateauState) -> Result<Self, SettingError> {
        if !(0.0 < settings.factor && settings.factor < 1.0) {
            return Err(SettingError::new("factor", settings.factor, "between 0 and 1"));
        }
        let (Threshold::Relative(threshold) | Threshold::Absolute(threshold)) = settings.threshold;
        setting::within("threshold", threshold, 0.0..=1e6)?;
        setting::within("min_factor", settings.min_factor, 0.0..=1.0)?;
        setting::within("state.factor", state.factor, 0.0..=1.0)?;
        setting::within("state.best", state.best.unwrap_or(0.0), f64::MIN..=f64::MAX)?;
        Ok(Self { settings, state })
    }

    /// The factor in force.
    pub fn factor(&self) -> f64 {
        self.state.factor
    }

    /// What to keep in a checkpoint.
    pub fn state(&self) -> PlateauState {
        self.state
    }

    /// Takes a metric in; returns the factor in force from now on. Infinities and NaN are no improvement.
    pub fn observe(&mut self, metric: f64) -> f64 {
        let PlateauSettings { factor, patience, cooldown, min_factor, .. } = self.settings;
        let is_better = self.is_better(metric);
        let state = &mut self.state;
        if is_better {
            (state.best, state.bad) = (Some(metric), 0);
        } else {
            state.bad = state.bad.saturating_add(1);
        }
        if 0 < state.cooldown_left {
            state.cooldown_left -= 1;
            state.bad = 0;
        }
        if patience < state.bad {
            // A kept factor may lie below a least one that was set since.
            state.factor = state.factor.min((state.factor * factor).max(min_factor));
            (state.cooldown_left, state.bad) = (cooldown, 0);
        }
        state.factor
    }

    fn is_better(&self, metric: f64) -> bool {
        let Some(best) = self.state.best else { return metric.is_finite() };
        let better = match (self.settings.goal, self.settings.threshold) {
            (Goal::Min, Threshold::Relative(x)) => metric < best * (1.0 - x),
            (Goal::Min, Threshold::Absolute(x)) => metric < best - x,
            (Goal::Max, Threshold::Relative(x)) => best * (1.0 + x) < metric,
            (Goal::Max, Threshold::Absolute(x)) => best + x < metric,
        };
        better && metric.is_finite()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTINGS: PlateauSettings = PlateauSettings {
        goal: Goal::Max,
        factor: 0.5,
        patience: 1,
        threshold: Threshold::Absolute(0.1),
        cooldown: 0,
        min_factor: 0.2,
    };

    #[test]
    fn only_enough_of_a_rise_is_an_improvement_when_the_goal_is_the_greatest() {
        let mut plateau = Plateau::new(SETTINGS).unwrap();
        let metrics =
            [0.5, 0.55, 0.7, 0.75, 0.78, f64::NAN, f64::INFINITY, 0.9, 0.1, 0.1, 0.1, 0.1];
        let factors = metrics.map(|metric| plateau.observe(metric));
        let expected = [1.0, 1.0, 1.0, 1.0, 0.5, 0.5, 0.25, 0.25, 0.25, 0.2, 0.2, 0.2];
        assert_eq!(factors, expected);
        assert_eq!(plateau.state().best, Some(0.9));
    }

    #[test]
    fn a_kept_state_goes_on_as_if_nothing_had_happened() {
        let settings = PlateauSettings { goal: Goal::Min, cooldown: 2, ..SETTINGS };
        let mut undisturbed = Plateau::new(settings).unwrap();
        let mut kept = undisturbed;
        for step in 0..30 {
            let metric = f64::from(step % 5) * 0.3;
            let text = serde_json::to_string(&kept.state()).unwrap();
            kept = Plateau::resume(settings, serde_json::from_str(&text).unwrap()).unwrap();
            assert_eq!(undisturbed.observe(metric), kept.observe(metric));
            assert_eq!(undisturbed, kept);
        }
        assert!(kept.factor() < 1.0);
    }

    #[test]
    fn settings_and_states_that_make_no_sense_are_refused_by_name() {
        let refused = |settings| Plateau::new(settings).unwrap_err().to_string();
        assert_eq!(
            refused(PlateauSettings { factor: 1.0, ..SETTINGS }),
            "factor is 1, expected between 0 and 1"
        );
        assert_eq!(
            refused(PlateauSettings { threshold: Threshold::Relative(-1.0), ..SETTINGS }),
            "threshold is -1, expected 0 to 1000000"
        );
        assert_eq!(
            refused(PlateauSettings { min_factor: f64::NAN, ..SETTINGS }),
            "min_factor is NaN, expected 0 to 1"
        );
        let state = PlateauState { factor: 3.0, best: None, bad: 0, cooldown_left: 0 };
        assert_eq!(Plateau::resume(SETTINGS, state).unwrap_err().field, "state.factor");
    }
}
