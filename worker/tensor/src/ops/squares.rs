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
            let (above, below) = dst.split_at_mut(self.width);
            let squares = Rows {
                from: [upper.as_chunks().0, lower.as_chunks().0],
                to: [above.as_chunks_mut().0, below.as_chunks_mut().0],
            };
            squares.share::<ADD>(y, g);
        }
    }
}

/// Two rows of pixels as pairs, and what they get.
struct Rows<'a, T> {
    from: [&'a [[T; 2]]; 2],
    to: [&'a mut [[T; 2]]; 2],
}

impl<T: Real> Rows<'_, T> {
    /// What a pixel takes of a result's gradient the later ones no longer find. One loop over the whole row, whose vectors are
    /// the compiler's choice: blocks of a fixed length become shuffles of single elements.
    #[inline(always)]
    fn share<const ADD: bool>(self, y: &[T], g: &[T]) {
        let count = y.len();
        // Cut to one length here, so that the loop below needs no checks.
        let g = &g[..count];
        let [upper, lower] = self.from.map(|row| &row[..count]);
        let [above, below] = self.to.map(|row| &mut row[..count]);
        for i in 0..count {
            let y = y[i];
            let take = |x: T, left: &mut T| {
                let is_it = (x == y) | (is_nan(x) & is_nan(y));
                let taken = if is_it { *left } else { T::ZERO };
                *left = if is_it { T::ZERO } else { *left };
                taken
            };
            let mut left = g[i];
            let a = take(upper[i][0], &mut left);
            let b = take(upper[i][1], &mut left);
            let c = take(lower[i][0], &mut left);
            let d = take(lower[i][1], &mut left);
            if ADD {
                above[i] = [above[i][0] + a, above[i][1] + b];
                below[i] = [below[i][0] + c, below[i][1] + d];
            } else {
                above[i] = [a, b];
                below[i] = [c, d];
            }
        }
    }
}
