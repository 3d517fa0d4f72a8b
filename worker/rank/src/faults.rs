//! Faults that the job asked for: this rank makes those happen that are meant for it.
//!
//! Each is told to the agent before it happens and has reached it by then, so that it happens once however often its step
//! is done again, and by whichever process.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use lockstep_api::{FaultKind, FaultSpec, FaultTarget, Phase, Rank, RankConfig, RankMessage, Step};
use lockstep_collective::Links;
use rustix::process::{Signal, getpid, kill_process};

use crate::link::AgentLink;

/// How long the word of a fault may take to leave.
const TELL_LIMIT: Duration = Duration::from_secs(2);

/// How long a rank waits to be ended with its agent: longer than that waits until the server knows.
const AGENT_LIMIT: Duration = Duration::from_secs(3);

/// What is still to happen, to whichever rank. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Faults {
    link: AgentLink,
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    pending: Vec<(i32, FaultSpec)>,
    /// Of the present group.
    links: Links,
}

impl Faults {
    /// Those that have not happened.
    pub(crate) fn new(config: &RankConfig, link: &AgentLink) -> Self {
        let pending = (0..).zip(config.spec.chaos.iter().copied()).collect();
        let state = State { pending, links: Links::default() };
        let faults = Self { link: link.clone(), state: Arc::new(Mutex::new(state)) };
        faults.forget(&config.faults_done);
        faults
    }

    /// These have happened.
    pub(crate) fn forget(&self, done: &[i32]) {
        self.lock().pending.retain(|(index, _)| !done.contains(index));
    }

    /// The links of a group that is about to form: sound, whatever was wrong with those of the one before.
    pub(crate) fn begin_links(&self) -> Links {
        let links = Links::default();
        self.lock().links = links.clone();
        links
    }

    /// This rank begins this part of a step. A part that a step does not have (of a rank without samples, or no evaluation)
    /// is over with the next one.
    pub(crate) fn enter(&self, rank: Rank, step: Step, phase: Phase) {
        let now = (step, place(phase));
        let is_due =
            |fault: &FaultSpec| !is_of_weights(fault) && (fault.step, place(fault.phase)) <= now;
        while let Some(fault) = self.take(rank, is_due) {
            self.happen(fault);
        }
    }

    /// Flips a bit of the weights if that is due in this step: the lowest of the first one's exponent.
    pub(crate) fn corrupt(&self, rank: Rank, step: Step, weights: &mut [f32]) {
        let is_due = |fault: &FaultSpec| is_of_weights(fault) && fault.step == step;
        if self.take(rank, is_due).is_some()
            && let Some(first) = weights.first_mut()
        {
            *first = f32::from_bits(first.to_bits() ^ 1 << 23);
        }
    }

    /// The next of this rank that is due, after its agent has been told.
    fn take(&self, rank: Rank, is_due: impl Fn(&FaultSpec) -> bool) -> Option<FaultSpec> {
        let mut state = self.lock();
        let is_own = |(_, fault): &(i32, FaultSpec)| fault.rank == rank && is_due(fault);
        let place = state.pending.iter().position(is_own)?;
        let (index, fault) = state.pending.remove(place);
        drop(state);
        self.link.send(RankMessage::Fault { index });
        self.link.flush(TELL_LIMIT);
        Some(fault)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn happen(&self, fault: FaultSpec) {
        let duration = Duration::from_millis(fault.milliseconds);
        match fault.target {
            // It has been told, and takes this rank along.
            FaultTarget::Agent if fault.kind == FaultKind::Kill => thread::sleep(AGENT_LIMIT),
            FaultTarget::Agent => {}
            FaultTarget::Rank => match fault.kind {
                FaultKind::Slow => thread::sleep(duration),
                FaultKind::Kill => signal_self(Signal::KILL),
                FaultKind::Freeze => signal_self(Signal::STOP),
                FaultKind::Partition | FaultKind::Corrupt => {}
            },
            FaultTarget::Link => {
                let links = self.lock().links.clone();
                match fault.kind {
                    FaultKind::Slow => links.slow(duration),
                    FaultKind::Partition => links.cut(),
                    FaultKind::Corrupt => links.flip_next(),
                    FaultKind::Kill | FaultKind::Freeze => {}
                }
            }
        }
    }
}

fn signal_self(signal: Signal) {
    if let Err(error) = kill_process(getpid(), signal) {
        tracing::error!(%error, "a fault could not be made to happen");
    }
}

fn is_of_weights(fault: &FaultSpec) -> bool {
    (fault.kind, fault.target) == (FaultKind::Corrupt, FaultTarget::Rank)
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
