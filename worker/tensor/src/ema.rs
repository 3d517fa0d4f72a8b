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
