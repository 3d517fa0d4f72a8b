//! What agents and the server say to each other. The agent opens every connection.
//!
//! * `POST /v1/agent/join` with a join token; answers a node token (`lsn_…`, sent as bearer from then on).
//! * `POST /v1/agent/poll` parks up to 25 s, answers **the whole set** of assignments of this node as soon as
//!   it differs from the version the agent has seen. The agent makes it so: starts what is missing, stops what
//!   is not in the set.
//! * `POST /v1/agent/heartbeat` renews the node's lease and those of the attempts it runs.
//! * `POST /v1/agent/reports` hands over numbered reports; each has its effect exactly once.
//! * `POST /v1/agent/chunks/missing`, `PUT|GET /v1/agent/chunks/{digest}?attempt=…&generation=…`,
//!   `GET /v1/agent/files/{digest}?attempt=…&generation=…` (a [`crate::FileManifest`]),
//!   `POST /v1/agent/checkpoints` ([`PublishCheckpoint`]): bytes of the attempt's own project, under its fence.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::{
    AttemptId, ClockAnchor, DatasetFile, Digest, FailureCode, FileManifest, Generation, Inventory,
    JobId, JobSpec, LedgerEntry, LogLevel, LogSource, NodeId, Phase, Rank, RankPosition, Step,
    StepSpans,
};

/// Longest park of a poll, seconds.
pub const POLL_PARK_SECONDS: u64 = 25;

/// A node's first words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct JoinRequest {
    /// `lsj_…`
    pub join_token: String,
    /// For people; unique within the organisation (joining under the name of a dead node takes its place).
    pub name: String,
    /// As in its polls: an agent that has to join again is the one it was.
    #[serde(default)]
    pub boot_id: Option<String>,
    /// What it offers.
    pub inventory: Inventory,
}

/// Welcome.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct JoinResponse {
    /// The node's id.
    pub node_id: NodeId,
    /// The secret to speak with from now on: `lsn_…`.
    pub node_token: String,
    /// How often to send a heartbeat, milliseconds.
    pub heartbeat_ms: u64,
    /// How long the lease lasts without one, milliseconds.
    pub lease_ms: u64,
    /// How long ranks go on when no server answers, milliseconds.
    pub orphan_grace_ms: u64,
}

impl std::fmt::Debug for JoinResponse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JoinResponse").field("node_id", &self.node_id).finish_non_exhaustive()
    }
}

/// What the agent has, and what it last heard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PollRequest {
    /// Version of the last answer; 0 at first: answered at once.
    pub seen_version: i64,
    /// What the node offers now.
    pub inventory: Inventory,
    /// A random number drawn at the agent's start. A new one means that its ranks are gone.
    pub boot_id: String,
    /// Which machine and network namespace it is in: agents that say the same reach each other's loopback addresses.
    pub host: String,
}

/// All that should run on this node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct PollResponse {
    /// Grows with every change of this node's set.
    pub version: i64,
    /// The whole set.
    pub assignments: Vec<Assignment>,
}

/// The ranks of one attempt on one node.
#[derive(Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Assignment {
    /// The job.
    pub job_id: JobId,
    /// The attempt.
    pub attempt_id: AttemptId,
    /// Fencing number, sent back with every word about it.
    pub generation: Generation,
    /// Whether its ranks should finish the step they are in and leave (a cancel). They are killed after the grace.
    pub is_stopping: bool,
    /// World size of the group of this generation.
    pub world_size: u32,
    /// The ranks on this node, in order.
    pub ranks: Vec<AssignedRank>,
    /// The job; components are digests, datasets are digests.
    pub spec: JobSpec,
    /// Files of the training dataset.
    pub train_files: Vec<DatasetFile>,
    /// Files of the evaluation dataset.
    pub eval_files: Vec<DatasetFile>,
    /// Where to go on from, for ranks that begin the attempt.
    pub resume: Option<ResumeFrom>,
    /// Steps that the server has heard of: ranks that go on tell again of those from here on.
    pub steps_reported: Step,
    /// Places in `spec.chaos` of the faults that have happened.
    pub faults_done: Vec<i32>,
    /// Good for this attempt only; ranks prove with it to each other and to the agent that they belong.
    pub attempt_key: String,
    /// How its ranks reach each other; absent when all of them share one group memory.
    pub network: Option<AssignedNetwork>,
}

/// One rank of an attempt on a node.
///
/// Under a new generation of the same attempt the agent keeps a `process` that it runs, whatever its rank is now, and tells it of
/// the new group; it kills the processes that are no longer listed and starts those that it does not run, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct AssignedRank {
    /// The rank.
    pub rank: Rank,
    /// The slot it holds.
    pub slot_index: i32,
    /// Counts the processes of the attempt: one that takes the place of a lost one, or that a gang grows by, is another process.
    pub process: i32,
    /// Whether its state comes from ranks that are alive, not from a checkpoint or the beginning.
    pub heals: bool,
}

/// How the ranks of an attempt reach each other over TCP.
///
/// The agent binds a socket for each of its ranks, says where they listen ([`Report::RankListens`]) and, once everything
/// is there that they need, [`Report::Prepared`]. When every node has said both, `endpoints` appears and ranks are started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct AssignedNetwork {
    /// Which ranks share a group memory: contiguous, in order, every rank once.
    pub nodes: Vec<Vec<Rank>>,
    /// Whether its nodes are on several hosts: then a loopback address reaches nobody.
    pub spans_hosts: bool,
    /// Where each rank listens, in order of rank: candidates as `ip:port`, best first. Absent until all are ready.
    pub endpoints: Option<Vec<Vec<String>>>,
}

impl std::fmt::Debug for Assignment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Assignment")
            .field("attempt_id", &self.attempt_id)
            .field("generation", &self.generation)
            .field("ranks", &self.ranks)
            .finish_non_exhaustive()
    }
}

/// A checkpoint to resume from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ResumeFrom {
    /// Optimizer steps done in it.
    pub step: Step,
    /// The file.
    pub file: FileManifest,
}

/// An attempt under its fence.
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
#[serde(deny_unknown_fields)]
pub struct Fence {
    /// The attempt.
    pub attempt_id: AttemptId,
    /// Its generation as the sender knows it.
    pub generation: Generation,
}

/// Still here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HeartbeatRequest {
    /// As in [`PollRequest`].
    pub boot_id: String,
    /// Attempts whose ranks live here.
    pub running: Vec<RunningAttempt>,
}

/// One attempt's ranks on this node, as their flight records say.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RunningAttempt {
    /// Which.
    pub fence: Fence,
    /// Each local rank's position.
    pub ranks: Vec<RankPosition>,
}

/// The answer to a heartbeat.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct HeartbeatResponse {
    /// Attempts whose lease the node no longer holds: kill their ranks at once.
    pub lost: Vec<Fence>,
}

/// Numbered reports, oldest first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReportRequest {
    /// At most 500 reports and 4 MiB.
    pub reports: Vec<NumberedReport>,
}

/// One report.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NumberedReport {
    /// Counts up by one over the node's life, restarts of the agent included (it is kept on disk).
    pub seq: i64,
    /// Under which fence.
    pub fence: Fence,
    /// What happened.
    pub report: Report,
}

/// The answer: everything up to here has had its effect (or was fenced off) and can be forgotten.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ReportResponse {
    /// The highest number handled. A report at or below it is ignored when it comes again.
    pub acked_seq: i64,
    /// Attempts whose reports were refused because the lease is lost: kill their ranks.
    pub lost: Vec<Fence>,
}

/// What happened to ranks of an attempt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Report {
    /// A rank's socket is bound and listens; the rank itself is not started yet.
    RankListens {
        /// Which.
        rank: Rank,
        /// Where others reach it: 1 to 16 candidates as `ip:port`, best first.
        endpoints: Vec<String>,
    },
    /// Everything is there that the ranks of this node need. Said of attempts with a network.
    Prepared,
    /// A rank's process runs.
    RankStarted {
        /// Which.
        rank: Rank,
        /// Its process.
        pid: i32,
    },
    /// A fault is about to happen that the job asked for.
    FaultInjected {
        /// Its place in `spec.chaos`.
        index: i32,
        /// When, by the node's clock.
        at: DateTime<Utc>,
    },
    /// The group is formed and steps begin.
    GroupFormed {
        /// The step to do next.
        step: Step,
        /// Samples of the training split.
        samples_per_epoch: i64,
        /// Steps from start to end.
        steps_total: Step,
    },
    /// Steps were done. From rank 0 only.
    Steps {
        /// In order.
        steps: Vec<StepReport>,
    },
    /// Values of an evaluation pass. From rank 0 only.
    Evaluated {
        /// Steps done before it.
        step: Step,
        /// `(name, value)`: `eval/loss`, `eval/accuracy`, …; null when not finite.
        metrics: Vec<NamedValue>,
    },
    /// What ranks did in some steps, and for how long.
    Timeline {
        /// The node's clocks: the same in every report of an attempt.
        clock: ClockAnchor,
        /// Each rank's in order.
        steps: Vec<StepSpans>,
    },
    /// Lines of log.
    Log {
        /// In order.
        lines: Vec<ReportedLine>,
    },
    /// A rank's process is gone.
    RankExited {
        /// Its number among the attempt's processes: it may have had another rank in an earlier group.
        process: i32,
        /// Its rank in the last group that it belonged to.
        rank: Rank,
        /// How, and where it was.
        exit: RankExit,
    },
    /// Something broke. The first that is a cause is the verdict of its attempt; the others are effects.
    Failed(FailureReport),
    /// Every local rank finished training and left with status 0.
    Finished,
    /// Every local rank is gone after a stop.
    Stopped,
}

/// One optimizer step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StepReport {
    /// What it used.
    pub ledger: LedgerEntry,
    /// Σ sum / Σ weight over the global batch; null when not finite.
    pub loss: Option<f64>,
    /// Other metrics of the step: `train/accuracy`, …
    pub metrics: Vec<NamedValue>,
    /// How long it took, microseconds.
    pub duration_us: i64,
}

/// A metric's value.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NamedValue {
    /// `[a-z0-9_/]`, at most 64 bytes.
    pub name: String,
    /// Null when not finite.
    pub value: Option<f64>,
}

/// One line of log on its way to the server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReportedLine {
    /// The rank that wrote it.
    pub rank: Option<Rank>,
    /// Where it comes from.
    pub source: LogSource,
    /// Weight.
    pub level: LogLevel,
    /// When, by the node's clock.
    pub at: DateTime<Utc>,
    /// At most 8 KiB.
    pub text: String,
}

/// How a rank left, and where its flight record says it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RankExit {
    /// Exit code, if it exited.
    pub code: Option<i32>,
    /// Signal, if one ended it.
    pub signal: Option<i32>,
    /// Phase in its flight record.
    pub phase: Phase,
    /// Step in its flight record.
    pub step: Step,
    /// Memory, MiB, that the job's ranks on the node have together, if the kernel ended this one because they used more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exceeded_memory_mib: Option<u32>,
}

impl RankExit {
    /// Why the kernel ended it, if for want of memory: `the job's ranks there used more than their 1024 MiB of memory (gang.slot.memory_mib)`.
    pub fn over_memory(&self) -> Option<String> {
        let mib = self.exceeded_memory_mib?;
        Some(format!(
            "the job's ranks there used more than their {mib} MiB of memory (gang.slot.memory_mib)"
        ))
    }
}

/// What broke, as seen on the node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FailureReport {
    /// What.
    pub code: FailureCode,
    /// The rank at fault, if one is.
    pub rank: Option<Rank>,
    /// How it left, if it did.
    pub exit: Option<RankExit>,
    /// Step.
    pub step: Option<Step>,
    /// Phase.
    pub phase: Option<Phase>,
    /// One sentence for people, names and numbers included.
    pub message: String,
    /// Anything else that is known: missing ranks, bucket, sample, limit. At most 16 KiB.
    #[schema(value_type = Object)]
    pub evidence: serde_json::Value,
}

impl FailureReport {
    /// The ranks that the evidence says are missing or gone, in the order told.
    pub fn missing_ranks(&self) -> impl Iterator<Item = Rank> {
        self.ranks_of("missing")
    }

    /// The ranks between which nothing comes through, as the evidence says.
    pub fn ranks_between(&self) -> impl Iterator<Item = Rank> {
        self.ranks_of("between")
    }

    fn ranks_of(&self, field: &str) -> impl Iterator<Item = Rank> + use<'_> {
        let listed = self.evidence.get(field).and_then(|list| list.as_array());
        let numbers = listed.into_iter().flatten().filter_map(|rank| rank.as_i64());
        numbers.filter_map(|rank| i32::try_from(rank).ok()).map(Rank)
    }
}

/// Publishes a checkpoint whose chunks were all put before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PublishCheckpoint {
    /// Under which fence.
    pub fence: Fence,
    /// Optimizer steps done.
    pub step: Step,
    /// Pass over the data that the next step is in.
    pub data_epoch: i64,
    /// Position within it that the next step begins at.
    pub next_position: i64,
    /// The file. The server reads its chunks back before it publishes.
    pub file: FileManifest,
}

/// Query of an agent's reads and writes by digest: for which attempt, under which generation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttemptQuery {
    /// The attempt.
    pub attempt: AttemptId,
    /// Its generation.
    pub generation: Generation,
}

/// Which chunks the attempt's project lacks (`POST /v1/agent/chunks/missing`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AgentMissingRequest {
    /// Under which fence.
    pub fence: Fence,
    /// At most 4096 digests.
    pub digests: Vec<Digest>,
}
