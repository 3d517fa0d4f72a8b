//! ResNet-18, -34 and -50, in the names of torchvision.
//!
//! Weights begin as there: convolutions normal with standard deviation √(2 / (out · height · width of the window)),
//! norms 1 and 0, the last layer as PyTorch's default.

use lockstep_api::{ResnetSpec, ResnetStem};
use lockstep_tensor::{BatchNorm, Conv2d, Op, OpError, Pool2d};

use super::Ports;
use crate::{
    blocks::{Batched, Linear, LinearInit},
    builder::{Builder, Weight},
    error::{ModelError, size},
    flow::Flow,
    graph::Graph,
    init::Init,
    io::{Extent, INPUT, InputSpec, OutputSpec},
};

const EPS: f64 = 1e-5;
const MOMENTUM: f64 = 0.1;

/// Blocks of each stage, and their kind.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plan {
    blocks: [usize; 4],
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Two 3×3 convolutions.
    Basic,
    /// 1×1, 3×3 with the stride, 1×1 to four times the width.
    Bottleneck,
}

pub(super) const BASIC_18: Plan = Plan { blocks: [2, 2, 2, 2], kind: Kind::Basic };
pub(super) const BASIC_34: Plan = Plan { blocks: [3, 4, 6, 3], kind: Kind::Basic };
pub(super) const BOTTLENECK_50: Plan = Plan { blocks: [3, 4, 6, 3], kind: Kind::Bottleneck };

/// Stem, four stages, mean over the image, linear layer.
#[derive(Debug, Clone)]
pub(crate) struct Resnet {
    stem: Convolved,
    pool: Option<Pool2d>,
    blocks: Vec<Block>,
    head: Linear,
    features: usize,
}

/// A convolution without bias and the batch norm behind it.
#[derive(Debug, Clone)]
struct Convolved {
    weight: Weight,
    conv: Conv2d,
    norm: Batched,
}

/// Convolutions; the input, brought to their shape, is added before the last ReLU.
#[derive(Debug, Clone)]
struct Block {
    first: Vec<Convolved>,
    shortcut: Option<Convolved>,
    last: Convolved,
}

/// Names, window and channels of a convolution with its norm.
#[derive(Debug, Clone, Copy)]
struct Sizes {
    inputs: usize,
    outputs: usize,
    kernel: usize,
    stride: usize,
    relu: bool,
}

impl Resnet {
    pub(super) fn new(
        spec: &ResnetSpec,
        builder: &mut Builder,
        plan: Plan,
    ) -> Result<(Self, Ports), ModelError> {
        let [channels, height, width] = spec.input;
        let inputs = size("input[0]", channels)?;
        let (height, width) = (size("input[1]", height)?, size("input[2]", width)?);
        let classes = size("classes", spec.classes)?;
        let (kernel, stride) = match spec.stem {
            ResnetStem::Imagenet => (7, 2),
            ResnetStem::Small => (3, 1),
        };
        let stem = Sizes { inputs, outputs: 64, kernel, stride, relu: true };
        let stem = Convolved::new(builder, ["conv1", "bn1"], stem);
        let pool = match spec.stem {
            ResnetStem::Imagenet => {
                Some(Pool2d { kernel: [3, 3], stride: [2, 2], padding: [1, 1] })
            }
            ResnetStem::Small => None,
        };
        let (mut blocks, mut features) = (Vec::new(), 64);
        for (stage, &count) in plan.blocks.iter().enumerate() {
            for index in 0..count {
                let name = format!("layer{}.{index}", stage + 1);
                let stride = if 0 < stage && index == 0 { 2 } else { 1 };
                let block = Block::new(builder, &name, plan.kind, [features, 64 << stage, stride]);
                features = block.last.outputs();
                blocks.push(block);
            }
        }
        let head = Linear::new(builder, "fc", [features, classes], LinearInit::fan_in(features));
        let shape = vec![Extent::Exactly(inputs), Extent::About(height), Extent::About(width)];
        let ports = Ports {
            inputs: vec![InputSpec::floats(INPUT, shape)],
            output: OutputSpec::logits(vec![Extent::Exactly(classes)]),
        };
        Ok((Self { stem, pool, blocks, head, features }, ports))
    }

    /// `[batch, channels, height, width]` to `[batch, classes]`.
    pub(super) fn forward<G: Graph>(
        &self,
        flow: &mut Flow<'_, G>,
        x: G::Value,
    ) -> Result<G::Value, OpError> {
        let mut x = self.stem.forward(flow, x, None)?;
        if let Some(pool) = self.pool {
            x = flow.apply(Op::MaxPool2d(pool), &[x])?;
        }
        for block in &self.blocks {
            x = block.forward(flow, x)?;
        }
        let x = flow.apply(Op::AdaptiveAvgPool2d([1, 1]), &[x])?;
        let batch = flow.length(x, 0)?;
        let x = flow.reshape(x, &[batch, self.features])?;
        self.head.forward(flow, x)
    }
}

impl Block {
    /// `[inputs, width, stride]`: channels in, the stage's width, pixels from window to window.
    fn new(
        builder: &mut Builder,
        name: &str,
        kind: Kind,
        [inputs, width, stride]: [usize; 3],
    ) -> Self {
        let mut layer = |index: usize, sizes: Sizes| {
            let names = [format!("{name}.conv{index}"), format!("{name}.bn{index}")];
            Convolved::new(builder, [&names[0], &names[1]], sizes)
        };
        let square =
            |inputs, stride, relu| Sizes { inputs, outputs: width, kernel: 3, stride, relu };
        let (first, outputs) = match kind {
            Kind::Basic => (vec![layer(1, square(inputs, stride, true))], width),
            Kind::Bottleneck => {
                let narrow = Sizes { inputs, outputs: width, kernel: 1, stride: 1, relu: true };
                (vec![layer(1, narrow), layer(2, square(width, stride, true))], 4 * width)
            }
        };
        // Declared before the last layer: that one reads it.
        let shortcut = (stride != 1 || inputs != outputs).then(|| {
            let names = [format!("{name}.downsample.0"), format!("{name}.downsample.1")];
            let sizes = Sizes { inputs, outputs, kernel: 1, stride, relu: false };
            Convolved::new(builder, [&names[0], &names[1]], sizes)
        });
        let index = first.len() + 1;
        let names = [format!("{name}.conv{index}"), format!("{name}.bn{index}")];
        let last = match kind {
            Kind::Basic => square(width, 1, true),
            Kind::Bottleneck => Sizes { inputs: width, outputs, kernel: 1, stride: 1, relu: true },
        };
        let last = Convolved::new(builder, [&names[0], &names[1]], last);
        Self { first, shortcut, last }
    }

    fn forward<G: Graph>(&self, flow: &mut Flow<'_, G>, x: G::Value) -> Result<G::Value, OpError> {
        flow.begin_block()?;
        let y = self.first.iter().try_fold(x, |y, layer| layer.forward(flow, y, None))?;
        let residual = match &self.shortcut {
            Some(shortcut) => shortcut.forward(flow, x, None)?,
            None => x,
        };
        let y = self.last.forward(flow, y, Some(residual))?;
        flow.end_block(y)?;
        Ok(y)
    }
}

impl Convolved {
    fn new(builder: &mut Builder, [conv, norm]: [&str; 2], sizes: Sizes) -> Self {
        let Sizes { inputs, outputs, kernel, stride, relu } = sizes;
        let fan_out = outputs * kernel * kernel;
        let shape = vec![outputs, inputs, kernel, kernel];
        let init = Init::Normal((2.0 / fan_out as f64).sqrt());
        let weight = builder.weight(format!("{conv}.weight"), shape, init);
        let norm = Batched::new(builder, norm, outputs, BatchNorm { eps: EPS, relu }, MOMENTUM);
        let conv = Conv2d {
            stride: [stride, stride],
            padding: [kernel / 2, kernel / 2],
            dilation: [1, 1],
            groups: 1,
            relu: false,
        };
        Self { weight, conv, norm }
    }

    fn outputs(&self) -> usize {
        self.norm.channels()
    }

    fn forward<G: Graph>(
        &self,
        flow: &mut Flow<'_, G>,
        x: G::Value,
        residual: Option<G::Value>,
    ) -> Result<G::Value, OpError> {
        let y = flow.product(Op::Conv2d(self.conv), x, self.weight, None)?;
        self.norm.forward(flow, y, residual)
    }
}
