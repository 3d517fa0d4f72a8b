//! Arenas cut into pieces that are worked on one by one, and could be at the same time.

use std::ops::Range;

use super::{Segment, clip::GradMap, rules::Rule};
use crate::{
    kernel::{Kernel, vectorized},
    real::Real,
};

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
        vectorized(Piece { weights, grads, moments, rule, grad });
    });
}

/// One piece and what is done to it.
struct Piece<'a, T, const M: usize, R> {
    weights: &'a mut [T],
    grads: &'a [T],
    moments: [&'a mut [T]; M],
    rule: R,
    grad: GradMap<T>,
}

impl<T: Real, const M: usize, R: Rule<T, M>> Kernel for Piece<'_, T, M, R>
where
    for<'a> [&'a mut [T]; M]: Elementwise<T, M>,
{
    type Output = ();

    #[inline(always)]
    fn run(self) {
        self.moments.each(self.weights, self.grads, self.rule, self.grad);
    }
}

/// Loops over weights, gradients and so many moments, each written out with one argument per slice:
/// the compiler then knows that they do not overlap and makes vector code.
pub(super) trait Elementwise<T, const M: usize> {
    /// Replaces weight and moments of each element. All have the same length.
    fn each<R: Rule<T, M>>(self, w: &mut [T], g: &[T], rule: R, grad: GradMap<T>);
}

macro_rules! element_wise {
    ($($count:literal: $($moment:ident)*;)+) => {$(
        impl<T: Real> Elementwise<T, $count> for [&mut [T]; $count] {
            #[inline(always)]
            fn each<R: Rule<T, $count>>(self, w: &mut [T], g: &[T], rule: R, grad: GradMap<T>) {
                #[inline(always)]
                fn each<T: Real, R: Rule<T, $count>>(
                    w: &mut [T],
                    g: &[T],
                    $($moment: &mut [T],)*
                    rule: R,
                    grad: GradMap<T>,
                ) {
                    // Cut to one length here, so that the loop needs no checks.
                    let len = w.len();
                    let g = &g[..len];
                    $(let $moment = &mut $moment[..len];)*
                    for i in 0..len {
                        (w[i], [$($moment[i]),*]) = rule.update(w[i], grad.apply(g[i]), [$($moment[i]),*]);
                    }
                }
                let [$($moment),*] = self;
                each(w, g, $($moment,)* rule, grad);
            }
        }
    )+};
}

element_wise! {
    0: ;
    1: a;
    2: a b;
    3: a b c;
}
