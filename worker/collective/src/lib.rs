//! Process groups: collectives in place in shared pages and over connections between nodes, with a
//! deadline on every wait.
//!
//! There is no process-wide group: several may live in one process. Every rank of a group starts
//! the same collectives in the same order, and only those that the agreed [`Plan`] names.

mod cpu_group;
mod group;

mod ballot;
mod board;
mod control;
mod error;
mod interrupt;
mod net;
mod op;
mod order;
mod pause;
mod plan;
mod split;
mod topology;
mod verdict;

pub use board::Board;
pub use cpu_group::{Aborter, CpuGroup, Findings, Formed, FormedLanes, Join};
pub use error::{GroupError, Moment};
pub use group::{Backend, Ballot, Intent, ProcessGroup, ReduceOp, Tally};
pub use interrupt::Interrupt;
pub use lockstep_shm::{Dtype, Lease, OwnArena, Source, Span, SumOp};
pub use net::{Endpoint, IN_RANK_ORDER_BYTES, Links, Network};
pub use op::{Phase, What};
pub use order::{OrderError, SumOrder};
pub use plan::{Bucket, Difference, Plan, PlanParam};
pub use topology::{Topology, TopologyError, part_of};

/// The largest world size: sets of ranks travel as the bits of a 64-bit word.
pub const MAX_WORLD: usize = 64;
