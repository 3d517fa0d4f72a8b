//! The tape: operations are computed as they are applied, and remembered for backward.

mod backward;

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use crate::{
    error::OpError,
    layout::{Layout, ParamId},
    meta::{DType, Meta, elements},
    ops::{Destination, MAX_INPUTS, Op, Operand},
    real::Real,
};

/// The most nodes that one generation of a tape holds, parameters included.
pub const MAX_TAPE_NODES: usize = 1 << 20;

/// Every generation of every tape of the process has its own number, so that a handle of another
/// tape is noticed like a stale one. Results do not depend on it.
static GENERATIONS: AtomicU64 = AtomicU64::new(1);

/// Handle of a value on a tape. Good until the tape is cleared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Value {
    generation: u64,
    index: u32,
}

/// One grain's computation: forward at once, backward afterwards.
///
/// A node's memory is kept when the tape is cleared and used again by the node of the same place, so
/// that grains of equal shapes allocate nothing after the first. All floats are `T`.
///
/// Weights are handed in with each call instead of being kept: the optimizer writes them between
/// steps. They must not change between forward and backward.
pub struct Tape<T: Real> {
    layout: Arc<Layout>,
    generation: u64,
    /// The parameters come first, always; the first `len` nodes are of this generation.
    nodes: Vec<TapeNode<T>>,
    len: usize,
    grads: backward::Scratch<T>,
}

#[derive(Debug, Default)]
struct TapeNode<T> {
    meta: Meta,
    /// `None` for parameters and inputs.
    op: Option<Op>,
    inputs: [u32; MAX_INPUTS],
    input_count: usize,
    /// Whether a parameter's gradient depends on this node.
    needs_grad: bool,
    /// Empty for parameters, whose numbers are the caller's weights.
    floats: Vec<T>,
    ints: Vec<i64>,
}

impl<T: Real> Tape<T> {
    /// An empty tape for models of that layout.
    pub fn new(layout: Arc<Layout>) -> Self {
        let nodes: Vec<_> = layout
            .params()
            .iter()
            .map(|param| TapeNode {
                meta: Meta::new(T::DTYPE, param.shape.as_slice()),
                needs_grad: true,
                ..TapeNode::default()
            })
            .collect();
        let len = nodes.len();
        Self { layout, generation: next_generation(), nodes, len, grads: Default::default() }
    }

    /// Forgets all values and starts the next grain. Memory is kept for it.
    pub fn clear(&mut self) {
        self.generation = next_generation();
        self.len = self.layout.params().len();
    }

    /// The layout of the model's parameters.
    pub fn layout(&self) -> &Arc<Layout> {
        &self.layout
    }

    /// A parameter as a value. One that the layout does not have is refused where it is used.
    pub fn param(&mut self, id: ParamId) -> Value {
        let known = id.0 < self.layout.params().len();
        let index = if known { u32::try_from(id.0).unwrap_or(u32::MAX) } else { u32::MAX };
        Value { generation: self.generation, index }
    }

    /// Floats from outside. No gradient flows to them.
    pub fn input(&mut self, shape: &[usize], data: &[T]) -> Result<Value, OpError> {
        check_length("input", shape, data.len())?;
        self.source(T::DTYPE, shape, |node| {
            node.floats.clear();
            node.floats.extend_from_slice(data);
        })
    }

    /// Integers from outside: labels.
    pub fn index(&mut self, shape: &[usize], data: &[i64]) -> Result<Value, OpError> {
        check_length("index", shape, data.len())?;
        self.source(DType::I64, shape, |node| {
            node.ints.clear();
            node.ints.extend_from_slice(data);
        })
    }

    /// Floats that were recorded as `f32`.
    pub(crate) fn constant(&mut self, shape: &[usize], data: &[f32]) -> Result<Value, OpError> {
        check_length("constant", shape, data.len())?;
        self.source(T::DTYPE, shape, |node| {
            node.floats.clear();
            node.floats.extend(data.iter().map(|&x| T::from_f64(f64::from(x))));
        })
    }

    /// Computes an operation and remembers it.
    ///
    /// # Errors
    /// Nothing is recorded then, and the tape can be used on.
    pub fn apply(&mut self, op: Op, inputs: &[Value], weights: &[T]) -> Result<Value, OpError> {
        self.check_weights(weights)?;
        op.check_arity(inputs.len())?;
        let mut places = [0; MAX_INPUTS];
        for (place, &input) in places.iter_mut().zip(inputs) {
            *place = self.resolve(input)?;
        }
        let index = self.grow()?;
        let (before, rest) = self.nodes.split_at_mut(index);
        let node = &mut rest[0];
        let operands = operands(before, &self.layout, places, weights);
        let operands = &operands[..inputs.len()];
        let metas = places.map(|place| &before[place].meta);
        op.infer_into(&metas[..inputs.len()], &mut node.meta)?;
        let len = node.meta.len();
        if node.meta.dtype.is_float() {
            node.meta.dtype = T::DTYPE;
            node.floats.resize(len, T::ZERO);
            node.ints.clear();
        } else {
            node.ints.resize(len, 0);
            node.floats.clear();
        }
        op.forward(operands, Destination { floats: &mut node.floats, ints: &mut node.ints })?;
        let used = &places[..inputs.len()];
        node.needs_grad = op.has_gradient() && used.iter().any(|&p| before[p].needs_grad);
        node.op = Some(op);
        node.inputs = places.map(|place| place as u32);
        node.input_count = inputs.len();
        Ok(self.record(index))
    }

    /// Kind and shape of a value.
    pub fn meta(&self, value: Value) -> Result<&Meta, OpError> {
        Ok(&self.nodes[self.resolve(value)?].meta)
    }

    /// The numbers of a float value. Those of a parameter are the caller's weights.
    pub fn values(&self, value: Value) -> Result<&[T], OpError> {
        let place = self.resolve(value)?;
        let node = &self.nodes[place];
        if !node.meta.dtype.is_float() || place < self.layout.params().len() {
            return Err(kind(&node.meta, "floats that were given or computed"));
        }
        Ok(&node.floats)
    }

    /// The numbers of an i64 value.
    pub fn indices(&self, value: Value) -> Result<&[i64], OpError> {
        let node = &self.nodes[self.resolve(value)?];
        if node.meta.dtype.is_float() { Err(kind(&node.meta, "i64")) } else { Ok(&node.ints) }
    }

    fn source(
        &mut self,
        dtype: DType,
        shape: &[usize],
        fill: impl FnOnce(&mut TapeNode<T>),
    ) -> Result<Value, OpError> {
        let index = self.grow()?;
        let node = &mut self.nodes[index];
        node.meta.set(dtype, shape);
        node.op = None;
        node.input_count = 0;
        node.needs_grad = false;
        fill(node);
        Ok(self.record(index))
    }

    /// Makes room for one more node and returns its place.
    fn grow(&mut self) -> Result<usize, OpError> {
        if MAX_TAPE_NODES <= self.len {
            return Err(OpError::TooManyNodes { limit: MAX_TAPE_NODES });
        }
        if self.len == self.nodes.len() {
            self.nodes.push(TapeNode::default());
        }
        Ok(self.len)
    }

    fn record(&mut self, index: usize) -> Value {
        self.len = index + 1;
        Value { generation: self.generation, index: index as u32 }
    }

    /// The place of a value of this generation.
    fn resolve(&self, value: Value) -> Result<usize, OpError> {
        if value.generation != self.generation {
            return Err(OpError::Stale { made_in: value.generation, now: self.generation });
        }
        // Only `param` makes a handle of this generation that has no node.
        if value.index == u32::MAX {
            return Err(OpError::UnknownParam { count: self.layout.params().len() });
        }
        Ok(value.index as usize)
    }

    fn check_weights(&self, weights: &[T]) -> Result<(), OpError> {
        let (expected, given) = (self.layout.len(), weights.len());
        if expected == given { Ok(()) } else { Err(OpError::Weights { expected, given }) }
    }
}

impl<T: Real> fmt::Debug for Tape<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tape")
            .field("generation", &self.generation)
            .field("params", &self.layout.params().len())
            .field("nodes", &self.len)
            .finish_non_exhaustive()
    }
}

/// The nodes at those places as inputs of an operation.
fn operands<'a, T: Real>(
    nodes: &'a [TapeNode<T>],
    layout: &Layout,
    places: [usize; MAX_INPUTS],
    weights: &'a [T],
) -> [Operand<'a, T>; MAX_INPUTS] {
    places.map(|place| {
        let node = &nodes[place];
        let floats = match layout.params().get(place) {
            Some(param) => &weights[param.range.clone()],
            None => &node.floats,
        };
        Operand { meta: &node.meta, floats, ints: &node.ints }
    })
}

fn next_generation() -> u64 {
    GENERATIONS.fetch_add(1, Ordering::Relaxed)
}

fn check_length(what: &'static str, shape: &[usize], given: usize) -> Result<(), OpError> {
    let expected = elements(shape);
    if expected == given {
        return Ok(());
    }
    Err(OpError::DataLength { what, shape: shape.to_vec(), expected, given })
}

fn kind(meta: &Meta, expected: &'static str) -> OpError {
    OpError::Kind { given: meta.clone(), expected }
}
