//! Where a rank is, as its node says with each heartbeat.

use serde::{Deserialize, Serialize};

use crate::{Lane, Phase, Rank, Step};

/// Where one rank is. Times are lengths up to this heartbeat: clocks of nodes differ.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RankPosition {
    /// The rank.
    pub rank: Rank,
    /// Its process.
    pub pid: i32,
    /// What it does.
    pub phase: Phase,
    /// The step it is in.
    pub step: Step,
    /// For how long it has been in this phase, milliseconds.
    #[serde(default)]
    pub phase_ms: Option<i64>,
    /// How far it is in its collectives; absent before the first.
    #[serde(default)]
    pub collective: Option<CollectivePosition>,
    /// The same of the further groups that its ranks form (`ddp.groups`, joint batch norms): lanes 1, 2, …
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub further_lanes: Vec<CollectivePosition>,
    /// For how much longer it may pause, as it has announced, milliseconds; absent when it does not.
    #[serde(default)]
    pub pause_left_ms: Option<i64>,
    /// Whether its process is stopped by a signal or a debugger.
    #[serde(default)]
    pub is_stopped: bool,
}

/// How far a rank is in the collectives of its group, counted from 1 since that formed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CollectivePosition {
    /// The last one that it entered; 0 before the first.
    pub entered: i64,
    /// The last one that it left. Less than `entered`: it is in that one.
    pub left: i64,
    /// What `entered` is, for people: `bucket 3 of 9`. At most 100 bytes.
    pub what: String,
    /// How long ago it entered, milliseconds.
    pub entered_ms: i64,
}

impl CollectivePosition {
    /// Whether the rank is in a collective.
    pub fn is_inside(&self) -> bool {
        self.left < self.entered
    }
}

impl RankPosition {
    /// How far it is in each lane in which it has entered a collective.
    pub fn lanes(&self) -> impl Iterator<Item = (Lane, &CollectivePosition)> {
        let further = (1..).map(Lane).zip(&self.further_lanes);
        let all = self.collective.iter().map(|it| (Lane(0), it)).chain(further);
        all.filter(|(_, it)| 0 < it.entered)
    }
}
