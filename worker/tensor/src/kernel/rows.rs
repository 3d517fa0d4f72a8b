//! Sums and maxima of rows and columns, in lanes that become vector code.

use super::{Each, Kernel, Threads, Write, Zip, vectorized};
use crate::real::Real;

const LANES: usize = 16;

/// Elements that are added up in their own kind before the sum goes on in `f64`.
const BLOCK: usize = 64 * LANES;

/// `N` sums over runs of elements.
///
/// # Determinism
/// Element i of a run goes to lane i mod 16. After the first piece that brings a block to 1024 elements,
/// pieces being runs cut after every 1024 elements, the lanes are added in pairs to the total, in `f64`.
/// The order depends on the lengths of the runs alone.
#[derive(Debug)]
pub(crate) struct Sums<T, const N: usize> {
    lanes: [[T; LANES]; N],
    /// Elements in the lanes.
    filled: usize,
    totals: [f64; N],
}

impl<T: Real, const N: usize> Sums<T, N> {
    pub(crate) fn new() -> Self {
        Self { lanes: [[T::ZERO; LANES]; N], filled: 0, totals: [0.0; N] }
    }

    /// Adds `value` of the elements of several slices at the same place.
    ///
    /// # Panics
    /// If a slice is shorter than the first.
    #[inline(always)]
    pub(crate) fn add<const M: usize>(
        &mut self,
        from: [&[T]; M],
        value: impl Fn([T; M]) -> [T; N],
    ) {
        let len = from[0].len();
        for start in (0..len).step_by(BLOCK) {
            let end = len.min(start + BLOCK);
            let from = from.map(|slice| &slice[start..end]);
            vectorized(AddUp { lanes: &mut self.lanes, from, value: &value });
            self.filled += end - start;
            if BLOCK <= self.filled {
                self.flush();
            }
        }
    }

    pub(crate) fn totals(mut self) -> [f64; N] {
        self.flush();
        self.totals
    }

    fn flush(&mut self) {
        for (total, lanes) in self.totals.iter_mut().zip(&mut self.lanes) {
            let mut wide = lanes.map(Real::to_f64);
            for half in [8, 4, 2, 1] {
                for lane in 0..half {
                    wide[lane] += wide[lane + half];
                }
            }
            *total += wide[0];
            *lanes = [T::ZERO; LANES];
        }
        self.filled = 0;
    }
}

/// Adds runs of one length to the lanes.
struct AddUp<'a, T, F, const M: usize, const N: usize> {
    lanes: &'a mut [[T; LANES]; N],
    from: [&'a [T]; M],
    value: &'a F,
}

impl<T: Real, F: Fn([T; M]) -> [T; N], const M: usize, const N: usize> Kernel
    for AddUp<'_, T, F, M, N>
{
    type Output = ();

    #[inline(always)]
    fn run(self) {
        // A copy that stays in registers.
        let mut sums = *self.lanes;
        let parts = self.from.map(<[T]>::as_chunks::<LANES>);
        // Cut to one length here, so that the loops below need no checks.
        let whole = parts.map(|(whole, _)| &whole[..parts[0].0.len()]);
        for place in 0..whole[0].len() {
            let at = whole.map(|chunks| &chunks[place]);
            for lane in 0..LANES {
                let values = (self.value)(at.map(|chunk| chunk[lane]));
                for (lanes, value) in sums.iter_mut().zip(values) {
                    lanes[lane] += value;
                }
            }
        }
        let rest = parts.map(|(_, rest)| &rest[..parts[0].1.len()]);
        for lane in 0..rest[0].len() {
            let values = (self.value)(rest.map(|slice| slice[lane]));
            for (lanes, value) in sums.iter_mut().zip(values) {
                lanes[lane] += value;
            }
        }
        *self.lanes = sums;
    }
}

/// [`Sums`] of one run.
#[inline(always)]
pub(crate) fn sums<T: Real, const M: usize, const N: usize>(
    from: [&[T]; M],
    value: impl Fn([T; M]) -> [T; N],
) -> [f64; N] {
    let mut sums = Sums::new();
    sums.add(from, value);
    sums.totals()
}

/// The greatest element. Where one is NaN, that or another; 0 of nothing.
pub(crate) fn max<T: Real>(row: &[T]) -> T {
    vectorized(Greatest { row })
}

struct Greatest<'a, T> {
    row: &'a [T],
}

impl<T: Real> Kernel for Greatest<'_, T> {
    type Output = T;

    #[inline(always)]
    fn run(self) -> T {
        let greater = |a: T, b: T| if a < b { b } else { a };
        let mut lanes = [self.row.first().copied().unwrap_or(T::ZERO); LANES];
        let (whole, rest) = self.row.as_chunks::<LANES>();
        for chunk in whole {
            for lane in 0..LANES {
                lanes[lane] = greater(lanes[lane], chunk[lane]);
            }
        }
        let max = rest.iter().fold(lanes[0], |max, &x| greater(max, x));
        lanes.into_iter().fold(max, greater)
    }
}

/// Calls `piece` with e to the power of what `argument` writes, piece by piece of `len` elements, and with
/// where it begins.
///
/// The exponential is a loop of its own: inside of larger closures it would not become vector code.
pub(crate) fn exponentials<T: Real>(
    len: usize,
    argument: impl Fn(usize, &mut [T]),
    mut piece: impl FnMut(usize, &[T]),
) {
    const PIECE: usize = 256;
    let mut scratch = [T::ZERO; PIECE];
    for start in (0..len).step_by(PIECE) {
        let scratch = &mut scratch[..PIECE.min(len - start)];
        argument(start, scratch);
        exp_each(scratch);
        piece(start, scratch);
    }
}

/// The sum of e to the power of the elements less `max`.
pub(crate) fn exponential_sum<T: Real>(x: &[T], max: T) -> f64 {
    let mut total = Sums::new();
    exponentials(
        x.len(),
        |at, e| super::zip(e, Write::Set, [&x[at..]], |[x]| x - max),
        |_, e| total.add([e], |[e]| [e]),
    );
    let [total] = total.totals();
    total
}

/// How many rows of that length a thread works on at a time.
pub(crate) fn rows_of_piece(len: usize) -> usize {
    (super::PIECE / len.max(1)).max(1)
}

/// Replaces each element by e to the power of it.
pub(crate) fn exp_each<T: Real>(dst: &mut [T]) {
    vectorized(Exponentials { dst });
}

struct Exponentials<'a, T> {
    dst: &'a mut [T],
}

impl<T: Real> Kernel for Exponentials<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for x in self.dst {
            *x = x.exp();
        }
    }
}

/// Sums over the rows of a matrix as wide as `dst`, whose elements are `value(row)` of those of several
/// matrices at the same place. Threads share columns.
///
/// # Determinism
/// 64 rows at a time are added from the first to the last, and these sums likewise, in `f64`.
///
/// # Panics
/// If one of the matrices is shorter than the first.
#[inline(always)]
pub(crate) fn sum_columns<T: Real, const M: usize, F: Fn([T; M]) -> T>(
    threads: &Threads,
    dst: &mut [T],
    mode: Write,
    from: [&[T]; M],
    value: impl Fn(usize) -> F + Sync,
) {
    let columns = dst.len();
    // Each column's sum is one thread's, wherever the shares end.
    let share = columns.div_ceil(threads.count()).next_multiple_of(4 * LANES);
    threads.for_each_chunk(dst, share, |index, dst| {
        vectorized(Columns { dst, mode, from, columns, first: index * share, value: &value });
    });
}

/// Columns whose sums stay in the nearest cache. Wide, so that rows are read in long runs.
const WIDTH: usize = 1024;

/// Sums of `dst.len()` columns from the first, of matrices of `columns` columns.
struct Columns<'a, T, V, const M: usize> {
    dst: &'a mut [T],
    mode: Write,
    from: [&'a [T]; M],
    columns: usize,
    first: usize,
    value: &'a V,
}

impl<T: Real, V: Fn(usize) -> F, F: Fn([T; M]) -> T, const M: usize> Kernel
    for Columns<'_, T, V, M>
{
    type Output = ();

    #[inline(always)]
    fn run(self) {
        const ROWS: usize = 64;
        let (from, mode, columns) = (self.from, self.mode, self.columns);
        let rows = from[0].len().checked_div(columns).unwrap_or(0);
        for (tile, dst) in self.dst.chunks_mut(WIDTH).enumerate() {
            let mut totals = [0.0_f64; WIDTH];
            for first in (0..rows).step_by(ROWS) {
                let mut block = [T::ZERO; WIDTH];
                let block = &mut block[..dst.len()];
                for row in first..rows.min(first + ROWS) {
                    let start = row * columns + self.first + tile * WIDTH;
                    let from = from.map(|slice| &slice[start..]);
                    let value = &(self.value)(row);
                    Zip { dst: &mut *block, mode: Write::Add, from, value }.run();
                }
                for (total, sum) in totals.iter_mut().zip(block) {
                    *total += sum.to_f64();
                }
            }
            Each { dst, mode, value: |column: usize| T::from_f64(totals[column]) }.run();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::isa::{Isa, vectorized_on},
        *,
    };

    #[test]
    fn sums_take_every_element_of_every_run_once() {
        for len in (0..70).chain([1023, 1024, 1025, 5000]) {
            let x: Vec<_> = (0..len).map(|i| (i % 97) as f32).collect();
            let exact = x.iter().map(|&x| f64::from(x)).sum::<f64>();
            let squares = x.iter().map(|&x| f64::from(x * x)).sum::<f64>();
            assert_eq!(sums([&x, &x], |[a, b]| [a, a * b]), [exact, squares]);
            let mut runs = Sums::new();
            for run in x.chunks(7) {
                runs.add([run], |[x]| [x]);
            }
            assert_eq!(runs.totals(), [exact]);
        }
    }

    #[test]
    fn long_sums_do_not_drift() {
        let x = vec![0.1_f32; 1 << 20];
        let [sum] = sums([&x], |[x]| [x]);
        let exact = f64::from(0.1_f32) * x.len() as f64;
        assert!((sum / exact - 1.0).abs() < 1e-6, "{sum} {exact}");
        let mut dst = [0.0_f32; 1];
        sum_columns(&Threads::single(), &mut dst, Write::Set, [&x], |_| |[x]| x);
        assert!((f64::from(dst[0]) / exact - 1.0).abs() < 1e-6, "{dst:?} {exact}");
    }

    #[test]
    fn the_greatest_is_found_at_every_place() {
        for len in 1..40 {
            for place in 0..len {
                let mut row = vec![-2.0_f32; len];
                row[place] = -1.0;
                assert_eq!(max(&row), -1.0, "{place} of {len}");
            }
        }
        assert_eq!(max::<f32>(&[]), 0.0);
    }

    #[test]
    fn columns_are_added_up_or_overwritten() {
        let threads = Threads::new(2).unwrap();
        for (rows, columns) in [(0, 3), (1, 1), (3, 5), (130, 64), (65, 150), (3, 1100)] {
            let x: Vec<_> = (0..rows * columns).map(|i| (i % 89) as f64).collect();
            let sum = |column| (0..rows).map(|row| row as f64 * x[row * columns + column]).sum();
            let expected: Vec<f64> = (0..columns).map(sum).collect();
            let mut dst = vec![f64::NAN; columns];
            sum_columns(&threads, &mut dst, Write::Set, [&x], |row| move |[x]| row as f64 * x);
            assert_eq!(dst, expected);
            sum_columns(&threads, &mut dst, Write::Add, [&x], |row| move |[x]| -(row as f64) * x);
            assert_eq!(dst, vec![0.0; columns]);
        }
        sum_columns::<f64, 1, _>(&threads, &mut [], Write::Set, [&[]], |_| |[x]| x);
    }

    #[test]
    fn sums_have_the_same_bits_on_every_instruction_set() {
        let x: Vec<f32> = (0..1009).map(|i| (i as f32).sin()).collect();
        let run = |isa| {
            let mut lanes = [[0.0; LANES]; 1];
            let value = |[a, b]: [f32; 2]| [a * b + 0.1];
            vectorized_on(isa, AddUp { lanes: &mut lanes, from: [&x, &x[..1009]], value: &value });
            let mut dst = [0.0; 7];
            let value = |row| move |[x]: [f32; 1]| x * row as f32 + 0.1;
            vectorized_on(
                isa,
                Columns {
                    dst: &mut dst,
                    mode: Write::Set,
                    from: [&x],
                    columns: 7,
                    first: 0,
                    value: &value,
                },
            );
            (lanes[0].map(f32::to_bits), dst.map(f32::to_bits))
        };
        for isa in Isa::supported() {
            assert_eq!(run(isa), run(Isa::Baseline), "{isa:?}");
        }
    }
}
