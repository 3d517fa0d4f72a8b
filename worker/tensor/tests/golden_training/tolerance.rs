//! What was recorded of a model, and how far ours may be from it.

use lockstep_tensor::{DType, Real};

use super::nets::Net;
use crate::recording::Recording;

/// What PyTorch got, and how far its own f32 run strays from it.
pub(crate) struct Golden {
    pub(crate) single: Recording,
    pub(crate) double: Recording,
}

impl Golden {
    pub(crate) fn read<N: Net>() -> Self {
        let [single, double] = N::FILES.tensors.map(Recording::read);
        Self { single, double }
    }

    /// Samples of a batch.
    pub(crate) fn batch(&self) -> usize {
        let inputs = &self.double.floats.get("input.0").map(|(shape, _)| shape);
        inputs.unwrap_or_else(|| &self.double.ints["input.0"].0)[0]
    }

    /// Of how many losses a batch's is the mean.
    pub(crate) fn losses(&self) -> f64 {
        self.double.ints["target.0"].1.len() as f64
    }

    pub(crate) fn check<T: Real>(&self, name: &str, ours: impl IntoIterator<Item = f64>) {
        let ours: Vec<_> = ours.into_iter().collect();
        if let Some((_, counts)) = self.double.ints.get(name) {
            let counts: Vec<_> = counts.iter().map(|&count| count as f64).collect();
            assert_eq!(ours, counts, "{name}");
            return;
        }
        check::<T>(name, self.double.values(name), self.single.values(name), &ours);
    }
}

/// In f32: 2e-5 of the greatest value, or twice PyTorch's own gap. In f64: 1e-10 of the greatest.
///
/// Some gradients are zero but for rounding: that of a bias before a batch norm, say. What is left of them
/// is not the size of the result but of the terms that cancel, which are up to about 1; their rounding in
/// f64 is at least 1e-16 each.
pub(crate) fn check<T: Real>(name: &str, truth: &[f64], single: &[f64], ours: &[f64]) {
    let greatest = truth.iter().fold(0.0_f64, |max, x| max.max(x.abs()));
    let gap = truth.iter().zip(single);
    let gap = gap.fold(0.0_f64, |max, (a, b)| max.max((a - b).abs()));
    let is_single = T::DTYPE == DType::F32;
    let bound =
        if is_single { (2e-5 * greatest).max(2.0 * gap) } else { (1e-10 * greatest).max(1e-15) };
    assert_eq!(ours.len(), truth.len(), "{name}");
    let worst = ours.iter().zip(truth).fold(0.0_f64, |max, (a, b)| max.max((a - b).abs()));
    eprintln!(
        "{} {:?} {name} err {worst:e} bound {bound:e} max {greatest:e} gap {gap:e}",
        worst / bound,
        T::DTYPE
    );
    if std::env::var_os("MEASURE").is_some() {
        return;
    }
    for (ours, truth) in ours.iter().zip(truth) {
        assert!((ours - truth).abs() <= bound, "{name}: {ours}, {truth} ± {bound}");
    }
}
