//! The plain product of matrices, many at once.

use std::ops::RangeInclusive;

use super::{Call, Chain, Forward, Operation, Target};
use crate::{
    error::OpError,
    kernel::{Matrix, MatrixMut, Product, Scratch, Threads, Write, product},
    meta::{Meta, elements},
    real::Real,
};

/// `a[.., n, k]` times `b[.., k, m]` of equal leading axes, or times one `b[k, m]`.
#[derive(Debug, Clone, Copy)]
pub(super) struct MatMul;

/// `batch` products of `[n, k]` and `[k, m]`. One `b` for all is one product with all rows of `a`.
#[derive(Debug, Clone, Copy)]
struct Sizes {
    batch: usize,
    n: usize,
    k: usize,
    m: usize,
}

impl Sizes {
    fn new(a: &Meta, b: &Meta) -> Self {
        let (leading, k) = a.shape.split_at(a.rank() - 1);
        let (k, m) = (k[0], b.shape[b.rank() - 1]);
        if b.rank() == 2 {
            return Self { batch: 1, n: elements(leading), k, m };
        }
        let (batch, n) = leading.split_at(leading.len() - 1);
        Self { batch: elements(batch), n: n[0], k, m }
    }

    fn a<'a, T: Real>(&self, data: &'a [T], index: usize) -> Matrix<'a, T> {
        Matrix::new(piece(data, index, self.n * self.k), self.n, self.k)
    }

    fn b<'a, T: Real>(&self, data: &'a [T], index: usize) -> Matrix<'a, T> {
        Matrix::new(piece(data, index, self.k * self.m), self.k, self.m)
    }

    fn y<'a, T: Real>(&self, data: &'a [T], index: usize) -> Matrix<'a, T> {
        Matrix::new(piece(data, index, self.n * self.m), self.n, self.m)
    }
}

fn piece<T>(data: &[T], index: usize, len: usize) -> &[T] {
    &data[index * len..][..len]
}

impl Operation for MatMul {
    fn arity(&self) -> RangeInclusive<usize> {
        2..=2
    }

    fn infer(&self, call: &Call<'_>, out: &mut Meta) -> Result<(), OpError> {
        let dtype = call.floats()?;
        let (a, b) = (call.inputs[0], call.inputs[1]);
        call.require(2 <= a.rank() && 2 <= b.rank(), "both must have two axes or more")?;
        let leading = &b.shape[..b.rank() - 2];
        call.require(
            leading.is_empty() || *leading == a.shape[..a.rank() - 2],
            "the axes before the last two must be equal, or b have none",
        )?;
        call.require(
            a.last() == Some(b.shape[b.rank() - 2]),
            "the last axis of a must be as long as the last but one of b",
        )?;
        out.set(dtype, &a.shape);
        if let (Some(last), Some(m)) = (out.shape.last_mut(), b.last()) {
            *last = m;
        }
        Ok(())
    }

    fn forward<T: Real>(&self, cx: Forward<'_, T>) -> Result<(), OpError> {
        let (a, b, y) = (&cx.inputs[0], &cx.inputs[1], cx.out.floats);
        if y.is_empty() {
            return Ok(());
        }
        let sizes = Sizes::new(a.meta, b.meta);
        let factors = |i| (sizes.a(a.floats, i), sizes.b(b.floats, i));
        products(y, Write::Set, sizes.batch, cx.threads, factors);
        Ok(())
    }

    /// `da = g bᵀ`, `db = aᵀ g`.
    fn gradient<T: Real>(&self, which: usize, chain: &Chain<'_, T>, to: Target<'_, T>) {
        if to.dst.is_empty() {
            return;
        }
        let (a, b, g) = (&chain.inputs[0], &chain.inputs[1], chain.grad);
        let sizes = Sizes::new(a.meta, b.meta);
        products(to.dst, to.mode, sizes.batch, chain.threads, |i| match which {
            0 => (sizes.y(g, i), sizes.b(b.floats, i).transposed()),
            _ => (sizes.a(a.floats, i).transposed(), sizes.y(g, i)),
        });
    }
}

/// Fills `dst`, which is not empty, with as many products: one on all threads, or each on one of them.
fn products<'a, T: Real>(
    dst: &mut [T],
    mode: Write,
    count: usize,
    threads: &Threads,
    factors: impl Fn(usize) -> (Matrix<'a, T>, Matrix<'a, T>) + Sync + Send,
) {
    if count == 1 {
        let (a, b) = factors(0);
        let dst = MatrixMut::new(dst, a.rows(), b.columns());
        let product = Product::new(a, b).mode(mode);
        return Scratch::with_local(|scratch| product.run(dst, threads, scratch));
    }
    let len = dst.len() / count;
    threads.for_each_chunk(dst, len, |i, dst| {
        let (a, b) = factors(i);
        product(dst, mode, a, b);
    });
}
