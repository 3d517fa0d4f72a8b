//! `graph`: records what a loss guest writes down. Numbers never come here, only shapes.

use lockstep_tensor::{
    Axes, Clamp, CrossEntropy, DType, Dims, MAX_RANK, Meta, Node, Op, OpError, RecipeBuilder,
    ScatterAdd, Slice,
};
use wasmtime::component::Resource;

use super::GuestState;
use crate::bindings::graph;
use crate::bindings::types::Dtype;
use crate::error::GuestError;

/// A node of the expression, behind a handle.
#[expect(unreachable_pub, reason = "the bindings re-export it")]
#[derive(Debug, Clone, Copy)]
pub struct Tensor {
    pub(crate) node: Node,
}

/// The expression being recorded.
pub(crate) struct Graph {
    pub(crate) recipe: RecipeBuilder,
    /// Bytes of constants so far.
    constants: u64,
}

impl Graph {
    pub(crate) fn new() -> Self {
        Self { recipe: RecipeBuilder::new(), constants: 0 }
    }
}

impl GuestState {
    /// Outside of `loss.build` there is nothing to record into.
    pub(crate) fn graph(&mut self) -> Result<&mut Graph, GuestError> {
        let what = self.what;
        self.graph.as_mut().ok_or_else(|| operation(what, "tensors exist in loss.build only"))
    }

    /// A shape or dtype that does not fit traps with the engine's own message.
    pub(crate) fn refused(&self, error: OpError) -> GuestError {
        operation(self.what, &error.to_string())
    }

    fn meta(&mut self, tensor: &Resource<Tensor>) -> wasmtime::Result<Meta> {
        let node = self.handles.get(tensor)?.node;
        let meta = self.graph()?.recipe.meta(node).cloned();
        Ok(meta.map_err(|error| self.refused(error))?)
    }

    /// Lengths or places of axes; the engine has room for so many.
    fn dims(&self, op: &str, axes: &[u32]) -> Result<Dims, GuestError> {
        let (given, limit) = (axes.len(), MAX_RANK);
        if limit < given {
            let message = format!("{op}: {given} axes are given, there are at most {limit}");
            return Err(operation(self.what, &message));
        }
        Ok(axes.iter().map(|&axis| axis as usize).collect())
    }

    fn axes(&self, op: &str, axes: &[u32], keep: bool) -> Result<Axes, GuestError> {
        Ok(Axes { axes: self.dims(op, axes)?, keep })
    }

    fn apply(
        &mut self,
        op: Op,
        inputs: &[&Resource<Tensor>],
    ) -> wasmtime::Result<Resource<Tensor>> {
        let mut nodes = Vec::with_capacity(inputs.len());
        for input in inputs {
            nodes.push(self.handles.get(input)?.node);
        }
        let node = self.graph()?.recipe.apply(op, &nodes);
        let node = node.map_err(|error| self.refused(error))?;
        Ok(self.handles.push(Tensor { node })?)
    }
}

fn operation(what: &str, message: &str) -> GuestError {
    GuestError::Operation { what: what.to_owned(), message: message.to_owned() }
}

impl graph::Host for GuestState {
    fn constant(&mut self, shape: Vec<u32>, data: Vec<f32>) -> wasmtime::Result<Resource<Tensor>> {
        let (what, limit) = (self.what, self.limits.output_bytes);
        let shape = self.dims("constant", &shape)?;
        let graph = self.graph()?;
        let asked = graph.constants.saturating_add(size_of_val(data.as_slice()) as u64);
        if limit < asked {
            let what = what.to_owned();
            return Err(GuestError::OutputLimit { what, asked: Some(asked), limit }.into());
        }
        graph.constants = asked;
        let node = graph.recipe.constant(&shape, data);
        let node = node.map_err(|error| self.refused(error))?;
        Ok(self.handles.push(Tensor { node })?)
    }
}

/// One line an operation: its name in the interface, the tensors it takes; the settings it takes; what it is for the
/// engine.
macro_rules! operations {
    ($state:ident: $(
        $name:ident($($other:ident),* $(; $($setting:ident: $kind:ty),+)?) => $op:expr;
    )+) => {
        $(fn $name(
            &mut self,
            this: Resource<Tensor>,
            $($other: Resource<Tensor>,)*
            $($($setting: $kind,)+)?
        ) -> wasmtime::Result<Resource<Tensor>> {
            let $state = self;
            let op = $op;
            $state.apply(op, &[&this, $(&$other),*])
        })+
    };
}

impl graph::HostTensor for GuestState {
    operations! { state:
        add(other) => Op::Add;
        sub(other) => Op::Sub;
        mul(other) => Op::Mul;
        div(other) => Op::Div;
        neg() => Op::Neg;
        scale(; factor: f64) => Op::Scale(factor);
        add_scalar(; term: f64) => Op::AddScalar(term);
        exp() => Op::Exp;
        log() => Op::Log;
        sqrt() => Op::Sqrt;
        abs() => Op::Abs;
        pow(; exponent: f64) => Op::Pow(exponent);
        clamp(; min: f64, max: f64) => Op::Clamp(Clamp { min, max });
        relu() => Op::Relu;
        sigmoid() => Op::Sigmoid;
        tanh() => Op::Tanh;
        gelu() => Op::Gelu;
        gelu_tanh() => Op::GeluTanh;
        silu() => Op::Silu;
        softmax() => Op::Softmax;
        log_softmax() => Op::LogSoftmax;
        cross_entropy(labels; label_smoothing: f64, ignore_index: Option<i64>) =>
            Op::CrossEntropy(CrossEntropy { label_smoothing, ignore_index });
        mse_loss(target) => Op::MseLoss;
        bce_with_logits(target) => Op::BceWithLogits;
        kl_div(target) => Op::KlDiv;
        sum() => Op::Sum;
        mean() => Op::Mean;
        sum_axes(; axes: Vec<u32>, keep: bool) => Op::SumAxes(state.axes("sum_axes", &axes, keep)?);
        mean_axes(; axes: Vec<u32>, keep: bool) => Op::MeanAxes(state.axes("mean_axes", &axes, keep)?);
        max_axes(; axes: Vec<u32>, keep: bool) => Op::MaxAxes(state.axes("max_axes", &axes, keep)?);
        argmax() => Op::ArgMax;
        gather(index) => Op::Gather;
        gather_axis(index; axis: u32) => Op::GatherAxis(axis as usize);
        scatter_add(index; axis: u32, len: u32) =>
            Op::ScatterAdd(ScatterAdd { axis: axis as usize, len: len as usize });
        where_(a, b) => Op::Where;
        equal(other) => Op::Equal;
        to_float() => Op::ToFloat;
        detach() => Op::Detach;
        matmul(other) => Op::MatMul;
        reshape(; shape: Vec<u32>) => Op::Reshape(state.dims("reshape", &shape)?);
        permute(; axes: Vec<u32>) => Op::Permute(state.dims("permute", &axes)?);
        slice(; axis: u32, start: u32, len: u32) =>
            Op::Slice(Slice { axis: axis as usize, start: start as usize, len: len as usize });
    }

    fn concat(
        &mut self,
        tensors: Vec<Resource<Tensor>>,
        axis: u32,
    ) -> wasmtime::Result<Resource<Tensor>> {
        self.apply(Op::Concat(axis as usize), &tensors.iter().collect::<Vec<_>>())
    }

    fn shape(&mut self, this: Resource<Tensor>) -> wasmtime::Result<Vec<u32>> {
        let meta = self.meta(&this)?;
        let axes = meta.shape.iter().map(|&axis| u32::try_from(axis));
        Ok(axes.collect::<Result<_, _>>()?)
    }

    fn dtype(&mut self, this: Resource<Tensor>) -> wasmtime::Result<Dtype> {
        Ok(match self.meta(&this)?.dtype {
            DType::F32 => Dtype::F32,
            DType::F64 => Dtype::F64,
            DType::I64 => Dtype::S64,
        })
    }

    fn drop(&mut self, this: Resource<Tensor>) -> wasmtime::Result<()> {
        self.handles.delete(this)?;
        Ok(())
    }
}
