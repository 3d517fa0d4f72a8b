//! The innermost loops for each kind of float and instruction set.
#![expect(unsafe_code, reason = "tiles are read and written by pointer; the loops around check")]

use super::{
    gather::{self, Gather},
    tile::{self, Tile},
};
use crate::kernel::{
    Write,
    isa::{Isa, Kernel, vectorized_on},
};

/// How the floats' innermost loops are found.
pub trait Element: Copy + Send + Sync + 'static {
    /// For an instruction set that this processor has.
    #[doc(hidden)]
    fn kernels(isa: Isa) -> Kernels<Self>;
}

/// The innermost loops of one kind of float on one instruction set.
#[derive(Debug, Clone, Copy)]
pub struct Kernels<T: 'static> {
    /// The most rows of a tile.
    pub(crate) rows: usize,
    /// The columns of a tile: what the panels of B are wide.
    pub(crate) columns: usize,
    pub(crate) tile: unsafe fn(&Tile<T>),
    pub(crate) transpose: unsafe fn(&Transpose<T>),
    /// The most short and the most long vectors of a [`Dots`]: two shapes to choose from.
    pub(crate) dots_of: [[usize; 2]; 2],
    pub(crate) dots: unsafe fn(&Dots<T>),
    pub(crate) gather: unsafe fn(&Gather<'_, T>),
}

/// Copies `lanes` vectors of `depth` elements so that element k of lane l is at `k * width + l`.
///
/// # Safety
/// For whoever calls a kernel with it: `from` holds `depth` elements at each of `lanes` strides,
/// `to` has room for `depth * width`, and lanes are no more than `width`.
#[derive(Debug)]
pub(crate) struct Transpose<T> {
    pub(crate) from: *const T,
    pub(crate) lane_stride: usize,
    pub(crate) lanes: usize,
    pub(crate) depth: usize,
    pub(crate) to: *mut T,
    pub(crate) width: usize,
}

/// Products of each of a few short-lived vectors with each of a few streamed ones.
///
/// # Safety
/// For whoever calls a kernel with it: `short` holds `counts[0]` times `depth` elements, rounded up to
/// [`LANES`], `long` holds `depth` elements at each of `counts[1]` strides, and `to` may be read and
/// written at every (i·strides\[0\] + j·strides\[1\]).
#[derive(Debug)]
pub(crate) struct Dots<T> {
    pub(crate) depth: usize,
    /// Element (i, k) at `((k / LANES) * counts[0] + i) * LANES + k % LANES`: vectors that lie whole rows
    /// apart would drive each other out of the nearest cache.
    pub(crate) short: *const T,
    pub(crate) long: *const T,
    pub(crate) long_stride: usize,
    pub(crate) counts: [usize; 2],
    pub(crate) to: *mut T,
    pub(crate) strides: [usize; 2],
    pub(crate) mode: Write,
}

impl<T> Kernels<T> {
    /// How many short and long vectors are multiplied at a time where there are so many short ones: in
    /// as few calls as possible, the short ones in equal parts.
    pub(crate) fn dots_for(&self, shorts: usize) -> [usize; 2] {
        let calls = |[most, longs]: [usize; 2]| (shorts.div_ceil(most), usize::MAX - longs);
        let [first, second] = self.dots_of;
        let [most, longs] = if calls(first) < calls(second) { first } else { second };
        [shorts.div_ceil(shorts.div_ceil(most)), longs]
    }
}

/// Partial sums of a scalar product, whatever the vectors' width.
pub(crate) const LANES: usize = 16;

impl Element for f32 {
    fn kernels(isa: Isa) -> Kernels<Self> {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => super::x86::AVX512,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => super::x86::AVX2,
            _ => portable::<Self, 4, 8>(),
        }
    }
}

impl Element for f64 {
    fn kernels(_: Isa) -> Kernels<Self> {
        portable::<Self, 4, 8>()
    }
}

/// What the portable loops need.
pub(super) trait Plain:
    Element + Default + PartialOrd + std::ops::Add<Output = Self> + std::ops::Mul<Output = Self>
{
}
impl<T> Plain for T where
    T: Element + Default + PartialOrd + std::ops::Add<Output = T> + std::ops::Mul<Output = T>
{
}

fn portable<T: Plain, const ROWS: usize, const COLUMNS: usize>() -> Kernels<T> {
    Kernels {
        rows: ROWS,
        columns: COLUMNS,
        tile: tile::portable::<T, ROWS, COLUMNS>,
        transpose,
        dots_of: [[4, 1]; 2],
        dots,
        gather: gather::portable,
    }
}

struct Run<'a, C>(&'a C);

/// # Safety
/// `to` may be read and written.
#[inline(always)]
pub(super) unsafe fn put<T: Plain>(to: *mut T, sum: T, mode: Write) {
    // SAFETY: the caller vouches for it.
    unsafe {
        *to = match mode {
            Write::Set => sum,
            Write::Add => *to + sum,
        }
    }
}

/// # Safety
/// See [`Transpose`].
pub(super) unsafe fn transpose<T: Plain>(call: &Transpose<T>) {
    for l in 0..call.lanes {
        for k in 0..call.depth {
            // SAFETY: both in bounds as the caller vouches.
            unsafe { *call.to.add(k * call.width + l) = *call.from.add(l * call.lane_stride + k) };
        }
    }
}

/// # Safety
/// See [`Dots`].
unsafe fn dots<T: Plain>(call: &Dots<T>) {
    vectorized_on(Isa::Avx512, Run(call));
}

impl<T: Plain> Kernel for Run<'_, Dots<T>> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let call = self.0;
        for i in 0..call.counts[0] {
            for j in 0..call.counts[1] {
                let mut lanes = [T::default(); LANES];
                for k in (0..call.depth).step_by(LANES) {
                    for (lane, sum) in lanes.iter_mut().enumerate().take(call.depth - k) {
                        // SAFETY: `k + lane` is below the depth, the vectors are `depth` long.
                        let (a, b) = unsafe {
                            (
                                *call.short.add(k * call.counts[0] + i * LANES + lane),
                                *call.long.add(j * call.long_stride + k + lane),
                            )
                        };
                        *sum = *sum + a * b;
                    }
                }
                let mut half = LANES / 2;
                while 0 < half {
                    for lane in 0..half {
                        lanes[lane] = lanes[lane] + lanes[lane + half];
                    }
                    half /= 2;
                }
                let at = i * call.strides[0] + j * call.strides[1];
                // SAFETY: `to` may be written at each (i, j).
                unsafe { put(call.to.add(at), lanes[0], call.mode) };
            }
        }
    }
}
