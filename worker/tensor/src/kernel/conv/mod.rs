//! Convolution of images, NCHW, as matrix products whose panels are packed straight from the images: no matrix of
//! patches is ever laid out.
//!
//! A batch is one product: its columns are the pixels of all images side by side.
//!
//! # Determinism
//! Sums are those of `gemm::blocked`: in order within blocks of the summed axis, blocks in order. The summed
//! axis is, from the slowest to the fastest,
//!
//! * in [`forward`]: input channel of the group, row of the kernel, column of the kernel;
//! * in [`gradient_of_input`]: output channel of the group, row and column of the kernel, those that
//!   meet the pixel;
//! * in [`gradient_of_weight`]: image, row, column; the sum over the batch is made first and then added to what is
//!   there.
//!
//! Threads share rows or columns of these products, so their number changes no bit.

mod channels;
mod correlation;
mod patches;
mod shape;
mod weight;
mod winograd;

#[cfg(test)]
mod bench;
#[cfg(test)]
mod tests;

pub(crate) use shape::ConvShape;
pub(crate) use weight::gradient_of_weight;

use super::{
    Write,
    gemm::{
        Bias, Epilogue, Matrix, Scratch,
        out::{Out, Pixels},
    },
    isa::{Isa, isa},
    threads::Threads,
};
use crate::real::Real;
use correlation::Correlation;
use patches::Patches;
use shape::Phase;

/// Elements of the operands that a convolution lays out anew, for the greediest of its three products.
pub(crate) fn scratch_len<T: Real>(shape: &ConvShape) -> usize {
    let (outs, ins) = shape.channels_per_group();
    let transformed =
        |rows, channels| correlation::transformed_len::<T>(shape, isa(), rows, channels);
    let forward = transformed(outs, ins);
    let of_input = shape.weight_len() + transformed(ins, outs);
    forward.max(of_input).max(weight::scratch_len(shape))
}

/// What a convolution runs with.
#[derive(Debug)]
pub(crate) struct With<'a> {
    pub(crate) threads: &'a Threads,
    pub(crate) scratch: &'a mut Scratch,
    isa: Isa,
}

impl<'a> With<'a> {
    pub(crate) fn new(threads: &'a Threads, scratch: &'a mut Scratch) -> Self {
        Self { threads, scratch, isa: isa() }
    }

    /// The kernels of an instruction set of choice.
    #[cfg(test)]
    fn on(self, isa: Isa) -> Self {
        Self { isa: isa.runnable(), ..self }
    }
}

/// `y = x * w`, then the epilogue.
///
/// `x` is `[batch, in_channels, height, width]`, `w` is `[out_channels, in_channels / groups, kernel…]`, `y` is
/// `[batch, out_channels, out_height, out_width]`; a bias is one per row: per output channel.
///
/// # Panics
/// If the shape is faulty or the data do not fill it.
pub(crate) fn forward<T: Real>(
    shape: &ConvShape,
    x: &[T],
    w: &[T],
    y: &mut [T],
    epilogue: Epilogue<'_, T>,
    with: With<'_>,
) {
    shape.check(x.len(), w.len(), y.len());
    epilogue.check(shape.out_channels, 0);
    if y.is_empty() {
        return;
    }
    let With { threads, scratch, isa } = with;
    let (outs, ins) = shape.channels_per_group();
    let (plane, depth) = (shape.out_plane(), ins * shape.taps());
    let pixels = Pixels {
        height: shape.out_height(),
        width: shape.out_width(),
        image_stride: shape.out_channels * plane,
        y_stride: shape.out_width(),
        x_stride: 1,
    };
    scratch.with_operands(|operands, scratch| {
        let len = correlation::transformed_len::<T>(shape, isa, outs, ins);
        let (transformed, _) = operands.lend(len, 0);
        for group in 0..shape.groups {
            let w = Matrix::new(&w[group * outs * depth..][..outs * depth], outs, depth);
            let bias = match epilogue.bias {
                Bias::PerRow(bias) => Bias::PerRow(&bias[group * outs..][..outs]),
                other => other,
            };
            let correlation = Correlation {
                isa,
                weights: w.transposed(),
                patches: Patches {
                    images: &x[group * ins * shape.in_plane()..],
                    image_stride: shape.in_channels * shape.in_plane(),
                    source: [shape.in_height, shape.in_width],
                    grid: [shape.out_height(), shape.out_width()],
                    stride: shape.stride,
                    taps: shape.forward_taps(),
                },
                batch: shape.batch,
                mode: Write::Set,
                epilogue: Epilogue { bias, ..epilogue },
            };
            let y = &mut y[group * outs * plane..];
            let out = Out::images(y, outs, plane, shape.batch, pixels);
            correlation.run(out, transformed, threads, scratch);
        }
    });
}

/// `dx (+)= ∂(Σ g·y) / ∂x`: for each remainder of the input's rows and columns by the stride a convolution of `g` with the
/// taps that meet them.
///
/// # Panics
/// If the shape is faulty or the data do not fill it.
pub(crate) fn gradient_of_input<T: Real>(
    shape: &ConvShape,
    g: &[T],
    w: &[T],
    dx: &mut [T],
    mode: Write,
    with: With<'_>,
) {
    shape.check(dx.len(), w.len(), g.len());
    if dx.is_empty() {
        return;
    }
    let With { threads, scratch, isa } = with;
    let (outs, ins) = shape.channels_per_group();
    let plane = shape.in_plane();
    scratch.with_operands(|operands, scratch| {
        let len = correlation::transformed_len::<T>(shape, isa, ins, outs);
        let (turned, transformed) = operands.lend::<T>(w.len(), len);
        for phase in shape.phases() {
            let depth = outs * phase.taps.len();
            // [group, out, tap, in]
            let turned = &mut turned[..shape.groups * depth * ins];
            turn(shape, &phase, w, turned, threads);
            let pixels = Pixels {
                height: phase.height,
                width: phase.width,
                image_stride: shape.in_channels * plane,
                y_stride: shape.stride[0] * shape.in_width,
                x_stride: shape.stride[1],
            };
            for group in 0..shape.groups {
                let w = &turned[group * depth * ins..][..depth * ins];
                let correlation = Correlation {
                    isa,
                    weights: Matrix::new(w, depth, ins),
                    patches: Patches {
                        images: &g[group * outs * shape.out_plane()..],
                        image_stride: shape.out_channels * shape.out_plane(),
                        source: [shape.out_height(), shape.out_width()],
                        grid: [phase.height, phase.width],
                        stride: [1, 1],
                        taps: phase.taps,
                    },
                    batch: shape.batch,
                    mode,
                    epilogue: Epilogue::NONE,
                };
                let dx = &mut dx[group * ins * plane + phase.first..];
                let out = Out::images(dx, ins, plane, shape.batch, pixels);
                correlation.run(out, transformed, threads, scratch);
            }
        }
    });
}

/// Lays the weights of a phase's taps out as `[out, tap, in]`.
fn turn<T: Real>(shape: &ConvShape, phase: &Phase, w: &[T], to: &mut [T], threads: &Threads) {
    let (_, ins) = shape.channels_per_group();
    let all = shape.taps();
    let [(row, rows), (column, columns)] = phase.kernel;
    let taps = phase.taps;
    threads.for_each_chunk(to, taps.len() * ins, |out, to| {
        let w = &w[out * ins * all..][..ins * all];
        for (tap, to) in to.chunks_exact_mut(ins).enumerate() {
            let row = row + tap / taps.x.count * rows;
            let column = column + tap % taps.x.count * columns;
            let from = w.iter().skip(row * shape.kernel[1] + column).step_by(all);
            for (to, w) in to.iter_mut().zip(from) {
                *to = *w;
            }
        }
    });
}
