//! The forward pass on a tape, and what it leaves to its caller.

use std::sync::Arc;

use lockstep_tensor::{Layout, Meta, Op, OpError, Real, Tape, Value};

use crate::{
    builder::{Buffer, Running, Weight},
    graph::Graph,
};

/// What a forward pass keeps from one call to the next: memory that need not be asked for again, and the statistics of
/// the batch norms in the last training pass.
#[derive(Debug, Clone)]
pub struct Workspace<T> {
    /// Of each batch norm what it kept: mean, inverse deviation and variance of each channel, in that order, and how many
    /// values a channel had; 0 of them before the first training pass.
    pub(crate) norms: Vec<Vec<T>>,
    zeros: Vec<T>,
    /// `[time, time]`, of the time last asked for.
    causal: Vec<T>,
    causal_time: usize,
}

impl<T: Real> Workspace<T> {
    pub(crate) fn new(running: &[Running]) -> Self {
        let norms = running.iter().map(|running| vec![T::ZERO; kept(running.channels)]).collect();
        Self { norms, zeros: Vec::new(), causal: Vec::new(), causal_time: 0 }
    }

    /// Finite, so that what is derived from it is finite too.
    fn causal(&mut self, time: usize) -> &[T] {
        if self.causal_time != time {
            let ahead = T::from_f64(-1e30);
            self.causal.clear();
            let entry = |place: usize| if place / time < place % time { ahead } else { T::ZERO };
            self.causal.extend((0..time * time).map(entry));
            self.causal_time = time;
        }
        &self.causal
    }
}

/// Computes on a tape.
#[derive(Debug)]
pub(crate) struct OnTape<'a, T: Real> {
    pub(crate) tape: &'a mut Tape<T>,
    pub(crate) layout: &'a Layout,
    pub(crate) weights: &'a [T],
    pub(crate) buffer_layout: &'a Arc<Layout>,
    pub(crate) buffers: &'a [T],
    pub(crate) workspace: &'a mut Workspace<T>,
}

impl<T: Real> Graph for OnTape<'_, T> {
    type Value = Value;

    fn param(&mut self, weight: Weight) -> Value {
        self.tape.param(weight.id(self.layout))
    }

    fn buffer(&mut self, buffer: Buffer) -> Result<Value, OpError> {
        let param = &self.buffer_layout.params()[buffer.id(self.buffer_layout).0];
        let given = self.buffers.get(param.range.clone());
        let values = given.ok_or_else(|| OpError::DataLength {
            what: "buffers",
            shape: vec![self.buffer_layout.len()],
            expected: self.buffer_layout.len(),
            given: self.buffers.len(),
        })?;
        self.tape.input(&param.shape, values)
    }

    fn zeros(&mut self, shape: &[usize]) -> Result<Value, OpError> {
        let len = shape.iter().product();
        if self.workspace.zeros.len() < len {
            self.workspace.zeros.resize(len, T::ZERO);
        }
        self.tape.input(shape, &self.workspace.zeros[..len])
    }

    fn causal(&mut self, time: usize) -> Result<Value, OpError> {
        self.tape.input(&[time, time], self.workspace.causal(time))
    }

    fn apply(&mut self, op: Op, inputs: &[Value]) -> Result<Value, OpError> {
        self.tape.apply(op, inputs, self.weights)
    }

    fn meta(&self, value: Value) -> Result<&Meta, OpError> {
        self.tape.meta(value)
    }

    fn begin_segment(&mut self) -> Result<(), OpError> {
        self.tape.begin_segment()
    }

    fn end_segment(&mut self, result: Value) -> Result<(), OpError> {
        self.tape.end_segment(result)
    }

    fn take_statistics(&mut self, running: &Running, norm: Value) -> Result<(), OpError> {
        let saved = self.tape.saved(norm)?;
        let expected = kept(running.channels);
        if saved.len() != expected {
            let (what, shape, given) = ("batch norm's statistics", vec![expected], saved.len());
            return Err(OpError::DataLength { what, shape, expected, given });
        }
        self.workspace.norms[running.place].copy_from_slice(saved);
        Ok(())
    }
}

/// How many numbers a batch norm keeps.
fn kept(channels: usize) -> usize {
    3 * channels + 1
}
