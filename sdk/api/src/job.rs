//! What people and programs see of jobs.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::{
    AttemptId, AttemptOutcome, AttemptState, Blame, CheckpointId, Digest, FailureCode, FailureId,
    FaultSpec, Generation, JobId, JobSpec, JobState, LogLevel, LogSource, NodeId, Phase, Priority,
    Rank, RankCount, Step, TimeoutsView,
};

/// One page of a list.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Page<T> {
    /// In the order of the list.
    pub items: Vec<T>,
    /// Pass as `cursor` for the next page; absent on the last.
    pub next_cursor: Option<String>,
}

/// A job in a list.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct JobSummary {
    /// Its id.
    pub id: JobId,
    /// Its name.
    pub name: String,
    /// Where it stands.
    pub state: JobState,
    /// Why it waits, while it does: one sentence.
    pub waiting: Option<String>,
    /// Why it was not tried again, where that needs saying beside the verdict: one sentence.
    pub ended_because: Option<String>,
    /// Who goes first: 0 to 99, more before less.
    #[serde(default)]
    pub priority: Priority,
    /// World size asked for, or between which sizes it may change.
    pub ranks: RankCount,
    /// Ranks of the present group; absent while no attempt is at work.
    #[serde(default)]
    pub world_size: Option<u32>,
    /// Optimizer steps done, of the newest attempt.
    pub steps_done: Step,
    /// Optimizer steps in all, once known.
    pub steps_total: Option<Step>,
    /// The newest training loss.
    pub loss: Option<f64>,
    /// When it was submitted.
    pub created_at: DateTime<Utc>,
    /// When it ended.
    pub ended_at: Option<DateTime<Utc>>,
}

/// One job in full.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct JobView {
    /// What a list shows of it.
    #[serde(flatten)]
    pub summary: JobSummary,
    /// As submitted, defaults filled in.
    pub spec: JobSpec,
    /// Its time limits: what `spec.timeouts` says, and ratios of `collective` for the rest.
    pub timeouts: TimeoutsView,
    /// The fencing number.
    pub generation: Generation,
    /// Newest first.
    pub attempts: Vec<AttemptView>,
    /// Newest first.
    pub failures: Vec<FailureView>,
    /// Newest first.
    pub checkpoints: Vec<CheckpointView>,
    /// The faults that the job asked for, in its order, and what became of them.
    #[serde(default)]
    pub faults: Vec<FaultView>,
    /// The last value of each metric, by name: `eval/loss`, `eval/accuracy`, `train/loss`.
    pub metrics: std::collections::BTreeMap<String, f64>,
}

/// One try at a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct AttemptView {
    /// Its id.
    pub id: AttemptId,
    /// 1, 2, … within the job.
    pub number: i32,
    /// Where it stands.
    pub state: AttemptState,
    /// How it ended.
    pub outcome: Option<AttemptOutcome>,
    /// Why it was told to stop, if it was: one sentence.
    #[serde(default)]
    pub stopped_because: Option<String>,
    /// Fencing number it was placed under.
    pub generation: Generation,
    /// The step it resumed from; 0 from the start.
    pub first_step: Step,
    /// Steps done so far, those before `first_step` included.
    pub steps_done: Step,
    /// Its ranks in order.
    pub ranks: Vec<RankView>,
    /// The groups that its ranks formed, one after the other: another one after each repair and each change of size.
    #[serde(default)]
    pub groups: Vec<GroupView>,
    /// When it was placed.
    pub created_at: DateTime<Utc>,
    /// When its first step was done.
    pub first_step_at: Option<DateTime<Utc>>,
    /// When it ended.
    pub ended_at: Option<DateTime<Utc>>,
}

/// One process group of an attempt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct GroupView {
    /// Fencing number.
    pub generation: Generation,
    /// How many ranks it has.
    pub world_size: u32,
    /// When it was decided on: at the placement, once it was known who was lost, or when its size was to change.
    pub began_at: DateTime<Utc>,
    /// When its ranks had met.
    pub formed_at: Option<DateTime<Utc>>,
    /// When its first step was done.
    pub first_step_at: Option<DateTime<Utc>>,
}

/// A fault that a job asked for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct FaultView {
    /// As the job has it.
    pub fault: FaultSpec,
    /// When it happened.
    pub injected_at: Option<DateTime<Utc>>,
    /// What it was taken for.
    pub verdict: Option<FailureCode>,
    /// The rank that was named.
    pub named_rank: Option<Rank>,
    /// Seconds until the first sign of it was told.
    pub detected_after: Option<f64>,
    /// Seconds until it was known who was lost, and why.
    pub named_after: Option<f64>,
    /// Seconds until a step was done again.
    pub repaired_after: Option<f64>,
    /// Steps that had been done and were done once more.
    pub steps_lost: Option<i64>,
}

/// One rank of an attempt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct RankView {
    /// `0..world_size`.
    pub rank: Rank,
    /// Where it runs.
    pub node_id: NodeId,
    /// That node's name.
    pub node_name: String,
    /// Process id on that node, once started.
    pub pid: Option<i32>,
    /// What it does, as last reported.
    pub phase: Option<Phase>,
    /// The step it is in, as last reported.
    pub step: Option<Step>,
    /// Exit code, once gone.
    pub exit_code: Option<i32>,
    /// Signal that ended it.
    pub signal: Option<i32>,
}

/// A verdict: what broke, who, and how it is known.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct FailureView {
    /// Its id.
    pub id: FailureId,
    /// The attempt that broke; absent for a refusal before placement.
    pub attempt_id: Option<AttemptId>,
    /// Generation at that time.
    pub generation: Generation,
    /// What broke.
    pub code: FailureCode,
    /// Whose fault.
    pub blame: Blame,
    /// The rank named, if one is.
    pub rank: Option<Rank>,
    /// Its node.
    pub node_id: Option<NodeId>,
    /// Signal that ended it.
    pub signal: Option<i32>,
    /// Exit code.
    pub exit_code: Option<i32>,
    /// Step it was in.
    pub step: Option<Step>,
    /// What it was doing.
    pub phase: Option<Phase>,
    /// One sentence for people.
    pub message: String,
    /// What else is known: missing ranks and where they are, the last words of a process, the end of the flight record.
    #[schema(value_type = Object)]
    pub evidence: serde_json::Value,
    /// When.
    pub at: DateTime<Utc>,
}

/// A published checkpoint.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct CheckpointView {
    /// Its id.
    pub id: CheckpointId,
    /// The attempt that wrote it.
    pub attempt_id: AttemptId,
    /// Optimizer steps done.
    pub step: Step,
    /// Digest of the file.
    pub file: Digest,
    /// Length in bytes.
    pub size_bytes: i64,
    /// When it was published.
    pub created_at: DateTime<Utc>,
    /// Whether it is kept until someone unpins it, whatever the job says.
    pub is_pinned: bool,
}

/// One series of a job, the newest attempt's value for each step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct MetricSeries {
    /// `train/loss`, `eval/accuracy`, …
    pub name: String,
    /// Ordered by step.
    pub points: Vec<MetricSample>,
}

/// One value.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct MetricSample {
    /// Optimizer step, from 0.
    pub step: Step,
    /// The value; JSON has no NaN, so a value that is not finite comes as null.
    pub value: Option<f64>,
}

/// One line of a job's log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct LogLine {
    /// Counts up within the job; pass the last one as `after`.
    pub seq: i64,
    /// The attempt.
    pub attempt_id: AttemptId,
    /// The rank that wrote it; absent for the agent's own words.
    pub rank: Option<Rank>,
    /// Where it comes from.
    pub source: LogSource,
    /// Weight.
    pub level: LogLevel,
    /// When it was written, by the node's clock.
    pub at: DateTime<Utc>,
    /// One line, at most 8 KiB.
    pub text: String,
}

/// Which samples one step used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct LedgerEntry {
    /// Optimizer step.
    pub step: Step,
    /// Pass over the data, from 0.
    pub data_epoch: i64,
    /// First position within the epoch's order.
    pub first_position: i64,
    /// How many positions.
    pub sample_count: i64,
}

/// Whether every sample was used exactly once, epoch by epoch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct LedgerView {
    /// One entry per step that counts, ordered by step; steps of abandoned branches are left out.
    pub entries: Vec<LedgerEntry>,
    /// Samples of the training split, once known.
    pub samples_per_epoch: Option<i64>,
    /// Epochs whose positions are covered without gap or overlap.
    pub complete_epochs: Vec<i64>,
}

/// Query of the job list. Newest first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListJobs {
    /// Only jobs in this state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<JobState>,
    /// 1 to 200; 50 if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// From `next_cursor`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// Query of a log.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReadLog {
    /// Only lines after this sequence number.
    #[serde(default)]
    pub after: i64,
    /// 1 to 5000; 1000 if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// The last `limit` lines instead of the first.
    #[serde(default)]
    pub tail: bool,
}

/// One event of a job's live stream (`GET /v1/jobs/{id}/events`, server-sent; `id:` is `seq`).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct JobEvent {
    /// Counts up within the job; send as `Last-Event-ID` to resume.
    pub seq: i64,
    /// When.
    pub at: DateTime<Utc>,
    /// What.
    pub kind: JobEventKind,
}

/// What changed. A hint: read the thing itself for its full state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(
    feature = "sqlx",
    derive(sqlx::Type),
    sqlx(type_name = "job_event_kind", rename_all = "snake_case")
)]
pub enum JobEventKind {
    /// The job, an attempt or a rank changed state.
    State,
    /// New metric points.
    Metrics,
    /// New log lines.
    Log,
    /// A verdict.
    Failure,
    /// A checkpoint was published.
    Checkpoint,
}
