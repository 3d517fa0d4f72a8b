//! A tile of a product, and the portable loop that makes it.
#![expect(unsafe_code, reason = "tiles are read and written by pointer; the loops around check")]

use super::{
    element::{Plain, put},
    epilogue::Activation,
};
use crate::kernel::{
    Write,
    isa::{Isa, Kernel, vectorized_on},
};

/// One tile of C: the sum over `depth` of a column of A times a row of B.
///
/// # Safety
/// For whoever calls a kernel with it: `a` holds `depth * rows` elements, or `depth` at each of `rows` strides, `b` holds `columns` (or, where
/// the step is not 0 or `depth` is 1, up to the kernel's width) elements at each of `depth` steps, `c` may
/// be read and written at `rows` steps of `columns` elements, and by nobody else meanwhile.
#[derive(Debug)]
pub(crate) struct Tile<T> {
    pub(crate) depth: usize,
    /// Element (i, k) at `k * rows + i`, or at `i * stride + k` where a stride is given.
    pub(crate) a: *const T,
    pub(crate) a_stride: Option<usize>,
    /// Element (k, j) at `k * b_step + j`, for all j below the kernel's width.
    pub(crate) b: *const T,
    pub(crate) b_step: usize,
    pub(crate) c: *mut T,
    pub(crate) c_step: usize,
    /// 1 to the kernel's height.
    pub(crate) rows: usize,
    /// 1 to the kernel's width.
    pub(crate) columns: usize,
    pub(crate) mode: Write,
    pub(crate) finish: Finish<T>,
}

/// What a kernel does to the elements before it writes them, after what was there has been added: while they are in
/// registers. To read them again at once would wait for all of them to have been written.
///
/// # Safety
/// For whoever calls a kernel with it: a bias holds an element for each of the tile's columns, or for each of its rows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Finish<T> {
    pub(crate) bias: TileBias<T>,
    pub(crate) activation: Activation,
}

impl<T> Finish<T> {
    pub(crate) const NONE: Self = Self { bias: TileBias::None, activation: Activation::Identity };
}

/// The part of a bias that belongs to a tile.
#[derive(Debug, Clone, Copy)]
pub(crate) enum TileBias<T> {
    None,
    PerColumn(*const T),
    PerRow(*const T),
}

/// Plain products and sums, two roundings: the same bits on every machine.
///
/// # Safety
/// See [`Tile`].
pub(super) unsafe fn portable<T: Plain, const ROWS: usize, const COLUMNS: usize>(tile: &Tile<T>) {
    // On the best instruction set: the bits are the same on all.
    vectorized_on(Isa::Avx512, PlainTile::<T, ROWS, COLUMNS>(tile));
}

struct PlainTile<'a, T, const ROWS: usize, const COLUMNS: usize>(&'a Tile<T>);

impl<T: Plain, const ROWS: usize, const COLUMNS: usize> Kernel for PlainTile<'_, T, ROWS, COLUMNS> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let tile = self.0;
        let mut sums = [[T::default(); COLUMNS]; ROWS];
        for k in 0..tile.depth {
            // SAFETY: `b` holds COLUMNS elements at each step, `a` holds `rows`.
            let b = unsafe { tile.b.add(k * tile.b_step).cast::<[T; COLUMNS]>().read_unaligned() };
            for (i, sums) in sums.iter_mut().enumerate().take(tile.rows) {
                // SAFETY: as above.
                let a = unsafe {
                    match tile.a_stride {
                        None => *tile.a.add(k * tile.rows + i),
                        Some(stride) => *tile.a.add(i * stride + k),
                    }
                };
                for (sum, b) in sums.iter_mut().zip(b) {
                    *sum = *sum + a * b;
                }
            }
        }
        for (i, sums) in sums.iter().enumerate().take(tile.rows) {
            for (j, &sum) in sums.iter().enumerate().take(tile.columns) {
                // SAFETY: `c` may be written at `rows` steps of `columns` elements; a bias is as long as its side.
                unsafe {
                    let c = tile.c.add(i * tile.c_step + j);
                    put(c, sum, tile.mode);
                    *c = finished(*c, &tile.finish, i, j);
                }
            }
        }
    }
}

/// Element (i, j) of a tile with bias and activation.
///
/// # Safety
/// See [`Finish`].
#[inline(always)]
unsafe fn finished<T: Plain>(value: T, finish: &Finish<T>, i: usize, j: usize) -> T {
    // SAFETY: the caller vouches for it.
    let value = unsafe {
        match finish.bias {
            TileBias::None => value,
            TileBias::PerColumn(bias) => value + *bias.add(j),
            TileBias::PerRow(bias) => value + *bias.add(i),
        }
    };
    match finish.activation {
        Activation::Identity => value,
        // Written so that NaN comes through.
        Activation::Relu => {
            if value <= T::default() {
                T::default()
            } else {
                value
            }
        }
    }
}
