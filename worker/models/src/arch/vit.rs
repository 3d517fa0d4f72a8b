//! Vision transformer, in the names of torchvision.
//!
//! Weights begin as there: the patches' convolution truncated normal with standard deviation 1/√inputs, the class token
//! 0, positions normal with 0.02, query, key, value and the feed-forward part by Xavier's rule (biases of the latter normal
//! with 1e-6), the projection behind attention uniform between ±1/√width, norms 1 and 0, the last layer and every other
//! bias 0.

use lockstep_api::VitSpec;
use lockstep_tensor::{Attention, Conv2d, Dims, Op, OpError, Slice};

use super::Ports;
use crate::{
    attention::{Heads, Projected},
    blocks::{Drop, Linear, LinearInit, Norm},
    builder::{Builder, Weight},
    error::{ModelError, divisor, probability, size},
    flow::Flow,
    graph::Graph,
    init::Init,
    io::{Extent, INPUT, InputSpec, OutputSpec},
};

const EPS: f64 = 1e-6;

/// Patches and a class token with positions, blocks with the norm before each part, a last norm, the head.
#[derive(Debug, Clone)]
pub(crate) struct Vit {
    class: Weight,
    patches: Weight,
    patches_bias: Weight,
    patch: usize,
    positions: Weight,
    drop: Drop,
    blocks: Vec<Block>,
    norm: Norm,
    head: Linear,
    width: usize,
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
    inner_drop: Drop,
    inner_out: Linear,
    out_drop: Drop,
}

impl Vit {
    pub(super) fn new(spec: &VitSpec, builder: &mut Builder) -> Result<(Self, Ports), ModelError> {
        let patch = divisor(["patch_size", "image_size"], spec.patch_size, spec.image_size)?;
        let image = spec.image_size as usize;
        let channels = size("in_channels", spec.in_channels)?;
        let width = size("hidden_dim", spec.hidden_dim)?;
        let layers = size("num_layers", spec.num_layers)?;
        let classes = size("classes", spec.classes)?;
        let fan_in = channels * patch * patch;
        let init = Init::TruncatedNormal((1.0 / fan_in as f64).sqrt());
        let shape = vec![width, channels, patch, patch];
        let patches = builder.weight("conv_proj.weight".to_owned(), shape, init);
        let patches_bias = builder.weight("conv_proj.bias".to_owned(), vec![width], Init::Zeros);
        let class = builder.weight("class_token".to_owned(), vec![1, 1, width], Init::Zeros);
        let side = image / patch;
        let shape = vec![1, side * side + 1, width];
        let positions =
            builder.weight("encoder.pos_embedding".to_owned(), shape, Init::Normal(0.02));
        let drop = Drop::new(builder, probability("dropout", spec.dropout)?);
        let mut blocks = Vec::new();
        for layer in 0..layers {
            let name = format!("encoder.layers.encoder_layer_{layer}");
            blocks.push(Block::new(spec, builder, &name)?);
        }
        let norm = Norm::new(builder, "encoder.ln", width, EPS);
        let init = LinearInit { weight: Init::Zeros, bias: Some(Init::Zeros) };
        let head = Linear::new(builder, "heads.head", [width, classes], init);
        let shape = [channels, image, image].map(Extent::Exactly).to_vec();
        let ports = Ports {
            inputs: vec![InputSpec::floats(INPUT, shape)],
            output: OutputSpec::logits(vec![Extent::Exactly(classes)]),
        };
        let net = Self {
            class,
            patches,
            patches_bias,
            patch,
            positions,
            drop,
            blocks,
            norm,
            head,
            width,
        };
        Ok((net, ports))
    }

    /// `[batch, channels, size, size]` to `[batch, classes]`.
    pub(super) fn forward<G: Graph>(
        &self,
        flow: &mut Flow<'_, G>,
        x: G::Value,
    ) -> Result<G::Value, OpError> {
        let x = self.embed(flow, x)?;
        let mut x = self.drop.forward(flow, x)?;
        for block in &self.blocks {
            x = block.forward(flow, x)?;
        }
        // The head reads the class token alone, and the norm goes row by row: the other rows need none.
        let batch = flow.length(x, 0)?;
        let x = flow.apply(Op::Slice(Slice { axis: 1, start: 0, len: 1 }), &[x])?;
        let x = flow.reshape(x, &[batch, self.width])?;
        let x = self.norm.forward(flow, x)?;
        self.head.forward(flow, x)
    }

    /// Class token and patches, with their positions: `[batch, 1 + patches, width]`.
    fn embed<G: Graph>(&self, flow: &mut Flow<'_, G>, x: G::Value) -> Result<G::Value, OpError> {
        let conv = Conv2d {
            stride: [self.patch, self.patch],
            padding: [0, 0],
            dilation: [1, 1],
            groups: 1,
            relu: false,
        };
        let x = flow.product(Op::Conv2d(conv), x, self.patches, Some(self.patches_bias))?;
        let batch = flow.length(x, 0)?;
        let patches = flow.length(x, 2)? * flow.length(x, 3)?;
        let x = flow.reshape(x, &[batch, self.width, patches])?;
        let x = flow.apply(Op::Permute(Dims::from_iter([0, 2, 1])), &[x])?;
        let (zeros, class) = (flow.zeros(&[batch, 1, self.width])?, flow.param(self.class));
        let class = flow.add(zeros, class)?;
        let x = flow.apply(Op::Concat(1), &[class, x])?;
        let positions = flow.param(self.positions);
        flow.add(x, positions)
    }
}

impl Block {
    fn new(spec: &VitSpec, builder: &mut Builder, name: &str) -> Result<Self, ModelError> {
        let heads = divisor(["num_heads", "hidden_dim"], spec.num_heads, spec.hidden_dim)?;
        let shares = probability("attention_dropout", spec.attention_dropout)?;
        let (width, inner) = (spec.hidden_dim as usize, size("mlp_dim", spec.mlp_dim)?);
        let at = |part: &str| format!("{name}.{part}");
        let packed = [&*at("self_attention.in_proj_weight"), &at("self_attention.in_proj_bias")];
        let xavier = |inputs: usize, outputs: usize, bias: Init| LinearInit {
            weight: Init::xavier(inputs, outputs),
            bias: Some(bias),
        };
        let (qkv, tiny) = (xavier(width, 3 * width, Init::Zeros), Init::Normal(1e-6));
        let out = LinearInit { weight: Init::FanIn(width), bias: Some(Init::Zeros) };
        let (up, down) = (xavier(width, inner, tiny), xavier(inner, width, tiny));
        Ok(Self {
            norm_1: Norm::new(builder, &at("ln_1"), width, EPS),
            qkv: Linear::named(builder, packed, [width, 3 * width], qkv),
            heads: Heads::new(builder, Attention { heads, causal: false }, shares),
            attention_out: Linear::new(
                builder,
                &at("self_attention.out_proj"),
                [width, width],
                out,
            ),
            attention_drop: Drop::new(builder, spec.dropout),
            norm_2: Norm::new(builder, &at("ln_2"), width, EPS),
            inner: Linear::new(builder, &at("mlp.0"), [width, inner], up)
                .with(lockstep_api::Activation::Gelu),
            inner_drop: Drop::new(builder, spec.dropout),
            inner_out: Linear::new(builder, &at("mlp.3"), [inner, width], down),
            out_drop: Drop::new(builder, spec.dropout),
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
        let y = self.inner_drop.forward(flow, y)?;
        let y = self.inner_out.forward(flow, y)?;
        let y = self.out_drop.forward(flow, y)?;
        let x = flow.add(x, y)?;
        flow.end_block(x)?;
        Ok(x)
    }
}
