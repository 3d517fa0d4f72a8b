//! The cases of the all-reduce benchmark, described in bench/README.md: how often each is timed, and its
//! targets.

use super::sides::{Target, Unit};

/// One case.
#[derive(Debug)]
pub(crate) struct Case {
    /// Its name on the command line and in tables.
    pub(crate) name: &'static str,
    pub(crate) unit: Unit,
    /// Calls of one turn, ours and the limit's.
    pub(crate) calls: u32,
    /// Calls of one turn of a peer.
    pub(crate) peer_calls: u32,
    /// Whether the machine's limit can be measured.
    pub(crate) has_limit: bool,
    pub(crate) target: Target,
    /// Of ours by Gloo's.
    pub(crate) gloo_ratio: Option<f64>,
    /// Of ours by Open MPI's; no target where MPI has no such numbers or it is for information.
    pub(crate) mpi: Mpi,
}

/// What is asked of Open MPI in a case.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Mpi {
    /// It has no such numbers.
    Absent,
    Information,
    Ratio(f64),
}

/// All cases.
pub(crate) const CASES: [Case; 9] = [
    Case::new("shm 2 ranks 64 KiB f32", Unit::Us, (200, 20))
        .at_most(8.0)
        .beats(Some(50.0), Mpi::Ratio(3.0)),
    Case::new("shm 2 ranks 1 MiB f32", Unit::Us, (100, 20))
        .reaches(0.6)
        .beats(Some(10.0), Mpi::Ratio(3.0)),
    Case::new("shm 2 ranks 4 MiB f32", Unit::Us, (50, 10))
        .reaches(0.8)
        .beats(None, Mpi::Information),
    Case::new("shm 2 ranks 25 MiB f32", Unit::Ms, (20, 5))
        .reaches(0.8)
        .beats(Some(6.0), Mpi::Ratio(1.3)),
    Case::new("shm 2 ranks 100 MiB f32", Unit::Ms, (6, 2))
        .reaches(0.8)
        .beats(Some(3.5), Mpi::Ratio(1.5)),
    Case::new("shm 2 ranks 25 MiB bf16", Unit::Ms, (20, 5)).beats(None, Mpi::Absent),
    Case::new("shm 2 ranks barrier", Unit::Us, (200, 50))
        .at_most(2.0)
        .without_limit()
        .beats(None, Mpi::Information),
    Case::new("tcp 2 ranks 25 MiB f32", Unit::Ms, (8, 4))
        .reaches(0.8)
        .beats(None, Mpi::Information),
    Case::new("tcp 2 ranks barrier", Unit::Us, (100, 50))
        .without_limit()
        .beats(None, Mpi::Information),
];

impl Case {
    const fn new(name: &'static str, unit: Unit, (calls, peer_calls): (u32, u32)) -> Self {
        let target = Target { ours: None, fraction: None, ratio: None };
        let (has_limit, gloo_ratio, mpi) = (true, None, Mpi::Information);
        Self { name, unit, calls, peer_calls, has_limit, target, gloo_ratio, mpi }
    }

    const fn at_most(mut self, ours: f64) -> Self {
        self.target.ours = Some(ours);
        self
    }

    const fn reaches(mut self, fraction: f64) -> Self {
        self.target.fraction = Some(fraction);
        self
    }

    const fn without_limit(mut self) -> Self {
        self.has_limit = false;
        self
    }

    const fn beats(mut self, gloo_ratio: Option<f64>, mpi: Mpi) -> Self {
        self.gloo_ratio = gloo_ratio;
        self.mpi = mpi;
        self
    }
}
