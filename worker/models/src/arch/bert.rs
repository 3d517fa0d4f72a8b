//! BERT with a classification head, in the names of Hugging Face's `BertForSequenceClassification`.
//!
//! Weights begin as there: normal with standard deviation 0.02, the token embedding's row 0 (the padding token's) 0;
//! biases 0, norms 1 and 0. Row 0 is trained like any other: where padding is masked, no gradient reaches it.

use lockstep_api::BertSpec;
use lockstep_tensor::{Attention, Op, OpError, Slice};

use super::Ports;
use crate::{
    attention::{Heads, Projected},
    blocks::{Drop, Linear, LinearInit, Norm},
    builder::{Builder, Weight},
    error::{ModelError, divisor, epsilon, probability, size},
    flow::Flow,
    graph::{Given, Graph},
    init::Init,
    io::{Extent, IDS, InputSpec, KINDS, MASK, OutputSpec},
};

const STD: f64 = 0.02;

/// Embeddings with a norm, blocks with the norm behind each part, the pooled first token, the classifier.
#[derive(Debug, Clone)]
pub(crate) struct Bert {
    tokens: Weight,
    kinds: Weight,
    positions: Weight,
    longest: usize,
    norm: Norm,
    drop: Drop,
    blocks: Vec<Block>,
    pooler: Linear,
    pooled_drop: Drop,
    classifier: Linear,
    width: usize,
}

#[derive(Debug, Clone)]
struct Block {
    query: Linear,
    key: Linear,
    value: Linear,
    heads: Heads,
    attention_out: Linear,
    attention_drop: Drop,
    norm_1: Norm,
    inner: Linear,
    inner_out: Linear,
    inner_drop: Drop,
    norm_2: Norm,
}

impl Bert {
    pub(super) fn new(spec: &BertSpec, builder: &mut Builder) -> Result<(Self, Ports), ModelError> {
        let width = size("hidden_size", spec.hidden_size)?;
        let longest = size("max_position_embeddings", spec.max_position_embeddings)?;
        let layers = size("num_hidden_layers", spec.num_hidden_layers)?;
        let classes = size("classes", spec.classes)?;
        let eps = epsilon("layer_norm_eps", spec.layer_norm_eps)?;
        let dropped = probability("hidden_dropout_prob", spec.hidden_dropout_prob)?;
        let table = |builder: &mut Builder, name: &str, rows: usize, init: Init| {
            let name = format!("bert.embeddings.{name}_embeddings.weight");
            builder.weight(name, vec![rows, width], init)
        };
        let words = Init::NormalAfter { std: STD, zeros: width };
        let tokens = table(builder, "word", size("vocab_size", spec.vocab_size)?, words);
        let kinds = size("type_vocab_size", spec.type_vocab_size)?;
        let kinds = table(builder, "token_type", kinds, Init::Normal(STD));
        let positions = table(builder, "position", longest, Init::Normal(STD));
        let norm = Norm::new(builder, "bert.embeddings.LayerNorm", width, eps);
        let drop = Drop::new(builder, dropped);
        let mut blocks = Vec::new();
        for layer in 0..layers {
            blocks.push(Block::new(spec, builder, &format!("bert.encoder.layer.{layer}"))?);
        }
        let plain = LinearInit::normal(STD);
        let pooler = Linear::new(builder, "bert.pooler.dense", [width, width], plain)
            .with(lockstep_api::Activation::Tanh);
        let pooled_drop = Drop::new(builder, dropped);
        let classifier = Linear::new(builder, "classifier", [width, classes], plain);
        let time = || vec![Extent::AtMost(longest)];
        let ports = Ports {
            inputs: vec![
                InputSpec::indices(IDS, time()),
                InputSpec::indices(MASK, time()).or_none(),
                InputSpec::indices(KINDS, time()).or_none(),
            ],
            output: OutputSpec::logits(vec![Extent::Exactly(classes)]),
        };
        let net = Self {
            tokens,
            kinds,
            positions,
            longest,
            norm,
            drop,
            blocks,
            pooler,
            pooled_drop,
            classifier,
            width,
        };
        Ok((net, ports))
    }

    /// `[batch, time]` to `[batch, classes]`. Without kinds of segments all are of the first.
    pub(super) fn forward<G: Graph>(
        &self,
        flow: &mut Flow<'_, G>,
        given: Given<G::Value>,
    ) -> Result<G::Value, OpError> {
        let x = self.embed(flow, given)?;
        let mut x = self.drop.forward(flow, x)?;
        for block in &self.blocks {
            x = block.forward(flow, x, given.attention_mask)?;
        }
        let batch = flow.length(x, 0)?;
        let x = flow.apply(Op::Slice(Slice { axis: 1, start: 0, len: 1 }), &[x])?;
        let x = flow.reshape(x, &[batch, self.width])?;
        let x = self.pooler.forward(flow, x)?;
        let x = self.pooled_drop.forward(flow, x)?;
        self.classifier.forward(flow, x)
    }

    fn embed<G: Graph>(
        &self,
        flow: &mut Flow<'_, G>,
        given: Given<G::Value>,
    ) -> Result<G::Value, OpError> {
        let first = |len: usize| Op::Slice(Slice { axis: 0, start: 0, len });
        let (tokens, kinds) = (flow.param(self.tokens), flow.param(self.kinds));
        let x = flow.apply(Op::Embedding, &[tokens, given.x])?;
        let kinds = match given.token_type_ids {
            Some(ids) => flow.apply(Op::Embedding, &[kinds, ids])?,
            None => flow.apply(first(1), &[kinds])?,
        };
        let x = flow.add(x, kinds)?;
        let len = flow.length(given.x, 1)?;
        let mut positions = flow.param(self.positions);
        if len != self.longest {
            positions = flow.apply(first(len), &[positions])?;
        }
        let x = flow.add(x, positions)?;
        self.norm.forward(flow, x)
    }
}

impl Block {
    fn new(spec: &BertSpec, builder: &mut Builder, name: &str) -> Result<Self, ModelError> {
        let names = ["num_attention_heads", "hidden_size"];
        let heads = divisor(names, spec.num_attention_heads, spec.hidden_size)?;
        let inner = size("intermediate_size", spec.intermediate_size)?;
        let shares =
            probability("attention_probs_dropout_prob", spec.attention_probs_dropout_prob)?;
        let (width, eps) = (spec.hidden_size as usize, spec.layer_norm_eps);
        let (dropped, plain) = (spec.hidden_dropout_prob, LinearInit::normal(STD));
        let linear = |builder: &mut Builder, part: &str, sizes: [usize; 2]| {
            Linear::new(builder, &format!("{name}.{part}"), sizes, plain)
        };
        let norm = |builder: &mut Builder, part: &str| {
            Norm::new(builder, &format!("{name}.{part}.LayerNorm"), width, eps)
        };
        Ok(Self {
            query: linear(builder, "attention.self.query", [width, width]),
            key: linear(builder, "attention.self.key", [width, width]),
            value: linear(builder, "attention.self.value", [width, width]),
            heads: Heads::new(builder, Attention { heads, causal: false }, shares),
            attention_out: linear(builder, "attention.output.dense", [width, width]),
            attention_drop: Drop::new(builder, dropped),
            norm_1: norm(builder, "attention.output"),
            inner: linear(builder, "intermediate.dense", [width, inner]).with(spec.hidden_act),
            inner_out: linear(builder, "output.dense", [inner, width]),
            inner_drop: Drop::new(builder, dropped),
            norm_2: norm(builder, "output"),
        })
    }

    fn forward<G: Graph>(
        &self,
        flow: &mut Flow<'_, G>,
        x: G::Value,
        mask: Option<G::Value>,
    ) -> Result<G::Value, OpError> {
        flow.begin_block()?;
        let q = self.query.forward(flow, x)?;
        let k = self.key.forward(flow, x)?;
        let v = self.value.forward(flow, x)?;
        let y = self.heads.forward(flow, Projected::Apart([q, k, v]), mask)?;
        let y = self.attention_out.forward(flow, y)?;
        let y = self.attention_drop.forward(flow, y)?;
        let x = flow.add(y, x)?;
        let x = self.norm_1.forward(flow, x)?;
        let y = self.inner.forward(flow, x)?;
        let y = self.inner_out.forward(flow, y)?;
        let y = self.inner_drop.forward(flow, y)?;
        let x = flow.add(y, x)?;
        let x = self.norm_2.forward(flow, x)?;
        flow.end_block(x)?;
        Ok(x)
    }
}
