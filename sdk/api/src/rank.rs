//! What an agent and the ranks it starts say to each other.
//!
//! The agent starts `lockstep-rank train` with a [`RankConfig`] as JSON on standard input. Each rank connects
//! to `socket_path` (a unix socket) and sends [`RankMessage`]s, one JSON document a line; the agent answers
//! with [`AgentMessage`]s likewise. When the connection closes, the rank leaves at once: no rank outlives its agent.

use serde::{Deserialize, Serialize};

use crate::{
    AttemptId, FailureReport, Generation, JobId, JobSpec, LogLevel, LogSource, NamedValue, Rank,
    Step, StepReport, StepSpans,
};

/// The whole environment that an agent gives its ranks.
///
/// The C library's allocator asks for large pages then, where the kernel leaves that to programs: a step walks through more
/// memory than a processor keeps the ordinary pages' places of.
pub const RANK_ENVIRONMENT: [(&str, &str); 1] = [("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")];

/// Everything a rank needs to know. Holds no credential of the platform.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RankConfig {
    /// The job.
    pub job_id: JobId,
    /// The attempt.
    pub attempt_id: AttemptId,
    /// Fencing number.
    pub generation: Generation,
    /// This rank, in its first group.
    pub rank: Rank,
    /// How many there are in that.
    pub world_size: u32,
    /// Position among the ranks of this node.
    pub local_rank: u32,
    /// The job's settings.
    pub spec: JobSpec,
    /// The agent's socket.
    pub socket_path: String,
    /// First words on it.
    pub attempt_key: String,
    /// File descriptor of the memfd of the ranks of this rank's entry in [`RankNetwork::nodes`] (of all ranks without a
    /// network), inherited; empty at first, sized by the first of them.
    pub group_fd: i32,
    /// File descriptor of this rank's listening TCP socket, inherited; bound by the agent. There when `network` is.
    #[serde(default)]
    pub listener_fd: Option<i32>,
    /// How ranks on different nodes reach each other; `None` when all ranks share one group memory.
    #[serde(default)]
    pub network: Option<RankNetwork>,
    /// Whether the state comes from ranks that are alive: `init_path` and `resume_path` are not read then.
    #[serde(default)]
    pub heals: bool,
    /// Steps that the server has heard of.
    #[serde(default)]
    pub steps_reported: Step,
    /// Places in `spec.chaos` of the faults that have happened.
    #[serde(default)]
    pub faults_done: Vec<i32>,
    /// This rank's flight record, a file made by the agent.
    pub flight_record_path: String,
    /// The loader component.
    pub loader_path: String,
    /// The loss component.
    pub loss_path: String,
    /// Folder of the training dataset's files.
    pub train_dir: String,
    /// Folder of the evaluation dataset's files.
    pub eval_dir: Option<String>,
    /// Folder for compiled components.
    pub cache_dir: String,
    /// The file that `model.init_from` names. Read only when there is no checkpoint to resume from.
    #[serde(default)]
    pub init_path: Option<String>,
    /// A checkpoint file to resume from.
    pub resume_path: Option<String>,
    /// Folder to write checkpoints to (rank 0).
    pub checkpoint_dir: String,
}

/// What ranks that do not share one group memory need to reach each other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RankNetwork {
    /// Which ranks share a group memory: contiguous, in order, every rank once.
    pub nodes: Vec<Vec<Rank>>,
    /// Where each rank listens, in order of rank: candidates as `ip:port`, best first.
    pub endpoints: Vec<Vec<String>>,
    /// Whether what ranks say to each other is encrypted (it is always authenticated with the attempt's key).
    pub encrypt: bool,
}

/// From a rank to its agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum RankMessage {
    /// First message.
    Hello {
        /// Which rank.
        rank: Rank,
        /// From the config.
        attempt_key: String,
    },
    /// The group is formed (rank 0).
    Formed {
        /// The step to do next.
        step: Step,
        /// Samples of the training split.
        samples_per_epoch: i64,
        /// Steps from start to end.
        steps_total: Step,
    },
    /// A step was done (rank 0).
    Step(StepReport),
    /// An evaluation pass was done (rank 0).
    Evaluated {
        /// Steps done.
        step: Step,
        /// Its values.
        metrics: Vec<NamedValue>,
    },
    /// What the rank did in some steps, and for how long.
    Timeline {
        /// In order.
        steps: Vec<StepSpans>,
    },
    /// A line of log.
    Log {
        /// Rank or guest.
        source: LogSource,
        /// Weight.
        level: LogLevel,
        /// At most 8 KiB.
        text: String,
    },
    /// A checkpoint lies complete at `path` (rank 0). The agent uploads, publishes and deletes it.
    Checkpoint {
        /// The file.
        path: String,
        /// Steps done in it.
        step: Step,
        /// Pass over the data that the next step is in.
        data_epoch: i64,
        /// Position within it.
        next_position: i64,
    },
    /// A fault is about to happen that the job asked for. If its target is the agent, the agent makes it happen.
    Fault {
        /// Its place in `spec.chaos`.
        index: i32,
    },
    /// Something broke; the rank leaves with status 1 after this.
    Failed(FailureReport),
    /// The group broke or is to have another size; the rank lives, keeps its state and waits for [`AgentMessage::Regroup`].
    Interrupted {
        /// Of which generation the group was.
        generation: Generation,
        /// What this rank saw of it.
        report: FailureReport,
    },
    /// Training is over; the rank leaves with status 0 once the agent has answered [`AgentMessage::Released`].
    Done,
}

/// From the agent to a rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum AgentMessage {
    /// Leave after the step you are in: all ranks agree on which, by the flag in the bucket header.
    Stop,
    /// Another rank is lost, or the group is to have another size: give it up and wait for the next one.
    Interrupt,
    /// The next group. With the message's first octet come file descriptors: the memory of the group, and the rank's
    /// listening socket if there is a network.
    Regroup(Regroup),
    /// Answer to [`RankMessage::Done`]: everything reported is safe on the agent's disk.
    Released,
}

/// A rank's place in the next group of its attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Regroup {
    /// Fencing number.
    pub generation: Generation,
    /// This rank in it: it may have had another one before.
    pub rank: Rank,
    /// How many there are.
    pub world_size: u32,
    /// How ranks on different nodes reach each other; `None` when all ranks share one group memory.
    pub network: Option<RankNetwork>,
    /// Steps that the server has heard of: the rank whose state goes on tells again of those from here on.
    pub steps_reported: Step,
    /// Places in `spec.chaos` of the faults that have happened.
    #[serde(default)]
    pub faults_done: Vec<i32>,
}
