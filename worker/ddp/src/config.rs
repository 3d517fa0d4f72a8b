//! Settings of a reducer, and what it makes of them when it forms its group.

use lockstep_collective::{Bucket, Plan, Topology};
use lockstep_tensor::Layout;

use crate::{
    buckets_of,
    comm::Way,
    hook::{Bf16, F16, Noop, PowerSgd, PowerSgdConfig},
    slots_needed,
};

/// Loss and weight; two more for each metric.
pub(crate) const COLUMNS: usize = 2;
/// Floats behind the gradients, for numbers that ranks exchange between steps.
pub(crate) const SCRATCH_LEN: usize = 16 << 10;
/// Where numbers of any kind may begin: a cache line.
const ALIGN: usize = 16;

/// In which order gradients are added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reduction {
    /// Each rank adds up its grains, then each node its ranks in order, then nodes. Same topology and buckets, same bits.
    Fast,
    /// Grains along a fixed binary tree: same bits for any number of ranks.
    FixedTree,
}

/// How a rank's sum of a bucket travels.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum HookKind {
    /// As it is: the exact sum.
    Mean,
    /// As bf16.
    Bf16,
    /// As f16.
    F16,
    /// As the product of two thin matrices.
    PowerSgd(PowerSgdConfig),
    /// Not at all: every rank keeps its own. For benchmarks.
    Noop,
}

/// Settings of a reducer; the same on every rank.
#[expect(clippy::struct_excessive_bools, reason = "each is a setting of its own")]
#[derive(Debug, Clone)]
pub struct ReducerConfig {
    /// Ceiling of a bucket.
    pub bucket_bytes: usize,
    /// Ceiling of the first bucket.
    pub first_bucket_bytes: usize,
    /// In which order gradients are added.
    pub reduction: Reduction,
    /// How they travel. Other than [`HookKind::Mean`] only with [`Reduction::Fast`].
    pub hook: HookKind,
    /// Each rank gets its part of the gradient only, and keeps the optimizer's state for it only.
    pub is_sharded: bool,
    /// Whether ranks compare what they have reduced so far with every step.
    pub is_strict: bool,
    /// Groups among which buckets rotate, each with a thread and connections of its own: at least 1. Above 1 only with
    /// [`HookKind::Mean`] and without sharding.
    pub groups: usize,
    /// Whether batch norms take their statistics over the grains of all ranks: [`Reducer::batch_peers`](crate::Reducer).
    pub joins_batches: bool,
    /// The most grains that a step may have.
    pub max_grains: usize,
    /// How many metrics each grain reports.
    pub metric_count: usize,
    /// Whatever else must be the same on every rank, by name.
    pub settings: Vec<(String, String)>,
}

impl Default for ReducerConfig {
    /// The product's, for steps of one grain.
    fn default() -> Self {
        Self {
            bucket_bytes: 25 << 20,
            first_bucket_bytes: 1 << 20,
            reduction: Reduction::Fast,
            hook: HookKind::Mean,
            is_sharded: false,
            is_strict: true,
            groups: 1,
            joins_batches: false,
            max_grains: 1,
            metric_count: 0,
            settings: Vec::new(),
        }
    }
}

impl ReducerConfig {
    pub(crate) fn plan(&self, layout: &Layout, topology: &Topology) -> Plan {
        let (reduction, slots) = match self.reduction {
            Reduction::Fast => ("fast", 1),
            Reduction::FixedTree => ("fixed-tree", slots_needed(topology.world(), self.max_grains)),
        };
        let mut settings = vec![
            ("the reduction".to_owned(), reduction.to_owned()),
            ("the hook".to_owned(), format!("{:?}", self.hook)),
            ("sharding".to_owned(), self.is_sharded.to_string()),
            ("the groups".to_owned(), self.groups.to_string()),
            ("joint batch statistics".to_owned(), self.joins_batches.to_string()),
            ("the check of what was reduced".to_owned(), self.is_strict.to_string()),
        ];
        settings.extend(self.settings.iter().cloned());
        Plan {
            nodes: topology.node_sizes(),
            arena_len: scratch_start(layout) + SCRATCH_LEN,
            slots,
            settings,
            grain_rows: self.max_grains,
            grain_columns: COLUMNS + 2 * self.metric_count,
            buckets: buckets_of(layout, self.first_bucket_bytes, self.bucket_bytes),
        }
    }

    /// # Panics
    /// If the settings contradict each other: whoever makes them checks them.
    pub(crate) fn way(&self, buckets: &[Bucket]) -> Way {
        let is_plain = self.hook == HookKind::Mean;
        assert!(is_plain || self.reduction == Reduction::Fast, "a hook with the fixed tree");
        assert!(is_plain || !self.is_sharded, "a hook with sharding");
        let is_whole = is_plain && !self.is_sharded;
        assert!(is_whole || self.groups == 1, "{} groups with a hook or sharding", self.groups);
        match self.hook {
            HookKind::Mean if self.is_sharded => Way::Sharded,
            HookKind::Mean => Way::Whole,
            HookKind::Bf16 => Way::Hook(Box::new(Bf16)),
            HookKind::F16 => Way::Hook(Box::new(F16)),
            HookKind::PowerSgd(config) => Way::Hook(Box::new(PowerSgd::new(config, buckets))),
            HookKind::Noop => Way::Hook(Box::new(Noop)),
        }
    }
}

/// The float behind the gradients, where numbers of any kind may begin.
pub(crate) fn scratch_start(layout: &Layout) -> usize {
    layout.len().next_multiple_of(ALIGN)
}
