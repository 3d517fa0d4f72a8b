//! Kernels of 3 x 3 at stride 1 by fewer multiplications: 16 for 2 x 2 results instead of 36.
//!
//! Tiles of 4 x 4 pixels, every second row and column, and kernels are transformed; of each of the 16 points of
//! the transform a matrix product over the channels is made; 2 x 2 results come back from these.
//!
//! # Error
//! Transforms are sums of up to 4 terms and halves. The error is spread over a tile: it is to be seen beside the
//! tile's largest pixel. Measured so it is no larger than that of a direct sum, whose sums are 9 times as long.
//! # Source
//! Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks" (2015), F(2x2, 3x3).
#![expect(unsafe_code, reason = "threads write disjoint tiles of one result by pointer")]

mod gradient;
mod transform;

use std::{ops::Range, slice};

use super::{
    ConvShape,
    correlation::Correlation,
    patches::{Axis, MAX_WIDTH, Patches, Taps},
};
use crate::{
    kernel::{
        Write,
        gemm::{
            Scratch,
            element::Kernels,
            out::Out,
            pack::{PackSource as _, Strided},
            plan::{chunks, depth_blocks},
            scratch::Part,
            tile::{Finish, Tile},
        },
        isa::{Isa, vectorized_on},
        threads::Threads,
    },
    real::Real,
};
use transform::{Input, Output, POINTS, RESULTS, TAPS, WEIGHT_LANES, Weight};

/// With fewer channels on either side the transforms cost more than they save.
const MIN_CHANNELS: usize = 16;
/// Transformed pixels that are kept at a time: half of a second-level cache of 1 MiB.
const TILES_BLOCK: usize = 128 * 1024;
/// Channels whose patches are gathered at a time: they stay in the first-level cache.
const CHANNELS: usize = 16;

pub(super) use gradient::{Gradient, Operand, sum_len};

/// Whether a convolution goes this way: by its shape alone.
pub(super) fn fits(shape: &ConvShape) -> bool {
    let (outs, ins) = shape.channels_per_group();
    shape.kernel == [3, 3]
        && shape.stride == [1, 1]
        && shape.dilation == [1, 1]
        && MIN_CHANNELS <= outs.min(ins)
}

/// How many elements the transformed weights have.
pub(super) fn weights_len<T: Real>(isa: Isa, rows: usize, channels: usize) -> usize {
    let plan = Plan::new(&T::kernels(isa.runnable()), rows, channels);
    rows.div_ceil(plan.height) * plan.panel_len()
}

/// Makes a convolution of 3 x 3, whose transformed weights go to `weights`; threads share the tiles.
pub(super) fn run<T: Real>(
    task: &Correlation<'_, T>,
    out: Out<'_, T>,
    weights: &mut [T],
    threads: &Threads,
    scratch: &mut Scratch,
) {
    let kernels = T::kernels(task.isa.runnable());
    let plan = Plan::new(&kernels, task.rows(), task.channels());
    threads.for_each_chunk(weights, plan.panel_len(), |panel, to| {
        let first = panel * plan.height;
        let rows = first..(first + plan.height).min(task.rows());
        transform_weights(task, &plan, rows, to);
    });
    let grid = task.patches.grid.map(|len| len.div_ceil(2));
    let tiles = task.batch * grid[0] * grid[1];
    // Of a turned kernel the last tap comes first.
    let tap = |axis: Axis| Axis { count: 4, first: axis.first + axis.step.min(0) * 2, step: 1 };
    let taps = Taps { y: tap(task.patches.taps.y), x: tap(task.patches.taps.x) };
    let patches = Patches { grid, stride: [2, 2], taps, ..task.patches };
    let per_share = tiles.div_ceil(threads.count()).next_multiple_of(plan.width).max(1);
    let parts = scratch.parts(tiles.div_ceil(per_share));
    threads.for_each_chunk(parts, 1, |index, parts| {
        let start = index * per_share;
        let tiles = start..(start + per_share).min(tiles);
        for part in parts {
            let share = Share { task, kernels, plan, patches, weights: &*weights, out };
            share.run(tiles.clone(), part);
        }
    });
}

fn transform_weights<T: Real>(
    task: &Correlation<'_, T>,
    plan: &Plan,
    rows: Range<usize>,
    to: &mut [T],
) {
    let mut taps = [T::ZERO; CHANNELS * TAPS * WEIGHT_LANES];
    for channels in chunks(0..plan.channels, CHANNELS) {
        let depth = channels.start * TAPS..channels.end * TAPS;
        let taps = &mut taps[..depth.len() * WEIGHT_LANES];
        Strided::new(task.weights).pack(task.isa, taps, WEIGHT_LANES, depth, rows.clone());
        let transform = Weight {
            taps,
            is_turned: task.patches.taps.y.step < 0,
            to: &mut to[channels.start * rows.len()..],
            point_stride: plan.point_len(),
            rows: rows.len(),
        };
        vectorized_on(task.isa, transform);
    }
}

/// How the work is cut up.
#[derive(Debug, Clone, Copy)]
struct Plan {
    channels: usize,
    /// Rows of a panel of weights, tiles of a panel of pixels.
    height: usize,
    width: usize,
    panels_per_block: usize,
}

impl Plan {
    fn new<T>(kernels: &Kernels<T>, rows: usize, channels: usize) -> Self {
        let panel = POINTS * channels * kernels.columns;
        Self {
            channels,
            height: rows.div_ceil(rows.div_ceil(kernels.rows).max(1)).max(1),
            width: kernels.columns,
            panels_per_block: (TILES_BLOCK / panel.max(1)).clamp(2, 8),
        }
    }

    /// Weights of one point in a panel, and room for the last row's unused lanes.
    fn point_len(&self) -> usize {
        self.channels * self.height + WEIGHT_LANES
    }

    fn panel_len(&self) -> usize {
        POINTS * self.point_len()
    }
}

/// One thread's share.
struct Share<'a, T: 'static> {
    task: &'a Correlation<'a, T>,
    kernels: Kernels<T>,
    plan: Plan,
    patches: Patches<'a, T>,
    weights: &'a [T],
    out: Out<'a, T>,
}

impl<T: Real> Share<'_, T> {
    fn run(&self, tiles: Range<usize>, part: &mut Part) {
        let Plan { channels, height, width, panels_per_block, .. } = self.plan;
        let panel_len = POINTS * channels * width;
        let product = POINTS * height * width;
        let results = RESULTS * height * width;
        let (pixels, rest) = part.lend(panels_per_block * panel_len, product + results);
        let (product, buffer) = rest.split_at_mut(product);
        for block in chunks(tiles, panels_per_block * width) {
            for (panel, to) in chunks(block.clone(), width).zip(pixels.chunks_exact_mut(panel_len))
            {
                self.transform_pixels(panel, to);
            }
            for rows in chunks(0..self.task.rows(), height) {
                let weights = rows.start / height * self.plan.panel_len();
                let weights = &self.weights[weights..][..self.plan.panel_len()];
                let panels = pixels.chunks_exact(panel_len);
                for (panel, pixels) in chunks(block.clone(), width).zip(panels) {
                    self.multiply(weights, pixels, product, rows.len());
                    self.finish(panel, rows.clone(), product, buffer);
                }
            }
        }
    }

    /// `[channel, point, tile]`.
    fn transform_pixels(&self, tiles: Range<usize>, to: &mut [T]) {
        let Plan { channels, width, .. } = self.plan;
        let blocks = to.chunks_mut(CHANNELS * POINTS * width);
        for (channels, to) in chunks(0..channels, CHANNELS).zip(blocks) {
            let depth = channels.start * POINTS..channels.end * POINTS;
            self.patches.pack(self.task.isa, to, width, depth, tiles.clone());
            vectorized_on(self.task.isa, Input(to, width));
        }
    }

    /// The products of all points: `[row, point, tile]`.
    fn multiply(&self, weights: &[T], pixels: &[T], to: &mut [T], rows: usize) {
        let Plan { channels, width, .. } = self.plan;
        let step = POINTS * width;
        for (point, weights) in weights.chunks_exact(self.plan.point_len()).enumerate() {
            for (index, depth) in depth_blocks(channels).enumerate() {
                let a = &weights[depth.start * rows..depth.end * rows];
                let b = &pixels[depth.start * step..depth.end * step][point * width..];
                let c = &mut to[..rows * step][point * width..];
                let tile = Tile {
                    depth: depth.len(),
                    a: a.as_ptr(),
                    a_stride: None,
                    b: b.as_ptr(),
                    b_step: step,
                    c: c.as_mut_ptr(),
                    c_step: step,
                    rows,
                    columns: width,
                    mode: if index == 0 { Write::Set } else { Write::Add },
                    finish: Finish::NONE,
                };
                // SAFETY: `a` is a packed panel of this depth and `rows`; `b` and `c` hold the kernel's width at
                // `depth` and at `rows` steps; `rows` are no more than the kernel's.
                unsafe { (self.kernels.tile)(&tile) };
            }
        }
    }

    /// Transforms the products of a panel back and writes the pixels of its rows.
    fn finish(&self, tiles: Range<usize>, rows: Range<usize>, product: &[T], buffer: &mut [T]) {
        let width = self.plan.width;
        let (strips, count) = self.strips(tiles, rows.start);
        let buffer = &mut buffer[..RESULTS * rows.len() * width];
        let from = &product[..POINTS * rows.len() * width];
        vectorized_on(self.task.isa, Output { from, to: &mut *buffer, width });
        let pieces = buffer.chunks_exact_mut(RESULTS * width).zip(rows.clone());
        let pieces = pieces.map(|(piece, row)| (row, 0, piece));
        self.task.epilogue.finish(self.task.isa, pieces);
        for (i, buffer) in buffer.chunks_exact(RESULTS * width).enumerate() {
            for strip in &strips[..count] {
                let from = &buffer[strip.from..][..strip.len];
                // SAFETY: `strips` checked that the first row's strip is there, and each row of the product has
                // its own a stride behind the last; tiles are disjoint, those of this share are this
                // thread's alone.
                let to = unsafe {
                    let at = strip.to.add(i * self.out.row_stride());
                    slice::from_raw_parts_mut(at, strip.len)
                };
                match self.task.mode {
                    Write::Set => to.copy_from_slice(from),
                    Write::Add => to.iter_mut().zip(from).for_each(|(to, from)| *to += *from),
                }
            }
        }
    }

    /// Rows of pixels of neighbouring tiles, as far as they lie in the result, in row `row` of the product.
    fn strips(&self, tiles: Range<usize>, row: usize) -> ([Strip<T>; 2 * MAX_WIDTH], usize) {
        let [height, width] = self.task.patches.grid;
        let (runs, runs_count) = self.patches.runs(tiles);
        let nothing = Strip { to: std::ptr::null_mut(), from: 0, len: 0 };
        let mut strips = [nothing; 2 * MAX_WIDTH];
        let mut count = 0;
        for run in &runs[..runs_count] {
            for dy in 0..2 {
                let (y, x) = (2 * run.y + dy, 2 * run.x);
                if y < height {
                    let len = (2 * run.len).min(width - x);
                    let column = (run.image * height + y) * width + x;
                    strips[count] = Strip {
                        to: self.out.at(row, column),
                        from: 2 * (dy * self.plan.width + run.lane),
                        len,
                    };
                    count += 1;
                }
            }
        }
        (strips, count)
    }
}

/// Neighbouring pixels of the result.
#[derive(Clone, Copy)]
struct Strip<T> {
    to: *mut T,
    /// Where they lie in the buffer.
    from: usize,
    len: usize,
}
