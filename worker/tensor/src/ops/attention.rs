//! Scaled dot-product attention of several heads.
//!
//! For each batch and head, with `q`, `k`, `v` that head's columns:
//!
//! ```text
//! P = softmax(q kᵀ / √width)        y = P v
//! dv = Pᵀ g      dP = g vᵀ      dS = P ∘ (dP - rows' sums of dP ∘ P) / √width
//! dq = dS k      dk = dSᵀ q
//! ```
//!
//! `P` and `dS` are kept whole, `[batch, head, query, key]`.
//!
//! # Source
//! Vaswani and others, "Attention is all you need", 2017.

mod heads;
mod softmax;

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use self::heads::{Heads, Part, Sizes};
use super::{Call, Chain, Forward, Operation, Target};
use crate::{
    error::OpError,
    meta::{DType, MAX_ELEMENTS, Meta, elements},
    real::Real,
};

/// How positions attend to each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attention {
    /// Into how many parts the last axis is cut.
    pub heads: usize,
    /// Whether query i attends to keys 0 to i only.
    pub causal: bool,
}

/// With queries, keys and values of their own.
#[derive(Debug, Clone, Copy)]
pub(super) struct Separate(pub(super) Attention);

/// With the three of them side by side in one tensor.
#[derive(Debug, Clone, Copy)]
pub(super) struct Packed(pub(super) Attention);

impl Attention {
    fn check(&self, call: &Call<'_>, sizes: &Sizes, mask: Option<&&Meta>) -> Result<(), OpError> {
        let width = sizes.width;
        call.require(0 < self.heads && 0 < width, "there must be a head and an element for it")?;
        call.require(width.is_multiple_of(self.heads), "the heads must divide the last axis")?;
        call.require(
            elements(&sizes.probabilities()) <= MAX_ELEMENTS,
            "there are too many pairs of positions",
        )?;
        if let Some(mask) = mask {
            call.require(mask.dtype == DType::I64, "the mask must be i64")?;
            call.require(
                mask.shape == [sizes.batch, sizes.keys],
                "the mask must be [batch, keys], as the keys are",
            )?;
        }
        Ok(())
    }
}

impl Operation for Separate {
    fn arity(&self) -> RangeInclusive<usize> {
        3..=4
    }

    fn infer(&self, call: &Call<'_>, out: &mut Meta) -> Result<(), OpError> {
        let (q, k, v) = (call.inputs[0], call.inputs[1], call.inputs[2]);
        call.require(
            q.dtype.is_float() && q.dtype == k.dtype && q.dtype == v.dtype,
            "queries, keys and values must be floats of one kind",
        )?;
        call.require(
            q.rank() == 3 && k.rank() == 3,
            "queries, keys and values must be [batch, position, width]",
        )?;
        call.require(k.shape == v.shape, "there must be one value for each key")?;
        call.require(
            q.shape[0] == k.shape[0] && q.shape[2] == k.shape[2],
            "queries and keys must be equal in batch and width",
        )?;
        self.0.check(call, &Sizes::separate(self.0, q, k), call.inputs.get(3))?;
        out.set(q.dtype, &q.shape);
        Ok(())
    }

    fn saved_len(&self, inputs: &[&Meta], _out: &Meta) -> usize {
        elements(&Sizes::separate(self.0, inputs[0], inputs[1]).probabilities())
    }

    fn forward<T: Real>(&self, cx: Forward<'_, T>) -> Result<(), OpError> {
        Heads::separate(self.0, cx.inputs).forward(cx.saved, cx.out.floats, cx.threads);
        Ok(())
    }

    fn prepared_len(&self, inputs: &[&Meta], out: &Meta) -> usize {
        self.saved_len(inputs, out)
    }

    /// `dS`.
    fn prepare<T: Real>(&self, chain: &Chain<'_, T>, prepared: &mut [T]) {
        Heads::separate(self.0, chain.inputs).prepare(chain, prepared);
    }

    fn gradient<T: Real>(&self, which: usize, chain: &Chain<'_, T>, to: Target<'_, T>) {
        let heads = Heads::separate(self.0, chain.inputs);
        let part = match which {
            0 => Part::Query,
            1 => Part::Key,
            _ => Part::Value,
        };
        heads.gradients(chain, to, heads.sizes.width, [(part, 0)]);
    }
}

impl Operation for Packed {
    fn arity(&self) -> RangeInclusive<usize> {
        1..=2
    }

    fn infer(&self, call: &Call<'_>, out: &mut Meta) -> Result<(), OpError> {
        let x = call.inputs[0];
        call.require(x.dtype.is_float(), "queries, keys and values must be floats")?;
        call.require(
            x.rank() == 3 && x.shape[2].is_multiple_of(3),
            "queries, keys and values must be [batch, position, 3 · width]",
        )?;
        let sizes = Sizes::packed(self.0, x);
        self.0.check(call, &sizes, call.inputs.get(1))?;
        out.set(x.dtype, &[sizes.batch, sizes.queries, sizes.width]);
        Ok(())
    }

    fn saved_len(&self, inputs: &[&Meta], _out: &Meta) -> usize {
        elements(&Sizes::packed(self.0, inputs[0]).probabilities())
    }

    fn forward<T: Real>(&self, cx: Forward<'_, T>) -> Result<(), OpError> {
        Heads::packed(self.0, cx.inputs).forward(cx.saved, cx.out.floats, cx.threads);
        Ok(())
    }

    fn prepared_len(&self, inputs: &[&Meta], out: &Meta) -> usize {
        self.saved_len(inputs, out)
    }

    /// `dS`.
    fn prepare<T: Real>(&self, chain: &Chain<'_, T>, prepared: &mut [T]) {
        Heads::packed(self.0, chain.inputs).prepare(chain, prepared);
    }

    fn gradient<T: Real>(&self, _which: usize, chain: &Chain<'_, T>, to: Target<'_, T>) {
        let heads = Heads::packed(self.0, chain.inputs);
        let width = heads.sizes.width;
        let parts = [(Part::Query, 0), (Part::Key, width), (Part::Value, 2 * width)];
        heads.gradients(chain, to, 3 * width, parts);
    }
}
