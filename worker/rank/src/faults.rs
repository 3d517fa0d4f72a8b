//! Faults that the job asked for: this rank makes those happen that are meant for it.
//!
//! Each is told to the agent before it happens and has reached it by then, so that it happens once however often its step
//! is done again, and by whichever process.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use lockstep_api::{FaultKind, FaultSpec, FaultTarget, Phase, Rank, RankConfig, RankMessage, Step};
use rustix::process::{Signal, getpid, kill_process};

use crate::link::AgentLink;

/// How long the word of a fault may take to leave.
const TELL_LIMIT: Duration = Duration::from_secs(2);

/// What is still to happen, to whichever rank. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Faults {
    link: AgentLink,
    pending: Arc<Mutex<Vec<(i32, FaultSpec)>>>,
}

impl Faults {
    /// Those that have not happened.
    pub(crate) fn new(config: &RankConfig, link: &AgentLink) -> Self {
        let planned = (0..).zip(config.spec.chaos.iter().copied()).collect();
        let faults = Self { link: link.clone(), pending: Arc::new(Mutex::new(planned)) };
        faults.forget(&config.faults_done);
        faults
    }

    /// These have happened.
    pub(crate) fn forget(&self, done: &[i32]) {
        self.lock().retain(|(index, _)| !done.contains(index));
    }

    /// This rank begins this part of a step. A part that a step does not have (of a rank without samples, or no evaluation)
    /// is over with the next one.
    pub(crate) fn enter(&self, rank: Rank, step: Step, phase: Phase) {
        let now = (step, place(phase));
        let is_due = |fault: &FaultSpec| {
            fault.kind != FaultKind::Corrupt && (fault.step, place(fault.phase)) <= now
        };
        while let Some(fault) = self.take(rank, is_due) {
            self.happen(fault);
        }
    }

    /// Flips a bit of the weights if that is due in this step: the lowest of the first one's exponent.
    pub(crate) fn corrupt(&self, rank: Rank, step: Step, weights: &mut [f32]) {
        let is_due = |fault: &FaultSpec| fault.kind == FaultKind::Corrupt && fault.step == step;
        if self.take(rank, is_due).is_some()
            && let Some(first) = weights.first_mut()
        {
            *first = f32::from_bits(first.to_bits() ^ 1 << 23);
        }
    }

    /// The next of this rank that is due, after its agent has been told.
    fn take(&self, rank: Rank, is_due: impl Fn(&FaultSpec) -> bool) -> Option<FaultSpec> {
        let mut pending = self.lock();
        let is_own = |(_, fault): &(i32, FaultSpec)| fault.rank == rank && is_due(fault);
        let place = pending.iter().position(is_own)?;
        let (index, fault) = pending.remove(place);
        drop(pending);
        self.link.send(RankMessage::Fault { index });
        self.link.flush(TELL_LIMIT);
        Some(fault)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(i32, FaultSpec)>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn happen(&self, fault: FaultSpec) {
        let signal = match (fault.target, fault.kind) {
            // The agent has been told.
            (FaultTarget::Agent, _) | (_, FaultKind::Corrupt) => return,
            (FaultTarget::Rank, FaultKind::Slow) => {
                return thread::sleep(Duration::from_millis(fault.milliseconds));
            }
            (FaultTarget::Rank, FaultKind::Kill) => Signal::KILL,
            (FaultTarget::Rank, FaultKind::Freeze) => Signal::STOP,
        };
        if let Err(error) = kill_process(getpid(), signal) {
            tracing::error!(%error, "a fault could not be made to happen");
        }
    }
}

/// Where in a step a phase comes; what belongs to no step comes before all.
fn place(phase: Phase) -> u8 {
    match phase {
        Phase::Starting | Phase::Forming | Phase::Recovering => 0,
        Phase::Data => 1,
        Phase::Forward => 2,
        Phase::Backward => 3,
        Phase::Reduce => 4,
        Phase::Optimizer => 5,
        Phase::Evaluation => 6,
        Phase::Checkpoint => 7,
        Phase::Done => 8,
    }
}
