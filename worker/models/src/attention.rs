//! Attention of several heads: one operation, or, where probabilities are dropped, spelt out.

use lockstep_tensor::{Attention, Dims, Op, OpError, Slice};

use crate::{blocks::Drop, builder::Builder, flow::Flow, graph::Graph};

/// Below every score, and yet finite: a row that may attend to nothing spreads evenly instead of becoming NaN.
const MASKED: f64 = -1e30;

/// Scaled dot-product attention; the projections before and behind it are other layers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Heads {
    attention: Attention,
    drop: Drop,
}

/// What attention reads.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Projected<V> {
    /// Query, key and value behind one another: `[batch, time, 3 · width]`.
    Packed(V),
    /// Each `[batch, time, width]`.
    Apart([V; 3]),
}

impl Heads {
    /// `p`: probability of dropout of the attention's probabilities.
    pub(crate) fn new(builder: &mut Builder, attention: Attention, p: f64) -> Self {
        Self { attention, drop: Drop::new(builder, p) }
    }

    /// `mask`: i64 `[batch, time]`, 1 for what may be attended to.
    pub(crate) fn forward<G: Graph>(
        &self,
        flow: &mut Flow<'_, G>,
        projected: Projected<G::Value>,
        mask: Option<G::Value>,
    ) -> Result<G::Value, OpError> {
        let y = if self.drop.is_on(flow) {
            let apart = apart(flow, projected)?;
            self.spelt_out(flow, apart, mask)?
        } else {
            match (projected, mask) {
                (Projected::Packed(x), None) => {
                    let x = flow.operand(x)?;
                    flow.apply(Op::SelfAttention(self.attention), &[x])?
                }
                (Projected::Packed(x), Some(mask)) => {
                    let x = flow.operand(x)?;
                    flow.apply(Op::SelfAttention(self.attention), &[x, mask])?
                }
                (Projected::Apart(qkv), mask) => {
                    let [q, k, v] = operands(flow, qkv)?;
                    match mask {
                        None => flow.apply(Op::Attention(self.attention), &[q, k, v])?,
                        Some(mask) => {
                            flow.apply(Op::Attention(self.attention), &[q, k, v, mask])?
                        }
                    }
                }
            }
        };
        flow.result(y)
    }

    /// softmax(q kᵀ / √width + mask) with dropout, times v.
    fn spelt_out<G: Graph>(
        &self,
        flow: &mut Flow<'_, G>,
        qkv: [G::Value; 3],
        mask: Option<G::Value>,
    ) -> Result<G::Value, OpError> {
        let Attention { heads, causal } = self.attention;
        let (batch, time) = (flow.length(qkv[0], 0)?, flow.length(qkv[0], 1)?);
        let width = flow.length(qkv[0], 2)?;
        let head = width / heads.max(1);
        let [q, k, v] = operands(flow, qkv)?;
        let q = self.by_head(flow, q, [0, 2, 1, 3])?;
        let k = self.by_head(flow, k, [0, 2, 3, 1])?;
        let v = self.by_head(flow, v, [0, 2, 1, 3])?;
        let scores = flow.apply(Op::MatMul, &[q, k])?;
        let mut scores = flow.apply(Op::Scale(1.0 / (head as f64).sqrt()), &[scores])?;
        if causal {
            let ahead = flow.causal(time)?;
            scores = flow.add(scores, ahead)?;
        }
        if let Some(mask) = mask {
            // (mask - 1) · 1e30: 0 where it is 1.
            let mask = flow.apply(Op::ToFloat, &[mask])?;
            let mask = flow.apply(Op::AddScalar(-1.0), &[mask])?;
            let mask = flow.apply(Op::Scale(-MASKED), &[mask])?;
            let mask = flow.reshape(mask, &[batch, 1, 1, time])?;
            scores = flow.add(scores, mask)?;
        }
        let shares = flow.apply(Op::Softmax, &[scores])?;
        let shares = self.drop.forward(flow, shares)?;
        let y = flow.apply(Op::MatMul, &[shares, v])?;
        let y = flow.apply(Op::Permute(Dims::from_iter([0, 2, 1, 3])), &[y])?;
        flow.reshape(y, &[batch, time, width])
    }

    /// `[batch, time, width]` with its width cut into heads and its axes in that order.
    fn by_head<G: Graph>(
        &self,
        flow: &mut Flow<'_, G>,
        x: G::Value,
        order: [usize; 4],
    ) -> Result<G::Value, OpError> {
        let [batch, time, width] = [flow.length(x, 0)?, flow.length(x, 1)?, flow.length(x, 2)?];
        let heads = self.attention.heads;
        let x = flow.reshape(x, &[batch, time, heads, width / heads.max(1)])?;
        flow.apply(Op::Permute(Dims::from_iter(order)), &[x])
    }
}

fn operands<G: Graph>(
    flow: &mut Flow<'_, G>,
    [q, k, v]: [G::Value; 3],
) -> Result<[G::Value; 3], OpError> {
    Ok([flow.operand(q)?, flow.operand(k)?, flow.operand(v)?])
}

fn apart<G: Graph>(
    flow: &mut Flow<'_, G>,
    projected: Projected<G::Value>,
) -> Result<[G::Value; 3], OpError> {
    match projected {
        Projected::Apart(qkv) => Ok(qkv),
        Projected::Packed(x) => {
            let len = flow.length(x, 2)? / 3;
            let mut part = |which: usize| {
                flow.apply(Op::Slice(Slice { axis: 2, start: which * len, len }), &[x])
            };
            Ok([part(0)?, part(1)?, part(2)?])
        }
    }
}
