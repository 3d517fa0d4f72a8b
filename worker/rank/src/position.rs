//! Where this rank is, kept in the flight record so that it is known even after SIGKILL.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicI64, AtomicU32, Ordering};

use lockstep_api::{Phase, Rank, Step};
use lockstep_shm::FlightRecord;

use crate::faults::Faults;
use crate::timeline::Timeline;

/// Writes to the flight record, which cannot be read back by its writer, so it is also kept here; and to the timeline.
#[derive(Debug, Clone)]
pub(crate) struct Position {
    record: Arc<FlightRecord>,
    now: Arc<Now>,
    timeline: Timeline,
    faults: Faults,
}

#[derive(Debug, Default)]
struct Now {
    rank: AtomicI32,
    phase: AtomicU32,
    step: AtomicI64,
}

impl Position {
    /// Wraps the record of `rank`; the phase is `starting`, the step 0.
    pub(crate) fn new(
        rank: Rank,
        record: FlightRecord,
        timeline: Timeline,
        faults: Faults,
    ) -> Self {
        let position = Self { record: Arc::new(record), now: Arc::default(), timeline, faults };
        position.seat(rank);
        position.enter(Phase::Starting);
        // Not a step of the timeline: none is done before the first one begins.
        position.record.set_step(0);
        position
    }

    /// Which rank this process is in the present group.
    pub(crate) fn rank(&self) -> Rank {
        Rank(self.now.rank.load(Ordering::Relaxed))
    }

    /// The process has this rank in the next group.
    pub(crate) fn seat(&self, rank: Rank) {
        self.now.rank.store(rank.0, Ordering::Relaxed);
    }

    /// The record itself, for the process group.
    pub(crate) fn record(&self) -> &Arc<FlightRecord> {
        &self.record
    }

    /// What happens when, beside where the rank is.
    pub(crate) fn timeline(&self) -> &Timeline {
        &self.timeline
    }

    /// A new phase begins.
    pub(crate) fn enter(&self, phase: Phase) {
        self.timeline.enter(phase);
        self.now.phase.store(phase as u32, Ordering::Relaxed);
        self.record.set_phase(phase as u32);
        self.faults.enter(self.rank(), Step(self.now.step.load(Ordering::Relaxed)), phase);
    }

    /// What is to happen to this rank on purpose.
    pub(crate) fn faults(&self) -> &Faults {
        &self.faults
    }

    /// A new step begins.
    pub(crate) fn begin_step(&self, step: Step) {
        self.timeline.begin_step(step);
        self.now.step.store(step.0, Ordering::Relaxed);
        self.record.set_step(step.0);
    }

    /// What was last written.
    pub(crate) fn now(&self) -> (Phase, Step) {
        let index = self.now.phase.load(Ordering::Relaxed) as usize;
        let phase = Phase::ALL.get(index).copied().unwrap_or(Phase::Starting);
        (phase, Step(self.now.step.load(Ordering::Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_a_phase_is_its_place_in_the_list() {
        for (index, phase) in Phase::ALL.iter().enumerate() {
            assert_eq!(*phase as usize, index);
        }
    }
}
