//! Where the loops of each kind of float are compiled: in this crate, once.
//!
//! Generic code is compiled in whichever crate uses it, again in each, and with that crate's settings: a program that
//! is built for debugging would train with loops that nobody optimised. The methods here are not generic.
#![expect(private_interfaces, reason = "`Real` is sealed: nobody outside can call these")]

use crate::{
    error::OpError,
    ops::{Chain, Forward, Op, Target},
    optimizer::{OptimizerState, StepError, StepFactors, StepReport, UpdatePlan},
};

/// The entries to the loops.
pub trait Compiled: Sized {
    #[doc(hidden)]
    fn forward(op: &Op, cx: Forward<'_, Self>) -> Result<(), OpError>;
    #[doc(hidden)]
    fn rewrite_gradient(op: &Op, chain: &Chain<'_, Self>, grad: &mut [Self]);
    #[doc(hidden)]
    fn prepare(op: &Op, chain: &Chain<'_, Self>, prepared: &mut [Self]);
    #[doc(hidden)]
    fn gradient(op: &Op, which: usize, chain: &Chain<'_, Self>, to: Target<'_, Self>);
    #[doc(hidden)]
    fn update(
        plan: &UpdatePlan,
        weights: &mut [Self],
        grads: &[Self],
        factors: StepFactors,
        state: &mut OptimizerState<Self>,
    ) -> Result<StepReport, StepError>;
}

macro_rules! compiled {
    ($($real:ty)+) => {$(
        impl Compiled for $real {
            #[inline(never)]
            fn forward(op: &Op, cx: Forward<'_, Self>) -> Result<(), OpError> {
                op.forward(cx)
            }

            #[inline(never)]
            fn rewrite_gradient(op: &Op, chain: &Chain<'_, Self>, grad: &mut [Self]) {
                op.rewrite_gradient(chain, grad);
            }

            #[inline(never)]
            fn prepare(op: &Op, chain: &Chain<'_, Self>, prepared: &mut [Self]) {
                op.prepare(chain, prepared);
            }

            #[inline(never)]
            fn gradient(op: &Op, which: usize, chain: &Chain<'_, Self>, to: Target<'_, Self>) {
                op.gradient(which, chain, to);
            }

            #[inline(never)]
            fn update(
                plan: &UpdatePlan,
                weights: &mut [Self],
                grads: &[Self],
                factors: StepFactors,
                state: &mut OptimizerState<Self>,
            ) -> Result<StepReport, StepError> {
                plan.update(weights, grads, factors, state)
            }
        }
    )+};
}

compiled!(f32 f64);
