//! Operands of the gradient of the weights, whose summed axis is the pixels of the batch.

use std::ops::Range;

use super::patches::{Tap, Taps};
use crate::{
    kernel::{
        gemm::{
            Matrix,
            pack::{PackSource, Strided, copy_rows_of},
        },
        isa::Isa,
        threads::Threads,
    },
    real::Real,
};

/// Lays images out with the channels last: `[image, pixel, channel]`.
pub(super) fn to_last<T: Real>(
    isa: Isa,
    x: &[T],
    to: &mut [T],
    channels: usize,
    plane: usize,
    threads: &Threads,
) {
    assert!(x.len() == to.len());
    threads.for_each_chunk(to, channels * plane, |image, to| {
        let from = Matrix::new(&x[image * channels * plane..][..to.len()], channels, plane);
        Strided::new(from.transposed()).pack(isa, to, channels, 0..plane, 0..channels);
    });
}

/// Channels of images, `[image · pixel, channel]`, packed from planes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Planes<'a, T> {
    /// From the first of the channels on.
    pub(super) images: &'a [T],
    pub(super) image_stride: usize,
    pub(super) plane: usize,
    pub(super) channels: usize,
}

impl<T: Real> PackSource<T> for Planes<'_, T> {
    fn pack(
        &self,
        isa: Isa,
        panel: &mut [T],
        width: usize,
        depth: Range<usize>,
        lanes: Range<usize>,
    ) {
        let mut rest = panel;
        let mut at = depth.start;
        while at < depth.end {
            let (image, pixel) = (at / self.plane, at % self.plane);
            let len = (self.plane - pixel).min(depth.end - at);
            let planes = &self.images[image * self.image_stride..][..self.channels * self.plane];
            let source = Strided::new(Matrix::new(planes, self.channels, self.plane).transposed());
            let (part, after) = rest.split_at_mut(len * width);
            source.pack(isa, part, width, pixel..pixel + len, lanes.clone());
            rest = after;
            at += len;
        }
    }
}

/// Patches of images that have their channels last, `[image · pixel, tap · channel]`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Channels<'a, T> {
    pub(super) images: &'a [T],
    /// Height and width of the images.
    pub(super) source: [usize; 2],
    /// How many channels the images have, and which of them are meant.
    pub(super) all: usize,
    pub(super) first: usize,
    pub(super) channels: usize,
    /// Height and width of the pixels that have a patch.
    pub(super) grid: [usize; 2],
    pub(super) stride: [usize; 2],
    pub(super) taps: Taps,
}

impl<T: Real> Channels<'_, T> {
    /// Packs lanes that are neighbouring channels at one tap.
    pub(super) fn pack_tap(
        &self,
        panel: &mut [T],
        width: usize,
        depth: Range<usize>,
        (lane, len): (usize, usize),
        (tap, channel): (Tap, usize),
    ) {
        let [rows, columns] = self.grid;
        let [height, source_width] = self.source;
        // The columns whose source lies in the image: 0 ≤ x·stride + tap < width.
        let before = |limit: isize| {
            let distance = (limit - tap.x).max(0).cast_unsigned();
            distance.div_ceil(self.stride[1]).min(columns)
        };
        let (first, end) = (before(0), before(source_width.cast_signed()));
        let pixel = depth.start % (rows * columns);
        let (mut image, mut y) = (depth.start / (rows * columns), pixel / columns);
        let mut x = pixel % columns;
        let (mut left, mut to) = (depth.len(), panel);
        while 0 < left {
            let run = (columns - x).min(left);
            let (row, after) = to.split_at_mut(run * width);
            let source_y = (y * self.stride[0]).cast_signed() + tap.y;
            let (start, stop) = if 0 <= source_y && source_y < height.cast_signed() {
                (first.clamp(x, x + run), end.clamp(x, x + run))
            } else {
                (x + run, x + run)
            };
            let (blank, row) = row.split_at_mut((start - x) * width);
            zero(blank, width, lane, len);
            if start < stop {
                let source_x = (start * self.stride[1]).cast_signed() + tap.x;
                let from = (image * height + source_y.cast_unsigned()) * source_width
                    + source_x.cast_unsigned();
                let from = &self.images[from * self.all + self.first + channel..];
                let row = &mut row[..(stop - start) * width];
                copy_rows_of(row, width, lane, from, self.stride[1] * self.all, len);
            }
            zero(&mut row[(stop.max(start) - start) * width..], width, lane, len);
            (x, y, to, left) = (0, y + 1, after, left - run);
            if y == rows {
                (image, y) = (image + 1, 0);
            }
        }
    }
}

fn zero<T: Real>(rows: &mut [T], width: usize, lane: usize, len: usize) {
    for row in rows.chunks_exact_mut(width) {
        row[lane..lane + len].fill(T::ZERO);
    }
}

impl<T: Real> PackSource<T> for Channels<'_, T> {
    fn pack(
        &self,
        _: Isa,
        panel: &mut [T],
        width: usize,
        depth: Range<usize>,
        lanes: Range<usize>,
    ) {
        let mut at = lanes.start;
        while at < lanes.end {
            let (tap, channel) = (at / self.channels, at % self.channels);
            let len = (self.channels - channel).min(lanes.end - at);
            let place = (at - lanes.start, len);
            self.pack_tap(&mut *panel, width, depth.clone(), place, (self.taps.get(tap), channel));
            at += len;
        }
    }
}
