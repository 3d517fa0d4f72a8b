//! The gradient of the weights.

use super::{
    ConvShape, With,
    channels::{self, Channels, Planes},
    winograd,
};
use crate::{
    kernel::{
        self, Write,
        gemm::{Epilogue, MatrixMut, Part, Scratch, blocked::Task, out::Out},
        isa::Isa,
        threads::Threads,
    },
    real::Real,
};

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
        kernel::write(dw, mode, |_| T::ZERO);
        return;
    }
    let With { threads, scratch, isa } = with;
    let gradient = Gradient { shape, x, g, mode, isa };
    scratch.with_operands(|operands, scratch| {
        if winograd::fits(shape) {
            gradient.transformed(dw, operands, threads, scratch);
        } else {
            gradient.direct(dw, operands, threads, scratch);
        }
    });
}

/// Elements of the operands that are laid out anew.
pub(super) fn scratch_len(shape: &ConvShape) -> usize {
    let (outs, ins) = shape.channels_per_group();
    if winograd::fits(shape) {
        shape.in_len() + shape.out_len() + winograd::sum_len(outs, ins)
    } else {
        shape.in_len() + outs * shape.taps() * ins
    }
}

struct Gradient<'a, T> {
    shape: &'a ConvShape,
    x: &'a [T],
    g: &'a [T],
    mode: Write,
    isa: Isa,
}

impl<T: Real> Gradient<'_, T> {
    fn input<'a>(&self, group: usize, last: &'a [T]) -> winograd::Operand<'a, T> {
        let (_, ins) = self.shape.channels_per_group();
        winograd::Operand {
            images: last,
            source: [self.shape.in_height, self.shape.in_width],
            all: self.shape.in_channels,
            first: group * ins,
            channels: ins,
        }
    }

    fn output<'a>(&self, group: usize, last: &'a [T]) -> winograd::Operand<'a, T> {
        let (outs, _) = self.shape.channels_per_group();
        winograd::Operand {
            images: last,
            source: [self.shape.out_height(), self.shape.out_width()],
            all: self.shape.out_channels,
            first: group * outs,
            channels: outs,
        }
    }

    /// Tile by tile, in the transform.
    fn transformed(
        &self,
        dw: &mut [T],
        operands: &mut Part,
        threads: &Threads,
        scratch: &mut Scratch,
    ) {
        let Self { shape, x, g, mode, isa } = *self;
        let (outs, ins) = shape.channels_per_group();
        let sum = winograd::sum_len(outs, ins);
        let (last, sum) = operands.lend::<T>(x.len() + g.len(), sum);
        let (x_last, g_last) = last.split_at_mut(x.len());
        channels::to_last(isa, x, x_last, shape.in_channels, shape.in_plane(), threads);
        channels::to_last(isa, g, g_last, shape.out_channels, shape.out_plane(), threads);
        let len = outs * ins * shape.taps();
        for (group, dw) in dw.chunks_exact_mut(len).enumerate() {
            let gradient = winograd::Gradient {
                isa,
                x: self.input(group, x_last),
                g: self.output(group, g_last),
                batch: shape.batch,
                padding: shape.padding,
                mode,
            };
            gradient.run(dw, sum, threads, scratch);
        }
    }

    /// Pixel by pixel, as one product.
    fn direct(&self, dw: &mut [T], operands: &mut Part, threads: &Threads, scratch: &mut Scratch) {
        let Self { shape, x, g, mode, isa } = *self;
        let (outs, ins) = shape.channels_per_group();
        let (taps, plane) = (shape.taps(), shape.out_plane());
        let (last, sum) = operands.lend::<T>(x.len(), outs * taps * ins);
        channels::to_last(isa, x, last, shape.in_channels, shape.in_plane(), threads);
        for (group, dw) in dw.chunks_exact_mut(outs * ins * taps).enumerate() {
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
            let dst = MatrixMut::new(&mut *sum, outs, taps * ins);
            task.run(Out::new(dst), threads, scratch);
            // [out, tap, in] to [out, in, tap].
            for (dw, sum) in dw.chunks_exact_mut(ins * taps).zip(sum.chunks_exact(taps * ins)) {
                kernel::write(dw, mode, |i| sum[i % taps * ins + i / taps]);
            }
        }
    }
}
