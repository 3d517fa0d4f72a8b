//! What can be wrong with an operation, a handle or a recipe.

use std::fmt;

use crate::meta::Meta;

/// Refused work on a tape or on a recipe. Nothing was recorded when one of these is returned.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum OpError {
    #[error("{op} takes {expected} inputs, {given} given")]
    Arity { op: &'static str, expected: String, given: usize },
    #[error("{op} of {inputs}: {rule}")]
    Inputs { op: &'static str, inputs: Metas, rule: &'static str },
    #[error("{op} of {inputs}: {given:?} has not as many elements")]
    Reshape { op: &'static str, inputs: Metas, given: Vec<usize> },
    #[error("{op} of {inputs}: the result would have more than {limit} elements")]
    TooLarge { op: &'static str, inputs: Metas, limit: usize },
    #[error("{op}: index {index} in row {row} lies outside of 0..{len}")]
    IndexOutOfRange { op: &'static str, row: usize, index: i64, len: usize },
    #[error("{what} of shape {shape:?} has {expected} elements, {given} given")]
    DataLength { what: &'static str, shape: Vec<usize>, expected: usize, given: usize },
    #[error("the layout has {expected} weights, {given} given")]
    Weights { expected: usize, given: usize },
    #[error("the sink's memory for parameter {name} has {given} elements, expected {expected}")]
    Sink { name: String, expected: usize, given: usize },
    #[error("the value was made in generation {made_in} of a tape; this one is in {now}")]
    Stale { made_in: u64, now: u64 },
    #[error("the numbers of {value} were given up: backward or the end of a segment came after it")]
    Released { value: Meta },
    #[error("recomputed segment: {rule}")]
    Segment { rule: &'static str },
    #[error("the parameter is none of the layout's {count}")]
    UnknownParam { count: usize },
    #[error("the value is {given}, expected {expected}")]
    Kind { given: Meta, expected: &'static str },
    #[error("the graph would have more than {limit} nodes")]
    TooManyNodes { limit: usize },
    #[error("the graph's constants would have more than {limit} elements")]
    TooManyConstants { limit: usize },
    #[error("node {node} is not of this graph, which has {count}")]
    UnknownNode { node: usize, count: usize },
    #[error("{what} {name:?} is given twice")]
    Duplicate { what: &'static str, name: String },
    #[error("input {name:?} is missing")]
    MissingInput { name: String },
    #[error("there is no input {name:?}; expected {expected:?}")]
    UnknownInput { name: String, expected: Vec<String> },
    #[error("input {name:?} is {given}, recorded as {expected}")]
    InputMeta { name: String, given: Meta, expected: Meta },
}

/// Inputs of a refused operation, for its message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Metas(pub Vec<Meta>);

impl Metas {
    pub(crate) fn of(inputs: &[&Meta]) -> Self {
        Self(inputs.iter().map(|&meta| meta.clone()).collect())
    }
}

impl fmt::Display for Metas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, meta) in self.0.iter().enumerate() {
            if 0 < index {
                f.write_str(", ")?;
            }
            write!(f, "{meta}")?;
        }
        Ok(())
    }
}
