//! Backward, and when a parameter's gradient is final.
//!
//! # Finality
//! One scan from the seeds down marks what they depend on and counts each parameter's contributions:
//! its uses by marked nodes, and seeds on itself. Parameters without any are settled before a kernel
//! runs. After each contribution the count goes down; at zero the gradient is final. The first
//! contribution overwrites and later ones add, so that shared parameters need no zeroing pass.
//!
//! Nodes are visited from the last to the first, and a node's inputs from the last to the first, so
//! that parameters become ready in the reverse order of their first use: the order of the arena.
//!
//! # Memory
//! A node's gradient exists from its first contribution to the moment it has been sent on. One that an input gets as
//! it is changes hands without a copy, if it is that input's first. Then the
//! node's numbers go too: all that reads them lies behind. Seeds keep theirs, and so does what no
//! gradient reaches.

use super::{Segment, Tape, TapeNode, Value, kind, operands};
use crate::{
    error::OpError,
    kernel::Write,
    layout::ParamId,
    ops::{Chain, Op, Target},
    real::Real,
    sink::{Accumulate, GradSink},
};

/// Memory of backward, kept from one to the next.
#[derive(Debug)]
pub(super) struct Scratch<T> {
    nodes: Vec<NodeGrad<T>>,
    params: Vec<ParamGrad>,
    /// What the operation at hand prepared.
    prepared: Vec<T>,
}

impl<T> Default for Scratch<T> {
    fn default() -> Self {
        Self { nodes: Vec::new(), params: Vec::new(), prepared: Vec::new() }
    }
}

#[derive(Debug, Clone, Default)]
struct NodeGrad<T> {
    /// Whether the seeds depend on it and a parameter's gradient on it.
    marked: bool,
    is_seed: bool,
    reach: Reach,
    /// From the first contribution on.
    values: Option<Vec<T>>,
}

/// Where a gradient may be other than 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Reach {
    #[default]
    Everywhere,
    /// Where the node's value is above 0 (or NaN): all contributions left out the rest.
    AboveZero,
}

#[derive(Debug, Clone, Copy, Default)]
struct ParamGrad {
    /// Contributions to come.
    pending: usize,
    written: bool,
}

impl<T: Real> Tape<T> {
    /// Gradients of Σ seed · value with respect to every parameter, written to the sink.
    ///
    /// Usually the one seed is 1 on the summed loss; a loss that brings its own derivative gives it as a
    /// seed on the model's output. Every parameter is reported ready exactly once; those without a
    /// gradient before any kernel runs, zeroed with [`Accumulate::Overwrite`] and left alone with
    /// [`Accumulate::Add`].
    ///
    /// # Errors
    /// Handles, lengths and kinds are checked before anything is written. Only a sink whose memory
    /// has the wrong length is noticed later; its contents are worthless then.
    pub fn backward(
        &mut self,
        seeds: &[(Value, &[T])],
        weights: &[T],
        accumulate: Accumulate,
        sink: &mut dyn GradSink<T>,
    ) -> Result<(), OpError> {
        self.check_weights(weights)?;
        self.check_seeds(seeds)?;
        self.mark(seeds, accumulate)?;
        self.settle_unused(accumulate, sink)?;
        for &(value, seed) in seeds {
            let place = self.resolve(value)?;
            self.contribute(place, sink, |_, _, to| to.write(|i| seed[i]))?;
        }
        for place in (self.layout.params().len()..self.len).rev() {
            if let Some(segment) = self.segments.pop_if(|segment| segment.end == place + 1) {
                self.recompute(segment, weights)?;
            }
            if self.grads.nodes[place].marked {
                self.propagate(place, weights, sink)?;
                self.let_go(place);
            }
        }
        Ok(())
    }

    /// Brings back the numbers of a segment's nodes, if a gradient goes through it.
    fn recompute(&mut self, segment: Segment, weights: &[T]) -> Result<(), OpError> {
        let places = segment.first..segment.end;
        if !places.clone().any(|place| self.grads.nodes[place].marked) {
            return Ok(());
        }
        for place in places {
            if self.nodes[place].is_released {
                self.nodes[place].is_released = false;
                self.compute(place, weights)?;
            }
        }
        Ok(())
    }

    /// Gives up what a node was needed for.
    fn let_go(&mut self, place: usize) {
        let gradient = self.grads.nodes[place].values.take().unwrap_or_default();
        self.pool.give(gradient);
        if !self.grads.nodes[place].is_seed {
            self.release(place);
        }
    }

    fn check_seeds(&self, seeds: &[(Value, &[T])]) -> Result<(), OpError> {
        for &(value, seed) in seeds {
            let meta = self.meta(value)?;
            if !meta.dtype.is_float() {
                return Err(kind(meta, "floats, to be a seed of backward"));
            }
            super::check_length("seed", &meta.shape, seed.len())?;
        }
        Ok(())
    }

    /// Marks what the seeds depend on, and counts each parameter's contributions.
    fn mark(&mut self, seeds: &[(Value, &[T])], accumulate: Accumulate) -> Result<(), OpError> {
        let params = self.layout.params().len();
        let written = accumulate == Accumulate::Add;
        self.grads.params.clear();
        self.grads.params.resize(params, ParamGrad { pending: 0, written });
        if self.grads.nodes.len() < self.len {
            self.grads.nodes.resize_with(self.len, NodeGrad::default);
        }
        for grad in &mut self.grads.nodes {
            grad.marked = false;
            grad.is_seed = false;
            grad.reach = Reach::Everywhere;
            grad.values = None;
        }
        for &(value, _) in seeds {
            let place = self.resolve(value)?;
            self.grads.nodes[place].is_seed = true;
            self.grads.nodes[self.nodes[place].holder].is_seed = true;
            self.expect(place);
        }
        for place in (params..self.len).rev() {
            if !self.grads.nodes[place].marked {
                continue;
            }
            let node = &self.nodes[place];
            let comes_back = |segment: &Segment| (segment.first..segment.end).contains(&place);
            if node.is_released && !self.segments.iter().any(comes_back) {
                return Err(OpError::Released { value: node.meta.clone() });
            }
            let (inputs, count) = (node.inputs, node.input_count);
            for &input in &inputs[..count] {
                self.expect(input as usize);
            }
        }
        Ok(())
    }

    /// Takes note of one contribution to come.
    fn expect(&mut self, place: usize) {
        match self.grads.params.get_mut(place) {
            Some(param) => param.pending += 1,
            None => self.grads.nodes[place].marked |= self.nodes[place].needs_grad,
        }
    }

    fn settle_unused(
        &mut self,
        accumulate: Accumulate,
        sink: &mut dyn GradSink<T>,
    ) -> Result<(), OpError> {
        for id in self.layout.ids() {
            if self.grads.params[id.0].pending == 0 {
                let memory = self.memory(id, sink)?;
                if accumulate == Accumulate::Overwrite {
                    memory.fill(T::ZERO);
                }
                sink.unused(id);
                sink.ready(id);
            }
        }
        Ok(())
    }

    /// Sends a node's gradient on to its inputs.
    fn propagate(
        &mut self,
        place: usize,
        weights: &[T],
        sink: &mut dyn GradSink<T>,
    ) -> Result<(), OpError> {
        self.rewrite(place, weights);
        self.prepare(place, weights);
        let heir = self.heir(place);
        for which in (0..self.nodes[place].input_count).rev() {
            if heir != Some(which) {
                self.contribute_to(which, place, weights, sink)?;
            }
        }
        if let Some(which) = heir {
            let input = self.nodes[place].inputs[which] as usize;
            if self.grads.nodes[input].values.is_some() {
                self.contribute_to(which, place, weights, sink)?;
            } else {
                self.grads.nodes[input].values = self.grads.nodes[place].values.take();
            }
        }
        let prepared = std::mem::take(&mut self.grads.prepared);
        self.pool.give(prepared);
        Ok(())
    }

    /// Sends a node's gradient on to one of its inputs.
    fn contribute_to(
        &mut self,
        which: usize,
        place: usize,
        weights: &[T],
        sink: &mut dyn GradSink<T>,
    ) -> Result<(), OpError> {
        let input = self.nodes[place].inputs[which] as usize;
        let is_stopped = self.stops(place, which);
        let grad = &mut self.grads.nodes[input];
        let was_stopped = grad.values.is_none() || grad.reach == Reach::AboveZero;
        grad.reach = if is_stopped && was_stopped { Reach::AboveZero } else { Reach::Everywhere };
        self.contribute(input, sink, |tape, grads, to| {
            tape.with_chain(place, grads, weights, |op, chain| {
                T::gradient(op, which, chain, to);
            });
        })
    }

    /// Whether a node leaves out of its contribution what the ReLU that its input comes from would stop.
    fn stops(&self, place: usize, which: usize) -> bool {
        let node = &self.nodes[place];
        let input = &self.nodes[node.inputs[which] as usize];
        let is_rectified = input.op.as_ref().is_some_and(Op::is_rectified);
        which == 0 && is_rectified && node.op.as_ref().is_some_and(Op::stops_gradient)
    }

    /// The input that a node's gradient may be handed on to, after all others had their share: no parameter, whose
    /// gradient lies in the sink.
    fn heir(&self, place: usize) -> Option<usize> {
        let node = &self.nodes[place];
        let metas = node.inputs.map(|input| &self.nodes[input as usize].meta);
        let which = node.op.as_ref()?.passes_on(&metas[..node.input_count])?;
        let input = node.inputs[which] as usize;
        let is_wanted = self.grads.nodes[input].marked && self.layout.params().len() <= input;
        is_wanted.then_some(which)
    }

    fn rewrite(&mut self, place: usize, weights: &[T]) {
        if self.grads.nodes[place].reach == Reach::AboveZero {
            return;
        }
        let mut grad = self.grads.nodes[place].values.take().unwrap_or_default();
        self.with_chain(place, &self.grads, weights, |op, chain| {
            T::rewrite_gradient(op, chain, &mut grad);
        });
        self.grads.nodes[place].values = Some(grad);
    }

    /// What the gradients of several inputs of a node have in common.
    fn prepare(&mut self, place: usize, weights: &[T]) {
        let node = &self.nodes[place];
        let metas = node.inputs.map(|input| &self.nodes[input as usize].meta);
        let metas = &metas[..node.input_count];
        let len = node.op.as_ref().map_or(0, |op| op.prepared_len(metas, &node.meta));
        if 0 < len {
            let mut prepared = self.pool.take(len, T::ZERO);
            self.with_chain(place, &self.grads, weights, |op, chain| {
                T::prepare(op, chain, &mut prepared);
            });
            self.grads.prepared = prepared;
        }
    }

    fn with_chain(
        &self,
        place: usize,
        grads: &Scratch<T>,
        weights: &[T],
        kernel: impl FnOnce(&Op, &Chain<'_, T>),
    ) {
        let node: &TapeNode<T> = &self.nodes[place];
        let places = node.inputs.map(|input| input as usize);
        let operands = operands(&self.nodes, &self.layout, places, weights);
        let chain = Chain {
            inputs: &operands[..node.input_count],
            output: &self.nodes[node.holder].floats,
            saved: &node.saved,
            grad: grads.nodes[place].values.as_deref().unwrap_or_default(),
            prepared: &grads.prepared,
            is_rectified: self.stops(place, 0),
            threads: &self.threads,
            peers: self.peers.as_deref(),
        };
        if let Some(op) = &node.op {
            kernel(op, &chain);
        }
    }

    /// Lets `kernel` write one contribution to the gradient at `place`, if that is wanted at all.
    fn contribute(
        &mut self,
        place: usize,
        sink: &mut dyn GradSink<T>,
        kernel: impl FnOnce(&Self, &Scratch<T>, Target<'_, T>),
    ) -> Result<(), OpError> {
        if let Some(param) = self.grads.params.get_mut(place) {
            let id = ParamId(place);
            let mode = if param.written { Write::Add } else { Write::Set };
            param.written = true;
            param.pending -= 1;
            let last = param.pending == 0;
            let dst = self.memory(id, sink)?;
            kernel(self, &self.grads, Target { dst, mode });
            if last {
                sink.ready(id);
            }
            return Ok(());
        }
        let grad = &mut self.grads.nodes[place];
        if !grad.marked {
            return Ok(());
        }
        // Taken out for the call: the kernel reads other nodes' gradients meanwhile.
        let (mode, mut values) = match grad.values.take() {
            Some(values) => (Write::Add, values),
            None => (Write::Set, self.pool.take(self.nodes[place].meta.len(), T::ZERO)),
        };
        kernel(self, &self.grads, Target { dst: &mut values, mode });
        self.grads.nodes[place].values = Some(values);
        Ok(())
    }

    /// A parameter's memory in the sink, of the right length.
    fn memory<'s>(
        &self,
        id: ParamId,
        sink: &'s mut dyn GradSink<T>,
    ) -> Result<&'s mut [T], OpError> {
        let param = &self.layout.params()[id.0];
        let memory = sink.grad(id);
        let (expected, given) = (param.range.len(), memory.len());
        if expected == given {
            return Ok(memory);
        }
        Err(OpError::Sink { name: param.name.clone(), expected, given })
    }
}
