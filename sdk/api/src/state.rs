//! The closed sets of states, kinds and codes. In Postgres each is a native enum of the same name;
//! a test of the server compares the labels.

use serde::{Deserialize, Serialize};

/// Declares an enum with one spelling for JSON, SQL and people.
macro_rules! labels {
    ($($(#[$doc:meta])* $sql:literal $name:ident { $($(#[$vdoc:meta])* $variant:ident = $label:literal,)+ })+) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, utoipa::ToSchema)]
        #[serde(rename_all = "snake_case")]
        #[cfg_attr(feature = "sqlx", derive(sqlx::Type), sqlx(type_name = $sql, rename_all = "snake_case"))]
        pub enum $name { $($(#[$vdoc])* $variant,)+ }

        impl $name {
            /// Every value, in order of declaration.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];
            /// The name of the Postgres enum.
            pub const SQL_TYPE: &'static str = $sql;

            /// The spelling used in JSON, SQL and on screen.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $label,)+ }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl std::str::FromStr for $name {
            type Err = String;
            fn from_str(text: &str) -> Result<Self, String> {
                Self::ALL.iter().copied().find(|v| v.as_str() == text)
                    .ok_or_else(|| format!("no such {}: {text:?}", $sql))
            }
        }
    )+};
}

labels! {
    /// Where a job stands.
    "job_state" JobState {
        /// Waits for slots; the job's `waiting` field says why.
        Queued = "queued",
        /// An attempt is at work.
        Active = "active",
        /// Set aside by its owner.
        Paused = "paused",
        /// Told to end; its ranks are being stopped.
        Cancelling = "cancelling",
        /// Trained to its end.
        Succeeded = "succeeded",
        /// Ended by a failure that was not retried.
        Failed = "failed",
        /// Ended because someone asked.
        Cancelled = "cancelled",
    }
    /// What follows once an attempt that was told to stop has ended, if the job goes on.
    "stop_purpose" StopPurpose {
        /// The job is set aside.
        Pause = "pause",
        /// The job goes on elsewhere: a node of it is to become free.
        Move = "move",
        /// The job goes on later: one of higher priority gets its slots.
        Preempt = "preempt",
    }
    /// Where one try stands.
    "attempt_state" AttemptState {
        /// Slots are chosen; the agents have not yet said that they took them.
        Placing = "placing",
        /// Agents fetch components and data and start ranks.
        Starting = "starting",
        /// At least one optimizer step is done or every rank said it is ready.
        Running = "running",
        /// The process group re-forms under a new generation.
        Recovering = "recovering",
        /// Ranks are being stopped.
        Stopping = "stopping",
        /// Over; `outcome` says how.
        Ended = "ended",
    }
    /// How an attempt ended.
    "attempt_outcome" AttemptOutcome {
        /// All ranks finished training.
        Succeeded = "succeeded",
        /// Something broke; a verdict says what.
        Failed = "failed",
        /// Its lease ran out.
        LeaseLost = "lease_lost",
        /// Stopped on request.
        Cancelled = "cancelled",
    }
    /// Whose fault a failure is. Budgets for retries are kept apart.
    "blame" Blame {
        /// The job's own code, data or settings.
        User = "user",
        /// A machine, a link, the service.
        Infrastructure = "infrastructure",
    }
    /// What broke: the code of a verdict.
    "failure_code" FailureCode {
        /// A rank's process is gone (exit status or signal in the verdict).
        PeerGone = "peer_gone",
        /// A rank did not enter a collective in time.
        NotEntered = "not_entered",
        /// Ranks have entered a collective and hear nothing of each other.
        LinkOrDeviceStall = "link_or_device_stall",
        /// What came from a rank is not what a rank sends.
        CommError = "comm_error",
        /// A node stopped answering.
        NodeLost = "node_lost",
        /// The ranks did not form a group in time.
        RendezvousTimeout = "rendezvous_timeout",
        /// The ranks did not form a group again in time after theirs was lost.
        ReformTimeout = "reform_timeout",
        /// A rank cannot be reached at any of its addresses.
        PeerUnreachable = "peer_unreachable",
        /// A rank did not leave in time after its own failure and was killed.
        AbortHung = "abort_hung",
        /// A node has no address at which ranks of other nodes could reach its own.
        InterfaceUnreachable = "interface_unreachable",
        /// Ranks disagree on the plan of collectives.
        PlanMismatch = "plan_mismatch",
        /// Ranks are at different collectives, or mean other numbers in the same one.
        Mismatch = "mismatch",
        /// Ranks that should be copies of one another are not.
        Diverged = "diverged",
        /// The loss or a gradient is not finite.
        NonFinite = "non_finite",
        /// A guest trapped.
        GuestTrap = "guest_trap",
        /// A guest ran past its time.
        GuestTimeLimit = "guest_time_limit",
        /// A guest asked for more memory than it may have.
        GuestMemoryLimit = "guest_memory_limit",
        /// A guest's stack overflowed.
        GuestStackOverflow = "guest_stack_overflow",
        /// A guest put out more than it may.
        GuestOutputLimit = "guest_output_limit",
        /// A guest's tensors do not have the shape or dtype that is needed.
        GuestShape = "guest_shape",
        /// A guest answered with an error of its own.
        GuestError = "guest_error",
        /// A component or dataset could not be fetched or prepared on the node.
        PrepareFailed = "prepare_failed",
        /// A checkpoint could not be written or read.
        CheckpointFailed = "checkpoint_failed",
        /// No rank that was left had the state that the new ones need.
        HealFailed = "heal_failed",
        /// The job's ranks on a node used more memory than their slots have.
        OutOfMemory = "out_of_memory",
        /// A rank ended with an error that has no code of its own.
        RankError = "rank_error",
    }
    /// What a fault does that a job asked for.
    "fault_kind" FaultKind {
        /// Ends the process, as `kill -9` does.
        Kill = "kill",
        /// Stops the process, as `kill -STOP` does.
        Freeze = "freeze",
        /// Keeps a rank from going on for a time; a link carries little for a time.
        Slow = "slow",
        /// Nothing comes through, as if a cable were pulled: on a link until its group forms anew, between agent and server for
        /// a time.
        Partition = "partition",
        /// Flips a bit: of the rank's weights, or of what its links carry.
        Corrupt = "corrupt",
    }
    /// To whom a fault happens.
    "fault_target" FaultTarget {
        /// The rank's process.
        Rank = "rank",
        /// The agent of the node that the rank runs on.
        Agent = "agent",
        /// The rank's connections to ranks that share no memory with it.
        Link = "link",
    }
    /// How far a node is that takes no new work because someone asked.
    "drain_state" DrainState {
        /// Its ranks are being stopped.
        Draining = "draining",
        /// Nothing runs on it.
        Drained = "drained",
    }
    /// What kind of device a slot is.
    "device_kind" DeviceKind {
        /// Processor cores.
        Cpu = "cpu",
        /// An NVIDIA GPU.
        Cuda = "cuda",
    }
    /// What a member of a project may do; each includes the one before.
    "role" Role {
        /// Read.
        Viewer = "viewer",
        /// Submit, and cancel own jobs.
        Member = "member",
        /// Cancel and change any job of the project.
        Maintainer = "maintainer",
        /// Everything, nodes and tokens included.
        Admin = "admin",
    }
    /// What a rank is doing, as its flight record says.
    "phase" Phase {
        /// Reading settings, compiling guests, mapping data.
        Starting = "starting",
        /// Waiting for the other ranks to form the group.
        Forming = "forming",
        /// In the loader.
        Data = "data",
        /// Forward pass, the loss included.
        Forward = "forward",
        /// Backward pass.
        Backward = "backward",
        /// Waiting for a bucket to be reduced.
        Reduce = "reduce",
        /// Optimizer.
        Optimizer = "optimizer",
        /// Writing a checkpoint.
        Checkpoint = "checkpoint",
        /// Evaluation pass.
        Evaluation = "evaluation",
        /// The group broke: waiting for the next one, and for the state of the rank that goes on.
        Recovering = "recovering",
        /// Finished.
        Done = "done",
    }
    /// Where a log line comes from.
    "log_source" LogSource {
        /// The training loop.
        Rank = "rank",
        /// A guest, through its log interface.
        Guest = "guest",
        /// The process's standard error.
        Stderr = "stderr",
        /// The agent, speaking of this attempt.
        Agent = "agent",
        /// The server: verdicts, stragglers.
        Server = "server",
    }
    /// Weight of a log line.
    "log_level" LogLevel {
        /// For whoever debugs.
        Debug = "debug",
        /// Normal.
        Info = "info",
        /// Odd, work goes on.
        Warn = "warn",
        /// Something failed.
        Error = "error",
    }
}

impl JobState {
    /// Whether nothing more can happen to the job.
    pub fn is_final(self) -> bool {
        match self {
            Self::Succeeded | Self::Failed | Self::Cancelled => true,
            Self::Queued | Self::Active | Self::Paused | Self::Cancelling => false,
        }
    }
}

impl FailureCode {
    /// Whose fault it is.
    pub fn blame(self) -> Blame {
        match self {
            Self::PeerGone
            | Self::NotEntered
            | Self::LinkOrDeviceStall
            | Self::CommError
            | Self::NodeLost
            | Self::RendezvousTimeout
            | Self::ReformTimeout
            | Self::PeerUnreachable
            | Self::AbortHung
            | Self::InterfaceUnreachable
            | Self::Mismatch
            | Self::Diverged
            | Self::PrepareFailed
            | Self::CheckpointFailed
            | Self::HealFailed => Blame::Infrastructure,
            Self::PlanMismatch
            | Self::NonFinite
            | Self::GuestTrap
            | Self::GuestTimeLimit
            | Self::GuestMemoryLimit
            | Self::GuestStackOverflow
            | Self::GuestOutputLimit
            | Self::GuestShape
            | Self::GuestError
            | Self::OutOfMemory
            | Self::RankError => Blame::User,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_has_every_code_with_who_is_to_blame_and_every_state() {
        const TEXT: &str = include_str!("../../../docs/failures.md");
        for code in FailureCode::ALL {
            let row = TEXT.lines().find(|line| line.starts_with(&format!("| `{code}` |")));
            let row = row.unwrap_or_else(|| panic!("docs/failures.md lacks {code}"));
            assert!(row.ends_with(&format!("| {} |", code.blame())), "{row}");
        }
        let states = JobState::ALL.iter().map(|it| it.as_str());
        let states = states.chain(AttemptState::ALL.iter().map(|it| it.as_str()));
        for state in states.chain(AttemptOutcome::ALL.iter().map(|it| it.as_str())) {
            assert!(TEXT.contains(&format!("`{state}`")), "docs/failures.md lacks {state}");
        }
    }

    #[test]
    fn every_label_is_what_serde_writes() {
        for code in FailureCode::ALL {
            assert_eq!(serde_json::to_value(code).unwrap(), code.as_str());
            assert_eq!(code.as_str().parse(), Ok(*code));
        }
        for phase in Phase::ALL {
            assert_eq!(serde_json::to_value(phase).unwrap(), phase.as_str());
        }
        for state in JobState::ALL {
            assert_eq!(serde_json::to_value(state).unwrap(), state.as_str());
        }
    }
}
