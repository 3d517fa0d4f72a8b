//! Where a product's result goes: a matrix, or the images of a batch side by side as one matrix' columns.
#![expect(unsafe_code, reason = "threads write disjoint parts of one result by pointer")]

use std::{marker::PhantomData, ops::Range, slice};

use super::MatrixMut;
use crate::real::Real;

/// Columns of the widest tile.
const MAX_WIDTH: usize = 32;

/// How columns lie in memory: pixel (y, x) of image i at `i * image_stride + y * y_stride + x * x_stride`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pixels {
    pub(crate) height: usize,
    pub(crate) width: usize,
    pub(crate) image_stride: usize,
    pub(crate) y_stride: usize,
    pub(crate) x_stride: usize,
}

/// A result that several threads write to, each its own part.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Out<'a, T> {
    data: *mut T,
    row_stride: usize,
    rows: usize,
    columns: usize,
    pixels: Pixels,
    /// Columns that lie side by side: a multiple of them begins each run.
    run: usize,
    borrow: PhantomData<&'a mut T>,
}

// SAFETY: it is a mutable borrow whose parts go to different threads; floats may be sent.
unsafe impl<T: Send> Send for Out<'_, T> {}
// SAFETY: as above: sharing it is how the threads get their parts.
unsafe impl<T: Send> Sync for Out<'_, T> {}

impl<'a, T: Real> Out<'a, T> {
    pub(crate) fn new(dst: MatrixMut<'a, T>) -> Self {
        let pixels =
            Pixels { height: 1, width: dst.columns, image_stride: 0, y_stride: 0, x_stride: 1 };
        Self {
            data: dst.data.as_mut_ptr(),
            row_stride: dst.row_stride,
            rows: dst.rows,
            columns: dst.columns,
            pixels,
            run: dst.columns.max(1),
            borrow: PhantomData,
        }
    }

    /// Images side by side: row r of the product is `row_stride` after row r − 1 in every image.
    ///
    /// # Panics
    /// If pixels, rows or images overlap, or the last element lies outside of the data.
    pub(crate) fn images(
        data: &'a mut [T],
        rows: usize,
        row_stride: usize,
        images: usize,
        pixels: Pixels,
    ) -> Self {
        let Pixels { height, width, image_stride, y_stride, x_stride } = pixels;
        let columns = images * height * width;
        if 0 < rows * columns {
            let row = (width - 1) * x_stride + 1;
            let plane = (height - 1) * y_stride + row;
            let image = (rows - 1) * row_stride + plane;
            let is_apart = (width == 1 || 1 <= x_stride)
                && (height == 1 || row <= y_stride)
                && (rows == 1 || plane <= row_stride)
                && (images == 1 || image <= image_stride);
            let needed = (images - 1) * image_stride + image;
            assert!(
                is_apart && needed <= data.len(),
                "{images} images of {rows} rows at {row_stride}, {pixels:?} in {}",
                data.len()
            );
        }
        let run = match (x_stride == 1, y_stride == width) {
            (true, true) => height * width,
            (true, false) => width,
            (false, _) => 1,
        };
        let data = data.as_mut_ptr();
        let run = run.max(1);
        Self { data, row_stride, rows, columns, pixels, run, borrow: PhantomData }
    }

    pub(super) fn shape(&self) -> [usize; 2] {
        [self.rows, self.columns]
    }

    pub(crate) fn row_stride(&self) -> usize {
        self.row_stride
    }

    /// Whether these columns lie side by side.
    pub(super) fn is_run(&self, columns: Range<usize>) -> bool {
        columns.start % self.run + columns.len() <= self.run
    }

    /// Where an element lies.
    pub(crate) fn at(&self, row: usize, column: usize) -> *mut T {
        assert!(row < self.rows && column < self.columns);
        let Pixels { height, width, image_stride, y_stride, x_stride } = self.pixels;
        let (image, pixel) = (column / (height * width), column % (height * width));
        let (y, x) = (pixel / width, pixel % width);
        let at = image * image_stride + row * self.row_stride + y * y_stride + x * x_stride;
        // SAFETY: in bounds by the assert and by the checks of `MatrixMut` or `images`.
        unsafe { self.data.add(at) }
    }

    /// Pieces of rows whose columns lie side by side: (row, first column, elements).
    ///
    /// # Safety
    /// Nobody else touches any of it while the pieces live.
    pub(super) unsafe fn pieces(
        self,
        rows: Range<usize>,
        columns: Range<usize>,
    ) -> impl Iterator<Item = (usize, usize, &'a mut [T])> {
        assert!(rows.end <= self.rows && columns.end <= self.columns);
        assert!(self.is_run(columns.clone()) && !columns.is_empty());
        let start = rows.start;
        let first = if rows.is_empty() { self.data } else { self.at(start, columns.start) };
        rows.map(move |row| {
            // SAFETY: in bounds by the asserts, side by side; every row is lent once, and to nobody else, as
            // the caller vouches.
            let piece = unsafe {
                let at = first.add((row - start) * self.row_stride);
                slice::from_raw_parts_mut(at, columns.len())
            };
            (row, columns.start, piece)
        })
    }

    /// Copies a tile into a dense buffer.
    ///
    /// # Safety
    /// Nobody writes to the tile meanwhile.
    pub(super) unsafe fn load(&self, rows: Range<usize>, columns: Range<usize>, to: &mut [T]) {
        let (first, offsets) = self.offsets(&rows, &columns);
        for (row, to) in to.chunks_exact_mut(columns.len()).enumerate() {
            let row = first.wrapping_add(row * self.row_stride);
            for (to, offset) in to.iter_mut().zip(offsets) {
                // SAFETY: an element of the tile, in bounds.
                *to = unsafe { *row.add(offset) };
            }
        }
    }

    /// Copies a dense buffer into a tile.
    ///
    /// # Safety
    /// Nobody else touches the tile meanwhile.
    pub(super) unsafe fn store(&self, rows: Range<usize>, columns: Range<usize>, from: &[T]) {
        let (first, offsets) = self.offsets(&rows, &columns);
        for (row, from) in from.chunks_exact(columns.len()).enumerate() {
            let row = first.wrapping_add(row * self.row_stride);
            for (from, offset) in from.iter().zip(offsets) {
                // SAFETY: an element of the tile, in bounds.
                unsafe { *row.add(offset) = *from };
            }
        }
    }

    /// Where the first row of a tile has its columns, from the first of them on.
    fn offsets(&self, rows: &Range<usize>, columns: &Range<usize>) -> (*mut T, [usize; MAX_WIDTH]) {
        assert!(rows.end <= self.rows && columns.end <= self.columns);
        assert!(columns.len() <= MAX_WIDTH, "tile of {} columns", columns.len());
        let Pixels { height, width, image_stride, y_stride, x_stride } = self.pixels;
        let pixel = columns.start % (height * width);
        let (mut y, mut x) = (pixel / width, pixel % width);
        let first = y * y_stride + x * x_stride;
        let mut offsets = [0; MAX_WIDTH];
        let mut images = 0;
        for offset in &mut offsets[..columns.len()] {
            // Not negative: a later image begins after all pixels of this one.
            *offset = images + y * y_stride + x * x_stride - first;
            x += 1;
            if x == width {
                (x, y) = (0, y + 1);
            }
            if y == height {
                (y, images) = (0, images + image_stride);
            }
        }
        (self.at(rows.start, columns.start), offsets)
    }
}
