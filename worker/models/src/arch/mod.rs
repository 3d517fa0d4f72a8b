//! One file per architecture.

mod bert;
mod gpt2;
mod layers;
mod mlp;
mod resnet;
mod vit;

use lockstep_api::ArchSpec;
use lockstep_tensor::OpError;

use crate::{
    builder::Builder,
    error::ModelError,
    flow::Flow,
    graph::{Given, Graph},
    io::{InputSpec, OutputSpec},
};

/// The layers of a model.
#[derive(Debug, Clone)]
pub(crate) enum Net {
    Mlp(mlp::Mlp),
    Layers(layers::Layers),
    Resnet(resnet::Resnet),
    Gpt2(gpt2::Gpt2),
    Bert(bert::Bert),
    Vit(vit::Vit),
}

/// What a model reads and puts out.
#[derive(Debug, Clone)]
pub(crate) struct Ports {
    pub(crate) inputs: Vec<InputSpec>,
    pub(crate) output: OutputSpec,
}

impl Net {
    pub(crate) fn new(arch: &ArchSpec, builder: &mut Builder) -> Result<(Self, Ports), ModelError> {
        Ok(match arch {
            ArchSpec::Mlp(spec) => {
                let (net, ports) = mlp::Mlp::new(spec, builder)?;
                (Self::Mlp(net), ports)
            }
            ArchSpec::Layers(spec) => {
                let (net, ports) = layers::Layers::new(spec, builder)?;
                (Self::Layers(net), ports)
            }
            ArchSpec::Resnet18(spec) => resnet(spec, builder, resnet::BASIC_18)?,
            ArchSpec::Resnet34(spec) => resnet(spec, builder, resnet::BASIC_34)?,
            ArchSpec::Resnet50(spec) => resnet(spec, builder, resnet::BOTTLENECK_50)?,
            ArchSpec::Gpt2(spec) => {
                let (net, ports) = gpt2::Gpt2::new(spec, builder)?;
                (Self::Gpt2(net), ports)
            }
            ArchSpec::Bert(spec) => {
                let (net, ports) = bert::Bert::new(spec, builder)?;
                (Self::Bert(net), ports)
            }
            ArchSpec::Vit(spec) => {
                let (net, ports) = vit::Vit::new(spec, builder)?;
                (Self::Vit(net), ports)
            }
        })
    }

    pub(crate) fn forward<G: Graph>(
        &self,
        flow: &mut Flow<'_, G>,
        given: Given<G::Value>,
    ) -> Result<G::Value, OpError> {
        match self {
            Self::Mlp(net) => net.forward(flow, given.x),
            Self::Layers(net) => net.forward(flow, given.x),
            Self::Resnet(net) => net.forward(flow, given.x),
            Self::Gpt2(net) => net.forward(flow, given.x),
            Self::Bert(net) => net.forward(flow, given),
            Self::Vit(net) => net.forward(flow, given.x),
        }
    }
}

fn resnet(
    spec: &lockstep_api::ResnetSpec,
    builder: &mut Builder,
    plan: resnet::Plan,
) -> Result<(Net, Ports), ModelError> {
    let (net, ports) = resnet::Resnet::new(spec, builder, plan)?;
    Ok((Net::Resnet(net), ports))
}
