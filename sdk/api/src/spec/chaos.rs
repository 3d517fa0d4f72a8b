//! Faults that a job asks for, to show what becomes of it.

use serde::{Deserialize, Serialize};

use crate::{FaultKind, FaultTarget, Phase, Rank, Step};

/// Most faults of a job.
pub const MAX_FAULTS: usize = 100;

/// One fault. It happens once, however often its step is done again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FaultSpec {
    /// What happens.
    pub kind: FaultKind,
    /// To whom: a rank, the agent of the node that it runs on, or its links to ranks of other nodes.
    #[serde(default = "rank")]
    pub target: FaultTarget,
    /// Which rank. Below the most that `gang.ranks` allows.
    pub rank: Rank,
    /// In which optimizer step.
    pub step: Step,
    /// When the rank begins this part of the step; for `evaluation` and `checkpoint`, of those that follow it.
    #[serde(default = "forward")]
    pub phase: Phase,
    /// How long a `slow` rank does nothing, a `slow` link carries little, or a `partition` keeps an agent from its server. 1 to
    /// 600000.
    #[serde(default = "second")]
    pub milliseconds: u64,
}

fn rank() -> FaultTarget {
    FaultTarget::Rank
}

fn forward() -> Phase {
    Phase::Forward
}

fn second() -> u64 {
    1000
}
