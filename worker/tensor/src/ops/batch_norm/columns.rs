//! Sums of columns around their centres.

use crate::{
    kernel::{Kernel, vectorized},
    real::Real,
};

/// Sums over the rows of a matrix with as many columns as `centre`, `N` for each column and side by side in `dst`,
/// of `value(elements of several matrices at the same place, centre of the column)`.
///
/// # Determinism
/// 64 rows at a time are added from the first to the last, and these sums likewise, in `f64`.
pub(super) fn column_sums<T: Real, const M: usize, const N: usize>(
    dst: &mut [T],
    from: [&[T]; M],
    centre: &[T],
    value: impl Fn([T; M], T) -> [T; N],
) {
    vectorized(ColumnSums { dst, from, centre, value });
}

struct ColumnSums<'a, T, F, const M: usize> {
    dst: &'a mut [T],
    from: [&'a [T]; M],
    centre: &'a [T],
    value: F,
}

impl<T: Real, F: Fn([T; M], T) -> [T; N], const M: usize, const N: usize> Kernel
    for ColumnSums<'_, T, F, M>
{
    type Output = ();

    #[inline(always)]
    fn run(self) {
        /// Columns whose sums stay in the nearest cache.
        const WIDTH: usize = 64;
        const ROWS: usize = 64;
        let columns = self.centre.len();
        let rows = self.from[0].len().checked_div(columns).unwrap_or(0);
        for (tile, centre) in self.centre.chunks(WIDTH).enumerate() {
            let width = centre.len();
            let mut totals = [[0.0_f64; WIDTH]; N];
            for first in (0..rows).step_by(ROWS) {
                let mut block = [[T::ZERO; WIDTH]; N];
                for row in first..rows.min(first + ROWS) {
                    let start = row * columns + tile * WIDTH;
                    let from = self.from.map(|slice| &slice[start..][..width]);
                    for column in 0..width {
                        let values = (self.value)(from.map(|row| row[column]), centre[column]);
                        for (sums, value) in block.iter_mut().zip(values) {
                            sums[column] += value;
                        }
                    }
                }
                for (totals, sums) in totals.iter_mut().zip(&block) {
                    for (total, sum) in totals.iter_mut().zip(sums) {
                        *total += sum.to_f64();
                    }
                }
            }
            let dst = &mut self.dst[tile * WIDTH * N..];
            for (column, dst) in dst.chunks_exact_mut(N).take(width).enumerate() {
                for (dst, totals) in dst.iter_mut().zip(&totals) {
                    *dst = T::from_f64(totals[column]);
                }
            }
        }
    }
}
