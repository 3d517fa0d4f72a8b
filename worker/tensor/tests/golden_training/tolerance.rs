//! What was recorded of a model, and how far ours may be from it.

use lockstep_tensor::Real;

use super::nets::Net;
use crate::recording::Recording;

/// What rounding in f64 leaves of a gradient that is mathematically zero: terms of up to about 1 cancel, a few
/// dozen of them, each rounded by 1e-16.
pub(crate) const REMAINDER: f64 = 1e-15;

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

    pub(crate) fn check<T: Real>(
        &self,
        name: &str,
        ours: impl IntoIterator<Item = f64>,
        floor: impl Fn(usize) -> f64,
    ) {
        let ours: Vec<_> = ours.into_iter().collect();
        if let Some((_, counts)) = self.double.ints.get(name) {
            let counts: Vec<_> = counts.iter().map(|&count| count as f64).collect();
            assert_eq!(ours, counts, "{name}");
            return;
        }
        check::<T>(name, self.double.values(name), self.single.values(name), &ours, floor);
    }
}

/// No place has a floor.
pub(crate) fn no_floor(_place: usize) -> f64 {
    0.0
}

/// In f32: 2e-5 of the greatest value, or twice PyTorch's own gap. In f64: 1e-10 of the greatest. If a
/// place's floor is greater, that.
///
/// A gradient that is mathematically zero is what rounding leaves of terms that cancel. It is as large as
/// the rounding of those terms and has nothing to do with the greatest of the tensor, which may be such a
/// remainder itself. PyTorch's gap covers that in f32; in f64 it would be far too wide: hence the floor.
pub(crate) fn check<T: Real>(
    name: &str,
    truth: &[f64],
    single: &[f64],
    ours: &[f64],
    floor: impl Fn(usize) -> f64,
) {
    let greatest = truth.iter().fold(0.0_f64, |max, x| max.max(x.abs()));
    let gap = truth.iter().zip(single);
    let gap = gap.fold(0.0_f64, |max, (a, b)| max.max((a - b).abs()));
    let is_single = T::DTYPE == f32::DTYPE;
    let bound = if is_single { (2e-5 * greatest).max(2.0 * gap) } else { 1e-10 * greatest };
    assert_eq!(ours.len(), truth.len(), "{name}");
    for (place, (ours, truth)) in ours.iter().zip(truth).enumerate() {
        let bound = bound.max(floor(place));
        assert!((ours - truth).abs() <= bound, "{name}, {place}: {ours}, {truth} ± {bound}");
    }
}
