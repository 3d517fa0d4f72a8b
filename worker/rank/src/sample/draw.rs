//! From logits to one token.

use std::cmp::Ordering;

/// How a token is chosen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Draw {
    /// 0 or more and finite.
    pub(super) temperature: f64,
    /// 1 or more; absent, every token.
    pub(super) top_k: Option<usize>,
}

impl Draw {
    /// The token that `fraction`, in [0, 1), falls to. `None` if a logit is not finite, or there is none.
    ///
    /// Token i has the probability exp((zᵢ - z_max) / temperature) over the sum of these over the `top_k` largest z; with
    /// temperature 0 the largest z has it all. Of equal z the lower index comes first. Sums are f64, from the
    /// likeliest token down, and `exp` is that of `libm`, which is compiled in: the same logits give the same token
    /// everywhere.
    pub(super) fn from(self, logits: &[f32], fraction: f64) -> Option<usize> {
        if !logits.iter().all(|logit| logit.is_finite()) {
            return None;
        }
        let mut tokens: Vec<usize> = (0..logits.len()).collect();
        // A stable sort: equal ones stay in the order of their indices.
        tokens.sort_by(|a, b| logits[*b].partial_cmp(&logits[*a]).unwrap_or(Ordering::Equal));
        tokens.truncate(self.top_k.unwrap_or(usize::MAX));
        let first = *tokens.first()?;
        if self.temperature == 0.0 {
            return Some(first);
        }
        let largest = f64::from(logits[first]);
        let weight =
            |token: &usize| libm::exp((f64::from(logits[*token]) - largest) / self.temperature);
        let weights: Vec<f64> = tokens.iter().map(weight).collect();
        let mut left = fraction * weights.iter().sum::<f64>();
        for (token, weight) in tokens.iter().zip(&weights) {
            if left < *weight {
                return Some(*token);
            }
            left -= weight;
        }
        // Rounding has left a little over: it is the least likely token's.
        tokens.last().copied()
    }
}

#[cfg(test)]
mod tests {
    use lockstep_tensor::init::Stream;

    use super::*;

    fn draw(temperature: f64, top_k: Option<usize>) -> Draw {
        Draw { temperature, top_k }
    }

    /// How often each token is drawn in so many draws.
    fn counts(draw: Draw, logits: &[f32], draws: u64) -> Vec<f64> {
        let stream = Stream::new(5, "test");
        let mut counts = vec![0.0; logits.len()];
        for index in 0..draws {
            counts[draw.from(logits, stream.fraction(index)).unwrap()] += 1.0;
        }
        counts
    }

    #[test]
    fn temperature_zero_takes_the_largest_and_of_equal_ones_the_first() {
        for fraction in [0.0, 0.5, 0.999_999] {
            let greedy = draw(0.0, None);
            assert_eq!(greedy.from(&[0.5, -1.0, 2.0, 1.9], fraction), Some(2));
            assert_eq!(greedy.from(&[0.5, 2.0, 2.0, 1.9], fraction), Some(1));
            assert_eq!(draw(0.0, Some(3)).from(&[-4.0, -3.0], fraction), Some(1));
        }
    }

    #[test]
    fn two_tokens_come_as_often_as_their_probabilities_say() {
        let draws = 40_000_u32;
        // Odds of e^(1.5 / T) to 1.
        for temperature in [0.5, 1.0, 3.0] {
            let found = counts(draw(temperature, None), &[-0.25, 1.25], draws.into());
            let likely = 1.0 / (1.0 + (-1.5 / temperature).exp());
            let draws = f64::from(draws);
            let deviation = (draws * likely * (1.0 - likely)).sqrt();
            let distance = (found[1] - draws * likely).abs();
            assert!(distance < 4.0 * deviation, "{temperature}: {found:?}, {likely}");
        }
    }

    #[test]
    fn only_the_top_k_are_drawn_and_their_odds_stay_as_they_are() {
        let (logits, draws) = ([0.0, 3.0, 1.0, 2.0, -1.0], 40_000_u32);
        let found = counts(draw(1.0, Some(3)), &logits, draws.into());
        assert_eq!((found[0], found[4]), (0.0, 0.0), "{found:?}");
        let sum: f64 = [3.0_f64, 2.0, 1.0].iter().map(|logit| logit.exp()).sum();
        for token in [1, 2, 3] {
            let (draws, likely) = (f64::from(draws), f64::from(logits[token]).exp() / sum);
            let deviation = (draws * likely * (1.0 - likely)).sqrt();
            let distance = (found[token] - draws * likely).abs();
            assert!(distance < 4.0 * deviation, "{token}: {found:?}");
        }
        let one = counts(draw(1.0, Some(1)), &logits, 100);
        assert_eq!(one, [0.0, 100.0, 0.0, 0.0, 0.0]);
        let all = draw(1.0, Some(100));
        assert_eq!(counts(all, &logits, 500), counts(draw(1.0, None), &logits, 500));
    }

    #[test]
    fn every_fraction_falls_to_a_token_however_far_apart_logits_or_temperature_are() {
        let almost_one = 1.0 - f64::EPSILON / 2.0;
        for temperature in [5e-324, 1e-300, 1e-3, 1.0, 1e300, f64::MAX] {
            for logits in [&[f32::MAX, f32::MIN, 0.0][..], &[1.0; 7], &[0.0, 1e-30]] {
                for fraction in [0.0, 0.3, almost_one] {
                    let token = draw(temperature, None).from(logits, fraction).unwrap();
                    assert!(token < logits.len());
                }
            }
        }
        assert_eq!(draw(5e-324, None).from(&[1.0, 1.5], almost_one), Some(1));
        assert_eq!(draw(f64::MAX, None).from(&[1.0, 1.5], almost_one), Some(0), "even odds");
    }

    #[test]
    fn logits_that_are_no_numbers_are_nobody_s() {
        for broken in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert_eq!(draw(1.0, None).from(&[0.0, broken], 0.5), None);
            assert_eq!(draw(0.0, None).from(&[0.0, broken], 0.5), None);
        }
        assert_eq!(draw(1.0, None).from(&[], 0.5), None);
    }
}
