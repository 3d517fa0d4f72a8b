//! What each rank does in a step, and for how long: spans on the clocks of nodes.
//!
//! Within a node all times are of its `CLOCK_MONOTONIC`. An agent pairs that with the wall clock once an attempt
//! ([`ClockAnchor`]), so that the spans of several nodes can be laid side by side.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::{AttemptId, Generation, NodeId, Rank, Step};

/// Most spans of one rank in one step; of more, the oldest are left out.
pub const MAX_SPANS: usize = 4096;

/// What a rank was doing.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    utoipa::ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum SpanKind {
    /// The whole step, until its weights are new.
    Step,
    /// The loader makes a grain's tensors. `index`: which of this rank's grains.
    Data,
    /// Forward over a grain. `index`: which.
    Forward,
    /// Backward over a grain. `index`: which.
    Backward,
    /// Waiting for the other ranks: it begins before the wait does. The slow rank is the one that waits least.
    Wait,
    /// The optimizer's pass.
    Optimizer,
    /// An evaluation pass after the step.
    Evaluation,
    /// The state is copied for a checkpoint, or the writing of an earlier one is waited for.
    Checkpoint,
    /// A full bucket waits for its turn. `index`: the bucket.
    BucketQueue,
    /// A bucket is reduced over the ranks. `index`: the bucket.
    BucketReduce,
}

impl SpanKind {
    /// Every kind, in order of declaration.
    pub const ALL: &'static [Self] = &[
        Self::Step,
        Self::Data,
        Self::Forward,
        Self::Backward,
        Self::Wait,
        Self::Optimizer,
        Self::Evaluation,
        Self::Checkpoint,
        Self::BucketQueue,
        Self::BucketReduce,
    ];

    /// The spelling used in JSON and on screen.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Step => "step",
            Self::Data => "data",
            Self::Forward => "forward",
            Self::Backward => "backward",
            Self::Wait => "wait",
            Self::Optimizer => "optimizer",
            Self::Evaluation => "evaluation",
            Self::Checkpoint => "checkpoint",
            Self::BucketQueue => "bucket_queue",
            Self::BucketReduce => "bucket_reduce",
        }
    }
}

/// One thing that a rank did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Span {
    /// What.
    pub kind: SpanKind,
    /// Which grain or bucket, where there are several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<i32>,
    /// Its beginning, nanoseconds after `began_ns` of its step.
    pub start_ns: i64,
    /// Its end, likewise.
    pub end_ns: i64,
}

/// What one rank did in one step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StepSpans {
    /// Which rank.
    pub rank: Rank,
    /// Which step.
    pub step: Step,
    /// When its first span began, nanoseconds of the node's `CLOCK_MONOTONIC`.
    pub began_ns: i64,
    /// At most [`MAX_SPANS`], ordered by their beginnings; of two that begin together the longer comes first.
    pub spans: Vec<Span>,
    /// Spans that were left out since the rank's last step that is here: they came faster than they could be kept.
    #[serde(default)]
    pub dropped: i64,
}

/// One moment on both clocks of a node. Read once an attempt, by the agent: good for all of its ranks there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ClockAnchor {
    /// The wall clock.
    pub at: DateTime<Utc>,
    /// `CLOCK_MONOTONIC`, nanoseconds.
    pub monotonic_ns: i64,
}

/// What one rank did in one step, as the server keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct StepTimeline {
    /// The attempt.
    pub attempt_id: AttemptId,
    /// Its number within the job: 1, 2, …
    pub attempt_number: i32,
    /// Generation that the rank ran under.
    pub generation: Generation,
    /// The step.
    pub step: Step,
    /// The rank.
    pub rank: Rank,
    /// Where it ran.
    pub node_id: NodeId,
    /// That node's clocks.
    pub clock: ClockAnchor,
    /// When the first span began, nanoseconds of the node's `CLOCK_MONOTONIC`.
    pub began_ns: i64,
    /// Ordered by their beginnings; of two that begin together the longer comes first.
    pub spans: Vec<Span>,
    /// Spans that were left out since the rank's last step that is here.
    pub dropped: i64,
}

/// Query of a job's timeline. Ordered by attempt, step, rank.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReadTimeline {
    /// Only this step and later ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_step: Option<Step>,
    /// Only this step and earlier ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to_step: Option<Step>,
    /// Only this rank.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<Rank>,
    /// 1 to 1000; 200 if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// From `next_cursor`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_and_people_spell_kinds_alike_and_the_list_has_each() {
        for (index, kind) in SpanKind::ALL.iter().enumerate() {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.as_str());
            assert_eq!(*kind as usize, index);
        }
    }
}
