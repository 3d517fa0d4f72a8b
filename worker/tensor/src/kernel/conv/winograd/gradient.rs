//! The gradient of the weights: for each point of the transform a product over the tiles of the batch, pixels and results
//! having their channels last.
#![expect(unsafe_code, reason = "tiles of the sum are written by pointer")]

use std::ops::Range;

use super::transform::{self, Input, POINTS, RESULTS, WEIGHT_LANES};
use crate::{
    kernel::{
        Write,
        conv::{
            channels::Channels,
            patches::{Axis, Taps},
        },
        gemm::{
            MatrixMut, Scratch,
            element::Kernels,
            out::Out,
            plan::chunks,
            scratch::Part,
            tile::{Finish, Tile},
        },
        isa::{Isa, vectorized_on},
        threads::Threads,
    },
    real::Real,
};

/// Tiles that are added up in registers: results depend on it.
const DEPTH: usize = 128;

/// How many elements [`Gradient::run`] needs for the transformed sum.
pub(in crate::kernel::conv) fn sum_len(outs: usize, ins: usize) -> usize {
    outs * POINTS * ins
}

/// A gradient to be made.
#[derive(Debug)]
pub(in crate::kernel::conv) struct Gradient<'a, T> {
    pub(in crate::kernel::conv) isa: Isa,
    /// The input and the output's gradient, channels last.
    pub(in crate::kernel::conv) x: Operand<'a, T>,
    pub(in crate::kernel::conv) g: Operand<'a, T>,
    pub(in crate::kernel::conv) batch: usize,
    pub(in crate::kernel::conv) padding: [usize; 2],
    pub(in crate::kernel::conv) mode: Write,
}

/// Some channels of images that have their channels last.
#[derive(Debug, Clone, Copy)]
pub(in crate::kernel::conv) struct Operand<'a, T> {
    pub(in crate::kernel::conv) images: &'a [T],
    /// Height and width.
    pub(in crate::kernel::conv) source: [usize; 2],
    pub(in crate::kernel::conv) all: usize,
    pub(in crate::kernel::conv) first: usize,
    pub(in crate::kernel::conv) channels: usize,
}

impl<'a, T: Real> Operand<'a, T> {
    /// Squares of pixels at every second row and column.
    fn squares(&self, grid: [usize; 2], padding: [usize; 2], len: usize) -> Channels<'a, T> {
        let axis = |axis: usize| Axis { count: len, first: -padding[axis].cast_signed(), step: 1 };
        Channels {
            images: self.images,
            source: self.source,
            all: self.all,
            first: self.first,
            channels: self.channels,
            grid,
            stride: [2, 2],
            taps: Taps { y: axis(0), x: axis(1) },
        }
    }
}

impl<T: Real> Gradient<'_, T> {
    /// Writes or adds the gradient, `[out, in, tap]`; threads share output channels.
    pub(in crate::kernel::conv) fn run(
        &self,
        dw: &mut [T],
        sum: &mut [T],
        threads: &Threads,
        scratch: &mut Scratch,
    ) {
        let (outs, ins) = (self.g.channels, self.x.channels);
        let kernels = T::kernels(self.isa.runnable());
        let grid = self.g.source.map(|len| len.div_ceil(2));
        let panels = outs.div_ceil(kernels.rows);
        let per_share = panels.div_ceil(threads.count()).max(1) * kernels.rows;
        let parts = scratch.parts(outs.div_ceil(per_share));
        let sum = &mut sum[..sum_len(outs, ins)];
        let out = Out::new(MatrixMut::new(&mut *sum, outs, POINTS * ins));
        threads.for_each_chunk(parts, 1, |index, parts| {
            let rows = index * per_share..((index + 1) * per_share).min(outs);
            for part in parts {
                let share = Share {
                    isa: self.isa,
                    kernels,
                    pixels: self.x.squares(grid, self.padding, 4),
                    results: self.g.squares(grid, [0, 0], 2),
                    out,
                };
                share.run(self.batch * grid[0] * grid[1], rows.clone(), part);
            }
        });
        threads.for_each_chunk(dw, ins * transform::TAPS, |out, to| {
            let from = &sum[out * POINTS * ins..][..POINTS * ins];
            vectorized_on(self.isa, transform::Gradient { from, to, mode: self.mode });
        });
    }
}

/// One thread's output channels.
struct Share<'a, T: 'static> {
    isa: Isa,
    kernels: Kernels<T>,
    pixels: Channels<'a, T>,
    results: Channels<'a, T>,
    out: Out<'a, T>,
}

impl<T: Real> Share<'_, T> {
    fn run(&self, tiles: usize, rows: Range<usize>, part: &mut Part) {
        let ins = self.pixels.channels;
        let width = self.kernels.columns;
        let height = rows.len().div_ceil(rows.len().div_ceil(self.kernels.rows));
        let depth = DEPTH.min(tiles);
        let panel = depth * POINTS * width;
        let point_len = depth * height + WEIGHT_LANES;
        let gathered = depth * RESULTS * WEIGHT_LANES;
        let (pixels, rest) = part.lend(ins.div_ceil(width) * panel, POINTS * point_len + gathered);
        let (results, gathered) = rest.split_at_mut(POINTS * point_len);
        for tiles in chunks(0..tiles, DEPTH) {
            for (lanes, to) in chunks(0..ins, width).zip(pixels.chunks_exact_mut(panel)) {
                let to = &mut to[..tiles.len() * POINTS * width];
                self.transform_pixels(&tiles, lanes, to);
            }
            for rows in chunks(rows.clone(), height) {
                let gathered = &mut gathered[..tiles.len() * RESULTS * WEIGHT_LANES];
                self.transform_results(&tiles, &rows, gathered, results, point_len);
                for (lanes, pixels) in chunks(0..ins, width).zip(pixels.chunks_exact(panel)) {
                    self.multiply(&tiles, rows.clone(), lanes, (results, point_len), pixels);
                }
            }
        }
    }

    /// `[tile, point, channel]`.
    fn transform_pixels(&self, tiles: &Range<usize>, channels: Range<usize>, to: &mut [T]) {
        let width = self.kernels.columns;
        for tap in 0..POINTS {
            let place = (tap * width, channels.len());
            let from = (self.pixels.taps.get(tap), channels.start);
            self.pixels.pack_tap(&mut *to, POINTS * width, tiles.clone(), place, from);
        }
        vectorized_on(self.isa, Input(to, width));
    }

    /// `[point, tile, channel]`.
    fn transform_results(
        &self,
        tiles: &Range<usize>,
        channels: &Range<usize>,
        gathered: &mut [T],
        to: &mut [T],
        point_stride: usize,
    ) {
        let width = RESULTS * WEIGHT_LANES;
        // Whole vectors where there are channels enough: what is in lanes beyond the rows reaches no result.
        let first = self.results.first + channels.start;
        let is_room = first + WEIGHT_LANES <= self.results.all;
        let lanes = if is_room { WEIGHT_LANES } else { channels.len() };
        for tap in 0..RESULTS {
            let place = (tap * WEIGHT_LANES, lanes);
            let from = (self.results.taps.get(tap), channels.start);
            self.results.pack_tap(&mut *gathered, width, tiles.clone(), place, from);
        }
        let rows = channels.len();
        vectorized_on(self.isa, transform::Result { from: gathered, to, point_stride, rows });
    }

    /// Adds the products of all points to the sum, `[out, point, in]`.
    fn multiply(
        &self,
        tiles: &Range<usize>,
        rows: Range<usize>,
        lanes: Range<usize>,
        (results, point_len): (&[T], usize),
        pixels: &[T],
    ) {
        let width = self.kernels.columns;
        let step = POINTS * width;
        for (point, results) in results.chunks_exact(point_len).enumerate() {
            let a = &results[..tiles.len() * rows.len()];
            let b = &pixels[..tiles.len() * step][point * width..];
            let tile = Tile {
                depth: tiles.len(),
                a: a.as_ptr(),
                a_stride: None,
                b: b.as_ptr(),
                b_step: step,
                c: self.out.at(rows.start, point * self.pixels.channels + lanes.start),
                c_step: self.out.row_stride(),
                rows: rows.len(),
                columns: lanes.len(),
                mode: if tiles.start == 0 { Write::Set } else { Write::Add },
                finish: Finish::NONE,
            };
            // SAFETY: `a` is a packed panel of this depth and `rows`; `b` holds the kernel's width at `depth` steps;
            // `c` begins at these rows and lanes of the sum, which are this share's alone; rows and columns
            // are no more than the kernel's.
            unsafe { (self.kernels.tile)(&tile) };
        }
    }
}
