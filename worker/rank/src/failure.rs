//! From the errors of the parts to the one shape that the agent hears: a code, a sentence, evidence.

use std::time::Duration;

use lockstep_api::{FailureCode, FailureReport, Rank};
use lockstep_checkpoint::CheckpointError;
use lockstep_collective::{GroupError, Moment};
use lockstep_ddp::RestoreError;
use lockstep_sandbox::GuestError;
use lockstep_service::chain;
use serde_json::{Value, json};

use crate::link::cut;
use crate::position::Position;

/// Of a report's sentence.
const MESSAGE_BYTES: usize = 4 * 1024;
/// Samples listed as evidence.
const SAMPLES_LISTED: usize = 32;

/// What ended this rank.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Failure {
    /// The code of the verdict that this asks for.
    pub(crate) code: FailureCode,
    /// The rank at fault, if one is.
    pub(crate) rank: Option<Rank>,
    /// One sentence, names and numbers included.
    pub(crate) message: String,
    /// What else is known.
    pub(crate) evidence: Value,
    /// Whether only the group is broken: this rank goes on in another one.
    pub(crate) is_interruption: bool,
}

/// Which guest, and what it was working on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GuestCall<'a> {
    /// `loader` or `loss`.
    pub(crate) guest: &'static str,
    /// Whose.
    pub(crate) rank: Rank,
    /// Samples that the call was about.
    pub(crate) samples: &'a [u64],
}

impl Failure {
    /// With a code and a sentence only.
    pub(crate) fn new(code: FailureCode, message: impl Into<String>) -> Self {
        let (message, is_interruption) = (message.into(), false);
        Self { code, rank: None, message, evidence: Value::Null, is_interruption }
    }

    /// Names the rank at fault.
    #[must_use]
    pub(crate) fn of_rank(self, rank: Rank) -> Self {
        Self { rank: Some(rank), ..self }
    }

    /// Adds what else is known.
    #[must_use]
    pub(crate) fn with_evidence(self, evidence: Value) -> Self {
        Self { evidence, ..self }
    }

    /// A guest broke a rule or said so itself.
    pub(crate) fn of_guest(error: &GuestError, call: GuestCall<'_>) -> Self {
        let mut evidence = json!({ "guest": call.guest });
        match error {
            GuestError::Guest { sample: Some(sample), .. } => evidence["sample"] = json!(sample),
            _ if call.samples.is_empty() => {}
            _ => {
                let listed = call.samples.len().min(SAMPLES_LISTED);
                evidence["samples"] = json!(call.samples[..listed]);
            }
        }
        if let Some(limit) = guest_limit(error) {
            evidence["limit"] = limit;
        }
        let message = format!("the {} guest failed: {}", call.guest, chain(error));
        Self::new(guest_code(error), message).of_rank(call.rank).with_evidence(evidence)
    }

    /// A hook does not go on from a state.
    pub(crate) fn of_restoring(error: &RestoreError) -> Self {
        match error {
            RestoreError::Group(error) => Self::of_group(error),
            RestoreError::State(error) => {
                Self::new(FailureCode::CheckpointFailed, error.to_string())
            }
        }
    }

    /// A collective failed.
    pub(crate) fn of_group(error: &GroupError) -> Self {
        let message = chain(error);
        let failure = match error {
            GroupError::NotEntered { missing, at, waited } => {
                Self::missing(FailureCode::NotEntered, missing, message).at(at, *waited)
            }
            GroupError::FormationTimeout { missing, .. } => {
                Self::missing(FailureCode::RendezvousTimeout, missing, message)
            }
            GroupError::PlanMismatch { .. } => Self::new(FailureCode::PlanMismatch, message),
            GroupError::Aborted { by } => {
                let by: Vec<usize> = by.iter().copied().collect();
                Self::missing(FailureCode::PeerGone, &by, message)
            }
            GroupError::PeerGone { rank, at, waited } => {
                Self::missing(FailureCode::PeerGone, &[*rank], message).at(at, *waited)
            }
            GroupError::Garbage { rank, .. } => {
                Self::missing(FailureCode::CommError, &[*rank], message)
            }
            GroupError::Unreachable { rank, .. } => {
                Self::missing(FailureCode::PeerUnreachable, &[*rank], message)
            }
            GroupError::Diverged { .. } | GroupError::NumbersMismatch { .. } => {
                Self::new(FailureCode::Mismatch, message)
            }
            GroupError::StaleGeneration { .. }
            | GroupError::InvalidArgument(_)
            | GroupError::Io { .. } => Self::new(FailureCode::RankError, message),
        };
        Self { is_interruption: error.is_retryable(), ..failure }
    }

    /// The group was to form in the place of another one.
    pub(crate) fn of_forming_again(error: &GroupError) -> Self {
        let failure = Self::of_group(error);
        match failure.code {
            FailureCode::RendezvousTimeout => Self { code: FailureCode::ReformTimeout, ..failure },
            _ => failure,
        }
    }

    /// In which collective, and for how long it had been in it.
    fn at(mut self, at: &Moment, waited: Duration) -> Self {
        self.evidence["collective"] = json!(at.sequence);
        self.evidence["lane"] = json!(at.lane);
        self.evidence["what"] = json!(at.what);
        self.evidence["waited_ms"] = json!(u64::try_from(waited.as_millis()).unwrap_or(u64::MAX));
        self
    }

    /// Other ranks had no memory for their part of a step: they tell themselves what they needed.
    pub(crate) fn of_others_memory(step: u64, ranks: &[usize]) -> Self {
        let message = format!("step {step}: ranks {ranks:?} ran out of memory");
        let failure = Self::missing(FailureCode::PeerGone, ranks, message);
        Self { is_interruption: true, ..failure }
    }

    /// A checkpoint could not be written or read.
    pub(crate) fn of_checkpoint(error: &CheckpointError) -> Self {
        Self::new(FailureCode::CheckpointFailed, chain(error))
    }

    fn missing(code: FailureCode, missing: &[usize], message: String) -> Self {
        let failure = Self::new(code, message).with_evidence(json!({ "missing": missing }));
        match missing.first().map(|rank| i32::try_from(*rank)) {
            Some(Ok(rank)) => failure.of_rank(Rank(rank)),
            Some(Err(_)) | None => failure,
        }
    }

    /// The wire's form, with where this rank is now.
    pub(crate) fn report(&self, position: &Position) -> FailureReport {
        let (phase, step) = position.now();
        let mut evidence = self.evidence.clone();
        if evidence.get("missing").is_some() {
            // Who misses them.
            evidence["by"] = json!(position.rank());
        }
        FailureReport {
            code: self.code,
            rank: self.rank,
            exit: None,
            step: Some(step),
            phase: Some(phase),
            message: cut(&self.message, MESSAGE_BYTES).to_owned(),
            evidence,
        }
    }
}

/// The code of a guest's error, one to one.
pub(crate) fn guest_code(error: &GuestError) -> FailureCode {
    match error {
        GuestError::Trap { .. } => FailureCode::GuestTrap,
        GuestError::TimeLimit { .. } => FailureCode::GuestTimeLimit,
        GuestError::MemoryLimit { .. } => FailureCode::GuestMemoryLimit,
        GuestError::StackOverflow { .. } => FailureCode::GuestStackOverflow,
        GuestError::OutputLimit { .. } => FailureCode::GuestOutputLimit,
        GuestError::Shape { .. } | GuestError::Operation { .. } => FailureCode::GuestShape,
        GuestError::NonFinite { .. } => FailureCode::NonFinite,
        GuestError::Guest { .. } => FailureCode::GuestError,
        GuestError::Host(_) => FailureCode::RankError,
    }
}

/// The limit that was passed, if one was.
fn guest_limit(error: &GuestError) -> Option<Value> {
    match error {
        GuestError::TimeLimit { limit, .. } => {
            Some(json!({ "call_ms": u64::try_from(limit.as_millis()).unwrap_or(u64::MAX) }))
        }
        GuestError::MemoryLimit { limit, asked, .. } => {
            Some(json!({ "memory_bytes": limit, "asked_bytes": asked }))
        }
        GuestError::OutputLimit { limit, asked, .. } => {
            Some(json!({ "output_bytes": limit, "asked_bytes": asked }))
        }
        GuestError::Trap { .. }
        | GuestError::StackOverflow { .. }
        | GuestError::Shape { .. }
        | GuestError::Operation { .. }
        | GuestError::NonFinite { .. }
        | GuestError::Guest { .. }
        | GuestError::Host(_) => None,
    }
}
