//! The tape: operations are computed as they are applied, and remembered for backward.

mod backward;
mod pool;

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use crate::{
    error::OpError,
    kernel::Threads,
    layout::{Layout, ParamId},
    meta::{DType, Meta, elements},
    ops::{Destination, Forward, MAX_INPUTS, Op, Operand},
    peers::Peers,
    real::Real,
    tape::pool::Pool,
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
/// Memory goes back to the tape's pool when a value is no longer needed and is used again by the next
/// one of about its length, so that grains of equal shapes allocate nothing after the second. All floats
/// are `T`.
///
/// Weights are handed in with each call instead of being kept: the optimizer writes them between
/// steps. They must not change between forward and backward.
///
/// # Recomputation
/// What is recorded between [`Tape::begin_segment`] and [`Tape::end_segment`] is forgotten but for its
/// result, and computed again when backward comes to it: less memory for more time.
pub struct Tape<T: Real> {
    layout: Arc<Layout>,
    generation: u64,
    /// The parameters come first, always; the first `len` nodes are of this generation.
    nodes: Vec<TapeNode<T>>,
    len: usize,
    grads: backward::Scratch<T>,
    pool: Pool<T>,
    ints: Pool<i64>,
    segments: Vec<Segment>,
    /// Where the segment begins that is being recorded.
    open_segment: Option<usize>,
    threads: Threads,
    peers: Option<Arc<dyn Peers>>,
}

/// Nodes whose values are computed again in backward.
#[derive(Debug, Clone, Copy)]
struct Segment {
    first: usize,
    end: usize,
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
    /// Whose memory its numbers are in: its own place, or that of the node it is a view of.
    holder: usize,
    /// Whether its numbers were given back to the pool.
    is_released: bool,
    /// Empty for parameters, whose numbers are the caller's weights.
    floats: Vec<T>,
    ints: Vec<i64>,
    /// What the operation keeps for backward.
    saved: Vec<T>,
}

impl<T: Real> Tape<T> {
    /// An empty tape for models of that layout, on one thread.
    pub fn new(layout: Arc<Layout>) -> Self {
        Self::with_threads(layout, Threads::default())
    }

    /// An empty tape whose kernels share those threads. Results do not depend on their number.
    pub fn with_threads(layout: Arc<Layout>, threads: Threads) -> Self {
        let params = layout.params().iter().enumerate();
        let nodes: Vec<_> = params
            .map(|(place, param)| TapeNode {
                meta: Meta::new(T::DTYPE, param.shape.as_slice()),
                needs_grad: true,
                holder: place,
                ..TapeNode::default()
            })
            .collect();
        let len = nodes.len();
        Self {
            layout,
            generation: next_generation(),
            nodes,
            len,
            grads: backward::Scratch::default(),
            pool: Pool::default(),
            ints: Pool::default(),
            segments: Vec::new(),
            open_segment: None,
            threads,
            peers: None,
        }
    }

    /// From now on batch norms take their statistics over the batches of all peers together.
    pub fn set_peers(&mut self, peers: Option<Arc<dyn Peers>>) {
        self.peers = peers;
    }

    /// Forgets all values and starts the next grain. Memory is kept for it.
    pub fn clear(&mut self) {
        self.generation = next_generation();
        // From the last to the first: the pool lends of equals what came last, so that each value gets its own again.
        for place in (self.layout.params().len()..self.len).rev() {
            self.release(place);
            self.ints.give(std::mem::take(&mut self.nodes[place].ints));
        }
        self.len = self.layout.params().len();
        self.segments.clear();
        self.open_segment = None;
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
        let mut floats = self.pool.take(data.len(), T::ZERO);
        floats.copy_from_slice(data);
        self.source(T::DTYPE, shape, floats, Vec::new())
    }

    /// Integers from outside: labels.
    pub fn index(&mut self, shape: &[usize], data: &[i64]) -> Result<Value, OpError> {
        check_length("index", shape, data.len())?;
        let mut ints = self.ints.take(data.len(), 0);
        ints.copy_from_slice(data);
        self.source(DType::I64, shape, Vec::new(), ints)
    }

    /// Floats that were recorded as `f32`.
    pub(crate) fn constant(&mut self, shape: &[usize], data: &[f32]) -> Result<Value, OpError> {
        check_length("constant", shape, data.len())?;
        let mut floats = self.pool.take(data.len(), T::ZERO);
        for (to, &x) in floats.iter_mut().zip(data) {
            *to = T::from_f64(f64::from(x));
        }
        self.source(T::DTYPE, shape, floats, Vec::new())
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
        let used = &places[..inputs.len()];
        if let Some(&place) = used.iter().find(|&&place| self.nodes[place].is_released) {
            return Err(OpError::Released { value: self.nodes[place].meta.clone() });
        }
        let index = self.grow()?;
        let (before, rest) = self.nodes.split_at_mut(index);
        let node = &mut rest[0];
        let metas = places.map(|place| &before[place].meta);
        op.infer_into(&metas[..inputs.len()], &mut node.meta)?;
        if node.meta.dtype.is_float() {
            node.meta.dtype = T::DTYPE;
        }
        node.needs_grad = op.has_gradient() && used.iter().any(|&p| before[p].needs_grad);
        let holder = before[places[0]].holder;
        // The numbers of a parameter are not the tape's to show: a view of one is a copy.
        let is_view = op.is_view() && self.layout.params().len() <= holder;
        node.holder = if is_view { holder } else { index };
        node.is_released = false;
        node.op = Some(op);
        node.inputs = places.map(|place| place as u32);
        node.input_count = inputs.len();
        if let Err(error) = self.compute(index, weights) {
            self.release(index);
            return Err(error);
        }
        Ok(self.record(index))
    }

    /// Computes the numbers of a node from those of its inputs.
    fn compute(&mut self, place: usize, weights: &[T]) -> Result<(), OpError> {
        let (before, rest) = self.nodes.split_at_mut(place);
        let node = &mut rest[0];
        let Some(op) = node.op.as_ref().filter(|_| node.holder == place) else { return Ok(()) };
        let places = node.inputs.map(|input| input as usize);
        let metas = places.map(|place| &before[place].meta);
        let saved_len = op.saved_len(&metas[..node.input_count], &node.meta);
        let len = node.meta.len();
        node.saved = self.pool.take(saved_len, T::ZERO);
        if node.meta.dtype.is_float() {
            node.floats = self.pool.take(len, T::ZERO);
        } else {
            node.ints = self.ints.take(len, 0);
        }
        let operands = operands(before, &self.layout, places, weights);
        let cx = Forward {
            inputs: &operands[..node.input_count],
            out: Destination { floats: &mut node.floats, ints: &mut node.ints },
            saved: &mut node.saved,
            threads: &self.threads,
            peers: self.peers.as_deref(),
        };
        T::forward(op, cx)
    }

    /// Gives a node's floats back to the pool.
    fn release(&mut self, place: usize) {
        let node = &mut self.nodes[place];
        node.is_released = true;
        let (floats, saved) = (std::mem::take(&mut node.floats), std::mem::take(&mut node.saved));
        self.pool.give(floats);
        self.pool.give(saved);
    }

    /// Begins a stretch whose values are computed again in backward.
    ///
    /// # Errors
    /// If one is open: segments do not nest.
    pub fn begin_segment(&mut self) -> Result<(), OpError> {
        if self.open_segment.is_some() {
            return Err(OpError::Segment { rule: "segments do not nest" });
        }
        self.open_segment = Some(self.len);
        Ok(())
    }

    /// Ends the stretch: of the values recorded in it, only `result` is kept, and only it can be used.
    ///
    /// # Errors
    /// If none is open or the result was not computed in it.
    pub fn end_segment(&mut self, result: Value) -> Result<(), OpError> {
        let result = self.resolve(result)?;
        let Some(first) = self.open_segment.take() else {
            return Err(OpError::Segment { rule: "no segment was begun" });
        };
        if result < first || self.nodes[result].holder != result {
            return Err(OpError::Segment { rule: "the result must be computed in the segment" });
        }
        for place in (first..self.len).filter(|&place| place != result) {
            if self.nodes[place].op.is_some() {
                self.release(place);
            }
        }
        self.segments.push(Segment { first, end: self.len });
        Ok(())
    }

    /// Kind and shape of a value.
    pub fn meta(&self, value: Value) -> Result<&Meta, OpError> {
        Ok(&self.nodes[self.resolve(value)?].meta)
    }

    /// The numbers of a float value. Those of a parameter are the caller's weights.
    ///
    /// # Errors
    /// When they are gone: backward and the end of a segment give up what is no longer needed.
    pub fn values(&self, value: Value) -> Result<&[T], OpError> {
        let place = self.resolve(value)?;
        let (node, holder) = (&self.nodes[place], &self.nodes[self.nodes[place].holder]);
        if !node.meta.dtype.is_float() || node.holder < self.layout.params().len() {
            return Err(kind(&node.meta, "floats that were given or computed"));
        }
        if node.is_released || holder.is_released {
            return Err(OpError::Released { value: node.meta.clone() });
        }
        Ok(&holder.floats)
    }

    /// What the operation behind a value kept for backward, such as the statistics of a batch norm.
    pub fn saved(&self, value: Value) -> Result<&[T], OpError> {
        Ok(&self.nodes[self.resolve(value)?].saved)
    }

    /// The numbers of an i64 value.
    pub fn indices(&self, value: Value) -> Result<&[i64], OpError> {
        let node = &self.nodes[self.resolve(value)?];
        if node.meta.dtype.is_float() {
            return Err(kind(&node.meta, "i64"));
        }
        Ok(&self.nodes[node.holder].ints)
    }

    fn source(
        &mut self,
        dtype: DType,
        shape: &[usize],
        floats: Vec<T>,
        ints: Vec<i64>,
    ) -> Result<Value, OpError> {
        let index = self.grow()?;
        let node = &mut self.nodes[index];
        node.meta.set(dtype, shape);
        node.op = None;
        node.input_count = 0;
        node.needs_grad = false;
        node.holder = index;
        node.is_released = false;
        (node.floats, node.ints) = (floats, ints);
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
        let (node, holder) = (&nodes[place], nodes[place].holder);
        let floats = match layout.params().get(holder) {
            Some(param) => &weights[param.range.clone()],
            None => &nodes[holder].floats,
        };
        Operand { meta: &node.meta, floats, ints: &nodes[holder].ints }
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
