//! What a forward pass is written against: a tape, or shapes alone.
//!
//! Every architecture is written once. On a [`crate::run::OnTape`] it computes; on [`crate::shapes::Shapes`] it tells what
//! memory that takes. So the estimate is one of the same operations.

use lockstep_tensor::{Meta, Op, OpError};

use crate::builder::{Buffer, Running, Weight};

/// Records operations.
pub(crate) trait Graph {
    /// A value of the graph.
    type Value: Copy + PartialEq;

    fn param(&mut self, weight: Weight) -> Self::Value;

    /// A running statistic, for evaluation.
    fn buffer(&mut self, buffer: Buffer) -> Result<Self::Value, OpError>;

    /// Floats that are all 0.
    fn zeros(&mut self, shape: &[usize]) -> Result<Self::Value, OpError>;

    /// f32 `[time, time]`: 0 where a row may attend to a column, -1e30 where the column lies ahead of it.
    fn causal(&mut self, time: usize) -> Result<Self::Value, OpError>;

    fn apply(&mut self, op: Op, inputs: &[Self::Value]) -> Result<Self::Value, OpError>;

    fn meta(&self, value: Self::Value) -> Result<&Meta, OpError>;

    fn begin_segment(&mut self) -> Result<(), OpError>;

    fn end_segment(&mut self, result: Self::Value) -> Result<(), OpError>;

    /// Takes the statistics of a batch norm that was just applied, while they are there.
    fn take_statistics(&mut self, running: &Running, norm: Self::Value) -> Result<(), OpError>;
}

/// The tensors that a model reads.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Given<V> {
    /// `x` or `input_ids`.
    pub(crate) x: V,
    pub(crate) attention_mask: Option<V>,
    pub(crate) token_type_ids: Option<V>,
}
