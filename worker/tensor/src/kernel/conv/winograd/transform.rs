//! The transforms of F(2x2, 3x3): 4 x 4 pixels, a kernel of 3 x 3 and 2 x 2 results, each for many lanes at a time. Sums,
//! differences and halves alone: the same bits on every instruction set.

use crate::{kernel::isa::Kernel, real::Real};

/// Elements of a transformed tile or kernel.
pub(super) const POINTS: usize = 16;
/// Elements of a kernel.
pub(super) const TAPS: usize = 9;
/// Lanes that are worked on at a time.
const LANES: usize = 8;

type Lanes<T> = [T; LANES];

#[inline(always)]
fn load<T: Real>(from: &[T], at: usize) -> Lanes<T> {
    let mut lanes = [T::ZERO; LANES];
    lanes.copy_from_slice(&from[at..at + LANES]);
    lanes
}

#[inline(always)]
fn zip<T: Real>(a: Lanes<T>, b: Lanes<T>, value: impl Fn(T, T) -> T) -> Lanes<T> {
    let mut lanes = a;
    for (lane, b) in lanes.iter_mut().zip(b) {
        *lane = value(*lane, b);
    }
    lanes
}

#[inline(always)]
fn plus<T: Real>(a: Lanes<T>, b: Lanes<T>) -> Lanes<T> {
    zip(a, b, |a, b| a + b)
}

#[inline(always)]
fn minus<T: Real>(a: Lanes<T>, b: Lanes<T>) -> Lanes<T> {
    zip(a, b, |a, b| a - b)
}

#[inline(always)]
fn half<T: Real>(a: Lanes<T>) -> Lanes<T> {
    let half = T::from_f64(0.5);
    a.map(|lane| lane * half)
}

/// Bᵀ d along one axis.
#[inline(always)]
fn input<T: Real>([a, b, c, d]: [Lanes<T>; 4]) -> [Lanes<T>; 4] {
    [minus(a, c), plus(b, c), minus(c, b), minus(b, d)]
}

/// G g along one axis.
#[inline(always)]
fn weight<T: Real>([a, b, c]: [Lanes<T>; 3]) -> [Lanes<T>; 4] {
    let ends = plus(a, c);
    [a, half(plus(ends, b)), half(minus(ends, b)), c]
}

/// Aᵀ m along one axis.
#[inline(always)]
fn output<T: Real>([a, b, c, d]: [Lanes<T>; 4]) -> [Lanes<T>; 2] {
    [plus(plus(a, b), c), minus(minus(b, c), d)]
}

/// Bᵀ d B for each channel of a panel of tiles.
pub(super) struct Input<'a, T> {
    /// `[channel, pixel of the tile, lane]`.
    pub(super) patches: &'a [T],
    /// `[point, channel, lane]`, from the first of these channels on.
    pub(super) to: &'a mut [T],
    /// Elements from one point to the next.
    pub(super) point_stride: usize,
    pub(super) width: usize,
}

impl<T: Real> Kernel for Input<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { patches, to, point_stride, width } = self;
        for (channel, patch) in patches.chunks_exact(POINTS * width).enumerate() {
            for lane in (0..width).step_by(LANES) {
                let mut rows = [[[T::ZERO; LANES]; 4]; 4];
                for (y, row) in rows.iter_mut().enumerate() {
                    for (x, pixel) in row.iter_mut().enumerate() {
                        *pixel = load(patch, (y * 4 + x) * width + lane);
                    }
                    *row = input(*row);
                }
                for x in 0..4 {
                    let column = input([rows[0][x], rows[1][x], rows[2][x], rows[3][x]]);
                    for (y, point) in column.iter().enumerate() {
                        let at = (y * 4 + x) * point_stride + channel * width + lane;
                        to[at..at + LANES].copy_from_slice(point);
                    }
                }
            }
        }
    }
}

/// G g Gᵀ for each pair of a channel and a lane.
pub(super) struct Weight<'a, T> {
    /// `[channel, tap, lane]`, 16 lanes.
    pub(super) taps: &'a [T],
    /// Whether the kernel is turned by half a circle.
    pub(super) is_turned: bool,
    /// `[point, channel, row]`, from the first of these channels on. A row of whole lanes is written for each
    /// channel, beyond the rows that there are: channels come in order, points lie apart.
    pub(super) to: &'a mut [T],
    pub(super) point_stride: usize,
    pub(super) rows: usize,
}

/// Lanes of the weights' panels.
pub(super) const WEIGHT_LANES: usize = 16;

impl<T: Real> Kernel for Weight<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { taps, is_turned, to, point_stride, rows } = self;
        for (channel, taps) in taps.chunks_exact(TAPS * WEIGHT_LANES).enumerate() {
            for lane in (0..WEIGHT_LANES).step_by(LANES) {
                if rows <= lane {
                    continue;
                }
                let mut half_way = [[[T::ZERO; LANES]; 4]; 3];
                for (y, row) in half_way.iter_mut().enumerate() {
                    let mut each = [[T::ZERO; LANES]; 3];
                    for (x, each) in each.iter_mut().enumerate() {
                        let tap = if is_turned { TAPS - 1 - (y * 3 + x) } else { y * 3 + x };
                        *each = load(taps, tap * WEIGHT_LANES + lane);
                    }
                    *row = weight(each);
                }
                for x in 0..4 {
                    let column = weight([half_way[0][x], half_way[1][x], half_way[2][x]]);
                    for (y, point) in column.iter().enumerate() {
                        let at = (y * 4 + x) * point_stride + channel * rows + lane;
                        to[at..at + LANES].copy_from_slice(point);
                    }
                }
            }
        }
    }
}

/// Aᵀ m A of one row of a panel: two rows of pixels, tile by tile.
pub(super) struct Output<'a, T> {
    /// `[point, row, lane]`, from this row on.
    pub(super) from: &'a [T],
    pub(super) point_stride: usize,
    /// Two rows of twice as many pixels as there are lanes.
    pub(super) to: [&'a mut [T]; 2],
    pub(super) width: usize,
}

impl<T: Real> Kernel for Output<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { from, point_stride, to: [upper, lower], width } = self;
        for lane in (0..width).step_by(LANES) {
            let mut rows = [[[T::ZERO; LANES]; 2]; 4];
            for (y, row) in rows.iter_mut().enumerate() {
                let mut points = [[T::ZERO; LANES]; 4];
                for (x, point) in points.iter_mut().enumerate() {
                    *point = load(from, (y * 4 + x) * point_stride + lane);
                }
                *row = output(points);
            }
            let [left, right] =
                [0, 1].map(|x| output([rows[0][x], rows[1][x], rows[2][x], rows[3][x]]));
            for (y, to) in [&mut *upper, &mut *lower].into_iter().enumerate() {
                let to = &mut to[2 * lane..2 * lane + 2 * LANES];
                for (i, to) in to.chunks_exact_mut(2).enumerate() {
                    to[0] = left[y][i];
                    to[1] = right[y][i];
                }
            }
        }
    }
}
