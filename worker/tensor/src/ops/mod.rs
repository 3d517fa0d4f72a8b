//! The closed set of operations: names, shape inference, forward and backward.
//!
//! One file per family. Each family has `infer` (no data), `forward` (into memory of the inferred shape)
//! and `gradient` (of one input, overwriting or adding).

mod broadcast;
mod compare;
mod linear;
mod reduce;
mod rows;
mod unary;
mod view;

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use crate::{
    error::{Metas, OpError},
    kernel::Write,
    meta::{DType, MAX_ELEMENTS, Meta},
    real::Real,
};

/// The most inputs that an operation has.
pub(crate) const MAX_INPUTS: usize = 3;

/// Declares the operations together with their names, so that a list of all names always exists.
macro_rules! ops {
    ($($(#[$doc:meta])* $variant:ident $(($payload:ty))? = $name:literal,)+) => {
        /// One operation. Broadcasting, where it is named: equal shapes, or one side is a scalar `[]`,
        /// or one side is a row `[c]` and the other has two axes or more and ends in `c`.
        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Op {
            $($(#[$doc])* $variant $(($payload))?,)+
        }

        impl Op {
            /// Names of all operations.
            pub const NAMES: &'static [&'static str] = &[$($name),+];

            /// The name, for messages and guests.
            pub fn name(&self) -> &'static str {
                match self {
                    $(Self::$variant { .. } => $name,)+
                }
            }
        }
    };
}

ops! {
    /// `x[.., i]`, `w[o, i]` and, if given, `b[o]` to `x wᵀ + b` of `[.., o]`.
    Linear = "linear",
    /// `a[n, k]`, `b[k, m]` to `[n, m]`.
    MatMul = "matmul",
    /// `a + b`, broadcasting.
    Add = "add",
    /// `a - b`, broadcasting.
    Sub = "sub",
    /// `a * b`, broadcasting.
    Mul = "mul",
    /// `a / b`, broadcasting.
    Div = "div",
    /// `-x`.
    Neg = "neg",
    /// `x` times a fixed number.
    Scale(f64) = "scale",
    /// e to the power of `x`.
    Exp = "exp",
    /// Natural logarithm.
    Log = "log",
    /// `max(x, 0)`; its derivative at 0 is 0. NaN stays NaN.
    Relu = "relu",
    /// Logarithm of the softmax over the last axis.
    LogSoftmax = "log_softmax",
    /// `x[n, c]`, `index[n]` to `[n]`: `x[row, index[row]]`.
    Gather = "gather",
    /// Sum of all elements, a scalar.
    Sum = "sum",
    /// Mean of all elements, a scalar. There must be one.
    Mean = "mean",
    /// Index of the greatest element of the last axis, the first of equals; NaN counts as greatest. No gradient.
    ArgMax = "argmax",
    /// 1 where two tensors of one shape, both float or both i64, are equal, 0 elsewhere. No gradient.
    Equal = "equal",
    /// i64 to float. No gradient.
    ToFloat = "to_float",
    /// The same values, cut off from gradients.
    Detach = "detach",
    /// The same elements in another shape.
    Reshape(Vec<usize>) = "reshape",
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

impl Op {
    /// How many inputs it takes.
    pub fn arity(&self) -> RangeInclusive<usize> {
        match self {
            Self::Linear => 2..=3,
            Self::MatMul
            | Self::Add
            | Self::Sub
            | Self::Mul
            | Self::Div
            | Self::Gather
            | Self::Equal => 2..=2,
            Self::Neg
            | Self::Scale(_)
            | Self::Exp
            | Self::Log
            | Self::Relu
            | Self::LogSoftmax
            | Self::Sum
            | Self::Mean
            | Self::ArgMax
            | Self::ToFloat
            | Self::Detach
            | Self::Reshape(_) => 1..=1,
        }
    }

    /// Whether gradients flow through it, to its float inputs.
    pub fn has_gradient(&self) -> bool {
        match self {
            Self::ArgMax | Self::Equal | Self::ToFloat | Self::Detach => false,
            Self::Linear
            | Self::MatMul
            | Self::Add
            | Self::Sub
            | Self::Mul
            | Self::Div
            | Self::Neg
            | Self::Scale(_)
            | Self::Exp
            | Self::Log
            | Self::Relu
            | Self::LogSoftmax
            | Self::Gather
            | Self::Sum
            | Self::Mean
            | Self::Reshape(_) => true,
        }
    }

    /// Kind and shape of the result, from those of the inputs alone.
    pub fn infer(&self, inputs: &[&Meta]) -> Result<Meta, OpError> {
        let mut out = Meta::default();
        self.infer_into(inputs, &mut out)?;
        Ok(out)
    }

    /// [`Op::infer`] into memory that is there already.
    pub(crate) fn infer_into(&self, inputs: &[&Meta], out: &mut Meta) -> Result<(), OpError> {
        self.check_arity(inputs.len())?;
        let call = Call { op: self, inputs };
        match self {
            Self::Linear => linear::infer_linear(&call, out),
            Self::MatMul => linear::infer_matmul(&call, out),
            Self::Add | Self::Sub | Self::Mul | Self::Div => broadcast::infer(&call, out),
            Self::Neg | Self::Scale(_) | Self::Exp | Self::Log | Self::Relu => {
                unary::infer(&call, out)
            }
            Self::LogSoftmax => rows::infer_log_softmax(&call, out),
            Self::Gather => rows::infer_gather(&call, out),
            Self::Sum | Self::Mean => reduce::infer(&call, out),
            Self::ArgMax => compare::infer_argmax(&call, out),
            Self::Equal => compare::infer_equal(&call, out),
            Self::ToFloat => view::infer_to_float(&call, out),
            Self::Detach => unary::infer(&call, out),
            Self::Reshape(shape) => view::infer_reshape(&call, shape, out),
        }?;
        if MAX_ELEMENTS < out.len() {
            let inputs = Metas::of(inputs);
            return Err(OpError::TooLarge { op: self.name(), inputs, limit: MAX_ELEMENTS });
        }
        Ok(())
    }

    pub(crate) fn check_arity(&self, given: usize) -> Result<(), OpError> {
        let arity = self.arity();
        if arity.contains(&given) {
            return Ok(());
        }
        let (least, most) = arity.into_inner();
        let expected = if least == most { least.to_string() } else { format!("{least} or {most}") };
        Err(OpError::Arity { op: self.name(), expected, given })
    }

    /// Computes the result; the shapes have been inferred.
    pub(crate) fn forward<T: Real>(
        &self,
        inputs: &[Operand<'_, T>],
        out: Destination<'_, T>,
    ) -> Result<(), OpError> {
        match self {
            Self::Linear => linear::linear(inputs, out.floats),
            Self::MatMul => linear::matmul(inputs, out.floats),
            Self::Add | Self::Sub | Self::Mul | Self::Div => {
                broadcast::forward(self, inputs, out.floats);
            }
            Self::Neg | Self::Scale(_) | Self::Exp | Self::Log | Self::Relu => {
                unary::forward(self, inputs[0].floats, out.floats);
            }
            Self::LogSoftmax => rows::log_softmax(&inputs[0], out.floats),
            Self::Gather => return rows::gather(inputs, out.floats),
            Self::Sum => out.floats[0] = reduce::sum_of(inputs[0].floats),
            Self::Mean => out.floats[0] = reduce::mean_of(inputs[0].floats),
            Self::ArgMax => compare::argmax(&inputs[0], out.ints),
            Self::Equal => compare::equal(inputs, out.floats),
            Self::ToFloat => view::to_float(inputs[0].ints, out.floats),
            Self::Detach | Self::Reshape(_) => {
                out.floats.copy_from_slice(inputs[0].floats);
                out.ints.copy_from_slice(inputs[0].ints);
            }
        }
        Ok(())
    }

    /// Writes to `dst` the gradient of input `which`, given that of the output.
    pub(crate) fn gradient<T: Real>(&self, which: usize, chain: &Chain<'_, T>, to: Target<'_, T>) {
        match self {
            Self::Linear => linear::linear_gradient(which, chain, to),
            Self::MatMul => linear::matmul_gradient(which, chain, to),
            Self::Add | Self::Sub | Self::Mul | Self::Div => {
                broadcast::gradient(self, which, chain, to);
            }
            Self::Neg | Self::Scale(_) | Self::Exp | Self::Log | Self::Relu => {
                unary::gradient(self, chain, to);
            }
            Self::LogSoftmax => rows::log_softmax_gradient(chain, to),
            Self::Gather => rows::gather_gradient(chain, to),
            Self::Sum | Self::Mean => reduce::gradient(self, chain, to),
            Self::Reshape(_) => to.write(|i| chain.grad[i]),
            Self::ArgMax | Self::Equal | Self::ToFloat | Self::Detach => {
                unreachable!("{} is never reached: has_gradient is false", self.name())
            }
        }
    }
}

/// What backward knows when it comes to a node.
#[derive(Debug)]
pub(crate) struct Chain<'a, T> {
    pub(crate) inputs: &'a [Operand<'a, T>],
    pub(crate) output: &'a [T],
    /// Of the output.
    pub(crate) grad: &'a [T],
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
    pub(crate) op: &'a Op,
    pub(crate) inputs: &'a [&'a Meta],
}

impl Call<'_> {
    pub(crate) fn refuse(&self, rule: &'static str) -> OpError {
        OpError::Inputs { op: self.op.name(), inputs: Metas::of(self.inputs), rule }
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
