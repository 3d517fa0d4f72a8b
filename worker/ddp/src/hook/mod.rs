//! Communication hooks: how a bucket's gradients are summed over the ranks, on whatever transport.
//!
//! A hook leaves in a bucket the sum over all ranks, or what it sends instead of it: whoever uses the gradient
//! divides by the sum of the weights, as after a plain sum. PyTorch's hooks leave the mean over ranks; ours is that
//! times the world size.
//!
//! Every rank ends with the same bits. No hook hides what is not finite: an infinite or undefined contribution
//! leaves something that is not finite in the bucket of every rank.

mod half;
mod power_sgd;
mod state;

pub use half::{Bf16, F16};
pub use power_sgd::{PowerSgd, PowerSgdConfig};
pub use state::{HookState, HookStateError};

use std::fmt::Debug;

pub use lockstep_collective::Dtype;
use lockstep_collective::{GroupError, PlanParam};

/// What a hook may ask of the group, on elements of the bucket's own memory: nothing else is shared by ranks.
pub trait BucketComm {
    /// How many ranks there are.
    fn world_size(&self) -> usize;

    /// The whole bucket: `[bucket length]`, f32.
    fn bucket(&mut self) -> &mut [f32];

    /// Sums the bucket's first `len` elements, seen as `dtype`, over all ranks, in place; the same bits on every
    /// rank.
    ///
    /// Two 16-bit floats share a float's place, the first in its lower half. They are added as f32, and the sum is
    /// rounded once, to the nearest, to the even one of two.
    fn all_reduce(&mut self, dtype: Dtype, len: usize) -> Result<(), GroupError>;
}

/// A way to sum a bucket over the ranks.
///
/// Every rank has the same hook with the same settings, and calls it for the same buckets in the same order. After
/// an error the group is dead and what the hook carries from step to step may differ between ranks: it must be
/// restored to one [`HookState`] before another group uses it.
pub trait Hook: Debug + Send {
    /// Sums bucket `bucket`, whose parameters are `params` in arena order, in place.
    ///
    /// # Errors
    /// Those of the collectives.
    fn reduce(
        &mut self,
        bucket: usize,
        params: &[PlanParam],
        comm: &mut dyn BucketComm,
    ) -> Result<(), GroupError>;

    /// To be called when the step just reduced is not applied, or gradients change their scale: what was left over
    /// from gradients so far is dropped.
    fn drop_leftovers(&mut self) {}

    /// What it carries from step to step. For use between steps.
    fn state(&self) -> HookState {
        HookState::default()
    }

    /// Continues from `state`.
    ///
    /// # Errors
    /// If it is of another length: of another model, other buckets or another hook. Nothing is changed then.
    fn restore(&mut self, state: &HookState) -> Result<(), HookStateError> {
        state.check_lens(0, 0)
    }

    /// Bytes of its own memory, beside the bucket's.
    fn memory_bytes(&self) -> usize {
        0
    }
}

/// The plain sum in f32, whose division by the sum of the weights is the exact mean.
#[derive(Debug, Clone, Copy, Default)]
pub struct Mean;

impl Hook for Mean {
    fn reduce(
        &mut self,
        _bucket: usize,
        _params: &[PlanParam],
        comm: &mut dyn BucketComm,
    ) -> Result<(), GroupError> {
        let len = comm.bucket().len();
        comm.all_reduce(Dtype::F32, len)
    }
}

/// No traffic: every rank keeps its own gradient. For benchmarks only, which measure what is not communication.
#[derive(Debug, Clone, Copy, Default)]
pub struct Noop;

impl Hook for Noop {
    fn reduce(
        &mut self,
        _bucket: usize,
        _params: &[PlanParam],
        _comm: &mut dyn BucketComm,
    ) -> Result<(), GroupError> {
        Ok(())
    }
}
