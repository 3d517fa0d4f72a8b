//! A running mean of the weights, which often generalises better than the weights themselves.

use crate::{
    optimizer::{PIECE_LEN, StepError},
    real::Real,
    setting::{self, SettingError},
};

/// Exponential moving average of weights.
///
/// ```text
/// average = decay · average + (1 - decay) · w
/// ```
///
/// computed as `average += (1 - decay) · (w - average)`: the rounded factors of the first form do not
/// add up to 1, which in `f32` with a decay of 0.9999 puts the average of weights that do not change
/// up to 3e-4 beside them; in the second form equal values stay equal.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ema {
    decay: f64,
    warm_up: EmaWarmUp,
}

/// How the decay begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EmaWarmUp {
    /// With its own value.
    #[default]
    None,
    /// With the least of its own value and (1 + n) / (10 + n) after n updates, so that the starting
    /// values are forgotten soon. TensorFlow's `num_updates`.
    Ramp,
}

impl Ema {
    /// `decay`: the share of the old average that stays, 0 ≤ decay < 1.
    pub fn new(decay: f64, warm_up: EmaWarmUp) -> Result<Self, SettingError> {
        setting::share("decay", decay)?;
        Ok(Self { decay, warm_up })
    }

    /// The decay in force for the update that follows `updates` others.
    pub fn decay_at(&self, updates: u64) -> f64 {
        match self.warm_up {
            EmaWarmUp::None => self.decay,
            EmaWarmUp::Ramp => self.decay.min((1.0 + updates as f64) / (10.0 + updates as f64)),
        }
    }

    /// Takes the weights in, after `updates` others. `average` starts as a copy of the weights.
    pub fn update<T: Real>(
        &self,
        average: &mut [T],
        weights: &[T],
        updates: u64,
    ) -> Result<(), StepError> {
        let (given, expected) = (average.len(), weights.len());
        if given != expected {
            return Err(StepError::Length { what: "averages", given, expected });
        }
        let new = T::from_f64(1.0 - self.decay_at(updates));
        // Pieces of fixed length, each on its own: what a thread pool would be given.
        let pieces = average.chunks_mut(PIECE_LEN).zip(weights.chunks(PIECE_LEN));
        pieces.for_each(|(average, weights)| {
            for (average, &w) in average.iter_mut().zip(weights) {
                *average += new * (w - *average);
            }
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(ours: &[f64], expected: &[f64]) {
        for (ours, expected) in ours.iter().zip(expected) {
            assert!((ours - expected).abs() < 1e-14, "{ours} {expected}");
        }
    }

    #[test]
    fn an_average_follows_the_weights_and_warms_up_on_demand() {
        let mut average = [1.0_f64, -2.0];
        let ema = Ema::new(0.9, EmaWarmUp::None).unwrap();
        ema.update(&mut average, &[2.0, 2.0], 0).unwrap();
        close(&average, &[0.9 + 0.1 * 2.0, 0.9 * -2.0 + 0.1 * 2.0]);

        let ramp = Ema::new(0.999, EmaWarmUp::Ramp).unwrap();
        let decays = [0, 1, 90, 1_000_000].map(|updates| ramp.decay_at(updates));
        close(&decays, &[0.1, 2.0 / 11.0, 0.91, 0.999]);
        let mut average = [1.0_f64];
        ramp.update(&mut average, &[3.0], 1).unwrap();
        close(&average, &[2.0 / 11.0 + 9.0 / 11.0 * 3.0]);
    }

    #[test]
    fn the_average_of_weights_that_stay_is_these_weights() {
        let weights: Vec<f32> = (0..PIECE_LEN + 100).map(|i| (i as f32 * 0.37).sin()).collect();
        let mut average = weights.clone();
        let ema = Ema::new(0.9999, EmaWarmUp::Ramp).unwrap();
        for updates in 0..20 {
            ema.update(&mut average, &weights, updates).unwrap();
        }
        assert_eq!(average, weights);
    }

    /// Averages of many pieces are complete, and converge.
    #[test]
    fn every_element_follows() {
        let mut average = vec![0.0_f32; 2 * PIECE_LEN + 1];
        let weights = vec![1.0_f32; 2 * PIECE_LEN + 1];
        let ema = Ema::new(0.5, EmaWarmUp::None).unwrap();
        ema.update(&mut average, &weights, 0).unwrap();
        assert!(average.iter().all(|&a| a == 0.5));
    }

    #[test]
    fn decays_and_lengths_that_make_no_sense_are_refused() {
        let refused = Ema::new(1.0, EmaWarmUp::None).unwrap_err().to_string();
        assert_eq!(refused, "decay is 1, expected at least 0 and below 1");
        let ema = Ema::new(0.9, EmaWarmUp::None).unwrap();
        let refused = ema.update(&mut [1.0_f32], &[3.0, 4.0], 2).unwrap_err().to_string();
        assert_eq!(refused, "1 averages for 2 weights");
    }
}
