//! What a model reads and puts out: names, kinds and shapes without the batch axis.

use std::fmt;

use lockstep_tensor::{DType, Meta};

/// Floats that most models read.
pub const INPUT: &str = "x";
/// Tokens that language models read.
pub const IDS: &str = "input_ids";
/// What BERT may attend to: i64, 1 for yes and 0 for no.
pub const MASK: &str = "attention_mask";
/// The kind of segment that a token is of.
pub const KINDS: &str = "token_type_ids";
/// What models put out.
pub const OUTPUT: &str = "logits";

/// The length of an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// This, and no other.
    Exactly(usize),
    /// From 1 to this.
    AtMost(usize),
    /// Whatever the operations take; this is what the job says.
    About(usize),
}

impl Extent {
    /// Whether an axis may be so long.
    pub fn allows(self, length: usize) -> bool {
        match self {
            Self::Exactly(expected) => length == expected,
            Self::AtMost(most) => (1..=most).contains(&length),
            Self::About(_) => 1 <= length,
        }
    }

    /// The length to count with.
    pub fn typical(self) -> usize {
        match self {
            Self::Exactly(length) | Self::AtMost(length) | Self::About(length) => length,
        }
    }
}

impl fmt::Display for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exactly(length) => write!(f, "{length}"),
            Self::AtMost(most) => write!(f, "1 to {most}"),
            Self::About(_) => f.write_str("any"),
        }
    }
}

/// A tensor that a model reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InputSpec {
    /// Its name in the batch.
    pub name: &'static str,
    /// f32 (on a tape of f64: f64) or i64.
    pub dtype: DType,
    /// Behind the batch axis.
    pub shape: Vec<Extent>,
    /// Whether a batch without it is refused.
    pub is_required: bool,
}

/// A tensor of another kind or shape than the model reads.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the tensor `{name}` is {found}, expected {expected}")]
pub struct InputMismatch {
    /// Its name.
    pub name: &'static str,
    /// As given.
    pub found: Meta,
    /// As the model reads it: `f32[8, 3, any, any]`.
    pub expected: String,
    /// The first axis behind the batch axis whose length does not do, if kind and number of axes do.
    pub axis: Option<usize>,
}

impl InputSpec {
    pub(crate) fn floats(name: &'static str, shape: Vec<Extent>) -> Self {
        Self { name, dtype: DType::F32, shape, is_required: true }
    }

    pub(crate) fn indices(name: &'static str, shape: Vec<Extent>) -> Self {
        Self { name, dtype: DType::I64, shape, is_required: true }
    }

    pub(crate) fn or_none(self) -> Self {
        Self { is_required: false, ..self }
    }

    /// Compares a tensor of `samples` samples.
    ///
    /// # Errors
    /// Another kind, another number of axes or samples, a length that the model does not take.
    pub fn check(&self, found: &Meta, samples: usize) -> Result<(), InputMismatch> {
        let is_kind = found.dtype.is_float() == self.dtype.is_float();
        let is_formed = found.rank() == self.shape.len() + 1 && found.shape[0] == samples;
        let mut axis = None;
        if is_kind && is_formed {
            let lengths = self.shape.iter().zip(&found.shape[1..]);
            axis = lengths.map(|(extent, length)| extent.allows(*length)).position(|holds| !holds);
            if axis.is_none() {
                return Ok(());
            }
        }
        let expected = self.describe(samples);
        Err(InputMismatch { name: self.name, found: found.clone(), expected, axis })
    }

    /// A tensor of so many samples, as long as the job says or the model takes.
    pub fn typical(&self, samples: usize) -> Meta {
        let lengths = self.shape.iter().map(|extent| extent.typical());
        Meta::new(self.dtype, [samples].into_iter().chain(lengths).collect::<Vec<_>>())
    }

    fn describe(&self, samples: usize) -> String {
        let lengths: String = self.shape.iter().map(|extent| format!(", {extent}")).collect();
        format!("{}[{samples}{lengths}]", self.dtype)
    }
}

/// The tensor that a model puts out: f32.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputSpec {
    /// Its name to the loss.
    pub name: &'static str,
    /// Behind the batch axis.
    pub shape: Vec<Extent>,
}

impl OutputSpec {
    pub(crate) fn logits(shape: Vec<Extent>) -> Self {
        Self { name: OUTPUT, shape }
    }

    /// Length of the last axis: of a classifier the number of classes.
    pub fn classes(&self) -> usize {
        self.shape.last().map_or(0, |extent| extent.typical())
    }
}
