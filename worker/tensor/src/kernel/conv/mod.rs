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
mod patches;
mod shape;
mod winograd;

#[cfg(test)]
mod bench;
#[cfg(test)]
mod tests;

pub(crate) use shape::ConvShape;
use shape::Phase;

use super::{
    Write,
    gemm::{
        Bias, Epilogue, Matrix, MatrixMut, Scratch,
        blocked::Task,
        out::{Out, Pixels},
        pack::Strided,
    },
    isa::{Isa, isa},
    threads::Threads,
};
use crate::real::Real;
use channels::{Channels, Planes};
use patches::Patches;
use winograd::Operand;

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
    let (outs, ins) = shape.channels_per_group();
    let taps = shape.taps();
    let (height, width) = (shape.out_height(), shape.out_width());
    let pixels = Pixels {
        height,
        width,
        image_stride: shape.out_channels * height * width,
        y_stride: width,
        x_stride: 1,
    };
    for group in 0..shape.groups {
        let depth = ins * taps;
        let w = Matrix::new(&w[group * outs * depth..][..outs * depth], outs, depth);
        let patches = Patches {
            images: &x[group * ins * shape.in_plane()..],
            image_stride: shape.in_channels * shape.in_plane(),
            source: [shape.in_height, shape.in_width],
            grid: [height, width],
            stride: shape.stride,
            taps: shape.forward_taps(),
        };
        let bias = match epilogue.bias {
            Bias::PerRow(bias) => Bias::PerRow(&bias[group * outs..][..outs]),
            other => other,
        };
        let epilogue = Epilogue { bias, ..epilogue };
        let y = &mut y[group * outs * height * width..];
        let out = Out::images(y, outs, height * width, shape.batch, pixels);
        if winograd::fits(shape) {
            let task = winograd::Task {
                isa: with.isa,
                weights: &Strided::new(w.transposed()),
                is_turned: false,
                rows: outs,
                channels: ins,
                images: patches.images,
                image_stride: patches.image_stride,
                source: patches.source,
                padding: shape.padding.map(usize::cast_signed),
                batch: shape.batch,
                grid: [height, width],
                mode: Write::Set,
                epilogue,
            };
            with.scratch.with_operands(|operands, scratch| {
                let len = task.weights_len();
                task.run(out, operands.lend(len, 0).0, with.threads, scratch);
            });
            continue;
        }
        let task = Task {
            isa: with.isa,
            a: &Strided::new(w.transposed()),
            b: &patches,
            shape: [outs, shape.batch * height * width, depth],
            mode: Write::Set,
            epilogue,
        };
        task.run(out, with.threads, with.scratch);
    }
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
    scratch.with_operands(|operands, scratch| {
        let transformed = match winograd::fits(shape) {
            true => winograd::weights_len::<T>(isa, ins, outs),
            false => 0,
        };
        let (turned, transformed) = operands.lend::<T>(w.len(), transformed);
        for phase in shape.phases() {
            let taps = phase.taps.len();
            // [group, out, tap, in]
            let turned = &mut turned[..shape.out_channels * taps * ins];
            turn(shape, &phase, w, turned, threads);
            let grid = [phase.height, phase.width];
            for group in 0..shape.groups {
                let depth = outs * taps;
                let a = Matrix::new(&turned[group * depth * ins..][..depth * ins], depth, ins);
                let patches = Patches {
                    images: &g[group * outs * shape.out_plane()..],
                    image_stride: shape.out_channels * shape.out_plane(),
                    source: [shape.out_height(), shape.out_width()],
                    grid,
                    stride: [1, 1],
                    taps: phase.taps,
                };
                let pixels = Pixels {
                    height: phase.height,
                    width: phase.width,
                    image_stride: shape.in_channels * shape.in_plane(),
                    y_stride: shape.stride[0] * shape.in_width,
                    x_stride: shape.stride[1],
                };
                let dx = &mut dx[group * ins * shape.in_plane() + phase.first..];
                let out = Out::images(dx, ins, shape.in_plane(), shape.batch, pixels);
                if winograd::fits(shape) {
                    let task = winograd::Task {
                        isa,
                        weights: &Strided::new(a),
                        is_turned: true,
                        rows: ins,
                        channels: outs,
                        images: patches.images,
                        image_stride: patches.image_stride,
                        source: patches.source,
                        padding: shape.padding.map(|padding| 2 - padding.cast_signed()),
                        batch: shape.batch,
                        grid,
                        mode,
                        epilogue: Epilogue::NONE,
                    };
                    task.run(out, transformed, threads, scratch);
                    continue;
                }
                let task = Task {
                    isa,
                    a: &Strided::new(a),
                    b: &patches,
                    shape: [ins, shape.batch * phase.height * phase.width, depth],
                    mode,
                    epilogue: Epilogue::NONE,
                };
                task.run(out, threads, scratch);
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

/// `dw (+)= ∂(Σ g·y) / ∂w`: the batch's sum, then added.
///
/// # Panics
/// If the shape is faulty or the data do not fill it.
pub(crate) fn gradient_of_weight<T: Real>(
    shape: &ConvShape,
    x: &[T],
    g: &[T],
    dw: &mut [T],
    mode: Write,
    with: With<'_>,
) {
    shape.check(x.len(), dw.len(), g.len());
    if x.is_empty() || g.is_empty() {
        super::write(dw, mode, |_| T::ZERO);
        return;
    }
    let With { threads, scratch, isa } = with;
    let (outs, ins) = shape.channels_per_group();
    let (taps, plane) = (shape.taps(), shape.out_plane());
    scratch.with_operands(|operands, scratch| {
        if winograd::fits(shape) {
            let sum = winograd::Gradient::<T>::sum_len(outs, ins);
            let (last, sum) = operands.lend::<T>(x.len() + g.len(), sum);
            let (x_last, g_last) = last.split_at_mut(x.len());
            channels::to_last(isa, x, x_last, shape.in_channels, shape.in_plane(), threads);
            channels::to_last(isa, g, g_last, shape.out_channels, plane, threads);
            for group in 0..shape.groups {
                let gradient = winograd::Gradient {
                    isa,
                    x: Operand {
                        images: &*x_last,
                        source: [shape.in_height, shape.in_width],
                        all: shape.in_channels,
                        first: group * ins,
                        channels: ins,
                    },
                    g: Operand {
                        images: &*g_last,
                        source: [shape.out_height(), shape.out_width()],
                        all: shape.out_channels,
                        first: group * outs,
                        channels: outs,
                    },
                    batch: shape.batch,
                    padding: shape.padding,
                    mode,
                };
                let dw = &mut dw[group * outs * ins * taps..][..outs * ins * taps];
                gradient.run(dw, sum, threads, scratch);
            }
            return;
        }
        let (last, sum) = operands.lend::<T>(x.len(), outs * taps * ins);
        channels::to_last(isa, x, last, shape.in_channels, shape.in_plane(), threads);
        for group in 0..shape.groups {
            let planes = Planes {
                images: &g[group * outs * plane..],
                image_stride: shape.out_channels * plane,
                plane,
                channels: outs,
            };
            let channels = Channels {
                images: &*last,
                source: [shape.in_height, shape.in_width],
                all: shape.in_channels,
                first: group * ins,
                channels: ins,
                grid: [shape.out_height(), shape.out_width()],
                stride: shape.stride,
                taps: shape.forward_taps(),
            };
            let task = Task {
                isa,
                a: &planes,
                b: &channels,
                shape: [outs, taps * ins, shape.batch * plane],
                mode: Write::Set,
                epilogue: Epilogue::NONE,
            };
            let dst = MatrixMut::new(sum, outs, taps * ins);
            task.run(Out::new(dst), threads, scratch);
            // [out, tap, in] to [out, in, tap].
            let dw = &mut dw[group * outs * ins * taps..][..outs * ins * taps];
            for (dw, sum) in dw.chunks_exact_mut(ins * taps).zip(sum.chunks_exact(taps * ins)) {
                super::write(dw, mode, |i| sum[i % taps * ins + i / taps]);
            }
        }
    });
}
