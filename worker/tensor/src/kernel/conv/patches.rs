//! The patches of images as an operand, `[channel · tap, pixel]`, packed as they are needed.
#![expect(unsafe_code, reason = "hands checked pieces of the images to kernels that take pointers")]

use std::ops::Range;

use crate::{
    kernel::{
        gemm::{
            gather::{Gather, Piece},
            pack::PackSource,
        },
        isa::Isa,
    },
    real::Real,
};

/// Lanes of the widest panel.
pub(super) const MAX_WIDTH: usize = 32;

/// Where a patch has one of its elements, from the pixel it belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tap {
    pub(super) y: isize,
    pub(super) x: isize,
}

/// Places along one axis, evenly apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Axis {
    pub(super) count: usize,
    pub(super) first: isize,
    pub(super) step: isize,
}

/// All elements of a patch, row by row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Taps {
    pub(super) y: Axis,
    pub(super) x: Axis,
}

impl Taps {
    pub(super) fn len(&self) -> usize {
        self.y.count * self.x.count
    }

    pub(super) fn get(&self, tap: usize) -> Tap {
        let at = |axis: Axis, i: usize| axis.first + i.cast_signed() * axis.step;
        Tap { y: at(self.y, tap / self.x.count), x: at(self.x, tap % self.x.count) }
    }
}

/// The patches of some channels of a batch of images.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patches<'a, T> {
    /// From the first of the channels on.
    pub(super) images: &'a [T],
    pub(super) image_stride: usize,
    /// Height and width of a channel's plane.
    pub(super) source: [usize; 2],
    /// Height and width of the pixels that have a patch.
    pub(super) grid: [usize; 2],
    /// From a pixel's row and column to the plane's, before the tap is added.
    pub(super) stride: [usize; 2],
    pub(super) taps: Taps,
}

/// Lanes of a panel that are neighbours in one row of one image.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Run {
    pub(super) lane: usize,
    pub(super) len: usize,
    pub(super) image: usize,
    pub(super) y: usize,
    pub(super) x: usize,
}

impl<T: Real> Patches<'_, T> {
    /// The runs of a panel's lanes.
    pub(super) fn runs(&self, lanes: Range<usize>) -> ([Run; MAX_WIDTH], usize) {
        let [height, width] = self.grid;
        let mut runs = [Run::default(); MAX_WIDTH];
        let mut count = 0;
        let (mut image, pixel) = (lanes.start / (height * width), lanes.start % (height * width));
        let (mut y, mut x) = (pixel / width, pixel % width);
        let mut lane = 0;
        while lane < lanes.len() {
            let len = (width - x).min(lanes.len() - lane);
            runs[count] = Run { lane, len, image, y, x };
            count += 1;
            lane += len;
            x = 0;
            y += 1;
            if y == height {
                (image, y) = (image + 1, 0);
            }
        }
        (runs, count)
    }

    /// Which lanes see something of the image at a tap, and where: pieces of neighbours.
    fn pieces(&self, runs: &[Run], tap: Tap) -> ([Piece; MAX_WIDTH], usize) {
        let [height, width] = self.source;
        let step = self.stride[1];
        let mut pieces = [Piece::default(); MAX_WIDTH];
        let mut count = 0;
        let mut add = |piece: Piece| {
            let last = if count == 0 { None } else { pieces.get_mut(count - 1) };
            match last {
                Some(last)
                    if last.lane + last.len == piece.lane
                        && last.from + last.len * step == piece.from =>
                {
                    last.len += piece.len;
                }
                _ => {
                    pieces[count] = piece;
                    count += 1;
                }
            }
        };
        for run in runs {
            let y = (run.y * self.stride[0]) as isize + tap.y;
            if y < 0 || height as isize <= y {
                continue;
            }
            let row = run.image * self.image_stride + y as usize * width;
            // Lanes i with 0 ≤ first + i·step < width.
            let first = (run.x * step).cast_signed() + tap.x;
            let before =
                |limit: isize| (limit - first).max(0).cast_unsigned().div_ceil(step).min(run.len);
            let (start, end) = (before(0), before(width.cast_signed()));
            if start < end {
                let from = row + (first + (start * step).cast_signed()).cast_unsigned();
                add(Piece { lane: run.lane + start, len: end - start, from });
            }
        }
        (pieces, count)
    }
}

impl<T: Real> PackSource<T> for Patches<'_, T> {
    fn pack(
        &self,
        isa: Isa,
        panel: &mut [T],
        width: usize,
        depth: Range<usize>,
        lanes: Range<usize>,
    ) {
        if depth.is_empty() || lanes.is_empty() {
            return;
        }
        assert!(lanes.len() <= width && width <= MAX_WIDTH, "panel of {width}");
        assert!(panel.len() == depth.len() * width, "panel of {} elements", panel.len());
        let kernels = T::kernels(isa.runnable());
        let taps = self.taps.len();
        let plane = self.source[0] * self.source[1];
        let (runs, count) = self.runs(lanes);
        for tap in 0..taps {
            // Channels whose element of this tap lies in the depth.
            let first = depth.start.saturating_sub(tap).div_ceil(taps);
            let last = depth.end.saturating_sub(tap).div_ceil(taps);
            if last <= first {
                continue;
            }
            let (pieces, count) = self.pieces(&runs[..count], self.taps.get(tap));
            let pieces = &pieces[..count];
            let end = |piece: &Piece| piece.from + (piece.len - 1) * self.stride[1] + 1;
            let reach = pieces.iter().map(end).max().unwrap_or(0);
            let images = &self.images[first * plane..];
            assert!(
                (last - first - 1) * plane + reach <= images.len(),
                "channels beyond the images"
            );
            let to = &mut panel[(first * taps + tap - depth.start) * width..];
            assert!(((last - first - 1) * taps + 1) * width <= to.len(), "rows beyond the panel");
            let call = Gather {
                pieces,
                rows: last - first,
                lane_step: self.stride[1],
                from: images.as_ptr(),
                from_step: plane,
                to: to.as_mut_ptr(),
                to_step: taps * width,
                width,
            };
            // SAFETY: the asserts above: what is read ends inside the images, what is written inside the panel;
            // pieces are parts of disjoint runs of lanes.
            unsafe { (kernels.gather)(&call) };
        }
    }
}
