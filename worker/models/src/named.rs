//! A model's numbers under their names, for whoever writes them down.

use crate::{Model, builder::is_counter};

/// One tensor of a state dict.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NamedTensor<'a> {
    /// As the architecture's library calls it.
    pub name: &'a str,
    /// Row-major; `[]` is a scalar.
    pub shape: &'a [usize],
    /// Its numbers.
    pub values: TensorValues<'a>,
}

/// Numbers of a tensor.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum TensorValues<'a> {
    /// Weights and running statistics.
    F32(&'a [f32]),
    /// A counter of batches, which PyTorch keeps as a scalar i64.
    I64(i64),
}

impl Model {
    /// All tensors of the state dict: parameters in arena order, then buffers in theirs. A head that shares the
    /// embedding's weights is left out, as Hugging Face does when it saves. Tensors whose numbers lie outside of the
    /// given memory are left out too.
    pub fn named_tensors<'a>(
        &'a self,
        weights: &'a [f32],
        buffers: &'a [f32],
    ) -> impl Iterator<Item = NamedTensor<'a>> {
        let parts = [(self.layout(), weights), (self.buffers(), buffers)];
        parts.into_iter().flat_map(|(layout, arena)| {
            layout.params().iter().filter_map(move |param| {
                let numbers = arena.get(param.range.clone())?;
                let values = match numbers {
                    &[count] if is_counter(&param.name) => TensorValues::I64(count as i64),
                    numbers => TensorValues::F32(numbers),
                };
                Some(NamedTensor { name: &param.name, shape: &param.shape, values })
            })
        })
    }
}
