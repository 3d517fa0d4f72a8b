//! Who has entered the collective under way, who has not, and what those do instead (`GET /v1/jobs/{id}/ranks`).

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::{AttemptId, AttemptState, Generation, Lane, NodeId, Phase, Rank, Step};

/// The arrival map of a job's newest attempt, from the newest heartbeat of each node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ArrivalMap {
    /// The attempt; absent before the first.
    pub attempt_id: Option<AttemptId>,
    /// Where it stands.
    pub state: Option<AttemptState>,
    /// Its generation.
    pub generation: Option<Generation>,
    /// The collective that ranks are in; absent while none is.
    pub collective: Option<CollectiveUnderWay>,
    /// In order.
    pub ranks: Vec<RankArrival>,
    /// One sentence: who is missing, and what that one does.
    pub summary: String,
    /// When this was put together, by the server's clock. All lengths of time are up to then.
    pub at: DateTime<Utc>,
}

/// A collective that at least one rank is in. Of those of several lanes, one in which somebody is missing; else the one that was
/// entered first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct CollectiveUnderWay {
    /// Of which group of the ranks: 0, or more with `ddp.groups` above 1 and with joint batch norms.
    #[serde(default)]
    pub lane: Lane,
    /// Its number since the group formed, the same on all ranks.
    pub sequence: i64,
    /// What it is, for people: `bucket 3 of 9`.
    pub what: String,
    /// How long the first rank had been in it when something was last heard, milliseconds.
    pub waited_ms: i64,
}

/// One rank, as last heard of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct RankArrival {
    /// Which.
    pub rank: Rank,
    /// Where it runs.
    pub node_id: NodeId,
    /// That node's name.
    pub node_name: String,
    /// Its process, once started.
    pub pid: Option<i32>,
    /// What it does.
    pub phase: Option<Phase>,
    /// For how long when this was heard, milliseconds.
    pub phase_ms: Option<i64>,
    /// The step it is in.
    pub step: Option<Step>,
    /// Whether it is where the others are.
    pub standing: Arrival,
    /// The last collective that it entered, in the lane of the one under way; lane 0 while none is.
    pub entered: Option<i64>,
    /// The last collective that it left, likewise.
    pub left: Option<i64>,
    /// What `entered` is.
    pub what: Option<String>,
    /// How long it had been in that collective when this was heard, milliseconds; absent when it is in none.
    pub waited_ms: Option<i64>,
    /// For how much longer it may pause, as it has announced, milliseconds.
    pub pause_left_ms: Option<i64>,
    /// Whether its process is stopped.
    pub is_stopped: bool,
    /// How old this news is, milliseconds.
    pub seen_ms: Option<i64>,
}

/// Where a rank is with regard to the collective under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Arrival {
    /// No rank is in a collective, or this one is through with it.
    Working,
    /// It has entered.
    Entered,
    /// Others are in it, this one has not entered.
    Missing,
    /// What is known of it is older than the collective, or nothing is.
    Unknown,
    /// Its process is gone, or has finished.
    Ended,
}

impl Arrival {
    /// The spelling used in JSON and on screen.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Working => "working",
            Self::Entered => "entered",
            Self::Missing => "missing",
            Self::Unknown => "unknown",
            Self::Ended => "ended",
        }
    }
}
