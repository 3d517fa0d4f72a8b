//! A perceptron.
//!
//! Weights and biases begin as PyTorch's default: uniform between ±1/√inputs of their layer.

use lockstep_api::MlpSpec;
use lockstep_tensor::OpError;

use super::Ports;
use crate::{
    blocks::{Linear, LinearInit},
    builder::Builder,
    error::{ModelError, size},
    flow::Flow,
    graph::Graph,
    io::{Extent, INPUT, InputSpec, OutputSpec},
};

/// Linear layers `layers.0`, `layers.1`, … with an activation between them.
#[derive(Debug, Clone)]
pub(crate) struct Mlp(Vec<Linear>);

impl Mlp {
    pub(super) fn new(spec: &MlpSpec, builder: &mut Builder) -> Result<(Self, Ports), ModelError> {
        let mut widths = vec![size("inputs", spec.inputs)?];
        for (index, width) in spec.hidden.iter().enumerate() {
            widths.push(size(&format!("hidden[{index}]"), *width)?);
        }
        widths.push(size("classes", spec.classes)?);
        let mut layers = Vec::new();
        for (index, pair) in widths.windows(2).enumerate() {
            let (inputs, outputs) = (pair[0], pair[1]);
            let init = LinearInit::fan_in(inputs);
            let layer = Linear::new(builder, &format!("layers.{index}"), [inputs, outputs], init);
            let is_last = index + 2 == widths.len();
            layers.push(if is_last { layer } else { layer.with(spec.activation) });
        }
        let ports = Ports {
            inputs: vec![InputSpec::floats(INPUT, vec![Extent::Exactly(spec.inputs as usize)])],
            output: OutputSpec::logits(vec![Extent::Exactly(spec.classes as usize)]),
        };
        Ok((Self(layers), ports))
    }

    pub(super) fn forward<G: Graph>(
        &self,
        flow: &mut Flow<'_, G>,
        x: G::Value,
    ) -> Result<G::Value, OpError> {
        self.0.iter().try_fold(x, |x, layer| layer.forward(flow, x))
    }
}
