//! `graph`: records what a loss guest writes down. Numbers never come here, only shapes.

use lockstep_tensor::{DType, Dims, MAX_RANK, Meta, Node, Op, OpError, RecipeBuilder};
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

    fn apply<const N: usize>(
        &mut self,
        op: Op,
        inputs: [&Resource<Tensor>; N],
    ) -> wasmtime::Result<Resource<Tensor>> {
        let mut nodes = Vec::with_capacity(N);
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

fn sizes(shape: &[u32]) -> Vec<usize> {
    shape.iter().map(|&axis| axis as usize).collect()
}

impl graph::Host for GuestState {
    fn constant(&mut self, shape: Vec<u32>, data: Vec<f32>) -> wasmtime::Result<Resource<Tensor>> {
        let (what, limit) = (self.what, self.limits.output_bytes);
        let graph = self.graph()?;
        let asked = graph.constants.saturating_add(size_of_val(data.as_slice()) as u64);
        if limit < asked {
            let what = what.to_owned();
            return Err(GuestError::OutputLimit { what, asked: Some(asked), limit }.into());
        }
        graph.constants = asked;
        let node = graph.recipe.constant(&sizes(&shape), data);
        let node = node.map_err(|error| self.refused(error))?;
        Ok(self.handles.push(Tensor { node })?)
    }
}

/// One line an operation: its name in the interface, what it takes, what it is for the engine.
macro_rules! operations {
    ($($name:ident($($other:ident),*) => $op:ident;)+) => {
        $(fn $name(
            &mut self,
            this: Resource<Tensor>,
            $($other: Resource<Tensor>,)*
        ) -> wasmtime::Result<Resource<Tensor>> {
            self.apply(Op::$op, [&this, $(&$other),*])
        })+
    };
}

impl graph::HostTensor for GuestState {
    operations! {
        add(other) => Add;
        sub(other) => Sub;
        mul(other) => Mul;
        div(other) => Div;
        neg() => Neg;
        exp() => Exp;
        log() => Log;
        relu() => Relu;
        log_softmax() => LogSoftmax;
        gather(index) => Gather;
        sum() => Sum;
        mean() => Mean;
        argmax() => ArgMax;
        equal(other) => Equal;
        to_float() => ToFloat;
        detach() => Detach;
        matmul(other) => MatMul;
    }

    fn scale(&mut self, this: Resource<Tensor>, factor: f64) -> wasmtime::Result<Resource<Tensor>> {
        self.apply(Op::Scale(factor), [&this])
    }

    fn reshape(
        &mut self,
        this: Resource<Tensor>,
        shape: Vec<u32>,
    ) -> wasmtime::Result<Resource<Tensor>> {
        let limit = MAX_RANK;
        let shape = shape.iter().map(|&axis| axis as usize).collect::<Vec<_>>();
        let dims = Dims::try_from(shape.as_slice());
        let dims = dims.map_err(|_| {
            operation(self.what, &format!("reshape to {shape:?}: there are at most {limit} axes"))
        })?;
        self.apply(Op::Reshape(dims), [&this])
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
