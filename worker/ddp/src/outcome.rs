//! What a rank says about a step, and what comes out of it.

use lockstep_collective::Intent;

/// What this rank says about a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Votes {
    /// What it wants; for [`Intent::OutOfMemory`] see [`crate::Reducer::give_up_step`].
    pub intent: Intent,
    /// Its loss is not finite. Gradients and the sums of grains are looked at without being told.
    pub non_finite: bool,
    /// Of its weights, in steps in which ranks compare them; 0 in all others.
    pub weights_digest: u64,
}

/// When a bucket's gradient was there, when its reduction began, and when it was over, on the node's
/// monotonic clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BucketSpan {
    /// Which bucket.
    pub bucket: usize,
    /// The last of its gradients was final.
    pub ready_ns: u64,
    /// The communication thread took it up.
    pub launched_ns: u64,
    /// The sum was there.
    pub done_ns: u64,
}

/// What came out of a step, identical on all ranks but for the spans and the own weight.
#[derive(Debug, Clone, PartialEq)]
pub struct StepOutcome {
    /// Sum of the loss over the global batch.
    pub loss_sum: f64,
    /// Sum of the weights over the global batch.
    pub weight: f64,
    /// The part of it that this rank's grains have.
    pub own_weight: f64,
    /// (sum, weight) of each metric over the global batch.
    pub metrics: Vec<(f64, f64)>,
    /// Any rank wants to stop.
    pub stop: bool,
    /// Any loss or any gradient is not finite: the step must not be applied.
    pub non_finite: bool,
    /// On which ranks. Empty when only a sum of gradients overflowed.
    pub non_finite_ranks: Vec<usize>,
    /// Ranks that ran out of memory: the step must not be applied.
    pub out_of_memory_ranks: Vec<usize>,
    /// Ranks that have reduced other buckets than most, or have other weights: training must end.
    pub diverged_ranks: Vec<usize>,
    /// This rank's buckets in the order of their launch.
    pub buckets: Vec<BucketSpan>,
}
