//! Few rows (or columns) against a matrix whose rows run along the summed axis, as in a linear layer of a small
//! batch: the matrix is streamed once, unpacked.
#![expect(unsafe_code, reason = "threads write disjoint parts of one result by pointer")]

use std::ops::Range;

use super::{
    Matrix, MatrixMut, Product,
    element::{Dots, Kernels, LANES},
    out::Out,
    plan::chunks,
    scratch::Scratch,
};
use crate::{kernel::threads::Threads, real::Real};

/// Above this many rows packing the matrix pays.
const MAX_SHORT: usize = 16;
/// Multiply-adds below which a second thread costs more than it brings.
const MIN_SHARE: usize = 256 * 1024;

/// Whether a product goes this way: by its shape and orientation alone.
pub(super) fn fits<T: Real>(product: &Product<'_, T>) -> bool {
    roles(product).is_some()
}

/// Which side is short. `None`: neither, or the other one is not to be streamed.
fn roles<T: Real>(product: &Product<'_, T>) -> Option<Side> {
    let (m, n, k) = (product.a.rows, product.b.columns, product.a.columns);
    if k < 2 * LANES || m == 0 || n == 0 {
        return None;
    }
    if m <= MAX_SHORT && product.b.row_stride == 1 {
        Some(Side::Rows)
    } else if n <= MAX_SHORT && product.a.column_stride == 1 {
        Some(Side::Columns)
    } else {
        None
    }
}

/// Of the result: which are few.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Rows,
    Columns,
}

/// Makes the product.
pub(super) fn run<T: Real>(
    product: &Product<'_, T>,
    dst: MatrixMut<'_, T>,
    threads: &Threads,
    scratch: &mut Scratch,
) {
    let Some(side) = roles(product) else { return };
    let out = Out::new(dst);
    // Both as [vectors, depth].
    let (short, long) = match side {
        Side::Rows => (product.a, product.b.transposed()),
        Side::Columns => (product.b.transposed(), product.a),
    };
    let kernels = T::kernels(product.isa.runnable());
    let [part] = scratch.parts(1) else { return };
    let (packed, _) = part.lend(short.rows * long.columns.next_multiple_of(LANES), 0);
    let per_call = kernels.dots_for(short.rows);
    for shorts in chunks(0..short.rows, per_call[0]) {
        pack(&mut *packed, &short, shorts);
    }
    let worth = (short.rows * long.rows).saturating_mul(long.columns) / MIN_SHARE + 1;
    let per_share = long.rows.div_ceil(threads.count().min(worth)).next_multiple_of(LANES);
    let shorts = short.rows;
    let task = Streamed { product, kernels, side, packed, shorts, per_call, long, out };
    threads.for_each(long.rows.div_ceil(per_share), |index| {
        let start = index * per_share;
        task.share(start..(start + per_share).min(long.rows));
    });
}

/// Some of the short vectors, in the order in which the kernel reads them, zeros after the end.
fn pack<T: Real>(packed: &mut [T], short: &Matrix<'_, T>, range: Range<usize>) {
    let padded = short.columns.next_multiple_of(LANES);
    let packed = &mut packed[range.start * padded..range.end * padded];
    for (block, rows) in packed.chunks_exact_mut(range.len() * LANES).enumerate() {
        let depth = block * LANES..((block + 1) * LANES).min(short.columns);
        for (i, row) in rows.chunks_exact_mut(LANES).enumerate() {
            let from = &short.data[(range.start + i) * short.row_stride..];
            let (row, rest) = row.split_at_mut(depth.len());
            for (value, k) in row.iter_mut().zip(depth.clone()) {
                *value = from[k * short.column_stride];
            }
            rest.fill(T::ZERO);
        }
    }
}

struct Streamed<'a, T: 'static> {
    product: &'a Product<'a, T>,
    kernels: Kernels<T>,
    side: Side,
    /// The short vectors, as many at a time as a call takes.
    packed: &'a [T],
    shorts: usize,
    /// Short and long vectors of a call.
    per_call: [usize; 2],
    long: Matrix<'a, T>,
    out: Out<'a, T>,
}

impl<T: Real> Streamed<'_, T> {
    /// Some of the long vectors against all of the short ones. Shares are disjoint.
    fn share(&self, range: Range<usize>) {
        let strides = match self.side {
            Side::Rows => [self.out.row_stride(), 1],
            Side::Columns => [1, self.out.row_stride()],
        };
        let depth = self.long.columns;
        let padded = depth.next_multiple_of(LANES);
        for longs in chunks(range.clone(), self.per_call[1]) {
            for shorts in chunks(0..self.shorts, self.per_call[0]) {
                let to = match self.side {
                    Side::Rows => self.out.at(shorts.start, longs.start),
                    Side::Columns => self.out.at(longs.start, shorts.start),
                };
                let call = Dots {
                    depth,
                    short: self.packed[shorts.start * padded..shorts.end * padded].as_ptr(),
                    long: rows(&self.long, &longs),
                    long_stride: self.long.row_stride,
                    counts: [shorts.len(), longs.len()],
                    to,
                    strides,
                    mode: self.product.mode,
                };
                // SAFETY: `packed` holds these vectors padded, `rows` checked that the long ones are there;
                // the result has the product's shape, checked by `Product::run`; its part for `range` is
                // this call's alone; counts are no more than the kernel's.
                unsafe { (self.kernels.dots)(&call) };
            }
        }
        self.finish(range);
    }

    fn finish(&self, longs: Range<usize>) {
        let shorts = 0..self.shorts;
        let (rows, columns) = match self.side {
            Side::Rows => (shorts, longs),
            Side::Columns => (longs, shorts),
        };
        // SAFETY: this share's alone, and the kernels are done.
        let pieces = unsafe { self.out.pieces(rows, columns) };
        self.product.epilogue.finish(self.product.isa, pieces);
    }
}

/// Where some rows begin, each dense along the other axis.
fn rows<T: Real>(matrix: &Matrix<'_, T>, range: &Range<usize>) -> *const T {
    assert!(matrix.column_stride == 1);
    let reach = (range.len() - 1) * matrix.row_stride + matrix.columns;
    matrix.data[range.start * matrix.row_stride..][..reach].as_ptr()
}
