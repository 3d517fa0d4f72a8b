//! GPT-2 with its language head, in the names of Hugging Face's `GPT2LMHeadModel`.
//!
//! Weights begin as there: normal with standard deviation 0.02; the two projections back to the residual stream with
//! 0.02/√(2 · blocks); biases 0, norms 1 and 0.

use lockstep_api::Gpt2Spec;
use lockstep_tensor::{Attention, Op, OpError, Slice};

use super::Ports;
use crate::{
    attention::{Heads, Projected},
    blocks::{Drop, Linear, LinearInit, Norm},
    builder::{Builder, Weight},
    error::{ModelError, divisor, epsilon, probability, size},
    flow::Flow,
    graph::Graph,
    init::Init,
    io::{Extent, IDS, InputSpec, OutputSpec},
};

const STD: f64 = 0.02;

/// Embeddings, blocks with the norm before each part, a last norm, the head.
#[derive(Debug, Clone)]
pub(crate) struct Gpt2 {
    tokens: Weight,
    positions: Weight,
    longest: usize,
    drop: Drop,
    blocks: Vec<Block>,
    norm: Norm,
    head: Linear,
}

#[derive(Debug, Clone)]
struct Block {
    norm_1: Norm,
    qkv: Linear,
    heads: Heads,
    attention_out: Linear,
    attention_drop: Drop,
    norm_2: Norm,
    inner: Linear,
    inner_out: Linear,
    inner_drop: Drop,
}

impl Gpt2 {
    pub(super) fn new(spec: &Gpt2Spec, builder: &mut Builder) -> Result<(Self, Ports), ModelError> {
        let vocabulary = size("vocab_size", spec.vocab_size)?;
        let longest = size("n_positions", spec.n_positions)?;
        let width = size("n_embd", spec.n_embd)?;
        let layers = size("n_layer", spec.n_layer)?;
        epsilon("layer_norm_epsilon", spec.layer_norm_epsilon)?;
        let embedding = |builder: &mut Builder, name: &str, rows: usize| {
            builder.weight(
                format!("transformer.{name}.weight"),
                vec![rows, width],
                Init::Normal(STD),
            )
        };
        let tokens = embedding(builder, "wte", vocabulary);
        let positions = embedding(builder, "wpe", longest);
        let drop = Drop::new(builder, probability("embd_pdrop", spec.embd_pdrop)?);
        let mut blocks = Vec::new();
        for layer in 0..layers {
            blocks.push(Block::new(spec, builder, &format!("transformer.h.{layer}"))?);
        }
        let norm = Norm::new(builder, "transformer.ln_f", width, spec.layer_norm_epsilon);
        let head = if spec.tie_word_embeddings {
            Linear::tied(tokens)
        } else {
            let init = LinearInit { weight: Init::Normal(STD), bias: None };
            Linear::new(builder, "lm_head", [width, vocabulary], init)
        };
        let ports = Ports {
            inputs: vec![InputSpec::indices(IDS, vec![Extent::AtMost(longest)])],
            output: OutputSpec::logits(vec![Extent::AtMost(longest), Extent::Exactly(vocabulary)]),
        };
        Ok((Self { tokens, positions, longest, drop, blocks, norm, head }, ports))
    }

    /// `ids`: `[batch, time]`; the result `[batch, time, vocabulary]`.
    pub(super) fn forward<G: Graph>(
        &self,
        flow: &mut Flow<'_, G>,
        ids: G::Value,
    ) -> Result<G::Value, OpError> {
        let (tokens, mut positions) = (flow.param(self.tokens), flow.param(self.positions));
        let x = flow.apply(Op::Embedding, &[tokens, ids])?;
        let len = flow.length(ids, 1)?;
        if len != self.longest {
            let first = Slice { axis: 0, start: 0, len };
            positions = flow.apply(Op::Slice(first), &[positions])?;
        }
        let x = flow.add(x, positions)?;
        let mut x = self.drop.forward(flow, x)?;
        for block in &self.blocks {
            x = block.forward(flow, x)?;
        }
        let x = self.norm.forward(flow, x)?;
        self.head.forward(flow, x)
    }
}

impl Block {
    fn new(spec: &Gpt2Spec, builder: &mut Builder, name: &str) -> Result<Self, ModelError> {
        let width = spec.n_embd as usize;
        let inner = match spec.n_inner {
            Some(inner) => size("n_inner", inner)?,
            None => 4 * width,
        };
        let heads = divisor(["n_head", "n_embd"], spec.n_head, spec.n_embd)?;
        let (eps, plain) = (spec.layer_norm_epsilon, LinearInit::normal(STD));
        let residual = LinearInit::normal(STD / (2.0 * f64::from(spec.n_layer)).sqrt());
        let dropped = probability("resid_pdrop", spec.resid_pdrop)?;
        let shares = probability("attn_pdrop", spec.attn_pdrop)?;
        let at = |part: &str| format!("{name}.{part}");
        Ok(Self {
            norm_1: Norm::new(builder, &at("ln_1"), width, eps),
            qkv: Linear::in_out(builder, &at("attn.c_attn"), [width, 3 * width], plain),
            heads: Heads::new(builder, Attention { heads, causal: true }, shares),
            attention_out: Linear::in_out(builder, &at("attn.c_proj"), [width, width], residual),
            attention_drop: Drop::new(builder, dropped),
            norm_2: Norm::new(builder, &at("ln_2"), width, eps),
            inner: Linear::in_out(builder, &at("mlp.c_fc"), [width, inner], plain)
                .with(spec.activation_function),
            inner_out: Linear::in_out(builder, &at("mlp.c_proj"), [inner, width], residual),
            inner_drop: Drop::new(builder, dropped),
        })
    }

    fn forward<G: Graph>(&self, flow: &mut Flow<'_, G>, x: G::Value) -> Result<G::Value, OpError> {
        flow.begin_block()?;
        let y = self.norm_1.forward(flow, x)?;
        let y = self.qkv.forward(flow, y)?;
        let y = self.heads.forward(flow, Projected::Packed(y), None)?;
        let y = self.attention_out.forward(flow, y)?;
        let y = self.attention_drop.forward(flow, y)?;
        let x = flow.add(y, x)?;
        let y = self.norm_2.forward(flow, x)?;
        let y = self.inner.forward(flow, y)?;
        let y = self.inner_out.forward(flow, y)?;
        let y = self.inner_drop.forward(flow, y)?;
        let x = flow.add(x, y)?;
        flow.end_block(x)?;
        Ok(x)
    }
}
