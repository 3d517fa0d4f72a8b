//! A forward pass under way: the graph, the mode, and what was rounded to half precision lately.

use lockstep_tensor::{Dims, Half, Meta, Op, OpError, init::Stream};

use crate::{
    builder::{Buffer, Running, Weight},
    graph::Graph,
    mode::Mode,
};

/// How many roundings are remembered: query, key and value of one input, and a shortcut beside a block.
const REMEMBERED: usize = 4;

/// Layers apply their operations here.
pub(crate) struct Flow<'g, G: Graph> {
    graph: &'g mut G,
    half: Option<Half>,
    is_training: bool,
    is_checkpointing: bool,
    /// Draws the seeds of dropout, in training.
    seeds: Stream,
    /// What was rounded, and to what.
    rounded: [Option<(G::Value, G::Value)>; REMEMBERED],
    next: usize,
}

impl<'g, G: Graph> Flow<'g, G> {
    pub(crate) fn new(graph: &'g mut G, mode: Mode) -> Self {
        Self {
            graph,
            half: mode.half(),
            is_training: mode.key().is_some(),
            is_checkpointing: mode.is_checkpointing(),
            seeds: Stream::new(mode.key().unwrap_or(0), "dropout"),
            rounded: [None; REMEMBERED],
            next: 0,
        }
    }

    pub(crate) fn is_training(&self) -> bool {
        self.is_training
    }

    pub(crate) fn param(&mut self, weight: Weight) -> G::Value {
        self.graph.param(weight)
    }

    pub(crate) fn buffer(&mut self, buffer: Buffer) -> Result<G::Value, OpError> {
        self.graph.buffer(buffer)
    }

    pub(crate) fn zeros(&mut self, shape: &[usize]) -> Result<G::Value, OpError> {
        self.graph.zeros(shape)
    }

    pub(crate) fn causal(&mut self, time: usize) -> Result<G::Value, OpError> {
        self.graph.causal(time)
    }

    pub(crate) fn apply(&mut self, op: Op, inputs: &[G::Value]) -> Result<G::Value, OpError> {
        self.graph.apply(op, inputs)
    }

    pub(crate) fn meta(&self, value: G::Value) -> Result<&Meta, OpError> {
        self.graph.meta(value)
    }

    /// Length of an axis; 1 for one that is not there, which whatever reads the value refuses.
    pub(crate) fn length(&self, value: G::Value, axis: usize) -> Result<usize, OpError> {
        Ok(self.meta(value)?.shape.get(axis).copied().unwrap_or(1))
    }

    pub(crate) fn reshape(
        &mut self,
        value: G::Value,
        shape: &[usize],
    ) -> Result<G::Value, OpError> {
        self.apply(Op::Reshape(shape.iter().copied().collect::<Dims>()), &[value])
    }

    pub(crate) fn add(&mut self, a: G::Value, b: G::Value) -> Result<G::Value, OpError> {
        self.apply(Op::Add, &[a, b])
    }

    /// The operand of a product: rounded, if products are in half precision and it is not rounded yet.
    pub(crate) fn operand(&mut self, value: G::Value) -> Result<G::Value, OpError> {
        let Some(half) = self.half else { return Ok(value) };
        let known = self.rounded.iter().flatten();
        if let Some((_, to)) = known.into_iter().find(|(from, to)| *from == value || *to == value) {
            return Ok(*to);
        }
        let to = self.apply(Op::Cast(half), &[value])?;
        self.remember(value, to);
        Ok(to)
    }

    /// The result of a product, rounded likewise. Biases are added before that, to sums in f32.
    pub(crate) fn result(&mut self, value: G::Value) -> Result<G::Value, OpError> {
        let Some(half) = self.half else { return Ok(value) };
        let to = self.apply(Op::Cast(half), &[value])?;
        self.remember(value, to);
        Ok(to)
    }

    /// A product of `x` and the weights `w`, with a bias.
    pub(crate) fn product(
        &mut self,
        op: Op,
        x: G::Value,
        w: Weight,
        b: Option<Weight>,
    ) -> Result<G::Value, OpError> {
        let w = self.param(w);
        let (x, w) = (self.operand(x)?, self.operand(w)?);
        let value = match b {
            Some(b) => {
                let b = self.param(b);
                self.apply(op, &[x, w, b])?
            }
            None => self.apply(op, &[x, w])?,
        };
        self.result(value)
    }

    /// The seed of a dropout's mask.
    pub(crate) fn seed(&self, dropout: u64) -> u64 {
        self.seeds.bits(dropout)
    }

    pub(crate) fn take_statistics(
        &mut self,
        running: &Running,
        norm: G::Value,
    ) -> Result<(), OpError> {
        self.graph.take_statistics(running, norm)
    }

    /// Begins a block, whose values are computed again in backward with activation checkpointing.
    pub(crate) fn begin_block(&mut self) -> Result<(), OpError> {
        if !self.is_checkpointing {
            return Ok(());
        }
        self.forget();
        self.graph.begin_segment()
    }

    /// Ends the block; `result` must not be a view.
    pub(crate) fn end_block(&mut self, result: G::Value) -> Result<(), OpError> {
        if !self.is_checkpointing {
            return Ok(());
        }
        self.forget();
        self.graph.end_segment(result)
    }

    fn remember(&mut self, from: G::Value, to: G::Value) {
        self.rounded[self.next] = Some((from, to));
        self.next = (self.next + 1) % REMEMBERED;
    }

    /// Values of a finished block cannot be used, and those from before it are worth no memory.
    fn forget(&mut self) {
        self.rounded = [None; REMEMBERED];
    }
}
