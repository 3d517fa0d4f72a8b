//! What the engine itself measures in an evaluation: sums over samples, so that any batches and ranks give the
//! same figure.

use lockstep_api::{EvalMetric, EvalSpec};

/// (sum, weight) of each measure, in the order of [`ALL`].
pub(crate) type Sums = [(f64, f64); ALL.len()];

/// All measures.
pub(crate) const ALL: [EvalMetric; 3] =
    [EvalMetric::Accuracy, EvalMetric::Top5, EvalMetric::Perplexity];

/// How many of the largest logits count for [`EvalMetric::Top5`].
const TOP: usize = 5;

/// A label that is no class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BadLabel {
    /// Place among the labels.
    pub(crate) row: usize,
    /// As given.
    pub(crate) label: i64,
}

/// Measures rows of `classes` logits against their labels.
///
/// # Errors
/// The first label that is neither a class nor to be ignored.
pub(crate) fn measure(
    logits: &[f32],
    classes: usize,
    labels: &[i64],
    spec: &EvalSpec,
) -> Result<Sums, BadLabel> {
    let mut sums = Sums::default();
    for (row, (logits, &label)) in logits.chunks_exact(classes.max(1)).zip(labels).enumerate() {
        if label == spec.ignore_index {
            continue;
        }
        let class = usize::try_from(label).ok().filter(|&class| class < classes);
        let class = class.ok_or(BadLabel { row, label })?;
        let before = rank_of(logits, class);
        let hits = [before == 0, before < TOP].map(|hit| f64::from(u8::from(hit)));
        for (sum, value) in sums.iter_mut().zip([hits[0], hits[1], cross_entropy(logits, class)]) {
            sum.0 += value;
            sum.1 += 1.0;
        }
    }
    Ok(sums)
}

/// The figure of a measure from its sums.
pub(crate) fn figure(metric: EvalMetric, (sum, weight): (f64, f64)) -> f64 {
    match metric {
        EvalMetric::Accuracy | EvalMetric::Top5 => sum / weight,
        EvalMetric::Perplexity => (sum / weight).exp(),
    }
}

/// How many classes come before `class`: larger logits, equal ones with a lower number, and NaN.
fn rank_of(logits: &[f32], class: usize) -> usize {
    let own = logits[class];
    if own.is_nan() {
        return logits.len();
    }
    let comes_before = |(other, &logit): (usize, &f32)| {
        logit.is_nan() || own < logit || (own == logit && other < class)
    };
    logits.iter().enumerate().filter(|&it| comes_before(it)).count()
}

/// ln Σ e^logit - logit of the class, in f64.
fn cross_entropy(logits: &[f32], class: usize) -> f64 {
    let greatest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let shifted = |logit: f32| f64::from(logit) - f64::from(greatest);
    let total: f64 = logits.iter().map(|&logit| shifted(logit).exp()).sum();
    total.ln() - shifted(logits[class])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> EvalSpec {
        EvalSpec::default()
    }

    #[test]
    fn hits_and_perplexity_are_those_of_the_definitions() {
        let logits = [
            [0.0_f32, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0], // label 6: first
            [9.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0],     // label 3: fifth
            [9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0],     // label 5: sixth
            [1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0],     // label 1: second of equals
        ]
        .concat();
        let sums = measure(&logits, 7, &[6, 3, 5, 1], &spec()).unwrap();
        assert_eq!((sums[0], sums[1]), ((1.0, 4.0), (3.0, 4.0)));
        assert_eq!(figure(EvalMetric::Accuracy, sums[0]), 0.25);
        // Two classes with probabilities 1/4 and 3/4.
        let logits = [0.0, 3.0_f32.ln()];
        let sums = measure(&logits, 2, &[0], &spec()).unwrap();
        let perplexity = figure(EvalMetric::Perplexity, sums[2]);
        assert!((perplexity - 4.0).abs() < 1e-6, "{perplexity}");
    }

    #[test]
    fn what_is_to_be_ignored_counts_nowhere_and_other_labels_are_named() {
        let logits = [1.0, 0.0, 0.0, 1.0];
        let sums = measure(&logits, 2, &[-100, 1], &spec()).unwrap();
        assert_eq!(sums[0], (1.0, 1.0));
        for label in [-1, 2] {
            let refused = measure(&logits, 2, &[0, label], &spec());
            assert_eq!(refused, Err(BadLabel { row: 1, label }));
        }
    }

    #[test]
    fn numbers_that_are_none_are_never_hits() {
        let sums = measure(&[f32::NAN, 1.0], 2, &[1], &spec()).unwrap();
        assert_eq!((sums[0].0, sums[1].0), (0.0, 1.0));
        let sums = measure(&[f32::NAN; 9], 9, &[0], &spec()).unwrap();
        assert_eq!((sums[0].0, sums[1].0), (0.0, 0.0));
        assert!(sums[2].0.is_nan());
    }
}
