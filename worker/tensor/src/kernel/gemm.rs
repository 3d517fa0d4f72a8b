//! The matrix product: a checked door to the `gemm` crate.
#![expect(unsafe_code, reason = "the product takes raw pointers; the lengths are checked here")]

use super::Write;
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

/// Writes or adds `a · b` to the row-major `dst`.
///
/// # Panics
/// If the shapes do not fit.
pub(crate) fn product<T: Real>(dst: &mut [T], mode: Write, a: Matrix<'_, T>, b: Matrix<'_, T>) {
    let dst = MatrixMut::new(dst, a.rows, b.columns);
    product_into(dst, mode, a, b);
}

/// [`product`] into a part of something wider.
///
/// # Determinism
/// One thread, and a kernel that is chosen by the shape and the processor's instruction set and cache
/// sizes, never by timing: the same bits for the same shapes on the same kind of machine.
/// # Memory
/// The library's packing scratch is the one allocation of a steady step that is not ours: one slab
/// per thread of the size of the second-level cache, or a block of that order per large product.
/// # Panics
/// If the shapes do not fit.
pub(crate) fn product_into<T: Real>(
    dst: MatrixMut<'_, T>,
    mode: Write,
    a: Matrix<'_, T>,
    b: Matrix<'_, T>,
) {
    assert!(a.columns == b.rows, "inner lengths {} and {}", a.columns, b.rows);
    assert!(
        a.rows == dst.rows && b.columns == dst.columns,
        "{} x {} product in a {} x {} result",
        a.rows,
        b.columns,
        dst.rows,
        dst.columns
    );
    let (m, n, k) = (a.rows, b.columns, a.columns);
    if m == 0 || n == 0 {
        return;
    }
    // SAFETY: `gemm` reads `a` at row·row_stride + column·column_stride for row < m, column < k, and `b`
    // likewise for k and n, and reads and writes `dst` at row·row_stride + column for row < m,
    // column < n. `new` and `strided` tie each matrix' lengths and strides to the length of its
    // slice (with no element there is nothing to read), `transposed` swaps both lengths with both
    // strides, and the asserts above tie the lengths together. `dst` is borrowed mutably and so
    // overlaps neither. A stride that is multiplied by more than 0 is below its slice's length, which
    // fits `isize`. `Real` is sealed to f32 and f64, which `gemm` knows.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            dst.data.as_mut_ptr(),
            1,
            dst.row_stride as isize,
            mode == Write::Add,
            a.data.as_ptr(),
            a.column_stride as isize,
            a.row_stride as isize,
            b.data.as_ptr(),
            b.column_stride as isize,
            b.row_stride as isize,
            T::ONE,
            T::ONE,
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(len: usize, salt: usize) -> Vec<f64> {
        (0..len).map(|i| ((i * 37 + salt * 11) % 17) as f64 - 8.0).collect()
    }

    fn by_hand(a: &[f64], b: &[f64], (m, n, k): (usize, usize, usize)) -> Vec<f64> {
        let mut c = vec![0.0; m * n];
        for i in 0..m {
            for j in 0..n {
                c[i * n + j] = (0..k).map(|l| a[i * k + l] * b[l * n + j]).sum();
            }
        }
        c
    }

    fn transpose(data: &[f64], rows: usize, columns: usize) -> Vec<f64> {
        (0..rows * columns).map(|i| data[i % rows * columns + i / rows]).collect()
    }

    /// Small integers: every order of summation gives the same bits.
    #[test]
    fn products_equal_the_definition_for_every_orientation_and_mode() {
        for (m, n, k) in [(1, 1, 1), (3, 5, 2), (8, 5, 16), (33, 17, 9), (1, 70, 70), (70, 1, 70)] {
            let (a, b) = (numbers(m * k, 1), numbers(k * n, 2));
            let expected = by_hand(&a, &b, (m, n, k));
            let (at, bt) = (transpose(&a, m, k), transpose(&b, k, n));
            for (a, b) in [
                (Matrix::new(&a, m, k), Matrix::new(&b, k, n)),
                (Matrix::new(&at, k, m).transposed(), Matrix::new(&b, k, n)),
                (Matrix::new(&a, m, k), Matrix::new(&bt, n, k).transposed()),
                (Matrix::new(&at, k, m).transposed(), Matrix::new(&bt, n, k).transposed()),
            ] {
                let mut c = vec![f64::NAN; m * n];
                product(&mut c, Write::Set, a, b);
                assert_eq!(c, expected, "{m} {n} {k}");
                product(&mut c, Write::Add, a, b);
                let doubled: Vec<_> = expected.iter().map(|x| 2.0 * x).collect();
                assert_eq!(c, doubled, "{m} {n} {k}");
            }
        }
    }

    #[test]
    fn an_empty_inner_axis_gives_zeros() {
        let mut c = [f64::NAN; 6];
        product(&mut c, Write::Set, Matrix::new(&[], 2, 0), Matrix::new(&[], 0, 3));
        assert_eq!(c, [0.0; 6]);
    }

    /// The middle columns of wider matrices, one of them read as its transpose.
    #[test]
    fn parts_of_wider_matrices_are_read_and_written_and_nothing_beside_them() {
        let (m, n, k, wide) = (5, 4, 3, 9);
        let (a, b) = (numbers(m * wide, 1), numbers(n * wide, 2));
        let part = |data: &[f64], rows: usize| -> Vec<f64> {
            (0..rows * k).map(|i| data[i / k * wide + 2 + i % k]).collect()
        };
        let expected = by_hand(&part(&a, m), &transpose(&part(&b, n), n, k), (m, n, k));
        let mut c = vec![7.0; m * wide];
        product_into(
            MatrixMut::strided(&mut c[3..], m, n, wide),
            Write::Set,
            Matrix::strided(&a[2..], (m, k), (wide, 1)),
            Matrix::strided(&b[2..], (n, k), (wide, 1)).transposed(),
        );
        for (i, &c) in c.iter().enumerate() {
            let (row, column) = (i / wide, i % wide);
            let inside = (3..3 + n).contains(&column);
            let value = if inside { expected[row * n + column - 3] } else { 7.0 };
            assert_eq!(c, value, "{row} {column}");
        }
    }

    #[test]
    #[should_panic(expected = "5 x 3 matrix with strides 9 and 1 in 38 elements")]
    fn a_matrix_does_not_reach_beyond_its_data() {
        Matrix::strided(&[0.0_f64; 38], (5, 3), (9, 1));
    }

    #[test]
    #[should_panic(expected = "2 x 3 result with row stride 2")]
    fn rows_of_a_result_do_not_overlap() {
        MatrixMut::strided(&mut [0.0_f64; 9], 2, 3, 2);
    }

    /// Ranks keep the same numbers at different places of their memory.
    #[test]
    fn bits_do_not_depend_on_where_the_matrices_lie() {
        for (m, n, k) in
            [(8, 32, 20), (16, 5, 8), (1, 16, 33), (33, 1, 9), (65, 70, 2), (70, 65, 300)]
        {
            let at = |offset: usize| {
                let place = |len: usize, salt: usize| {
                    let salted = numbers(len, salt).into_iter().map(|x| (x as f32 / 7.0).sin());
                    vec![0.0; offset].into_iter().chain(salted).collect::<Vec<f32>>()
                };
                let (a, b) = (place(m * k, 1), place(n * k, 2));
                let mut c = place(m * n, 3);
                let a = Matrix::new(&a[offset..], m, k);
                let b = Matrix::new(&b[offset..], n, k).transposed();
                product(&mut c[offset..], Write::Add, a, b);
                c[offset..].iter().map(|x| x.to_bits()).collect::<Vec<_>>()
            };
            let expected = at(0);
            for offset in 1..9 {
                assert_eq!(at(offset), expected, "{m} {n} {k} at {offset}");
            }
        }
    }
}
