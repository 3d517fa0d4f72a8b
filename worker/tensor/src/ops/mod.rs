//! The closed set of operations.
//!
//! One file per family. Every operation is a type that implements [`Operation`]: shape inference (no
//! data), forward (into memory of the inferred shape) and the gradient of each input. [`ops!`] lists them
//! all; an operation whose gradient is missing does not compile.

mod operation;

mod attention;
mod conv;
mod linear;
mod matmul;
mod pool;
mod squares;

mod batch_norm;
pub mod norm;
mod softmax;

mod dropout;
mod embedding;
mod loss;

mod broadcast;
mod cast;
mod functions;
mod unary;

mod compare;
mod reduce;
mod reduce_axes;
mod relu;
mod rows;

mod axes;
mod index;
mod moves;
mod view;

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

pub use attention::Attention;
pub use batch_norm::BatchNorm;
pub use cast::Half;
pub use conv::Conv2d;
pub use dropout::Dropout;
pub use functions::Clamp;
pub use index::ScatterAdd;
pub use linear::Activation;
pub use loss::CrossEntropy;
pub use moves::Slice;
pub use norm::{LayerNorm, RmsNorm};
pub(crate) use operation::{Call, Chain, Destination, Forward, Operand, Operation, Target};
pub use pool::Pool2d;
pub use reduce_axes::Axes;

use crate::{
    error::{Metas, OpError},
    meta::{Dims, MAX_ELEMENTS, Meta},
    real::Real,
};

/// The most inputs that an operation has.
pub(crate) const MAX_INPUTS: usize = 8;

/// Declares the operations: the variant and what it carries, the name for messages and guests, and the
/// implementation that is made of what it carries.
macro_rules! ops {
    ($($(#[$doc:meta])* $variant:ident $(($field:ident: $payload:ty))? = $name:literal by $make:expr,)+) => {
        /// One operation. Tensors are row-major.
        ///
        /// Broadcasting, where it is named: shapes are aligned at their last axes; an axis that is missing
        /// or has length 1 is repeated.
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

            /// How many inputs it takes.
            pub fn arity(&self) -> RangeInclusive<usize> {
                match self {
                    $(Self::$variant $(($field))? => ($make).arity(),)+
                }
            }

            /// Whether gradients flow through it, to its float inputs.
            pub fn has_gradient(&self) -> bool {
                match self {
                    $(Self::$variant $(($field))? => ($make).has_gradient(),)+
                }
            }

            fn infer_unchecked(&self, call: &Call<'_>, out: &mut Meta) -> Result<(), OpError> {
                match self {
                    $(Self::$variant $(($field))? => ($make).infer(call, out),)+
                }
            }

            /// Floats that forward keeps for backward.
            pub fn saved_len(&self, inputs: &[&Meta], out: &Meta) -> usize {
                match self {
                    $(Self::$variant $(($field))? => ($make).saved_len(inputs, out),)+
                }
            }

            /// Floats that backward computes for several inputs' gradients at once.
            pub fn prepared_len(&self, inputs: &[&Meta], out: &Meta) -> usize {
                match self {
                    $(Self::$variant $(($field))? => ($make).prepared_len(inputs, out),)+
                }
            }

            /// Whether a ReLU is all that `rewrite_gradient` goes back through.
            pub(crate) fn is_rectified(&self) -> bool {
                match self {
                    $(Self::$variant $(($field))? => ($make).is_rectified(),)+
                }
            }

            /// Whether `gradient` can leave out what a ReLU before it would stop.
            pub(crate) fn stops_gradient(&self) -> bool {
                match self {
                    $(Self::$variant $(($field))? => ($make).stops_gradient(),)+
                }
            }

            /// An input whose gradient is the result's, handed on without a copy.
            pub fn passes_on(&self, inputs: &[&Meta]) -> Option<usize> {
                match self {
                    $(Self::$variant $(($field))? => ($make).passes_on(inputs),)+
                }
            }

            /// Whether the result is the first input's memory, under another shape or kind.
            pub fn is_view(&self) -> bool {
                match self {
                    $(Self::$variant $(($field))? => ($make).is_view(),)+
                }
            }

            /// Computes the result; the shapes have been inferred.
            pub(crate) fn forward<T: Real>(&self, cx: Forward<'_, T>) -> Result<(), OpError> {
                match self {
                    $(Self::$variant $(($field))? => ($make).forward(cx),)+
                }
            }

            /// Replaces the gradient of the result by what those of the inputs are made of.
            pub(crate) fn rewrite_gradient<T: Real>(&self, chain: &Chain<'_, T>, grad: &mut [T]) {
                match self {
                    $(Self::$variant $(($field))? => ($make).rewrite_gradient(chain, grad),)+
                }
            }

            /// What the gradients of several inputs have in common, computed once before them.
            pub(crate) fn prepare<T: Real>(&self, chain: &Chain<'_, T>, prepared: &mut [T]) {
                match self {
                    $(Self::$variant $(($field))? => ($make).prepare(chain, prepared),)+
                }
            }

            /// The gradient of input `which`, given that of the output.
            pub(crate) fn gradient<T: Real>(
                &self,
                which: usize,
                chain: &Chain<'_, T>,
                to: Target<'_, T>,
            ) {
                match self {
                    $(Self::$variant $(($field))? => ($make).gradient(which, chain, to),)+
                }
            }
        }
    };
}

ops! {
    /// `x[.., i]`, `w[o, i]` and, if given, `b[o]` to `act(x wᵀ + b)` of `[.., o]`.
    Linear(activation: Activation) = "linear" by linear::Linear(*activation, linear::Weights::OutIn),
    /// `x[.., i]`, `w[i, o]` and, if given, `b[o]` to `act(x w + b)` of `[.., o]`.
    Affine(activation: Activation) = "affine" by linear::Linear(*activation, linear::Weights::InOut),
    /// `x[n, c, h, w]`, `w[o, c / groups, kh, kw]` and, if given, `b[o]` to `[n, o, h', w']`, the cross-correlation,
    /// `h' = ⌊(h + 2 padding - dilation (kh - 1) - 1) / stride⌋ + 1`.
    Conv2d(settings: Conv2d) = "conv2d" by settings,
    /// `a[.., n, k]`, `b[.., k, m]` to `[.., n, m]`: leading axes are equal, or `b` has none.
    MatMul = "matmul" by matmul::MatMul,
    /// `q[b, t, d]`, `k[b, s, d]`, `v[b, s, d]` and, if given, a mask i64`[b, s]` (0 = not attended to) to
    /// `[b, t, d]`: softmax(q kᵀ / √(d / heads)) v for each head, a part of the last axis. What may attend
    /// to nothing becomes 0.
    Attention(how: Attention) = "attention" by attention::Separate(*how),
    /// The same of `[b, t, 3 d]`: queries, keys and values side by side along the last axis.
    SelfAttention(how: Attention) = "self_attention" by attention::Packed(*how),
    /// `x[n, c, h, w]` to the greatest element of each window; NaN counts as greatest. The gradient goes to
    /// the first of equals.
    MaxPool2d(windows: Pool2d) = "max_pool2d" by pool::MaxPool2d(*windows),
    /// `x[n, c, h, w]` to the sum of each window divided by its size; zeros lie outside.
    AvgPool2d(windows: Pool2d) = "avg_pool2d" by pool::AvgPool2d(*windows),
    /// `x[n, c, h, w]` to the means of that many windows down and across, which cover everything.
    AdaptiveAvgPool2d(counts: [usize; 2]) = "adaptive_avg_pool2d" by pool::AdaptiveAvgPool2d(*counts),
    /// `a + b`, broadcasting.
    Add = "add" by broadcast::Binary(broadcast::Add),
    /// `a - b`, broadcasting.
    Sub = "sub" by broadcast::Binary(broadcast::Sub),
    /// `a * b`, broadcasting.
    Mul = "mul" by broadcast::Binary(broadcast::Mul),
    /// `a / b`, broadcasting.
    Div = "div" by broadcast::Binary(broadcast::Div),
    /// `-x`.
    Neg = "neg" by unary::Neg,
    /// `x` times a fixed number.
    Scale(factor: f64) = "scale" by unary::Scale(*factor),
    /// e to the power of `x`.
    Exp = "exp" by unary::Exp,
    /// Natural logarithm.
    Log = "log" by unary::Log,
    /// `max(x, 0)`; its derivative at 0 is 0. NaN stays NaN.
    Relu = "relu" by unary::Relu,
    /// `x` plus a fixed number.
    AddScalar(term: f64) = "add_scalar" by functions::AddScalar(*term),
    /// Square root.
    Sqrt = "sqrt" by functions::Sqrt,
    /// `|x|`; its derivative at 0 is 0.
    Abs = "abs" by functions::Abs,
    /// `x` to a fixed power.
    Pow(exponent: f64) = "pow" by functions::Pow(*exponent),
    /// `x` within bounds. Its derivative at a bound is 1. NaN stays NaN.
    Clamp(bounds: Clamp) = "clamp" by *bounds,
    /// `1 / (1 + e^-x)`.
    Sigmoid = "sigmoid" by functions::Sigmoid,
    /// Hyperbolic tangent.
    Tanh = "tanh" by functions::Tanh,
    /// `x Φ(x)`, Φ the distribution function of the normal distribution.
    Gelu = "gelu" by unary::Gelu,
    /// The approximation of [`Op::Gelu`] by tanh.
    GeluTanh = "gelu_tanh" by unary::GeluTanh,
    /// `x` times its sigmoid.
    Silu = "silu" by functions::Silu,
    /// `x` rounded to the nearest float of 16 bits, and kept in the tape's. The gradient is rounded likewise.
    Cast(kind: Half) = "cast" by cast::Cast(*kind),
    /// Logarithm of the softmax over the last axis.
    LogSoftmax = "log_softmax" by softmax::LogSoftmax,
    /// e to the power of `x`, divided by the sum of these over the last axis.
    Softmax = "softmax" by softmax::Softmax,
    /// `x[n, c, ..]`, `weight[c]`, `bias[c]` and, if given, a residual of x's shape to that shape: x without
    /// mean and with variance 1 over all axes but the second, times weight, plus bias and residual.
    ///
    /// Keeps the mean, the inverse deviation and the biased variance of each channel, in that order, then how many values
    /// a channel has. With [`Tape::set_peers`](crate::Tape::set_peers) all of it is of everybody's batches together.
    BatchNorm(settings: BatchNorm) = "batch_norm" by *settings,
    /// The same with a given `mean[c]` and `variance[c]`, which lie before the residual.
    BatchNormInference(settings: BatchNorm) = "batch_norm_inference" by batch_norm::Inference(*settings),
    /// `x[.., d]`, `weight[d]`, `bias[d]`: x without mean and with variance 1 over the last axis, times
    /// weight, plus bias.
    LayerNorm(settings: LayerNorm) = "layer_norm" by *settings,
    /// `x[.., d]`, `weight[d]`: x divided by the root of its mean square over the last axis, times weight.
    RmsNorm(settings: RmsNorm) = "rms_norm" by *settings,
    /// `x[n, c]`, i64 `target[n]` to `[n]`: what the softmax of each row says of its target, as a negative
    /// logarithm.
    CrossEntropy(settings: CrossEntropy) = "cross_entropy" by *settings,
    /// `(x - target)²`, of one shape.
    MseLoss = "mse_loss" by loss::ElementLoss(loss::Squared),
    /// Binary cross-entropy of the sigmoid of `x` and of `target`, of one shape.
    BceWithLogits = "bce_with_logits" by loss::ElementLoss(loss::BceWithLogits),
    /// `target · (ln target - x)`, of one shape, x being the logarithm of a probability; 0 where the target
    /// is 0. Its sum over a distribution is the divergence.
    KlDiv = "kl_div" by loss::ElementLoss(loss::KlDiv),
    /// `table[v, d]`, i64 `ids[..]` to `[.., d]`: rows of the table.
    Embedding = "embedding" by embedding::Embedding,
    /// `x` with elements dropped at random, the others scaled up.
    Dropout(settings: Dropout) = "dropout" by *settings,
    /// `x[n, c]`, `index[n]` to `[n]`: `x[row, index[row]]`.
    Gather = "gather" by rows::Gather,
    /// Sum of all elements, a scalar.
    Sum = "sum" by reduce::Sum,
    /// Mean of all elements, a scalar. There must be one.
    Mean = "mean" by reduce::Mean,
    /// Sum along some axes.
    SumAxes(axes: Axes) = "sum_axes" by reduce_axes::SumAxes(axes),
    /// Mean along some axes, which have an element.
    MeanAxes(axes: Axes) = "mean_axes" by reduce_axes::MeanAxes(axes),
    /// Greatest element along some axes, which have one; NaN counts as greatest. The gradient goes to the
    /// first of equals in row-major order.
    MaxAxes(axes: Axes) = "max_axes" by reduce_axes::MaxAxes(axes),
    /// Index of the greatest element of the last axis, the first of equals; NaN counts as greatest. No gradient.
    ArgMax = "argmax" by compare::ArgMax,
    /// 1 where two tensors of one shape, both float or both i64, are equal, 0 elsewhere. No gradient.
    Equal = "equal" by compare::Equal,
    /// i64 to float. No gradient.
    ToFloat = "to_float" by view::ToFloat,
    /// The same values, cut off from gradients.
    Detach = "detach" by view::Detach,
    /// The same elements in another shape.
    Reshape(shape: Dims) = "reshape" by view::Reshape(shape),
    /// Axis i of the result is axis `axes[i]` of the input.
    Permute(axes: Dims) = "permute" by moves::Permute(axes),
    /// A stretch of one axis.
    Slice(slice: Slice) = "slice" by *slice,
    /// 2 to 8 inputs one after the other along an axis.
    Concat(axis: usize) = "concat" by moves::Concat(*axis),
    /// `x`, index i64 to the index's shape: `x[index[i, j, k], j, k]` along axis 0, and so on. The index may be
    /// shorter than `x` along the other axes.
    GatherAxis(axis: usize) = "gather_axis" by index::GatherAxis(*axis),
    /// `x`, index i64 of its shape: `y[index[i, j, k], j, k] += x[i, j, k]` along axis 0, and so on.
    ScatterAdd(scatter: ScatterAdd) = "scatter_add" by *scatter,
    /// Condition i64, `a`, `b` of one shape: `a` where the condition is not 0, `b` elsewhere.
    Where = "where" by index::Where,
}

impl Op {
    /// Kind and shape of the result, from those of the inputs alone.
    pub fn infer(&self, inputs: &[&Meta]) -> Result<Meta, OpError> {
        let mut out = Meta::default();
        self.infer_into(inputs, &mut out)?;
        Ok(out)
    }

    /// [`Op::infer`] into memory that is there already.
    pub(crate) fn infer_into(&self, inputs: &[&Meta], out: &mut Meta) -> Result<(), OpError> {
        self.check_arity(inputs.len())?;
        self.infer_unchecked(&Call { op: self.name(), inputs }, out)?;
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
        let expected = if least == most { least.to_string() } else { format!("{least} to {most}") };
        Err(OpError::Arity { op: self.name(), expected, given })
    }
}
