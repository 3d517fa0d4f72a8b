//! What is known of a tensor without its data: kind of element and shape.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The largest tensor that shape inference lets through. It is far above what a node holds: it keeps
/// products of lengths from overflowing; memory is budgeted by whoever runs the graph.
pub const MAX_ELEMENTS: usize = 1 << 40;

/// The most axes that an operation's settings name.
pub const MAX_RANK: usize = 8;

/// Lengths or places of axes, outermost first, kept without an allocation.
pub type Dims = arrayvec::ArrayVec<usize, MAX_RANK>;

/// Kind of element. All floats on one tape are of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DType {
    /// What training runs in.
    F32,
    /// What gradients are checked in.
    F64,
    /// Labels and other indices; never has a gradient.
    I64,
}

impl DType {
    /// Whether a gradient may flow through it.
    pub fn is_float(self) -> bool {
        match self {
            Self::F32 | Self::F64 => true,
            Self::I64 => false,
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::I64 => "i64",
        })
    }
}

/// Element kind and shape of a tensor, row-major and contiguous. `[]` is a scalar.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Meta {
    /// Kind of its elements.
    pub dtype: DType,
    /// Lengths, outermost first.
    pub shape: Vec<usize>,
}

impl Meta {
    /// A tensor of that kind and shape.
    pub fn new(dtype: DType, shape: impl Into<Vec<usize>>) -> Self {
        Self { dtype, shape: shape.into() }
    }

    /// `f32` of that shape.
    pub fn f32(shape: impl Into<Vec<usize>>) -> Self {
        Self::new(DType::F32, shape)
    }

    /// `i64` of that shape.
    pub fn i64(shape: impl Into<Vec<usize>>) -> Self {
        Self::new(DType::I64, shape)
    }

    /// Number of elements, at most [`usize::MAX`].
    pub fn len(&self) -> usize {
        elements(&self.shape)
    }

    /// Whether there is no element at all.
    pub fn is_empty(&self) -> bool {
        self.shape.contains(&0)
    }

    /// Number of axes.
    pub fn rank(&self) -> usize {
        self.shape.len()
    }

    pub(crate) fn last(&self) -> Option<usize> {
        self.shape.last().copied()
    }

    /// Takes another's shape without giving up this one's memory.
    pub(crate) fn set(&mut self, dtype: DType, shape: &[usize]) {
        self.dtype = dtype;
        self.shape.clear();
        self.shape.extend_from_slice(shape);
    }
}

impl Default for Meta {
    fn default() -> Self {
        Self { dtype: DType::F32, shape: Vec::new() }
    }
}

impl fmt::Display for Meta {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:?}", self.dtype, self.shape)
    }
}

/// Product of the lengths; saturates, and is 0 as soon as one length is.
pub(crate) fn elements(shape: &[usize]) -> usize {
    if shape.contains(&0) {
        return 0;
    }
    shape.iter().fold(1, |product: usize, &length| product.saturating_mul(length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_elements_saturates_and_an_empty_axis_wins() {
        assert_eq!(Meta::f32([]).len(), 1);
        assert_eq!(Meta::f32([2, 3]).len(), 6);
        assert_eq!(Meta::f32([usize::MAX, 2]).len(), usize::MAX);
        assert_eq!(Meta::f32([usize::MAX, 2, 0]).len(), 0);
        assert_eq!(Meta::f32([8, 20]).to_string(), "f32[8, 20]");
    }
}
