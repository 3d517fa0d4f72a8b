//! The matrix product: a checked door to the `gemm` crate.
#![expect(unsafe_code, reason = "the product takes raw pointers; the lengths are checked here")]

use super::Write;
use crate::real::Real;

/// A row-major matrix, or the transpose of one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Matrix<'a, T> {
    data: &'a [T],
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

impl<'a, T: Real> Matrix<'a, T> {
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

/// Writes or adds `a · b` to the row-major `dst`.
///
/// # Determinism
/// One thread, and a kernel that is chosen by the shape and the processor's instruction set and cache
/// sizes, never by timing: the same bits for the same shapes on the same kind of machine.
/// # Memory
/// The library's packing scratch is the one allocation of a steady step that is not ours: one slab
/// per thread of the size of the second-level cache, or a block of that order per large product.
/// # Panics
/// If the shapes do not fit.
pub(crate) fn product<T: Real>(dst: &mut [T], mode: Write, a: Matrix<'_, T>, b: Matrix<'_, T>) {
    assert!(a.columns == b.rows, "inner lengths {} and {}", a.columns, b.rows);
    assert!(
        a.rows.checked_mul(b.columns) == Some(dst.len()),
        "{} x {} result in {} elements",
        a.rows,
        b.columns,
        dst.len()
    );
    let (m, n, k) = (a.rows, b.columns, a.columns);
    // SAFETY: `gemm` reads `a` at row·row_stride + column·column_stride for row < m, column < k, and `b`
    // likewise for k and n, and reads and writes `dst` at row·n + column for row < m, column < n.
    // `Matrix::new` ties each matrix' strides to the length of its slice, `transposed` swaps both
    // lengths with both strides, and the asserts above tie the inner lengths together and m·n to
    // the length of `dst`, which is borrowed mutably and so overlaps neither. A slice's length
    // fits `isize`, so every stride does. `Real` is sealed to f32 and f64, which `gemm` knows.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            dst.as_mut_ptr(),
            1,
            n as isize,
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
