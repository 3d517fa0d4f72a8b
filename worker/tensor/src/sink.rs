//! Where gradients go, and how their owner learns that one is final.

use std::sync::Arc;

use crate::{
    layout::{Layout, ParamId},
    real::Real,
};

/// What backward does with what already lies in the gradients' memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accumulate {
    /// The first writer of each parameter overwrites; nothing need be zeroed before.
    Overwrite,
    /// Everything is added to what is there.
    Add,
}

/// Receives the gradients of one backward.
pub trait GradSink<T> {
    /// Memory of that parameter's gradient, as long as the parameter's range. Asked for once per
    /// contribution; it must hold between calls what was written before.
    fn grad(&mut self, param: ParamId) -> &mut [T];

    /// Nothing that backward begins at depends on the parameter. Called before [`GradSink::ready`], which comes all the
    /// same.
    fn unused(&mut self, _param: ParamId) {}

    /// The gradient is final. Called exactly once per parameter and backward; afterwards backward
    /// does not touch it again.
    fn ready(&mut self, param: ParamId);
}

/// A plain local arena of gradients that remembers the order in which they became final.
#[derive(Debug, Clone)]
pub struct GradBuffer<T> {
    layout: Arc<Layout>,
    values: Vec<T>,
    ready: Vec<ParamId>,
}

impl<T: Real> GradBuffer<T> {
    /// All zeros.
    pub fn new(layout: Arc<Layout>) -> Self {
        let values = vec![T::ZERO; layout.len()];
        Self { layout, values, ready: Vec::new() }
    }

    /// The arena.
    pub fn values(&self) -> &[T] {
        &self.values
    }

    /// The arena, to be changed.
    pub fn values_mut(&mut self) -> &mut [T] {
        &mut self.values
    }

    /// One parameter's gradient, if there is such a parameter.
    pub fn of(&self, param: ParamId) -> Option<&[T]> {
        self.layout.param(param).map(|param| &self.values[param.range.clone()])
    }

    /// Parameters in the order in which they were reported since [`GradBuffer::forget_order`].
    pub fn ready_order(&self) -> &[ParamId] {
        &self.ready
    }

    /// Starts a new record of the order.
    pub fn forget_order(&mut self) {
        self.ready.clear();
    }
}

impl<T: Real> GradSink<T> for GradBuffer<T> {
    fn grad(&mut self, param: ParamId) -> &mut [T] {
        match self.layout.param(param) {
            Some(param) => &mut self.values[param.range.clone()],
            None => &mut [],
        }
    }

    fn ready(&mut self, param: ParamId) {
        self.ready.push(param);
    }
}
