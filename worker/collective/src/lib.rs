//! Process groups: collectives in place over shared pages, with a deadline on every wait.
//!
//! There is no process-wide group: several may live in one process. Every rank of a group starts
//! the same collectives in the same order, and only those that the agreed [`Plan`] names.

mod group;
mod shm_group;

mod ballot;
mod board;
mod control;
mod error;
mod op;
mod order;
mod plan;
mod verdict;

pub use board::Board;
pub use error::GroupError;
pub use group::{Ballot, ProcessGroup, Tally};
pub use lockstep_shm::{Lease, OwnArena, Source, SumOp};
pub use order::{OrderError, SumOrder};
pub use plan::{Bucket, Difference, Plan, PlanParam};
pub use shm_group::{Aborter, Formed, ShmGroup};

/// The largest world size: sets of ranks travel as the bits of a 64-bit word.
pub const MAX_WORLD: usize = 64;
