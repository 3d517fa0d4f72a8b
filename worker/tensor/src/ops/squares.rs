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
/// Results at a time of the widest vectors: what is left of a row beyond whole ones is done one by one.
const VECTOR: usize = 16;
/// Elements of short rows that are put side by side to make a long one.
const JOINED: usize = 512;

/// Whether rows of that many pixels are put side by side before the loops see them.
fn are_joined(width: usize) -> bool {
    !(width / 2).is_multiple_of(VECTOR) && width <= JOINED / 2
}

/// Puts upper rows side by side, and lower rows.
#[inline(always)]
fn join<T: Real>(x: &[T], width: usize, [upper, lower]: [&mut [T]; 2]) {
    let rows = upper.chunks_exact_mut(width).zip(lower.chunks_exact_mut(width));
    for (x, (upper, lower)) in x.chunks_exact(2 * width).zip(rows) {
        upper.copy_from_slice(&x[..width]);
        lower.copy_from_slice(&x[width..]);
    }
}

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

    /// The gradient of each result goes to the first of its pixels that equals it, or to none if it is stopped where the
    /// result is not above 0. `from`: input, result, its gradient.
    pub(super) fn hand_back<T: Real>(
        self,
        from: [&[T]; 3],
        is_stopped: bool,
        to: Target<'_, T>,
        threads: &Threads,
    ) {
        let Target { dst, mode } = to;
        let inputs = 2 * self.pairs * self.width;
        threads.for_each_chunk(dst, inputs, |index, dst| {
            let at = index * inputs;
            let [x, y, g] = from;
            let (x, results) = (&x[at..][..dst.len()], at / 4..(at + dst.len()) / 4);
            let (y, g) = (&y[results.clone()], &g[results]);
            let width = self.width;
            match mode {
                Write::Set => vectorized(HandBack::<T, false> { x, y, g, dst, width, is_stopped }),
                Write::Add => vectorized(HandBack::<T, true> { x, y, g, dst, width, is_stopped }),
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
        let (width, half) = (self.width, self.width / 2);
        if !are_joined(width) {
            let pairs = self.x.chunks_exact(2 * width);
            for (x, y) in pairs.zip(self.y.chunks_exact_mut(half)) {
                let (upper, lower) = x.split_at(width);
                greatest(upper, lower, y);
            }
            return;
        }
        let pairs = JOINED / width;
        let (mut upper, mut lower) = ([T::ZERO; JOINED], [T::ZERO; JOINED]);
        let blocks = self.x.chunks(2 * pairs * width);
        for (x, y) in blocks.zip(self.y.chunks_mut(pairs * half)) {
            let [upper, lower] = [&mut upper, &mut lower].map(|row| &mut row[..x.len() / 2]);
            join(x, width, [&mut *upper, &mut *lower]);
            greatest(upper, lower, y);
        }
    }
}

/// Of the squares of two rows.
#[inline(always)]
fn greatest<T: Real>(upper: &[T], lower: &[T], y: &mut [T]) {
    let greater = |x: T, than: T| if is_greater(x, than) { x } else { than };
    let (upper, lower) = (upper.as_chunks::<2>().0, lower.as_chunks::<2>().0);
    for ((y, upper), lower) in y.iter_mut().zip(upper).zip(lower) {
        let [a, b, c, d] = [upper[0], upper[1], lower[0], lower[1]];
        *y = greater(d, greater(c, greater(b, a)));
    }
}

struct HandBack<'a, T, const ADD: bool> {
    x: &'a [T],
    y: &'a [T],
    g: &'a [T],
    dst: &'a mut [T],
    width: usize,
    /// Whether results that are not above 0 hand back nothing.
    is_stopped: bool,
}

impl<T: Real, const ADD: bool> Kernel for HandBack<'_, T, ADD> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        if are_joined(self.width) {
            self.run_joined();
            return;
        }
        let half = self.width / 2;
        let results = self.y.chunks_exact(half).zip(self.g.chunks_exact(half));
        let pixels = self.x.chunks_exact(2 * self.width);
        let pairs = pixels.zip(self.dst.chunks_exact_mut(2 * self.width));
        for ((y, g), (x, dst)) in results.zip(pairs) {
            let rows = Rows::new(x.split_at(self.width), dst.split_at_mut(self.width));
            rows.share::<ADD>(y, g, self.is_stopped);
        }
    }
}

impl<T: Real, const ADD: bool> HandBack<'_, T, ADD> {
    #[inline(always)]
    fn run_joined(self) {
        let (width, pairs) = (self.width, JOINED / self.width);
        let (mut upper, mut lower) = ([T::ZERO; JOINED], [T::ZERO; JOINED]);
        let (mut above, mut below) = ([T::ZERO; JOINED], [T::ZERO; JOINED]);
        let outputs = pairs * width / 2;
        let results = self.y.chunks(outputs).zip(self.g.chunks(outputs));
        let blocks = self.x.chunks(4 * outputs).zip(self.dst.chunks_mut(4 * outputs));
        for ((y, g), (x, dst)) in results.zip(blocks) {
            let buffers = [&mut upper, &mut lower, &mut above, &mut below];
            let [upper, lower, above, below] = buffers.map(|row| &mut row[..x.len() / 2]);
            join(x, width, [&mut *upper, &mut *lower]);
            let rows = Rows::new((upper, lower), (&mut *above, &mut *below));
            rows.share::<false>(y, g, self.is_stopped);
            let rows = above.chunks_exact(width).zip(below.chunks_exact(width));
            for (dst, (above, below)) in dst.chunks_exact_mut(2 * width).zip(rows) {
                let (to_above, to_below) = dst.split_at_mut(width);
                for (to, from) in [(to_above, above), (to_below, below)] {
                    if ADD {
                        to.iter_mut().zip(from).for_each(|(to, from)| *to += *from);
                    } else {
                        to.copy_from_slice(from);
                    }
                }
            }
        }
    }
}

/// Two rows of pixels as pairs, and what they get.
struct Rows<'a, T> {
    from: [&'a [[T; 2]]; 2],
    to: [&'a mut [[T; 2]]; 2],
}

impl<'a, T: Real> Rows<'a, T> {
    fn new((upper, lower): (&'a [T], &'a [T]), (above, below): (&'a mut [T], &'a mut [T])) -> Self {
        Self {
            from: [upper.as_chunks().0, lower.as_chunks().0],
            to: [above.as_chunks_mut().0, below.as_chunks_mut().0],
        }
    }

    /// What a pixel takes of a result's gradient the later ones no longer find. One loop over the whole row, whose vectors are
    /// the compiler's choice: blocks of a fixed length become shuffles of single elements.
    #[inline(always)]
    fn share<const ADD: bool>(self, y: &[T], g: &[T], is_stopped: bool) {
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
            let mut left = if is_stopped & (y <= T::ZERO) { T::ZERO } else { g[i] };
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
