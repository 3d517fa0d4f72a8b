//! Learning rates against those recorded from PyTorch's schedulers.
#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use lockstep_tensor::{Goal, LrCurve, LrSchedule, Plateau, PlateauSettings, Threshold, WarmUp};
use serde_json::Value;

const RECORDING: &str = include_str!("golden/schedules.json");
/// `min_factor` and the base learning rate of most: `eta_min` is 0.001.
const BASE: f64 = 0.2;
const MIN_FACTOR: f64 = 0.001 / BASE;

fn numbers(list: &Value) -> Vec<f64> {
    list.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
}

/// As the recording names it: our curve, and the base that its factors are of.
fn schedule(name: &str) -> (LrSchedule, f64) {
    let curve = match name.split_once('(').unwrap().0 {
        "CosineAnnealingLR" => LrCurve::Cosine { steps: 40, min_factor: MIN_FACTOR },
        "CosineAnnealingWarmRestarts" => {
            LrCurve::CosineRestarts { first_steps: 6, growth: 2, min_factor: MIN_FACTOR }
        }
        "ExponentialLR" => LrCurve::Exponential { gamma: 0.93 },
        "LinearLR" => LrCurve::Linear { start_factor: 0.1, end_factor: 1.0, steps: 10 },
        "MultiStepLR" => LrCurve::MultiStep { milestones: vec![5, 12, 30], gamma: 0.1 },
        "OneCycleLR" => {
            let curve =
                LrCurve::OneCycle { steps: 41, rise: 0.3, start_divisor: 25.0, end_divisor: 1e4 };
            return (LrSchedule::new(None, curve).unwrap(), 0.5);
        }
        "PolynomialLR" => LrCurve::Polynomial { steps: 30, power: 2.0 },
        "SequentialLR" => {
            let warm_up = WarmUp { steps: 8, start_factor: 0.25 };
            let cosine = LrCurve::Cosine { steps: 32, min_factor: 1e-5 / BASE };
            return (LrSchedule::new(Some(warm_up), cosine).unwrap(), BASE);
        }
        "StepLR" => LrCurve::Step { every: 7, gamma: 0.5 },
        other => panic!("{other}"),
    };
    (LrSchedule::new(None, curve).unwrap(), BASE)
}

/// PyTorch multiplies its way from step to step, so its roundings add up.
#[test]
fn all_recorded_schedules_agree_at_every_step() {
    let recording: Value = serde_json::from_str(RECORDING).unwrap();
    let schedules = recording["lr"].as_object().unwrap();
    assert_eq!(schedules.len(), 9);
    for (name, expected) in schedules {
        let (schedule, base) = schedule(name);
        let expected = numbers(expected);
        assert_eq!(expected.len(), 41);
        for (step, expected) in (0..).zip(expected) {
            let ours = base * schedule.factor(step);
            assert!((ours - expected).abs() < 1e-13, "{name} {step}: {ours} {expected}");
        }
    }
}

#[test]
fn the_recorded_plateau_agrees_at_every_step() {
    let recording: Value = serde_json::from_str(RECORDING).unwrap();
    let plateau = &recording["plateau"];
    let settings = PlateauSettings {
        goal: Goal::Min,
        factor: 0.5,
        patience: 2,
        threshold: Threshold::Relative(0.01),
        cooldown: 1,
        min_factor: 0.01 / BASE,
    };
    let mut ours = Plateau::new(settings).unwrap();
    let metrics = numbers(&plateau["metrics"]);
    assert_eq!(metrics.len(), 20);
    for (metric, expected) in metrics.into_iter().zip(numbers(&plateau["lr_before_step"])) {
        assert_eq!(BASE * ours.factor(), expected);
        ours.observe(metric);
    }
    assert_eq!(BASE * ours.factor(), plateau["lr_final"].as_f64().unwrap());
}
