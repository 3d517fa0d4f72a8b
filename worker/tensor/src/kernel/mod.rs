//! Loops that several operations share. Orders of summation are fixed here.

pub(crate) mod conv;
pub(crate) mod gemm;
pub(crate) mod isa;
mod rows;
mod threads;

pub(crate) use gemm::{
    Bias, Element, Epilogue, Matrix, MatrixMut, Product, Scratch, product, product_into,
};
pub(crate) use isa::{Kernel, vectorized};
pub(crate) use rows::{Sums, exp_each, exponentials, max, sum_columns, sums};
pub use threads::{Threads, ThreadsError};

use crate::real::Real;

/// Whether a kernel overwrites its destination or adds to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Write {
    Set,
    Add,
}

/// Writes `value(i)` for each element.
#[inline(always)]
pub(crate) fn write<T: Real>(dst: &mut [T], mode: Write, value: impl Fn(usize) -> T) {
    vectorized(Each { dst, mode, value });
}

/// Element by element.
struct Each<'a, T, F> {
    dst: &'a mut [T],
    mode: Write,
    value: F,
}

impl<T: Real, F: Fn(usize) -> T> Kernel for Each<'_, T, F> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        match self.mode {
            Write::Set => self.dst.iter_mut().enumerate().for_each(|(i, d)| *d = (self.value)(i)),
            Write::Add => self.dst.iter_mut().enumerate().for_each(|(i, d)| *d += (self.value)(i)),
        }
    }
}

/// Writes `value(x)` for each element of `x`.
///
/// # Panics
/// If `x` is shorter than `dst`.
#[inline(always)]
pub(crate) fn map<T: Real>(dst: &mut [T], x: &[T], value: impl Fn(T) -> T) {
    let x = &x[..dst.len()];
    write(dst, Write::Set, |i| value(x[i]));
}

/// Writes or adds the value of the elements of several slices at the same place.
///
/// # Panics
/// If a slice is shorter than `dst`.
#[inline(always)]
pub(crate) fn zip<T: Real, const N: usize>(
    dst: &mut [T],
    mode: Write,
    from: [&[T]; N],
    value: impl Fn([T; N]) -> T,
) {
    vectorized(Zip { dst, mode, from, value });
}

struct Zip<'a, T, F, const N: usize> {
    dst: &'a mut [T],
    mode: Write,
    from: [&'a [T]; N],
    value: F,
}

impl<T: Real, F: Fn([T; N]) -> T, const N: usize> Kernel for Zip<'_, T, F, N> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        // Cut to one length here, so that the loops below need no checks.
        let from = self.from.map(|slice| &slice[..self.dst.len()]);
        Each {
            dst: self.dst,
            mode: self.mode,
            value: |i| (self.value)(from.map(|slice| slice[i])),
        }
        .run();
    }
}

/// Sums `value(0..len)` in `f64`: element i goes to partial sum i mod 8, and these are added in pairs.
///
/// # Determinism
/// The order depends on the length alone.
#[inline(always)]
pub(crate) fn sum<T: Real>(len: usize, value: impl Fn(usize) -> T) -> T {
    vectorized(Total { len, value })
}

struct Total<F> {
    len: usize,
    value: F,
}

impl<T: Real, F: Fn(usize) -> T> Kernel for Total<F> {
    type Output = T;

    #[inline(always)]
    fn run(self) -> T {
        const LANES: usize = 8;
        let mut lanes = [0.0_f64; LANES];
        let whole = self.len - self.len % LANES;
        for start in (0..whole).step_by(LANES) {
            for (lane, partial) in lanes.iter_mut().enumerate() {
                *partial += (self.value)(start + lane).to_f64();
            }
        }
        for i in whole..self.len {
            lanes[i - whole] += (self.value)(i).to_f64();
        }
        let [a, b, c, d, e, f, g, h] = lanes;
        T::from_f64(((a + e) + (c + g)) + ((b + f) + (d + h)))
    }
}

/// Sums a `[rows, columns]` matrix over its rows, from the first to the last.
pub(crate) fn sum_rows<T: Real>(
    dst: &mut [T],
    mode: Write,
    rows: usize,
    value: impl Fn(usize) -> T,
) {
    let columns = dst.len();
    if rows == 0 && mode == Write::Set {
        dst.fill(T::ZERO);
    }
    for row in 0..rows {
        let mode = if row == 0 { mode } else { Write::Add };
        write(dst, mode, |column| value(row * columns + column));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_exact_where_the_partial_sums_are() {
        for len in 0..40 {
            assert_eq!(sum(len, |i| i as f32), (0..len).sum::<usize>() as f32);
        }
    }

    #[test]
    fn rows_are_added_up_or_overwritten() {
        let mut dst = [10.0_f32, 10.0];
        sum_rows(&mut dst, Write::Add, 3, |i| i as f32);
        assert_eq!(dst, [16.0, 19.0]);
        sum_rows(&mut dst, Write::Set, 3, |i| i as f32);
        assert_eq!(dst, [6.0, 9.0]);
        sum_rows(&mut dst, Write::Set, 0, |i| i as f32);
        assert_eq!(dst, [0.0, 0.0]);
    }
}
