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

use super::{Tape, TapeNode, Value, kind, operands};
use crate::{
    error::OpError,
    kernel::Write,
    layout::ParamId,
    ops::{Chain, Target},
    real::Real,
    sink::{Accumulate, GradSink},
};

/// Memory of backward, kept from one to the next.
#[derive(Debug, Default)]
pub(super) struct Scratch<T> {
    nodes: Vec<NodeGrad<T>>,
    params: Vec<ParamGrad>,
}

#[derive(Debug, Clone, Default)]
struct NodeGrad<T> {
    /// Whether the seeds depend on it and a parameter's gradient on it.
    marked: bool,
    written: bool,
    values: Vec<T>,
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
            if self.grads.nodes[place].marked {
                self.propagate(place, weights, sink)?;
            }
        }
        Ok(())
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
            grad.written = false;
        }
        for &(value, _) in seeds {
            let place = self.resolve(value)?;
            self.expect(place);
        }
        for place in (params..self.len).rev() {
            if !self.grads.nodes[place].marked {
                continue;
            }
            let node = &self.nodes[place];
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
        for which in (0..self.nodes[place].input_count).rev() {
            let input = self.nodes[place].inputs[which] as usize;
            self.contribute(input, sink, |tape, grads, to| {
                let node: &TapeNode<T> = &tape.nodes[place];
                let places = node.inputs.map(|input| input as usize);
                let operands = operands(&tape.nodes, &tape.layout, places, weights);
                let inputs = &operands[..node.input_count];
                let chain = Chain {
                    inputs,
                    output: &node.floats,
                    grad: grads.nodes[place].values.as_slice(),
                };
                if let Some(op) = &node.op {
                    op.gradient(which, &chain, to);
                }
            })?;
        }
        Ok(())
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
        let mode = if grad.written { Write::Add } else { Write::Set };
        grad.written = true;
        // Taken out for the call: the kernel reads other nodes' gradients meanwhile.
        let mut values = std::mem::take(&mut grad.values);
        values.resize(self.nodes[place].meta.len(), T::ZERO);
        kernel(self, &self.grads, Target { dst: &mut values, mode });
        self.grads.nodes[place].values = values;
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
