//! Arenas cut into pieces that are worked on one by one, and could be at the same time.

use std::ops::Range;

use super::{Segment, clip::GradMap, rules::Rule};
use crate::real::Real;

/// Elements of a piece; the last of a segment may be shorter. Part of how sums are formed, so it
/// depends on nothing. Weights, gradients and two moments of a piece are 1 MiB in `f32`: they stay in a
/// core's own cache for LAMB's second pass.
pub const PIECE_LEN: usize = 1 << 16;

/// A range, from its start, in pieces.
pub(super) fn cut(range: Range<usize>) -> impl Iterator<Item = Range<usize>> + Clone {
    let end = range.end;
    range.step_by(PIECE_LEN).map(move |start| start..end.min(start.saturating_add(PIECE_LEN)))
}

/// The same range of weights, gradients and each moment.
#[derive(Debug)]
pub(super) struct Arenas<'a, T, const M: usize> {
    pub(super) weights: &'a mut [T],
    pub(super) grads: &'a [T],
    pub(super) moments: [&'a mut [T]; M],
}

impl<'a, T: Real, const M: usize> Arenas<'a, T, M> {
    /// Takes the first `len` elements off, or all if there are fewer.
    pub(super) fn split_off(&mut self, len: usize) -> Self {
        let len = len.min(self.weights.len());
        let (grads, rest) = self.grads.split_at(len);
        self.grads = rest;
        let weights = split_off(&mut self.weights, len);
        let moments = self.moments.each_mut().map(|moment| split_off(moment, len));
        Self { weights, grads, moments }
    }

    /// Each segment with its part of the arenas. What is between them is left out.
    pub(super) fn segments(
        mut self,
        segments: &[Segment],
    ) -> impl Iterator<Item = (&Segment, Arenas<'a, T, M>)> {
        let mut at = 0;
        segments.iter().map(move |segment| {
            self.split_off(segment.range.start - at);
            at = segment.range.end;
            (segment, self.split_off(segment.range.len()))
        })
    }

    /// The same arenas, to be used once more afterwards.
    pub(super) fn reborrow(&mut self) -> Arenas<'_, T, M> {
        let moments = self.moments.each_mut().map(|moment| &mut **moment);
        Arenas { weights: self.weights, grads: self.grads, moments }
    }

    /// Its pieces.
    pub(super) fn pieces(mut self) -> impl Iterator<Item = Self> {
        let count = self.weights.len().div_ceil(PIECE_LEN);
        (0..count).map(move |_| self.split_off(PIECE_LEN))
    }
}

fn split_off<'a, T>(slice: &mut &'a mut [T], len: usize) -> &'a mut [T] {
    let (head, tail) = std::mem::take(slice).split_at_mut(len);
    *slice = tail;
    head
}

/// Does `work` on each piece. Pieces do not touch, and no piece's result depends on another's: this is
/// the place where a thread pool would hand them out.
pub(super) fn for_each<P: Send>(pieces: impl Iterator<Item = P>, work: impl Fn(P) + Sync) {
    pieces.for_each(work);
}

/// Updates everything in `segments` by the rule that `rule` makes for each of them.
pub(super) fn update<T: Real, const M: usize, R: Rule<T, M>>(
    arenas: Arenas<'_, T, M>,
    segments: &[Segment],
    grad: GradMap<T>,
    rule: impl Fn(&Segment) -> R,
) where
    for<'a> [&'a mut [T]; M]: Elementwise<T, M>,
{
    let pieces = arenas.segments(segments).flat_map(|(segment, arenas)| {
        let rule = rule(segment);
        arenas.pieces().map(move |piece| (rule, piece))
    });
    for_each(pieces, |(rule, Arenas { weights, grads, moments })| {
        moments.each(weights, grads, |w, g, moments| rule.update(w, grad.apply(g), moments));
    });
}

/// Loops over weights, gradients and so many moments, each written out with one argument per slice:
/// the compiler then knows that they do not overlap and makes vector code.
pub(super) trait Elementwise<T, const M: usize> {
    /// Replaces weight and moments of each element. All have the same length.
    fn each(self, w: &mut [T], g: &[T], new: impl Fn(T, T, [T; M]) -> (T, [T; M]));
}

impl<T: Real> Elementwise<T, 0> for [&mut [T]; 0] {
    fn each(self, w: &mut [T], g: &[T], new: impl Fn(T, T, [T; 0]) -> (T, [T; 0])) {
        for (w, &g) in w.iter_mut().zip(g) {
            (*w, []) = new(*w, g, []);
        }
    }
}

impl<T: Real> Elementwise<T, 1> for [&mut [T]; 1] {
    fn each(self, w: &mut [T], g: &[T], new: impl Fn(T, T, [T; 1]) -> (T, [T; 1])) {
        fn each<T: Real>(
            w: &mut [T],
            g: &[T],
            a: &mut [T],
            new: impl Fn(T, T, [T; 1]) -> (T, [T; 1]),
        ) {
            for ((w, &g), a) in w.iter_mut().zip(g).zip(a) {
                (*w, [*a]) = new(*w, g, [*a]);
            }
        }
        let [a] = self;
        each(w, g, a, new);
    }
}

impl<T: Real> Elementwise<T, 2> for [&mut [T]; 2] {
    fn each(self, w: &mut [T], g: &[T], new: impl Fn(T, T, [T; 2]) -> (T, [T; 2])) {
        fn each<T: Real>(
            w: &mut [T],
            g: &[T],
            a: &mut [T],
            b: &mut [T],
            new: impl Fn(T, T, [T; 2]) -> (T, [T; 2]),
        ) {
            for (((w, &g), a), b) in w.iter_mut().zip(g).zip(a).zip(b) {
                (*w, [*a, *b]) = new(*w, g, [*a, *b]);
            }
        }
        let [a, b] = self;
        each(w, g, a, b, new);
    }
}

impl<T: Real> Elementwise<T, 3> for [&mut [T]; 3] {
    fn each(self, w: &mut [T], g: &[T], new: impl Fn(T, T, [T; 3]) -> (T, [T; 3])) {
        fn each<T: Real>(
            w: &mut [T],
            g: &[T],
            a: &mut [T],
            b: &mut [T],
            c: &mut [T],
            new: impl Fn(T, T, [T; 3]) -> (T, [T; 3]),
        ) {
            for ((((w, &g), a), b), c) in w.iter_mut().zip(g).zip(a).zip(b).zip(c) {
                (*w, [*a, *b, *c]) = new(*w, g, [*a, *b, *c]);
            }
        }
        let [a, b, c] = self;
        each(w, g, a, b, c, new);
    }
}
