//! Where each head's numbers lie, and the products over them.
//!
//! Heads are read and written in place, as strided parts of the wider tensors. Causal attention is cut into
//! blocks of [`BLOCK`] positions; blocks above the diagonal are neither computed nor read.
//!
//! # Determinism
//! Each element is one product's sum over the summed axis, in the product's order.

use std::ops::Range;

use super::{
    Attention,
    softmax::{softmax, softmax_gradient},
};
use crate::{
    kernel::{Matrix, MatrixMut, Write, product_into},
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

    pub(super) fn is_empty(&self) -> bool {
        self.batch == 0 || self.queries == 0 || self.keys == 0
    }

    /// Of one head.
    fn head_width(&self) -> usize {
        self.width / self.how.heads
    }

    fn scale<T: Real>(&self) -> T {
        T::from_f64(1.0 / (self.head_width() as f64).sqrt())
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

impl<'a, T: Real> Heads<'a, T> {
    pub(super) fn separate(sizes: Sizes, inputs: &[Operand<'a, T>]) -> Self {
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

    /// Each batch and head, with the range of its probabilities.
    fn each(&self) -> impl Iterator<Item = (Place, Range<usize>)> + use<T> {
        let sizes = self.sizes;
        let (heads, len) = (sizes.how.heads, sizes.queries * sizes.keys);
        (0..sizes.batch * heads).map(move |i| {
            let place = Place { batch: i / heads, column: i % heads * sizes.head_width() };
            (place, i * len..(i + 1) * len)
        })
    }

    pub(super) fn forward(&self, saved: &mut [T], y: &mut [T]) {
        let sizes = self.sizes;
        if sizes.is_empty() {
            y.fill(T::ZERO);
            return;
        }
        for (place, range) in self.each() {
            let p = &mut saved[range];
            let mask = self.mask.map(|mask| &mask[place.batch * sizes.keys..][..sizes.keys]);
            for queries in sizes.blocks(sizes.queries) {
                let seen = sizes.seen(&queries);
                let q = self.q.part(sizes.queries, place, queries.clone(), sizes.head_width());
                let k = self.k.part(sizes.keys, place, 0..seen, sizes.head_width());
                scores(p, &sizes, queries.clone(), seen, q, k.transposed());
                for query in queries {
                    let row = &mut p[query * sizes.keys..][..seen];
                    let (row, unseen) = row.split_at_mut(sizes.keys_before(query + 1));
                    softmax(row, mask, sizes.scale());
                    unseen.fill(T::ZERO);
                }
            }
            let target = Target { dst: &mut *y, mode: Write::Set };
            self.over_keys(p, self.v, place, target, sizes.width);
        }
    }

    /// `dS` of all heads, in the order of the probabilities.
    pub(super) fn prepare(&self, chain: &Chain<'_, T>, prepared: &mut [T]) {
        let sizes = self.sizes;
        if sizes.is_empty() {
            return;
        }
        let g = Rows { data: chain.grad, stride: sizes.width };
        for (place, range) in self.each() {
            let (p, ds) = (&chain.saved[range.clone()], &mut prepared[range]);
            for queries in sizes.blocks(sizes.queries) {
                let seen = sizes.seen(&queries);
                let g = g.part(sizes.queries, place, queries.clone(), sizes.head_width());
                let v = self.v.part(sizes.keys, place, 0..seen, sizes.head_width());
                scores(ds, &sizes, queries.clone(), seen, g, v.transposed());
                for query in queries {
                    let start = query * sizes.keys;
                    let (row, unseen) =
                        ds[start..][..seen].split_at_mut(sizes.keys_before(query + 1));
                    softmax_gradient(row, &p[start..][..row.len()], sizes.scale());
                    unseen.fill(T::ZERO);
                }
            }
        }
    }

    pub(super) fn query_gradient(&self, chain: &Chain<'_, T>, to: Target<'_, T>, stride: usize) {
        if self.sizes.is_empty() {
            return zero(to);
        }
        for (place, range) in self.each() {
            let to = Target { dst: &mut *to.dst, mode: to.mode };
            self.over_keys(&chain.prepared[range], self.k, place, to, stride);
        }
    }

    pub(super) fn key_gradient(&self, chain: &Chain<'_, T>, to: Target<'_, T>, stride: usize) {
        if self.sizes.is_empty() {
            return zero(to);
        }
        for (place, range) in self.each() {
            let to = Target { dst: &mut *to.dst, mode: to.mode };
            self.over_queries(&chain.prepared[range], self.q, place, to, stride);
        }
    }

    pub(super) fn value_gradient(&self, chain: &Chain<'_, T>, to: Target<'_, T>, stride: usize) {
        if self.sizes.is_empty() {
            return zero(to);
        }
        let g = Rows { data: chain.grad, stride: self.sizes.width };
        for (place, range) in self.each() {
            let to = Target { dst: &mut *to.dst, mode: to.mode };
            self.over_queries(&chain.saved[range], g, place, to, stride);
        }
    }

    /// `pairs[queries, keys] · rows[keys, head]` to one row for each query.
    fn over_keys(
        &self,
        pairs: &[T],
        rows: Rows<'_, T>,
        place: Place,
        to: Target<'_, T>,
        stride: usize,
    ) {
        let sizes = self.sizes;
        for queries in sizes.blocks(sizes.queries) {
            let seen = sizes.seen(&queries);
            let pairs = Matrix::strided(
                &pairs[queries.start * sizes.keys..],
                (queries.len(), seen),
                (sizes.keys, 1),
            );
            let rows = rows.part(sizes.keys, place, 0..seen, sizes.head_width());
            let dst = place.part(to.dst, sizes.queries, queries, sizes.head_width(), stride);
            product_into(dst, to.mode, pairs, rows);
        }
    }

    /// `pairs[queries, keys]ᵀ · rows[queries, head]` to one row for each key.
    fn over_queries(
        &self,
        pairs: &[T],
        rows: Rows<'_, T>,
        place: Place,
        to: Target<'_, T>,
        stride: usize,
    ) {
        let sizes = self.sizes;
        for keys in sizes.blocks(sizes.keys) {
            let first = sizes.first_query(keys.start);
            let queries = first..sizes.queries;
            let start = pairs.len().min(first * sizes.keys + keys.start);
            let pairs =
                Matrix::strided(&pairs[start..], (queries.len(), keys.len()), (sizes.keys, 1));
            let rows = rows.part(sizes.queries, place, queries, sizes.head_width());
            let dst = place.part(to.dst, sizes.keys, keys, sizes.head_width(), stride);
            product_into(dst, to.mode, pairs.transposed(), rows);
        }
    }
}

/// A batch and the first column of a head.
#[derive(Debug, Clone, Copy)]
struct Place {
    pub(super) batch: usize,
    column: usize,
}

impl Place {
    /// The head's part of some of a batch's rows, to be written.
    fn part<T: Real>(
        self,
        data: &mut [T],
        positions: usize,
        rows: Range<usize>,
        width: usize,
        stride: usize,
    ) -> MatrixMut<'_, T> {
        let start = (self.batch * positions + rows.start) * stride + self.column;
        MatrixMut::strided(&mut data[start..], rows.len(), width, stride)
    }
}

impl<'a, T: Real> Rows<'a, T> {
    /// The head's part of some of a batch's rows. No rows may lie behind the end.
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

/// `a · b` to the first `seen` columns of some rows of `[queries, keys]`.
fn scores<T: Real>(
    pairs: &mut [T],
    sizes: &Sizes,
    queries: Range<usize>,
    seen: usize,
    a: Matrix<'_, T>,
    b: Matrix<'_, T>,
) {
    let rows = &mut pairs[queries.start * sizes.keys..];
    let dst = MatrixMut::strided(rows, queries.len(), seen, sizes.keys);
    product_into(dst, Write::Set, a, b);
}

fn zero<T: Real>(to: Target<'_, T>) {
    if to.mode == Write::Set {
        to.dst.fill(T::ZERO);
    }
}
