//! Data parallel: buckets, grains, the fixed tree, the reducer.
//!
//! The gradient of a step is that of the sum of all grains' losses over the global batch, whatever
//! the number of ranks; whoever uses it divides by the sum of the weights.

mod bucket;
mod comm;
mod config;
mod digest;
mod grain;
pub mod hook;
mod outcome;
mod peers;
mod reducer;
mod sink;
mod tree;

pub use bucket::{BucketRule, buckets_by, buckets_of};
pub use config::{HookKind, ReducerConfig, Reduction};
pub use digest::of_floats;
pub use grain::{GrainSums, grains_of};
pub use lockstep_collective::{GroupError, Intent, Interrupt, Join, Topology};
pub use outcome::{BucketSpan, StepOutcome, Votes};
pub use peers::BatchPeers;
pub use reducer::{Divergence, Reducer, RestoreError};
pub use sink::ReducerSink;
pub use tree::{Node, cover, slots_needed, tree_order};
