//! Loops that several operations share. Orders of summation are fixed here.

mod cache;
pub(crate) mod conv;
pub(crate) mod gemm;
pub(crate) mod isa;
mod rows;
mod threads;

pub(crate) use gemm::{
    Bias, Element, Epilogue, Matrix, MatrixMut, Product, Scratch, product, product_into,
};
pub(crate) use isa::{Kernel, vectorized};
pub(crate) use rows::{
    Sums, exp_each, exponential_sum, exponentials, max, rows_of_piece, sum_columns, sums,
};
pub use threads::{Threads, ThreadsError};

use crate::real::Real;

/// Elements that a thread works on at a time, where threads share a long loop.
pub(crate) const PIECE: usize = 16 * 1024;

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

/// What is computed from the elements of several slices at the same place.
///
/// Closures are that too. But the compiler leaves large ones as calls, and a call in a loop keeps it from
/// becoming vector code: what evaluates an exponential is a type of its own whose `of` is
/// `#[inline(always)]`, down to the last function it calls.
pub(crate) trait Lanewise<T, const N: usize> {
    fn of(&self, x: [T; N]) -> T;
}

impl<T, F: Fn([T; N]) -> T, const N: usize> Lanewise<T, N> for F {
    #[inline(always)]
    fn of(&self, x: [T; N]) -> T {
        self(x)
    }
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
    vectorized(Zip { dst, mode, from, value: &value });
}

/// [`zip`] of long slices, in pieces that threads share.
///
/// # Panics
/// If a slice is shorter than `dst`.
pub(crate) fn zip_on<T: Real, const N: usize>(
    threads: &Threads,
    dst: &mut [T],
    mode: Write,
    from: [&[T]; N],
    value: impl Fn([T; N]) -> T + Sync,
) {
    evaluate(threads, dst, mode, from, &value);
}

/// [`zip_on`] with a function that is not a closure.
///
/// # Panics
/// If a slice is shorter than `dst`.
pub(crate) fn evaluate<T: Real, const N: usize>(
    threads: &Threads,
    dst: &mut [T],
    mode: Write,
    from: [&[T]; N],
    value: &(impl Lanewise<T, N> + Sync),
) {
    threads.for_each_chunk(dst, PIECE, |index, dst| {
        let from = from.map(|slice| &slice[index * PIECE..]);
        vectorized(Zip { dst, mode, from, value });
    });
}

struct Zip<'a, T, F, const N: usize> {
    dst: &'a mut [T],
    mode: Write,
    from: [&'a [T]; N],
    value: &'a F,
}

impl<T: Real, F: Lanewise<T, N>, const N: usize> Kernel for Zip<'_, T, F, N> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        // Cut to one length here, so that the loops below need no checks.
        let len = self.dst.len();
        let (dst, from) = (self.dst, self.from.map(|slice| &slice[..len]));
        match self.mode {
            Write::Set => {
                for (i, dst) in dst.iter_mut().enumerate() {
                    *dst = self.value.of(from.map(|slice| slice[i]));
                }
            }
            Write::Add => {
                for (i, dst) in dst.iter_mut().enumerate() {
                    *dst += self.value.of(from.map(|slice| slice[i]));
                }
            }
        }
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
    fn pieces_of_threads_are_those_of_one_loop() {
        let x: Vec<f32> = (0..2 * PIECE + 7).map(|i| (i % 97) as f32).collect();
        for threads in [1, 2, 3] {
            let threads = Threads::new(threads).unwrap();
            let mut dst = vec![f32::NAN; x.len()];
            zip_on(&threads, &mut dst, Write::Set, [&x, &x], |[a, b]| a + b);
            zip_on(&threads, &mut dst, Write::Add, [&x], |[a]| -a);
            assert_eq!(dst, x);
        }
    }
}
