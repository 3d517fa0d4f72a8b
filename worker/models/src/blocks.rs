//! Layers that several architectures are made of. They know names and shapes and own no numbers.

use lockstep_api::Activation as ActivationSpec;
use lockstep_tensor::{Activation, BatchNorm, Dropout, LayerNorm, Op, OpError};

use crate::{
    builder::{Builder, Running, Weight},
    flow::Flow,
    graph::Graph,
    init::Init,
};

/// How a linear layer's weights lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// `[out, in]`, as PyTorch's `Linear`.
    OutIn,
    /// `[in, out]`, as Hugging Face's `Conv1D`.
    InOut,
}

/// A linear layer, and the function behind it.
#[derive(Debug, Clone)]
pub(crate) struct Linear {
    weight: Weight,
    bias: Option<Weight>,
    form: Form,
    activation: Activation,
    /// An activation that the product does not take along.
    then: Option<Op>,
}

/// What a linear layer is declared with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LinearInit {
    pub(crate) weight: Init,
    /// `None`: there is no bias.
    pub(crate) bias: Option<Init>,
}

impl LinearInit {
    /// PyTorch's default.
    pub(crate) fn fan_in(inputs: usize) -> Self {
        Self { weight: Init::FanIn(inputs), bias: Some(Init::FanIn(inputs)) }
    }

    /// With biases that are 0.
    pub(crate) fn normal(std: f64) -> Self {
        Self { weight: Init::Normal(std), bias: Some(Init::Zeros) }
    }
}

impl Linear {
    /// `NAME.weight` and `NAME.bias`.
    pub(crate) fn new(
        builder: &mut Builder,
        name: &str,
        [inputs, outputs]: [usize; 2],
        init: LinearInit,
    ) -> Self {
        Self::named(
            builder,
            [&format!("{name}.weight"), &format!("{name}.bias")],
            [inputs, outputs],
            init,
        )
    }

    /// With names of its own.
    pub(crate) fn named(
        builder: &mut Builder,
        [weight, bias]: [&str; 2],
        [inputs, outputs]: [usize; 2],
        init: LinearInit,
    ) -> Self {
        Self {
            weight: builder.weight(weight.to_owned(), vec![outputs, inputs], init.weight),
            bias: init.bias.map(|init| builder.weight(bias.to_owned(), vec![outputs], init)),
            form: Form::OutIn,
            activation: Activation::None,
            then: None,
        }
    }

    /// `NAME.weight` `[in, out]` and `NAME.bias`.
    pub(crate) fn in_out(
        builder: &mut Builder,
        name: &str,
        [inputs, outputs]: [usize; 2],
        init: LinearInit,
    ) -> Self {
        let weight = builder.weight(format!("{name}.weight"), vec![inputs, outputs], init.weight);
        let bias =
            init.bias.map(|init| builder.weight(format!("{name}.bias"), vec![outputs], init));
        Self { weight, bias, form: Form::InOut, activation: Activation::None, then: None }
    }

    /// The weights `[out, in]` of another layer, without a bias.
    pub(crate) fn tied(weight: Weight) -> Self {
        Self { weight, bias: None, form: Form::OutIn, activation: Activation::None, then: None }
    }

    /// With a function behind it.
    pub(crate) fn with(mut self, activation: ActivationSpec) -> Self {
        match fused(activation) {
            Ok(activation) => self.activation = activation,
            Err(op) => self.then = Some(op),
        }
        self
    }

    pub(crate) fn forward<G: Graph>(
        &self,
        flow: &mut Flow<'_, G>,
        x: G::Value,
    ) -> Result<G::Value, OpError> {
        let op = match self.form {
            Form::OutIn => Op::Linear(self.activation),
            Form::InOut => Op::Affine(self.activation),
        };
        let y = flow.product(op, x, self.weight, self.bias)?;
        match &self.then {
            None => Ok(y),
            Some(op) => flow.apply(op.clone(), &[y]),
        }
    }
}

/// The activation that a product takes along, or the operation that stands behind it.
pub(crate) fn fused(activation: ActivationSpec) -> Result<Activation, Op> {
    match activation {
        ActivationSpec::Relu => Ok(Activation::Relu),
        ActivationSpec::Gelu => Ok(Activation::Gelu),
        ActivationSpec::GeluNew => Ok(Activation::GeluTanh),
        ActivationSpec::Silu => Err(Op::Silu),
        ActivationSpec::Tanh => Err(Op::Tanh),
    }
}

/// A layer norm over the last axis: weights begin as 1, biases as 0.
#[derive(Debug, Clone)]
pub(crate) struct Norm {
    weight: Weight,
    bias: Weight,
    eps: f64,
}

impl Norm {
    /// `NAME.weight` and `NAME.bias`.
    pub(crate) fn new(builder: &mut Builder, name: &str, width: usize, eps: f64) -> Self {
        let weight = builder.weight(format!("{name}.weight"), vec![width], Init::Ones);
        let bias = builder.weight(format!("{name}.bias"), vec![width], Init::Zeros);
        Self { weight, bias, eps }
    }

    pub(crate) fn forward<G: Graph>(
        &self,
        flow: &mut Flow<'_, G>,
        x: G::Value,
    ) -> Result<G::Value, OpError> {
        let (weight, bias) = (flow.param(self.weight), flow.param(self.bias));
        flow.apply(Op::LayerNorm(LayerNorm { eps: self.eps }), &[x, weight, bias])
    }
}

/// A batch norm over axis 1, perhaps with a residual sum and ReLU behind it.
#[derive(Debug, Clone)]
pub(crate) struct Batched {
    weight: Weight,
    bias: Weight,
    running: Running,
    norm: BatchNorm,
}

impl Batched {
    /// Parameters and buffers named as PyTorch names them.
    pub(crate) fn new(
        builder: &mut Builder,
        name: &str,
        channels: usize,
        norm: BatchNorm,
        momentum: f64,
    ) -> Self {
        let weight = builder.weight(format!("{name}.weight"), vec![channels], Init::Ones);
        let bias = builder.weight(format!("{name}.bias"), vec![channels], Init::Zeros);
        Self { weight, bias, running: builder.running(name, channels, momentum), norm }
    }

    pub(crate) fn channels(&self) -> usize {
        self.running.channels
    }

    pub(crate) fn forward<G: Graph>(
        &self,
        flow: &mut Flow<'_, G>,
        x: G::Value,
        residual: Option<G::Value>,
    ) -> Result<G::Value, OpError> {
        let (weight, bias) = (flow.param(self.weight), flow.param(self.bias));
        if !flow.is_training() {
            let (mean, variance) =
                (flow.buffer(self.running.mean)?, flow.buffer(self.running.variance)?);
            let op = Op::BatchNormInference(self.norm);
            return match residual {
                None => flow.apply(op, &[x, weight, bias, mean, variance]),
                Some(residual) => flow.apply(op, &[x, weight, bias, mean, variance, residual]),
            };
        }
        let op = Op::BatchNorm(self.norm);
        let y = match residual {
            None => flow.apply(op, &[x, weight, bias])?,
            Some(residual) => flow.apply(op, &[x, weight, bias, residual])?,
        };
        flow.take_statistics(&self.running, y)?;
        Ok(y)
    }
}

/// Dropout: nothing in evaluation, and nothing at all with probability 0.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Drop {
    p: f64,
    number: u64,
}

impl Drop {
    pub(crate) fn new(builder: &mut Builder, p: f64) -> Self {
        Self { p, number: builder.dropout() }
    }

    /// Whether it does anything.
    pub(crate) fn is_on<G: Graph>(&self, flow: &Flow<'_, G>) -> bool {
        flow.is_training() && 0.0 < self.p
    }

    pub(crate) fn forward<G: Graph>(
        &self,
        flow: &mut Flow<'_, G>,
        x: G::Value,
    ) -> Result<G::Value, OpError> {
        if !self.is_on(flow) {
            return Ok(x);
        }
        let seed = flow.seed(self.number);
        flow.apply(Op::Dropout(Dropout { p: self.p, seed }), &[x])
    }
}
