//! What every operation implements, and what its functions are handed.

use std::ops::RangeInclusive;

use crate::{
    error::{Metas, OpError},
    kernel::{Threads, Write},
    meta::{DType, Meta},
    peers::Peers,
    real::Real,
};

/// An operation: everything about it but its name.
pub(crate) trait Operation {
    /// How many inputs it takes, at most [`super::MAX_INPUTS`].
    fn arity(&self) -> RangeInclusive<usize>;

    /// Kind and shape of the result. The number of inputs has been checked.
    fn infer(&self, call: &Call<'_>, out: &mut Meta) -> Result<(), OpError>;

    /// Writes the result, all of it: the memory holds leftovers. The shapes have been inferred.
    ///
    /// # Errors
    /// For indices out of range only; what depends on shapes is refused by `infer`.
    fn forward<T: Real>(&self, cx: Forward<'_, T>) -> Result<(), OpError>;

    /// Writes or adds the gradient of input `which`. Called for float inputs that a gradient is wanted of,
    /// from the last input to the first.
    fn gradient<T: Real>(&self, which: usize, chain: &Chain<'_, T>, to: Target<'_, T>);

    /// Whether gradients flow through it. If not, `gradient` is never called.
    fn has_gradient(&self) -> bool {
        true
    }

    /// Floats that `forward` keeps for backward beside inputs and output.
    fn saved_len(&self, _inputs: &[&Meta], _out: &Meta) -> usize {
        0
    }

    /// Floats of what `prepare` computes.
    fn prepared_len(&self, _inputs: &[&Meta], _out: &Meta) -> usize {
        0
    }

    /// What the gradients of several inputs have in common: called once before them, if
    /// `prepared_len` is not 0.
    fn prepare<T: Real>(&self, _chain: &Chain<'_, T>, _prepared: &mut [T]) {}

    /// Replaces the gradient of the result, in place, by what all inputs' gradients are made of, such as that before
    /// the ReLU. Called before `prepare`; the chain has no gradient then.
    fn rewrite_gradient<T: Real>(&self, _chain: &Chain<'_, T>, _grad: &mut [T]) {}

    /// Whether a ReLU is all that `rewrite_gradient` goes back through: it may be left out for a gradient that is 0 already
    /// wherever the result is.
    fn is_rectified(&self) -> bool {
        false
    }

    /// Whether `gradient` can leave out what is due where the first input is not above 0, once
    /// [`Chain::is_rectified`] says that it is the result of a ReLU.
    fn stops_gradient(&self) -> bool {
        false
    }

    /// An input whose gradient is the result's, as `rewrite_gradient` leaves it: where nothing was written yet, it is
    /// handed on instead of copied.
    fn passes_on(&self, _inputs: &[&Meta]) -> Option<usize> {
        None
    }

    /// Whether the result may be the first input's memory; then `forward`, which copies, is not called.
    fn is_view(&self) -> bool {
        false
    }
}

/// One input of an operation; the slice of the other kind is empty.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Operand<'a, T> {
    pub(crate) meta: &'a Meta,
    pub(crate) floats: &'a [T],
    pub(crate) ints: &'a [i64],
}

/// Memory of a result, of the inferred length; the slice of the other kind is empty.
#[derive(Debug)]
pub(crate) struct Destination<'a, T> {
    pub(crate) floats: &'a mut [T],
    pub(crate) ints: &'a mut [i64],
}

/// What forward is handed.
#[derive(Debug)]
pub(crate) struct Forward<'a, T> {
    pub(crate) inputs: &'a [Operand<'a, T>],
    pub(crate) out: Destination<'a, T>,
    /// [`Operation::saved_len`] floats.
    pub(crate) saved: &'a mut [T],
    pub(crate) threads: &'a Threads,
    /// With whom sums over a batch are shared.
    pub(crate) peers: Option<&'a dyn Peers>,
}

/// What backward knows when it comes to a node.
#[derive(Debug)]
pub(crate) struct Chain<'a, T> {
    pub(crate) inputs: &'a [Operand<'a, T>],
    pub(crate) output: &'a [T],
    /// What forward saved.
    pub(crate) saved: &'a [T],
    /// Gradient of the output; empty while [`Operation::rewrite_gradient`] runs.
    pub(crate) grad: &'a [T],
    /// What [`Operation::prepare`] computed; empty while it runs.
    pub(crate) prepared: &'a [T],
    /// Whether the gradient of the first input is only wanted where that is above 0 (or NaN). Set where
    /// [`Operation::stops_gradient`] only.
    pub(crate) is_rectified: bool,
    pub(crate) threads: &'a Threads,
    /// As in [`Forward`].
    pub(crate) peers: Option<&'a dyn Peers>,
}

/// Where a gradient goes.
#[derive(Debug)]
pub(crate) struct Target<'a, T> {
    pub(crate) dst: &'a mut [T],
    pub(crate) mode: Write,
}

impl<T: Real> Target<'_, T> {
    pub(crate) fn write(self, value: impl Fn(usize) -> T) {
        crate::kernel::write(self.dst, self.mode, value);
    }
}

/// An operation and its inputs, while their shapes are checked.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    /// The operation's name.
    pub(crate) op: &'static str,
    pub(crate) inputs: &'a [&'a Meta],
}

impl Call<'_> {
    pub(crate) fn refuse(&self, rule: &'static str) -> OpError {
        OpError::Inputs { op: self.op, inputs: Metas::of(self.inputs), rule }
    }

    pub(crate) fn require(&self, holds: bool, rule: &'static str) -> Result<(), OpError> {
        if holds { Ok(()) } else { Err(self.refuse(rule)) }
    }

    /// That all inputs are floats of one kind, and which.
    pub(crate) fn floats(&self) -> Result<DType, OpError> {
        let dtype = self.inputs[0].dtype;
        let same = self.inputs.iter().all(|input| input.dtype == dtype);
        self.require(dtype.is_float() && same, "the inputs must be floats of one kind")?;
        Ok(dtype)
    }
}
