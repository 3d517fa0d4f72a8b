//! How ranks train together: what travels between them, when, and what they compare.

use serde::{Deserialize, Serialize};

/// Data-parallel reduction.
#[expect(clippy::struct_excessive_bools, reason = "each is a setting of its own")]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DdpSpec {
    /// Ceiling of a bucket, MiB.
    pub bucket_mib: u32,
    /// Ceiling of the first bucket, MiB, so that communication starts early.
    pub first_bucket_mib: u32,
    /// Process groups that buckets go through in turn, each with a thread and connections of its own. 1 to 8.
    pub groups: u32,
    /// In which order gradients are added.
    pub reduction: Reduction,
    /// How ranks reach each other.
    pub transport: Transport,
    /// Whether what ranks say over TCP is encrypted. It is authenticated in any case.
    pub encrypt: bool,
    /// As what a rank's sum of gradients travels.
    pub hook: Hook,
    /// For the hook `power-sgd`.
    pub power_sgd: PowerSgdSpec,
    /// What ranks keep a part of only.
    pub shard: Shard,
    /// Steps from one mean of the weights to the next; between them ranks go their own way. 1: gradients are reduced in
    /// every step. 1 to 10000.
    pub sync_every: u32,
    /// Steps at the beginning in which gradients are reduced whatever `sync_every` says.
    pub sync_from: u64,
    /// Whether ranks compare which buckets they have reduced, with every step.
    pub digest: DigestCheck,
    /// Steps between two comparisons of all ranks' weights; 0: they are not compared. Up to 1000000.
    pub compare_every: u64,
    /// What becomes of samples that fill no global batch at the end of a pass.
    pub uneven: Uneven,
    /// Whether batch norms take their statistics over the micro batches that all ranks compute at one time.
    pub sync_batch_norm: bool,
    /// Whether the loss must depend on the same parameters in every micro batch of all ranks.
    pub static_graph: bool,
}

impl Default for DdpSpec {
    fn default() -> Self {
        Self {
            bucket_mib: 25,
            first_bucket_mib: 1,
            groups: 1,
            reduction: Reduction::Fast,
            transport: Transport::Auto,
            encrypt: false,
            hook: Hook::Mean,
            power_sgd: PowerSgdSpec::default(),
            shard: Shard::None,
            sync_every: 1,
            sync_from: 0,
            digest: DigestCheck::Strict,
            compare_every: 100,
            uneven: Uneven::Join,
            sync_batch_norm: false,
            static_graph: false,
        }
    }
}

/// As what a rank's sum of gradients travels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Hook {
    /// As it is.
    Mean,
    /// Rounded to bf16: half the traffic.
    Bf16,
    /// Rounded to f16: half the traffic, more precise and of less range.
    F16,
    /// As the product of two thin matrices; what is left out is added in the next step.
    PowerSgd,
}

impl DdpSpec {
    /// Whether every rank has all of the state: not if the optimizer's is in parts, ranks go their own way, or each has something
    /// left over that it has not sent.
    pub fn has_copies(&self) -> bool {
        self.shard == Shard::None && self.sync_every == 1 && !self.hook.has_state()
    }
}

impl Hook {
    /// Whether it carries anything from step to step, which a checkpoint must have.
    pub fn has_state(self) -> bool {
        match self {
            Self::Mean | Self::Bf16 | Self::F16 => false,
            Self::PowerSgd => true,
        }
    }
}

/// Settings of the hook `power-sgd`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PowerSgdSpec {
    /// Columns of the thin matrices. 1 to 128.
    pub rank: u32,
    /// Steps at the beginning in which gradients travel as they are.
    pub start_step: u64,
    /// A matrix is compressed if so many times less travels. 1 to 1000.
    pub min_compression_rate: f64,
}

impl Default for PowerSgdSpec {
    fn default() -> Self {
        Self { rank: 1, start_step: 1000, min_compression_rate: 2.0 }
    }
}

/// What ranks keep a part of only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Shard {
    /// Nothing: every rank keeps everything.
    None,
    /// The optimizer's state (ZeRO, stage 1): each rank updates its part of the weights and gives it to the others.
    Zero1,
}

/// Whether ranks compare which buckets they have reduced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum DigestCheck {
    /// A digest of it is compared before a step is applied.
    Strict,
    /// It is not.
    Off,
}

/// What becomes of samples that fill no global batch at the end of a pass over the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Uneven {
    /// The last step is smaller: ranks without data contribute nothing to it.
    Join,
    /// They are left out of this pass; the next one has another order.
    Shortest,
    /// Samples from the beginning of the pass fill the batch, and count twice.
    Pad,
}

impl Uneven {
    /// Positions of one pass over `samples` in batches of `global_batch`, as the ledger counts them; 0 if there is no whole
    /// batch where only whole ones count. `global_batch`: at least 1.
    pub fn positions(self, samples: u64, global_batch: u32) -> u64 {
        let global_batch = u64::from(global_batch);
        match self {
            Self::Join => samples,
            Self::Shortest => samples / global_batch * global_batch,
            Self::Pad => samples.div_ceil(global_batch).saturating_mul(global_batch),
        }
    }
}

/// How ranks reach each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    /// On one node if one has room, else over as few as possible: shared memory within a node, TCP between nodes.
    Auto,
    /// On one node, through shared memory.
    Shm,
    /// TCP between all ranks, those of one node as well.
    Tcp,
}

/// In which order gradients are added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Reduction {
    /// Each rank adds up its grains, then each node its ranks in order, then nodes. As many ranks on each node, same bits.
    Fast,
    /// Grains along a fixed binary tree: same bits for any number of ranks.
    FixedTree,
}
