//! The greatest element of each square of two by two pixels, the usual windows, in loops over whole rows.

use super::{
    Pool2d, Target,
    pool::{is_greater, is_nan},
};
use crate::{
    kernel::{Kernel, Threads, Write, vectorized},
    meta::Meta,
    real::Real,
};

/// Elements of a stretch of the input that is worth a thread's while.
const CHUNK: usize = 1 << 14;

/// Squares that are looked at together.
const LANES: usize = 16;

/// Rows of pixels, two of which make one row of results.
#[derive(Debug, Clone, Copy)]
pub(super) struct Squares {
    width: usize,
    /// Pairs of rows that a thread takes at once.
    pairs: usize,
}

impl Squares {
    /// Whether the windows are such squares and cover all pixels.
    pub(super) fn fit(windows: &Pool2d, x: &Meta) -> bool {
        let is_even = |axis: usize| x.shape[axis].is_multiple_of(2);
        *windows == Pool2d { kernel: [2, 2], stride: [2, 2], padding: [0, 0] }
            && is_even(2)
            && is_even(3)
    }

    /// For an input that is not empty along its last two axes.
    pub(super) fn of(x: &Meta) -> Self {
        let width = x.shape[3];
        Self { width, pairs: (CHUNK / (2 * width).max(1)).max(1) }
    }

    pub(super) fn greatest<T: Real>(self, x: &[T], y: &mut [T], threads: &Threads) {
        let outputs = self.pairs * self.width / 2;
        threads.for_each_chunk(y, outputs, |index, y| {
            let x = &x[4 * index * outputs..][..4 * y.len()];
            vectorized(Greatest { x, y, width: self.width });
        });
    }

    /// The gradient of each result goes to the first of its pixels that equals it. `from`: input, result, its gradient.
    pub(super) fn hand_back<T: Real>(self, from: [&[T]; 3], to: Target<'_, T>, threads: &Threads) {
        let Target { dst, mode } = to;
        let inputs = 2 * self.pairs * self.width;
        threads.for_each_chunk(dst, inputs, |index, dst| {
            let at = index * inputs;
            let [x, y, g] = from;
            let (x, results) = (&x[at..][..dst.len()], at / 4..(at + dst.len()) / 4);
            let (y, g) = (&y[results.clone()], &g[results]);
            match mode {
                Write::Set => vectorized(HandBack::<T, false> { x, y, g, dst, width: self.width }),
                Write::Add => vectorized(HandBack::<T, true> { x, y, g, dst, width: self.width }),
            }
        });
    }
}

struct Greatest<'a, T> {
    x: &'a [T],
    y: &'a mut [T],
    width: usize,
}

impl<T: Real> Kernel for Greatest<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let greater = |x: T, than: T| if is_greater(x, than) { x } else { than };
        let pairs = self.x.chunks_exact(2 * self.width);
        for (x, y) in pairs.zip(self.y.chunks_exact_mut(self.width / 2)) {
            let (upper, lower) = x.split_at(self.width);
            let (upper, lower) = (upper.as_chunks::<2>().0, lower.as_chunks::<2>().0);
            for ((y, upper), lower) in y.iter_mut().zip(upper).zip(lower) {
                let [a, b, c, d] = [upper[0], upper[1], lower[0], lower[1]];
                *y = greater(d, greater(c, greater(b, a)));
            }
        }
    }
}

struct HandBack<'a, T, const ADD: bool> {
    x: &'a [T],
    y: &'a [T],
    g: &'a [T],
    dst: &'a mut [T],
    width: usize,
}

impl<T: Real, const ADD: bool> Kernel for HandBack<'_, T, ADD> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let half = self.width / 2;
        let results = self.y.chunks_exact(half).zip(self.g.chunks_exact(half));
        let pixels = self.x.chunks_exact(2 * self.width);
        let pairs = pixels.zip(self.dst.chunks_exact_mut(2 * self.width));
        for ((y, g), (x, dst)) in results.zip(pairs) {
            let (upper, lower) = x.split_at(self.width);
            let (upper, lower) = (upper.as_chunks::<2>().0, lower.as_chunks::<2>().0);
            let (above, below) = dst.split_at_mut(self.width);
            let (above_row, below_row) =
                (above.as_chunks_mut::<2>().0, below.as_chunks_mut::<2>().0);
            let (y, y_rest) = y.as_chunks::<LANES>();
            let (g, g_rest) = g.as_chunks::<LANES>();
            for (block, (y, g)) in y.iter().zip(g).enumerate() {
                let here = block * LANES..(block + 1) * LANES;
                let from = [&upper[here.clone()], &lower[here.clone()]];
                let [above, below] = shares::<T, LANES>(from, y, g);
                give::<T, ADD>(&mut above_row[here.clone()], &above);
                give::<T, ADD>(&mut below_row[here], &below);
            }
            let done = y.len() * LANES;
            for (column, (&y, &g)) in y_rest.iter().zip(g_rest).enumerate() {
                let here = done + column..done + column + 1;
                let from = [&upper[here.clone()], &lower[here.clone()]];
                let [above, below] = shares::<T, 1>(from, &[y], &[g]);
                give::<T, ADD>(&mut above_row[here.clone()], &above);
                give::<T, ADD>(&mut below_row[here], &below);
            }
        }
    }
}

/// What the two rows of some squares get of the gradients of their results.
#[inline(always)]
fn shares<T: Real, const N: usize>(
    [upper, lower]: [&[[T; 2]]; 2],
    y: &[T; N],
    g: &[T; N],
) -> [[[T; 2]; N]; 2] {
    let (upper, lower) = (&upper[..N], &lower[..N]);
    let mut shares = [[[T::ZERO; 2]; N]; 2];
    for i in 0..N {
        let is_it = |x: T| (x == y[i]) | (is_nan(x) & is_nan(y[i]));
        let [a, b, c, d] = [upper[i][0], upper[i][1], lower[i][0], lower[i][1]].map(is_it);
        let share = |is_it: bool| if is_it { g[i] } else { T::ZERO };
        shares[0][i] = [share(a), share(b & !a)];
        shares[1][i] = [share(c & !(a | b)), share(d & !(a | b | c))];
    }
    shares
}

#[inline(always)]
fn give<T: Real, const ADD: bool>(dst: &mut [[T; 2]], shares: &[[T; 2]]) {
    for (dst, share) in dst.iter_mut().zip(shares) {
        if ADD {
            dst[0] += share[0];
            dst[1] += share[1];
        } else {
            *dst = *share;
        }
    }
}
