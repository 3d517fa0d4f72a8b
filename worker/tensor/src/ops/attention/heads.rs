//! Where each head's numbers lie, and the products over them.
//!
//! Heads are read and written in place, as strided parts of the wider tensors. Causal attention is cut into
//! blocks of [`BLOCK`] positions; blocks above the diagonal are neither computed nor read.
//!
//! # Determinism
//! Each element is one product's sum over the summed axis, in the product's order. Threads share whole heads,
//! or whole batches.

use std::ops::Range;

use super::{
    Attention,
    softmax::{Scores, Softmax, SoftmaxGradient},
};
use crate::{
    kernel::{Matrix, MatrixMut, Threads, Write, product_into, vectorized},
    meta::Meta,
    ops::{Chain, Operand, Target},
    real::Real,
};

/// Positions whose products are made together where the diagonal bounds them.
const BLOCK: usize = 64;

#[derive(Debug, Clone, Copy)]
pub(super) struct Sizes {
    pub(super) batch: usize,
    pub(super) queries: usize,
    pub(super) keys: usize,
    /// Of all heads together.
    pub(super) width: usize,
    how: Attention,
}

impl Sizes {
    pub(super) fn separate(how: Attention, q: &Meta, k: &Meta) -> Self {
        let [batch, queries, width] = [q.shape[0], q.shape[1], q.shape[2]];
        Self { batch, queries, keys: k.shape[1], width, how }
    }

    pub(super) fn packed(how: Attention, x: &Meta) -> Self {
        let [batch, positions, width] = [x.shape[0], x.shape[1], x.shape[2] / 3];
        Self { batch, queries: positions, keys: positions, width, how }
    }

    pub(super) fn probabilities(&self) -> [usize; 4] {
        [self.batch, self.how.heads, self.queries, self.keys]
    }

    fn is_empty(&self) -> bool {
        self.batch == 0 || self.queries == 0 || self.keys == 0
    }

    /// Of one head.
    fn head_width(&self) -> usize {
        self.width / self.how.heads
    }

    fn scale<T: Real>(&self) -> T {
        T::from_f64(1.0 / (self.head_width() as f64).sqrt())
    }

    /// Queries times keys of one head.
    fn pairs(&self) -> usize {
        self.queries * self.keys
    }

    /// Of the probabilities' first two axes as one.
    fn place(&self, index: usize) -> Place {
        let heads = self.how.heads;
        Place { batch: index / heads, column: index % heads * self.head_width() }
    }

    /// How many keys, from the first, the queries before that one attend to.
    fn keys_before(&self, query: usize) -> usize {
        if self.how.causal { query.min(self.keys) } else { self.keys }
    }

    /// How many keys a block of queries is multiplied with: the diagonal's block as a whole, so that it can
    /// be read by blocks of keys as well.
    fn seen(&self, queries: &Range<usize>) -> usize {
        self.keys_before(queries.start + BLOCK)
    }

    /// The first query that attends to that key.
    fn first_query(&self, key: usize) -> usize {
        if self.how.causal { key.min(self.queries) } else { 0 }
    }

    /// Ranges of positions that are worked on together.
    fn blocks(&self, len: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let step = if self.how.causal { BLOCK } else { len.max(1) };
        (0..len).step_by(step).map(move |start| start..len.min(start + step))
    }
}

/// The numbers that attention reads, and where a head's part of them lies.
#[derive(Debug, Clone, Copy)]
pub(super) struct Heads<'a, T> {
    pub(super) sizes: Sizes,
    q: Rows<'a, T>,
    k: Rows<'a, T>,
    v: Rows<'a, T>,
    mask: Option<&'a [i64]>,
}

/// Positions of all batches, `stride` elements from one to the next.
#[derive(Debug, Clone, Copy)]
struct Rows<'a, T> {
    data: &'a [T],
    stride: usize,
}

/// A batch and the first column of a head.
#[derive(Debug, Clone, Copy)]
struct Place {
    batch: usize,
    column: usize,
}

/// A batch's part of what is written, and the distance of its rows.
#[derive(Debug)]
struct Strip<'a, T> {
    data: &'a mut [T],
    stride: usize,
    mode: Write,
}

impl<'a, T: Real> Heads<'a, T> {
    pub(super) fn separate(how: Attention, inputs: &[Operand<'a, T>]) -> Self {
        let sizes = Sizes::separate(how, inputs[0].meta, inputs[1].meta);
        let [q, k, v] = [0, 1, 2].map(|i| Rows { data: inputs[i].floats, stride: sizes.width });
        Self { sizes, q, k, v, mask: inputs.get(3).map(|mask| mask.ints) }
    }

    pub(super) fn packed(how: Attention, inputs: &[Operand<'a, T>]) -> Self {
        let sizes = Sizes::packed(how, inputs[0].meta);
        let data = inputs[0].floats;
        let [q, k, v] = [0, 1, 2].map(|part| Rows {
            data: data.get(part * sizes.width..).unwrap_or_default(),
            stride: 3 * sizes.width,
        });
        Self { sizes, q, k, v, mask: inputs.get(1).map(|mask| mask.ints) }
    }

    /// `y`, and `P` to `saved`.
    pub(super) fn forward(&self, saved: &mut [T], y: &mut [T], threads: &Threads) {
        let sizes = self.sizes;
        if sizes.is_empty() {
            y.fill(T::ZERO);
            return;
        }
        threads.for_each_chunk(saved, sizes.pairs(), |index, p| {
            let place = sizes.place(index);
            let mask = self.mask.map(|mask| &mask[place.batch * sizes.keys..][..sizes.keys]);
            for queries in sizes.blocks(sizes.queries) {
                let (scores, first) =
                    (self.scores(self.q, self.k, place, &queries, p), queries.start);
                vectorized(Softmax { scores, len: |row| sizes.keys_before(first + row + 1), mask });
            }
        });
        let saved = &*saved;
        threads.for_each_chunk(y, sizes.queries * sizes.width, |batch, y| {
            let strip = Strip { data: y, stride: sizes.width, mode: Write::Set };
            self.over_keys(saved, self.v, batch, strip);
        });
    }

    /// `dS` of all heads, in the order of the probabilities.
    pub(super) fn prepare(&self, chain: &Chain<'_, T>, prepared: &mut [T]) {
        let sizes = self.sizes;
        if sizes.is_empty() {
            return;
        }
        let g = Rows { data: chain.grad, stride: sizes.width };
        chain.threads.for_each_chunk(prepared, sizes.pairs(), |index, ds| {
            let p = &chain.saved[index * sizes.pairs()..][..sizes.pairs()];
            for queries in sizes.blocks(sizes.queries) {
                let (first, p) = (queries.start, &p[queries.start * sizes.keys..]);
                let scores = self.scores(g, self.v, sizes.place(index), &queries, ds);
                let len = |row| sizes.keys_before(first + row + 1);
                vectorized(SoftmaxGradient { scores, len, p });
            }
        });
    }

    /// Adds or writes gradients to rows of `stride` elements, each beginning at its column.
    pub(super) fn gradients<const N: usize>(
        &self,
        chain: &Chain<'_, T>,
        to: Target<'_, T>,
        stride: usize,
        parts: [(Part, usize); N],
    ) {
        let sizes = self.sizes;
        if sizes.is_empty() {
            if to.mode == Write::Set {
                to.dst.fill(T::ZERO);
            }
            return;
        }
        let g = Rows { data: chain.grad, stride: sizes.width };
        let len = to.dst.len() / sizes.batch;
        chain.threads.for_each_chunk(to.dst, len, |batch, dst| {
            for (part, column) in parts {
                let strip = Strip { data: &mut dst[column..], stride, mode: to.mode };
                match part {
                    Part::Query => self.over_keys(chain.prepared, self.k, batch, strip),
                    Part::Key => self.over_queries(chain.prepared, self.q, batch, strip),
                    Part::Value => self.over_queries(chain.saved, g, batch, strip),
                }
            }
        });
    }

    /// `a · bᵀ` of a block of queries to the first columns of its rows of `pairs`.
    fn scores<'p>(
        &self,
        a: Rows<'_, T>,
        b: Rows<'_, T>,
        place: Place,
        queries: &Range<usize>,
        pairs: &'p mut [T],
    ) -> Scores<'p, T> {
        let sizes = self.sizes;
        let seen = sizes.seen(queries);
        let rows = &mut pairs[queries.start * sizes.keys..queries.end * sizes.keys];
        product_into(
            MatrixMut::strided(rows, queries.len(), seen, sizes.keys),
            Write::Set,
            a.part(sizes.queries, place, queries.clone(), sizes.head_width()),
            b.part(sizes.keys, place, 0..seen, sizes.head_width()).transposed(),
        );
        Scores { rows, stride: sizes.keys, seen, scale: sizes.scale() }
    }

    /// `pairs[queries, keys] · rows[keys, head]` of a batch, one row for each query.
    fn over_keys(&self, pairs: &[T], rows: Rows<'_, T>, batch: usize, mut to: Strip<'_, T>) {
        let sizes = self.sizes;
        for head in 0..sizes.how.heads {
            let index = batch * sizes.how.heads + head;
            let (place, pairs) = (sizes.place(index), &pairs[index * sizes.pairs()..]);
            for queries in sizes.blocks(sizes.queries) {
                let seen = sizes.seen(&queries);
                let pairs = Matrix::strided(
                    &pairs[queries.start * sizes.keys..],
                    (queries.len(), seen),
                    (sizes.keys, 1),
                );
                let rows = rows.part(sizes.keys, place, 0..seen, sizes.head_width());
                let mode = to.mode;
                let dst = to.part(place, queries, sizes.head_width());
                product_into(dst, mode, pairs, rows);
            }
        }
    }

    /// `pairs[queries, keys]ᵀ · rows[queries, head]` of a batch, one row for each key.
    fn over_queries(&self, pairs: &[T], rows: Rows<'_, T>, batch: usize, mut to: Strip<'_, T>) {
        let sizes = self.sizes;
        for head in 0..sizes.how.heads {
            let index = batch * sizes.how.heads + head;
            let place = sizes.place(index);
            let pairs = &pairs[index * sizes.pairs()..][..sizes.pairs()];
            for keys in sizes.blocks(sizes.keys) {
                let queries = sizes.first_query(keys.start)..sizes.queries;
                // Behind the end where no query attends to these keys.
                let start = queries.start * sizes.keys + keys.start;
                let pairs = Matrix::strided(
                    pairs.get(start..).unwrap_or_default(),
                    (queries.len(), keys.len()),
                    (sizes.keys, 1),
                );
                let rows = rows.part(sizes.queries, place, queries, sizes.head_width());
                let mode = to.mode;
                let dst = to.part(place, keys, sizes.head_width());
                product_into(dst, mode, pairs.transposed(), rows);
            }
        }
    }
}

/// What a gradient is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Query,
    Key,
    Value,
}

impl<T: Real> Strip<'_, T> {
    /// A head's part of some rows.
    fn part(&mut self, place: Place, rows: Range<usize>, width: usize) -> MatrixMut<'_, T> {
        let start = rows.start * self.stride + place.column;
        MatrixMut::strided(&mut self.data[start..], rows.len(), width, self.stride)
    }
}

impl<'a, T: Real> Rows<'a, T> {
    /// A head's part of some of a batch's rows. No rows may lie behind the end.
    fn part(
        self,
        positions: usize,
        place: Place,
        rows: Range<usize>,
        width: usize,
    ) -> Matrix<'a, T> {
        let start = (place.batch * positions + rows.start) * self.stride + place.column;
        let data = self.data.get(start..).unwrap_or_default();
        Matrix::strided(data, (rows.len(), width), (self.stride, 1))
    }
}
