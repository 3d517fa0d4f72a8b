//! One group's convolution, by the way that its shape calls for.

use super::{ConvShape, patches::Patches, winograd};
use crate::{
    kernel::{
        Write,
        gemm::{Epilogue, Matrix, Scratch, blocked::Task, out::Out, pack::Strided},
        isa::Isa,
        threads::Threads,
    },
    real::Real,
};

/// Every pixel's patch times the weights.
#[derive(Debug, Clone, Copy)]
pub(super) struct Correlation<'a, T> {
    pub(super) isa: Isa,
    /// `[channel · tap, row]`.
    pub(super) weights: Matrix<'a, T>,
    pub(super) patches: Patches<'a, T>,
    pub(super) batch: usize,
    pub(super) mode: Write,
    pub(super) epilogue: Epilogue<'a, T>,
}

/// How many elements [`Correlation::run`] needs for transformed weights.
pub(super) fn transformed_len<T: Real>(
    shape: &ConvShape,
    isa: Isa,
    rows: usize,
    channels: usize,
) -> usize {
    if winograd::fits(shape) { winograd::weights_len::<T>(isa, rows, channels) } else { 0 }
}

impl<T: Real> Correlation<'_, T> {
    pub(super) fn rows(&self) -> usize {
        let [_, rows] = self.weights.shape();
        rows
    }

    pub(super) fn channels(&self) -> usize {
        let [depth, _] = self.weights.shape();
        depth.checked_div(self.patches.taps.len()).unwrap_or(0)
    }

    /// Makes it in the transform if there is room for transformed weights, and as one product if there is none.
    pub(super) fn run(
        &self,
        out: Out<'_, T>,
        transformed: &mut [T],
        threads: &Threads,
        scratch: &mut Scratch,
    ) {
        if !transformed.is_empty() {
            winograd::run(self, out, transformed, threads, scratch);
            return;
        }
        let [depth, rows] = self.weights.shape();
        let [height, width] = self.patches.grid;
        let task = Task {
            isa: self.isa,
            a: &Strided::new(self.weights),
            b: &self.patches,
            shape: [rows, self.batch * height * width, depth],
            mode: self.mode,
            epilogue: self.epilogue,
        };
        task.run(out, threads, scratch);
    }
}
