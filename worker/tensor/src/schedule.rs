//! The learning rate's factor at each step, as a function of the step alone.

use std::f64::consts::PI;

use crate::setting::{self, SettingError};

/// Greatest factor of a learning rate.
const MAX_FACTOR: f64 = 1e6;

/// Factor of the base learning rate at each optimizer step, counted from 0: a warm-up, if there is
/// one, then a curve. It remembers nothing, so that a job goes on from any step.
#[derive(Debug, Clone, PartialEq)]
pub struct LrSchedule {
    warm_up: Option<WarmUp>,
    curve: LrCurve,
}

/// A linear rise to 1: the factor is `start_factor + (1 - start_factor) · t / steps` for t < steps.
/// The curve's own steps are counted from its end (PyTorch's `SequentialLR` of a `LinearLR`).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WarmUp {
    /// How many steps it takes.
    pub steps: u64,
    /// Factor of the first step, 0 to 1.
    pub start_factor: f64,
}

/// The factor f of step t. Where a curve has an end, f stays what it is there.
///
/// Names of PyTorch's schedulers are given where there is one; its `eta_min` is `min_factor` times
/// the base learning rate.
#[derive(Debug, Clone, PartialEq)]
pub enum LrCurve {
    /// f = 1.
    Constant,
    /// f = start + (end - start) · t / steps. `LinearLR`; from 1 to 0 is the usual linear decay.
    Linear { start_factor: f64, end_factor: f64, steps: u64 },
    /// f = min + (1 - min) · (1 + cos(π · t / steps)) / 2. `CosineAnnealingLR`.
    Cosine { steps: u64, min_factor: f64 },
    /// The same, again and again: the first time over `first_steps`, then each time `growth` times as
    /// long. `CosineAnnealingWarmRestarts`. It has no end.
    CosineRestarts { first_steps: u64, growth: u64, min_factor: f64 },
    /// f = gamma^⌊t / every⌋. `StepLR`.
    Step { every: u64, gamma: f64 },
    /// f = gamma^(number of milestones that t has reached). `MultiStepLR`.
    MultiStep { milestones: Vec<u64>, gamma: f64 },
    /// f = gamma^t. `ExponentialLR`.
    Exponential { gamma: f64 },
    /// f = (1 - t / steps)^power. `PolynomialLR`.
    Polynomial { steps: u64, power: f64 },
    /// Half a cosine from 1 / start_divisor up to 1 at step rise · steps - 1, then half a cosine down to
    /// 1 / (start_divisor · end_divisor) at step steps - 1. `OneCycleLR`, with the base learning rate
    /// in the place of its `max_lr`; momentum is left alone.
    OneCycle { steps: u64, rise: f64, start_divisor: f64, end_divisor: f64 },
}

impl LrSchedule {
    /// Checks the settings.
    pub fn new(warm_up: Option<WarmUp>, curve: LrCurve) -> Result<Self, SettingError> {
        if let Some(warm_up) = warm_up {
            setting::count("warm_up.steps", warm_up.steps)?;
            setting::within("warm_up.start_factor", warm_up.start_factor, 0.0..=1.0)?;
        }
        curve.check()?;
        Ok(Self { warm_up, curve })
    }

    /// A factor of 1 at every step.
    pub fn constant() -> Self {
        Self { warm_up: None, curve: LrCurve::Constant }
    }

    /// The factor in force for optimizer step `step`, from 0.
    pub fn factor(&self, step: u64) -> f64 {
        match self.warm_up {
            None => self.curve.factor(step),
            Some(WarmUp { steps, start_factor }) if step < steps => {
                start_factor + (1.0 - start_factor) * (step as f64 / steps as f64)
            }
            Some(WarmUp { steps, .. }) => self.curve.factor(step - steps),
        }
    }
}

impl LrCurve {
    fn check(&self) -> Result<(), SettingError> {
        let share = |field, value| setting::within(field, value, 0.0..=1.0);
        match *self {
            Self::Constant => Ok(()),
            Self::Linear { start_factor, end_factor, steps } => {
                setting::within("start_factor", start_factor, 0.0..=MAX_FACTOR)?;
                setting::within("end_factor", end_factor, 0.0..=MAX_FACTOR)?;
                setting::count("steps", steps)
            }
            Self::Cosine { steps, min_factor } => {
                setting::count("steps", steps)?;
                share("min_factor", min_factor)
            }
            Self::CosineRestarts { first_steps, growth, min_factor } => {
                setting::count("first_steps", first_steps)?;
                setting::count("growth", growth)?;
                share("min_factor", min_factor)
            }
            Self::Step { every, gamma } => {
                setting::count("every", every)?;
                share("gamma", gamma)
            }
            Self::MultiStep { gamma, .. } | Self::Exponential { gamma } => share("gamma", gamma),
            Self::Polynomial { steps, power } => {
                setting::count("steps", steps)?;
                setting::positive("power", power, 100.0)
            }
            Self::OneCycle { steps, rise, start_divisor, end_divisor } => {
                setting::count("steps", steps)?;
                share("rise", rise)?;
                setting::within("start_divisor", start_divisor, 1.0..=1e12)?;
                setting::within("end_divisor", end_divisor, 1.0..=1e12)
            }
        }
    }

    fn factor(&self, step: u64) -> f64 {
        match *self {
            Self::Constant => 1.0,
            Self::Linear { start_factor, end_factor, steps } => {
                start_factor + (end_factor - start_factor) * progress(step, steps)
            }
            Self::Cosine { steps, min_factor } => {
                half_cosine(1.0, min_factor, progress(step, steps))
            }
            Self::CosineRestarts { first_steps, growth, min_factor } => {
                let (within, steps) = cycle(step, first_steps, growth);
                half_cosine(1.0, min_factor, progress(within, steps))
            }
            Self::Step { every, gamma } => gamma.powf((step / every) as f64),
            Self::MultiStep { ref milestones, gamma } => {
                let reached = milestones.iter().filter(|&&milestone| milestone <= step).count();
                gamma.powf(reached as f64)
            }
            Self::Exponential { gamma } => gamma.powf(step as f64),
            Self::Polynomial { steps, power } => (1.0 - progress(step, steps)).powf(power),
            Self::OneCycle { steps, rise, start_divisor, end_divisor } => {
                let start = 1.0 / start_divisor;
                let end = start / end_divisor;
                let (peak, last) = (rise * steps as f64 - 1.0, steps as f64 - 1.0);
                let step = (step as f64).min(last);
                if step <= peak && 0.0 < peak {
                    half_cosine(start, 1.0, step / peak)
                } else if peak < last {
                    half_cosine(1.0, end, (step - peak) / (last - peak))
                } else {
                    1.0
                }
            }
        }
    }
}

/// How much of `steps` lies behind `step`, 0 to 1.
fn progress(step: u64, steps: u64) -> f64 {
    step.min(steps) as f64 / steps as f64
}

/// From `start` at 0 to `end` at 1.
fn half_cosine(start: f64, end: f64, progress: f64) -> f64 {
    end + (start - end) * (1.0 + (PI * progress).cos()) / 2.0
}

/// The step within its cycle, and the cycle's length.
fn cycle(step: u64, first_steps: u64, growth: u64) -> (u64, u64) {
    if growth == 1 {
        return (step % first_steps, first_steps);
    }
    let (mut step, mut steps) = (step, first_steps);
    // At most 64 rounds: lengths at least double.
    while steps <= step {
        step -= steps;
        steps = steps.saturating_mul(growth);
    }
    (step, steps)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn factor(curve: LrCurve, step: u64) -> f64 {
        LrSchedule::new(None, curve).unwrap().factor(step)
    }

    #[test]
    fn curves_with_an_end_stay_there() {
        let far = u64::MAX;
        let cosine = LrCurve::Cosine { steps: 10, min_factor: 0.1 };
        assert_eq!(factor(cosine, far), 0.1);
        let linear = LrCurve::Linear { start_factor: 1.0, end_factor: 0.0, steps: 10 };
        assert_eq!([5, 10, 11, far].map(|t| factor(linear.clone(), t)), [0.5, 0.0, 0.0, 0.0]);
        assert_eq!(factor(LrCurve::Polynomial { steps: 4, power: 0.5 }, far), 0.0);
        let cycle =
            LrCurve::OneCycle { steps: 10, rise: 0.3, start_divisor: 25.0, end_divisor: 1e4 };
        assert!((factor(cycle.clone(), far) - 4e-6).abs() < 1e-18);
        assert_eq!(factor(cycle, 2), 1.0);
    }

    /// A last cycle that does not fit into the number of steps there can be must not loop for ever.
    #[test]
    fn restarts_reach_the_last_step_there_can_be() {
        for growth in [1, 2, u64::MAX] {
            let curve = LrCurve::CosineRestarts { first_steps: 3, growth, min_factor: 0.0 };
            assert!(factor(curve, u64::MAX).is_finite());
        }
    }

    #[test]
    fn one_cycle_is_defined_however_short_it_is() {
        for steps in 1..5 {
            for rise in [0.0, 0.3, 0.5, 1.0] {
                let curve =
                    LrCurve::OneCycle { steps, rise, start_divisor: 25.0, end_divisor: 1e4 };
                for step in 0..7 {
                    let factor = factor(curve.clone(), step);
                    assert!((0.0..=1.0).contains(&factor), "{curve:?} {step}: {factor}");
                }
            }
        }
    }

    #[test]
    fn settings_that_make_no_sense_are_refused_by_name() {
        let refused = |curve| LrSchedule::new(None, curve).unwrap_err().to_string();
        assert_eq!(
            refused(LrCurve::Cosine { steps: 0, min_factor: 0.0 }),
            "steps is 0, expected at least 1"
        );
        assert_eq!(
            refused(LrCurve::Exponential { gamma: f64::NAN }),
            "gamma is NaN, expected 0 to 1"
        );
        assert_eq!(
            refused(LrCurve::Linear { start_factor: 1.0, end_factor: -0.5, steps: 3 }),
            "end_factor is -0.5, expected 0 to 1000000"
        );
        assert_eq!(
            refused(LrCurve::CosineRestarts { first_steps: 1, growth: 0, min_factor: 0.0 }),
            "growth is 0, expected at least 1"
        );
        assert!(refused(LrCurve::Polynomial { steps: 3, power: 0.0 }).starts_with("power is 0"));
        let warm_up = WarmUp { steps: 2, start_factor: 1.5 };
        let refused = LrSchedule::new(Some(warm_up), LrCurve::Constant).unwrap_err();
        assert_eq!(refused.to_string(), "warm_up.start_factor is 1.5, expected 0 to 1");
    }

    proptest! {
        #[test]
        fn a_warm_up_only_delays_the_curve(steps in 1_u64..50, t in 0_u64..100, start in 0.0..1.0) {
            let curve = LrCurve::Cosine { steps: 40, min_factor: 0.2 };
            let warm_up = WarmUp { steps, start_factor: start };
            let with = LrSchedule::new(Some(warm_up), curve.clone()).unwrap();
            if t < steps {
                prop_assert!(with.factor(t) < 1.0 && start <= with.factor(t));
            } else {
                prop_assert_eq!(with.factor(t), factor(curve, t - steps));
            }
        }
    }
}
