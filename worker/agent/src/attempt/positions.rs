//! Where an attempt's ranks are, as their flight records say.

use std::sync::{Mutex, PoisonError};

use camino::Utf8PathBuf;
use lockstep_api::{Phase, Rank, RankPosition, Step};
use lockstep_shm::FlightRecord;

/// The ranks of one attempt that were started here. Clones of the `Arc` around it are read by heartbeats.
#[derive(Debug, Default)]
pub(crate) struct Positions {
    ranks: Mutex<Vec<Local>>,
}

#[derive(Debug)]
struct Local {
    rank: Rank,
    pid: i32,
    record: Utf8PathBuf,
}

impl Positions {
    /// A rank was started, in the place of an earlier one or not. It makes the flight record at `record` itself.
    pub(crate) fn add(&self, rank: Rank, pid: i32, record: Utf8PathBuf) {
        let mut ranks = self.lock();
        ranks.retain(|it| it.rank != rank);
        ranks.push(Local { rank, pid, record });
    }

    /// Only these ranks are of this node.
    pub(crate) fn retain(&self, is_here: impl Fn(Rank) -> bool) {
        self.lock().retain(|it| is_here(it.rank));
    }

    /// Where a rank is, or was when it died.
    pub(crate) fn of(&self, rank: Rank) -> (Phase, Step) {
        self.lock().iter().find(|it| it.rank == rank).map_or((Phase::Starting, Step(0)), read)
    }

    /// A rank's process.
    pub(crate) fn pid(&self, rank: Rank) -> Option<i32> {
        self.lock().iter().find(|it| it.rank == rank).map(|it| it.pid)
    }

    /// Where all are.
    pub(crate) fn all(&self) -> Vec<RankPosition> {
        let of = |it: &Local| {
            let (phase, step) = read(it);
            RankPosition { rank: it.rank, pid: it.pid, phase, step }
        };
        self.lock().iter().map(of).collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Local>> {
        self.ranks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A record that cannot be read is one that the rank had not begun.
fn read(local: &Local) -> (Phase, Step) {
    let found = FlightRecord::open(&local.record).and_then(|record| record.read());
    let Ok(position) = found else { return (Phase::Starting, Step(0)) };
    let phase = Phase::ALL.get(position.phase as usize).copied().unwrap_or(Phase::Starting);
    (phase, Step(position.step.max(0)))
}

/// The letter that the kernel gives a process's state: `T` is stopped. `None` when it is gone.
pub(crate) fn process_state(pid: i32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold anything, parentheses included.
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_is_starting_until_its_record_says_more_and_this_process_runs() {
        let folder = tempfile::tempdir().unwrap();
        let path = Utf8PathBuf::try_from(folder.path().join("flight-0")).unwrap();
        let positions = Positions::default();
        positions.add(Rank(0), 77, path.clone());
        assert_eq!(positions.of(Rank(0)), (Phase::Starting, Step(0)));
        let record = FlightRecord::create(&path, 0).unwrap();
        record.set_step(41);
        let backward = Phase::ALL.iter().position(|it| *it == Phase::Backward).unwrap();
        record.set_phase(u32::try_from(backward).unwrap());
        assert_eq!(positions.of(Rank(0)), (Phase::Backward, Step(41)));
        assert_eq!(positions.pid(Rank(0)), Some(77));
        let state = process_state(i32::try_from(std::process::id()).unwrap()).unwrap();
        assert!("RSD".contains(state), "{state}");
    }
}
