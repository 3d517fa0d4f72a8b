//! The transforms of F(2x2, 3x3): 4 x 4 pixels, a kernel of 3 x 3 and 2 x 2 results, each for many lanes at a time. Sums,
//! differences and halves alone: the same bits on every instruction set.
#![expect(clippy::needless_range_loop, reason = "lane by lane across many arrays")]

use crate::{
    kernel::{Write, isa::Kernel},
    real::Real,
};

/// Elements of a transformed tile or kernel.
pub(super) const POINTS: usize = 16;
/// Elements of a kernel.
pub(super) const TAPS: usize = 9;

// What follows is written for one lane; loops over the lanes become vector code.

/// Bᵀ d along one axis.
#[inline(always)]
fn input<T: Real>([a, b, c, d]: [T; 4]) -> [T; 4] {
    [a - c, b + c, c - b, b - d]
}

/// G g along one axis.
#[inline(always)]
fn weight<T: Real>([a, b, c]: [T; 3]) -> [T; 4] {
    let half = T::from_f64(0.5);
    let ends = a + c;
    [a, (ends + b) * half, (ends - b) * half, c]
}

/// Aᵀ m along one axis.
#[inline(always)]
fn output<T: Real>([a, b, c, d]: [T; 4]) -> [T; 2] {
    [a + b + c, b - c - d]
}

/// A g along one axis.
#[inline(always)]
fn result<T: Real>([a, b]: [T; 2]) -> [T; 4] {
    [a, a + b, a - b, -b]
}

/// Gᵀ u along one axis.
#[inline(always)]
fn gradient<T: Real>([a, b, c, d]: [T; 4]) -> [T; 3] {
    let half = T::from_f64(0.5);
    let sum = (b + c) * half;
    [a + sum, (b - c) * half, sum + d]
}

/// Bᵀ d B for each channel of a panel of tiles, in place: `[channel, point, lane]`.
pub(super) struct Input<'a, T>(pub(super) &'a mut [T], pub(super) usize);

impl<T: Real> Kernel for Input<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        match self.1 {
            32 => transform_input::<T, 32>(self.0),
            16 => transform_input::<T, 16>(self.0),
            _ => transform_input::<T, 8>(self.0),
        }
    }
}

#[inline(always)]
fn transform_input<T: Real, const W: usize>(tiles: &mut [T]) {
    for tile in tiles.as_chunks_mut::<W>().0.as_chunks_mut::<POINTS>().0 {
        for lane in 0..W {
            let mut rows = [[T::ZERO; 4]; 4];
            for y in 0..4 {
                let at = 4 * y;
                rows[y] = input([
                    tile[at][lane],
                    tile[at + 1][lane],
                    tile[at + 2][lane],
                    tile[at + 3][lane],
                ]);
            }
            for x in 0..4 {
                let column = input([rows[0][x], rows[1][x], rows[2][x], rows[3][x]]);
                for y in 0..4 {
                    tile[4 * y + x][lane] = column[y];
                }
            }
        }
    }
}

/// Lanes of the weights' panels.
pub(super) const WEIGHT_LANES: usize = 16;
/// G g Gᵀ for each pair of a channel and a lane.
pub(super) struct Weight<'a, T> {
    /// `[channel, tap, lane]`, 16 lanes.
    pub(super) taps: &'a [T],
    /// Whether the kernel is turned by half a circle.
    pub(super) is_turned: bool,
    /// `[point, channel, row]`, from the first of these channels on. Whole lanes are written for each channel,
    /// beyond the rows that there are: channels come in order, points lie apart.
    pub(super) to: &'a mut [T],
    pub(super) point_stride: usize,
    pub(super) rows: usize,
}

impl<T: Real> Kernel for Weight<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { taps, is_turned, to, point_stride, rows } = self;
        let channels = taps.as_chunks::<WEIGHT_LANES>().0.as_chunks::<TAPS>().0;
        for (channel, taps) in channels.iter().enumerate() {
            let mut points = [[T::ZERO; WEIGHT_LANES]; POINTS];
            for lane in 0..WEIGHT_LANES {
                let mut half_way = [[T::ZERO; 4]; 3];
                for y in 0..3 {
                    let at = 3 * y;
                    half_way[y] = weight([taps[at][lane], taps[at + 1][lane], taps[at + 2][lane]]);
                }
                for x in 0..4 {
                    let column = weight([half_way[0][x], half_way[1][x], half_way[2][x]]);
                    for y in 0..4 {
                        points[4 * y + x][lane] = column[y];
                    }
                }
            }
            for (point, values) in points.iter().enumerate() {
                // Turned by half a circle, a kernel's transform is turned likewise.
                let point = if is_turned { turned(point) } else { point };
                let at = point * point_stride + channel * rows;
                to[at..at + WEIGHT_LANES].copy_from_slice(values);
            }
        }
    }
}

/// The point of the transform where a kernel turned by half a circle has what the kernel has here: G has its first and
/// last rows exchanged, and the middle ones stay.
fn turned(point: usize) -> usize {
    let along = |i: usize| [3, 1, 2, 0][i];
    along(point / 4) * 4 + along(point % 4)
}

/// Aᵀ m A of the rows of a panel, `[row, point, lane]`: for each row two rows of twice as many pixels, tile by tile.
pub(super) struct Output<'a, T> {
    pub(super) from: &'a [T],
    pub(super) to: &'a mut [T],
    pub(super) width: usize,
}

impl<T: Real> Kernel for Output<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        match self.width {
            32 => transform_output::<T, 32>(self.from, self.to),
            16 => transform_output::<T, 16>(self.from, self.to),
            _ => transform_output::<T, 8>(self.from, self.to),
        }
    }
}

#[inline(always)]
fn transform_output<T: Real, const W: usize>(from: &[T], to: &mut [T]) {
    let rows = from.as_chunks::<W>().0.as_chunks::<POINTS>().0;
    let to = to.as_chunks_mut::<2>().0.as_chunks_mut::<W>().0.as_chunks_mut::<2>().0;
    for (points, [upper, lower]) in rows.iter().zip(to) {
        for lane in 0..W {
            let mut rows = [[T::ZERO; 2]; 4];
            for y in 0..4 {
                let at = 4 * y;
                rows[y] = output([
                    points[at][lane],
                    points[at + 1][lane],
                    points[at + 2][lane],
                    points[at + 3][lane],
                ]);
            }
            let left = output([rows[0][0], rows[1][0], rows[2][0], rows[3][0]]);
            let right = output([rows[0][1], rows[1][1], rows[2][1], rows[3][1]]);
            upper[lane] = [left[0], right[0]];
            lower[lane] = [left[1], right[1]];
        }
    }
}

/// Pixels of a tile of results.
pub(super) const RESULTS: usize = 4;

/// A g Aᵀ for each tile and lane.
pub(super) struct Result<'a, T> {
    /// `[tile, pixel, lane]`, 16 lanes.
    pub(super) from: &'a [T],
    /// `[point, tile, row]`; written as [`Weight`] does.
    pub(super) to: &'a mut [T],
    pub(super) point_stride: usize,
    pub(super) rows: usize,
}

impl<T: Real> Kernel for Result<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { from, to, point_stride, rows } = self;
        let tiles = from.as_chunks::<WEIGHT_LANES>().0.as_chunks::<RESULTS>().0;
        for (tile, pixels) in tiles.iter().enumerate() {
            let mut points = [[T::ZERO; WEIGHT_LANES]; POINTS];
            for lane in 0..WEIGHT_LANES {
                let upper = result([pixels[0][lane], pixels[1][lane]]);
                let lower = result([pixels[2][lane], pixels[3][lane]]);
                for x in 0..4 {
                    let column = result([upper[x], lower[x]]);
                    for y in 0..4 {
                        points[4 * y + x][lane] = column[y];
                    }
                }
            }
            for (point, values) in points.iter().enumerate() {
                let at = point * point_stride + tile * rows;
                to[at..at + WEIGHT_LANES].copy_from_slice(values);
            }
        }
    }
}

/// Gᵀ u G for each channel: `[point, channel]` to `[channel, tap]`.
pub(super) struct Gradient<'a, T> {
    pub(super) from: &'a [T],
    pub(super) to: &'a mut [T],
    pub(super) mode: Write,
}

impl<T: Real> Kernel for Gradient<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let channels = self.from.len() / POINTS;
        for (channel, to) in self.to.as_chunks_mut::<TAPS>().0.iter_mut().enumerate() {
            let point = |y: usize, x: usize| self.from[(4 * y + x) * channels + channel];
            let mut rows = [[T::ZERO; 3]; 4];
            for y in 0..4 {
                rows[y] = gradient([point(y, 0), point(y, 1), point(y, 2), point(y, 3)]);
            }
            for x in 0..3 {
                let column = gradient([rows[0][x], rows[1][x], rows[2][x], rows[3][x]]);
                for y in 0..3 {
                    let to = &mut to[3 * y + x];
                    *to = match self.mode {
                        Write::Set => column[y],
                        Write::Add => *to + column[y],
                    };
                }
            }
        }
    }
}
