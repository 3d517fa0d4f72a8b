//! The cases of bench/README.md.

use anyhow::Context as _;
use lockstep_collective::Dtype;

/// How the ranks reach each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// Two ranks of one node.
    Shm,
    /// A rank on each of two nodes, over the loopback device.
    Tcp,
}

/// What is timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    Barrier,
    /// A sum over so many bytes of each rank.
    AllReduce {
        bytes: usize,
        dtype: Dtype,
    },
}

/// One case.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) way: Way,
    pub(crate) what: What,
}

/// Ranks of every case.
pub(crate) const RANKS: usize = 2;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

const CASES: [Case; 9] = [
    Case::sum("shm 2 ranks 64 KiB f32", Way::Shm, 64 * KIB, Dtype::F32),
    Case::sum("shm 2 ranks 1 MiB f32", Way::Shm, MIB, Dtype::F32),
    Case::sum("shm 2 ranks 4 MiB f32", Way::Shm, 4 * MIB, Dtype::F32),
    Case::sum("shm 2 ranks 25 MiB f32", Way::Shm, 25 * MIB, Dtype::F32),
    Case::sum("shm 2 ranks 100 MiB f32", Way::Shm, 100 * MIB, Dtype::F32),
    Case::sum("shm 2 ranks 25 MiB bf16", Way::Shm, 25 * MIB, Dtype::Bf16),
    Case { name: "shm 2 ranks barrier", way: Way::Shm, what: What::Barrier },
    Case::sum("tcp 2 ranks 25 MiB f32", Way::Tcp, 25 * MIB, Dtype::F32),
    Case { name: "tcp 2 ranks barrier", way: Way::Tcp, what: What::Barrier },
];

impl Case {
    const fn sum(name: &'static str, way: Way, bytes: usize, dtype: Dtype) -> Self {
        Self { name, way, what: What::AllReduce { bytes, dtype } }
    }

    /// The case of that name.
    pub(crate) fn named(name: &str) -> anyhow::Result<Self> {
        let found = CASES.into_iter().find(|case| case.name == name);
        found.with_context(|| format!("there is no case {name:?}"))
    }

    /// Floats of each rank's arena that the numbers take.
    pub(crate) fn floats(&self) -> usize {
        match self.what {
            What::Barrier => 0,
            What::AllReduce { bytes, .. } => bytes / size_of::<f32>(),
        }
    }

    /// Ranks of each node.
    pub(crate) fn nodes(&self) -> Vec<usize> {
        match self.way {
            Way::Shm => vec![RANKS],
            Way::Tcp => vec![1; RANKS],
        }
    }
}
