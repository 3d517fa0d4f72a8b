//! The matrix product, the heart of the engine: `C = A·B` or `C += A·B`, with what follows it.
//!
//! # Determinism
//! Which way a product goes is decided by its shape and by the orientation of its operands alone:
//!
//! * [`dot`]: 16 rows or fewer, or 16 columns or fewer, against a matrix whose rows run along the summed
//!   axis: that matrix is streamed once. Element l of the sum goes to partial sum l mod 16, and these are
//!   added in a fixed tree.
//! * [`blocked`]: everything else. Element by element within blocks of the summed axis; blocks are as many as
//!   the axis needs, equally long, and their sums are added in order.
//!
//! Neither depends on the number of threads, on where an element lies in the result, nor (within a way)
//! on how many rows and columns there are. AVX2 and AVX-512 round once per multiply-add and give
//! the same bits; the baseline rounds twice and differs from them. In f64 there is one code for all.

pub(crate) mod blocked;
mod dot;
pub(crate) mod element;
mod epilogue;
pub(crate) mod gather;
pub(crate) mod out;
pub(crate) mod pack;
pub(crate) mod plan;
pub(crate) mod scratch;
pub(crate) mod tile;
#[cfg(target_arch = "x86_64")]
mod x86;

#[cfg(test)]
mod bench;
#[cfg(test)]
mod tests;

pub(crate) use element::Element;
pub(crate) use epilogue::{Activation, Bias, Epilogue};
pub(crate) use scratch::{Part, Scratch};

use super::{
    Write,
    isa::{Isa, isa},
    threads::Threads,
};
use crate::real::Real;

/// A matrix by its strides: row-major, the transpose of one, or a part of something larger.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Matrix<'a, T> {
    data: &'a [T],
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

impl<'a, T: Real> Matrix<'a, T> {
    /// Row-major and dense.
    ///
    /// # Panics
    /// If the data do not fill the shape.
    pub(crate) fn new(data: &'a [T], rows: usize, columns: usize) -> Self {
        assert!(
            rows.checked_mul(columns) == Some(data.len()),
            "{rows} x {columns} matrix of {} elements",
            data.len()
        );
        Self { data, rows, columns, row_stride: columns, column_stride: 1 }
    }

    /// Element (i, j) is `data[i·row_stride + j·column_stride]`.
    ///
    /// # Panics
    /// If the last element lies outside of the data.
    pub(crate) fn strided(
        data: &'a [T],
        (rows, columns): (usize, usize),
        (row_stride, column_stride): (usize, usize),
    ) -> Self {
        let needed = extent((rows, columns), (row_stride, column_stride));
        assert!(
            needed.is_some_and(|needed| needed <= data.len()),
            "{rows} x {columns} matrix with strides {row_stride} and {column_stride} in {} elements",
            data.len()
        );
        Self { data, rows, columns, row_stride, column_stride }
    }

    /// How many rows.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// How many columns.
    pub(crate) fn columns(&self) -> usize {
        self.columns
    }

    /// Rows and columns.
    pub(crate) fn shape(&self) -> [usize; 2] {
        [self.rows, self.columns]
    }

    /// The transpose; no data move.
    pub(crate) fn transposed(self) -> Self {
        Self {
            data: self.data,
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
        }
    }
}

/// A row-major matrix to be written, possibly a part of a wider one.
#[derive(Debug)]
pub(crate) struct MatrixMut<'a, T> {
    data: &'a mut [T],
    rows: usize,
    columns: usize,
    row_stride: usize,
}

impl<'a, T: Real> MatrixMut<'a, T> {
    /// # Panics
    /// If the data do not fill the shape.
    pub(crate) fn new(data: &'a mut [T], rows: usize, columns: usize) -> Self {
        assert!(
            rows.checked_mul(columns) == Some(data.len()),
            "{rows} x {columns} result in {} elements",
            data.len()
        );
        Self { data, rows, columns, row_stride: columns }
    }

    /// # Panics
    /// If rows overlap or the last element lies outside of the data.
    pub(crate) fn strided(
        data: &'a mut [T],
        rows: usize,
        columns: usize,
        row_stride: usize,
    ) -> Self {
        let needed = extent((rows, columns), (row_stride, 1));
        assert!(
            needed.is_some_and(|needed| needed <= data.len())
                && (columns <= row_stride || rows <= 1),
            "{rows} x {columns} result with row stride {row_stride} in {} elements",
            data.len()
        );
        Self { data, rows, columns, row_stride }
    }
}

/// How many elements a strided matrix reaches over.
fn extent((rows, columns): (usize, usize), strides: (usize, usize)) -> Option<usize> {
    if rows == 0 || columns == 0 {
        return Some(0);
    }
    let last_row = (rows - 1).checked_mul(strides.0)?;
    let last_column = (columns - 1).checked_mul(strides.1)?;
    last_row.checked_add(last_column)?.checked_add(1)
}

/// Writes or adds `a · b` to the row-major `dst`: one thread, scratch of the calling thread.
///
/// # Panics
/// If the shapes do not fit.
pub(crate) fn product<T: Real>(dst: &mut [T], mode: Write, a: Matrix<'_, T>, b: Matrix<'_, T>) {
    product_into(MatrixMut::new(dst, a.rows, b.columns), mode, a, b);
}

/// [`product`] into a part of something wider.
///
/// # Panics
/// If the shapes do not fit.
pub(crate) fn product_into<T: Real>(
    dst: MatrixMut<'_, T>,
    mode: Write,
    a: Matrix<'_, T>,
    b: Matrix<'_, T>,
) {
    Scratch::with_local(|scratch| {
        Product::new(a, b).mode(mode).run(dst, &Threads::single(), scratch);
    });
}

/// A matrix product to be made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Product<'a, T> {
    a: Matrix<'a, T>,
    b: Matrix<'a, T>,
    mode: Write,
    epilogue: Epilogue<'a, T>,
    isa: Isa,
}

impl<'a, T: Real> Product<'a, T> {
    /// # Panics
    /// If the columns of `a` are not as many as the rows of `b`.
    pub(crate) fn new(a: Matrix<'a, T>, b: Matrix<'a, T>) -> Self {
        assert!(a.columns == b.rows, "inner lengths {} and {}", a.columns, b.rows);
        Self { a, b, mode: Write::Set, epilogue: Epilogue::NONE, isa: isa() }
    }

    /// Whether the result overwrites what is there or is added to it.
    pub(crate) fn mode(self, mode: Write) -> Self {
        Self { mode, ..self }
    }

    /// What is done to the result while it is still in the cache.
    ///
    /// # Panics
    /// If a bias is not as long as the side it belongs to.
    pub(crate) fn then(self, epilogue: Epilogue<'a, T>) -> Self {
        epilogue.check(self.a.rows, self.b.columns);
        Self { epilogue, ..self }
    }

    /// The kernels of an instruction set of choice.
    #[cfg(test)]
    pub(crate) fn on(self, isa: Isa) -> Self {
        Self { isa: isa.runnable(), ..self }
    }

    /// Makes the product.
    ///
    /// # Panics
    /// If `dst` has not the result's shape.
    pub(crate) fn run(self, dst: MatrixMut<'_, T>, threads: &Threads, scratch: &mut Scratch) {
        let (m, n, k) = (self.a.rows, self.b.columns, self.a.columns);
        assert!(
            dst.rows == m && dst.columns == n,
            "{m} x {n} product in a {} x {} result",
            dst.rows,
            dst.columns
        );
        if dot::fits(&self) {
            dot::run(&self, dst, threads, scratch);
            return;
        }
        let a = pack::Strided::new(self.a.transposed());
        let b = pack::Strided::new(self.b);
        let task = blocked::Task {
            isa: self.isa,
            a: &a,
            b: &b,
            shape: [m, n, k],
            mode: self.mode,
            epilogue: self.epilogue,
        };
        task.run(out::Out::new(dst), threads, scratch);
    }
}
