//! A list of layers, named as in `torch.nn.Sequential`.
//!
//! Weights begin as PyTorch's defaults: convolutions and linear layers uniform between ±1/√inputs (biases too, with the
//! inputs of their layer), norms 1 and 0. An activation that the layer before it can take along is one operation with it.

use lockstep_api::{Activation as ActivationSpec, Conv2dSpec, LayerSpec, LayersSpec};
use lockstep_tensor::{BatchNorm, Conv2d, Op, OpError, Pool2d, RmsNorm};

use super::Ports;
use crate::{
    blocks::{Batched, Drop, Linear, LinearInit, Norm},
    builder::{Builder, Weight},
    error::{ModelError, epsilon, probability, refuse, size},
    flow::Flow,
    graph::Graph,
    init::Init,
    io::{Extent, INPUT, InputSpec, OutputSpec},
};

/// What is done one after the other.
#[derive(Debug, Clone)]
pub(crate) struct Layers(Vec<Layer>);

#[derive(Debug, Clone)]
enum Layer {
    Linear(Linear),
    Conv {
        weight: Weight,
        bias: Option<Weight>,
        conv: Conv2d,
    },
    Batched(Batched),
    Norm(Norm),
    Rms {
        weight: Weight,
        eps: f64,
    },
    Drop(Drop),
    /// Without parameters.
    Plain(Op),
    /// A view: `[batch, …]` to `[batch, length]`.
    Flatten,
}

impl Layers {
    pub(super) fn new(
        spec: &LayersSpec,
        builder: &mut Builder,
    ) -> Result<(Self, Ports), ModelError> {
        let shapes = shapes(spec)?;
        let (mut layers, mut index) = (Vec::new(), 0);
        while let Some(layer) = spec.layers.get(index) {
            let next = spec.layers.get(index + 1).and_then(activation);
            let site = Site { index, input: &shapes[index], next };
            let (layer, takes_next) = site.layer(layer, builder)?;
            layers.push(layer);
            index += if takes_next { 2 } else { 1 };
        }
        let exactly = |shape: &[usize]| shape.iter().copied().map(Extent::Exactly).collect();
        let last = shapes.last().map(Vec::as_slice).unwrap_or_default();
        let ports = Ports {
            inputs: vec![InputSpec::floats(INPUT, exactly(&shapes[0]))],
            output: OutputSpec::logits(exactly(last)),
        };
        Ok((Self(layers), ports))
    }

    /// A block begins before each linear layer and convolution, and ends before the next one or a view.
    pub(super) fn forward<G: Graph>(
        &self,
        flow: &mut Flow<'_, G>,
        x: G::Value,
    ) -> Result<G::Value, OpError> {
        let (mut x, mut is_open) = (x, false);
        for layer in &self.0 {
            let begins = matches!(layer, Layer::Linear(_) | Layer::Conv { .. });
            if is_open && (begins || matches!(layer, Layer::Flatten)) {
                flow.end_block(x)?;
                is_open = false;
            }
            if begins {
                flow.begin_block()?;
                is_open = true;
            }
            x = layer.forward(flow, x)?;
        }
        if is_open {
            flow.end_block(x)?;
        }
        Ok(x)
    }
}

/// The input's shape and that behind each layer, without the batch axis.
fn shapes(spec: &LayersSpec) -> Result<Vec<Vec<usize>>, ModelError> {
    if !(1..=3).contains(&spec.input.len()) {
        return Err(refuse("input", "1 to 3 axes", spec.input.len()));
    }
    for (axis, length) in spec.input.iter().enumerate() {
        size(&format!("input[{axis}]"), *length)?;
    }
    for (index, layer) in spec.layers.iter().enumerate() {
        check(index, layer)?;
    }
    let shapes = spec.shapes().map_err(|misfit| ModelError::Layer {
        field: format!("model.layers[{}].{}", misfit.index, misfit.field),
        message: misfit.message,
    })?;
    let as_usize = |length: u64| usize::try_from(length).unwrap_or(usize::MAX);
    Ok(shapes.into_iter().map(|shape| shape.into_iter().map(as_usize).collect()).collect())
}

/// That a layer's own settings are in their ranges.
fn check(index: usize, layer: &LayerSpec) -> Result<(), ModelError> {
    let sizes = |name: &str, fields: &[(&str, u32)]| {
        let mut fields = fields.iter();
        fields.try_for_each(|(field, value)| {
            size(&format!("layers[{index}].{name}.{field}"), *value).map(|_| ())
        })
    };
    let at = |field: &str| format!("layers[{index}].{field}");
    match layer {
        LayerSpec::Linear(it) => sizes("linear", &[("out", it.out)]),
        LayerSpec::Conv2d(it) => sizes(
            "conv2d",
            &[
                ("out", it.out),
                ("kernel", it.kernel),
                ("stride", it.stride),
                ("dilation", it.dilation),
                ("groups", it.groups),
            ],
        ),
        LayerSpec::MaxPool2d(it) => {
            sizes("max_pool2d", &[("kernel", it.kernel), ("stride", it.stride.unwrap_or(1))])
        }
        LayerSpec::AvgPool2d(it) => {
            sizes("avg_pool2d", &[("kernel", it.kernel), ("stride", it.stride.unwrap_or(1))])
        }
        LayerSpec::AdaptiveAvgPool2d(it) => sizes("adaptive_avg_pool2d", &[("size", it.size)]),
        LayerSpec::BatchNorm(it) => {
            epsilon(&at("batch_norm.eps"), it.eps)?;
            if (0.0..=1.0).contains(&it.momentum) {
                return Ok(());
            }
            Err(refuse(&at("batch_norm.momentum"), "0 to 1", it.momentum))
        }
        LayerSpec::LayerNorm(it) => epsilon(&at("layer_norm.eps"), it.eps).map(|_| ()),
        LayerSpec::RmsNorm(it) => epsilon(&at("rms_norm.eps"), it.eps).map(|_| ()),
        LayerSpec::Dropout(it) => probability(&at("dropout.p"), it.p).map(|_| ()),
        LayerSpec::Flatten
        | LayerSpec::Relu
        | LayerSpec::Gelu
        | LayerSpec::GeluNew
        | LayerSpec::Silu
        | LayerSpec::Tanh
        | LayerSpec::Sigmoid => Ok(()),
    }
}

fn activation(layer: &LayerSpec) -> Option<ActivationSpec> {
    match layer {
        LayerSpec::Relu => Some(ActivationSpec::Relu),
        LayerSpec::Gelu => Some(ActivationSpec::Gelu),
        LayerSpec::GeluNew => Some(ActivationSpec::GeluNew),
        _ => None,
    }
}

/// Where a layer stands.
#[derive(Debug, Clone, Copy)]
struct Site<'a> {
    index: usize,
    input: &'a [usize],
    /// The activation behind it, if one that a product may take along.
    next: Option<ActivationSpec>,
}

impl Site<'_> {
    /// The layer, and whether it takes the next one along.
    fn layer(self, layer: &LayerSpec, builder: &mut Builder) -> Result<(Layer, bool), ModelError> {
        let (channels, width) = match *self.input {
            [first, .., last] => (first, last),
            [only] => (only, only),
            [] => (1, 1),
        };
        let relu = self.next == Some(ActivationSpec::Relu);
        Ok(match layer {
            LayerSpec::Linear(it) => {
                let mut init = LinearInit::fan_in(width);
                init.bias = init.bias.filter(|_| it.bias);
                let sizes = [width, it.out as usize];
                let linear = Linear::new(builder, &self.index.to_string(), sizes, init);
                match self.next {
                    None => (Layer::Linear(linear), false),
                    Some(next) => (Layer::Linear(linear.with(next)), true),
                }
            }
            LayerSpec::Conv2d(it) => (self.conv(it, channels, relu, builder), relu),
            LayerSpec::BatchNorm(it) => {
                let norm = BatchNorm { eps: it.eps, relu };
                let name = self.index.to_string();
                (Layer::Batched(Batched::new(builder, &name, channels, norm, it.momentum)), relu)
            }
            LayerSpec::LayerNorm(it) => {
                (Layer::Norm(Norm::new(builder, &self.index.to_string(), width, it.eps)), false)
            }
            LayerSpec::RmsNorm(it) => {
                let name = format!("{}.weight", self.index);
                let weight = builder.weight(name, vec![width], Init::Ones);
                (Layer::Rms { weight, eps: it.eps }, false)
            }
            LayerSpec::Dropout(it) => (Layer::Drop(Drop::new(builder, it.p)), false),
            LayerSpec::Flatten => (Layer::Flatten, false),
            LayerSpec::MaxPool2d(it) => {
                (Layer::Plain(Op::MaxPool2d(pool(it.kernel, it.stride, it.padding))), false)
            }
            LayerSpec::AvgPool2d(it) => {
                (Layer::Plain(Op::AvgPool2d(pool(it.kernel, it.stride, it.padding))), false)
            }
            LayerSpec::AdaptiveAvgPool2d(it) => {
                (Layer::Plain(Op::AdaptiveAvgPool2d([it.size as usize; 2])), false)
            }
            LayerSpec::Relu => (Layer::Plain(Op::Relu), false),
            LayerSpec::Gelu => (Layer::Plain(Op::Gelu), false),
            LayerSpec::GeluNew => (Layer::Plain(Op::GeluTanh), false),
            LayerSpec::Silu => (Layer::Plain(Op::Silu), false),
            LayerSpec::Tanh => (Layer::Plain(Op::Tanh), false),
            LayerSpec::Sigmoid => (Layer::Plain(Op::Sigmoid), false),
        })
    }

    fn conv(self, spec: &Conv2dSpec, channels: usize, relu: bool, builder: &mut Builder) -> Layer {
        let (kernel, groups) = (spec.kernel as usize, spec.groups as usize);
        let (outputs, inputs) = (spec.out as usize, channels / groups.max(1));
        let init = Init::FanIn(inputs.saturating_mul(kernel * kernel));
        let name = |part: &str| format!("{}.{part}", self.index);
        let weight = builder.weight(name("weight"), vec![outputs, inputs, kernel, kernel], init);
        let bias = spec.bias.then(|| builder.weight(name("bias"), vec![outputs], init));
        let conv = Conv2d {
            stride: [spec.stride as usize; 2],
            padding: [spec.padding as usize; 2],
            dilation: [spec.dilation as usize; 2],
            groups,
            relu,
        };
        Layer::Conv { weight, bias, conv }
    }
}

fn pool(kernel: u32, stride: Option<u32>, padding: u32) -> Pool2d {
    Pool2d {
        kernel: [kernel as usize; 2],
        stride: [stride.unwrap_or(kernel) as usize; 2],
        padding: [padding as usize; 2],
    }
}

impl Layer {
    fn forward<G: Graph>(&self, flow: &mut Flow<'_, G>, x: G::Value) -> Result<G::Value, OpError> {
        match self {
            Self::Linear(layer) => layer.forward(flow, x),
            Self::Conv { weight, bias, conv } => flow.product(Op::Conv2d(*conv), x, *weight, *bias),
            Self::Batched(layer) => layer.forward(flow, x, None),
            Self::Norm(layer) => layer.forward(flow, x),
            Self::Rms { weight, eps } => {
                let weight = flow.param(*weight);
                flow.apply(Op::RmsNorm(RmsNorm { eps: *eps }), &[x, weight])
            }
            Self::Drop(layer) => layer.forward(flow, x),
            Self::Plain(op) => flow.apply(op.clone(), &[x]),
            Self::Flatten => {
                let meta = flow.meta(x)?;
                let batch = meta.shape.first().copied().unwrap_or(1);
                let length = meta.shape.iter().skip(1).product();
                flow.reshape(x, &[batch, length])
            }
        }
    }
}
