//! Between nodes: connections of ranks, and the messages on them.

mod connection;
mod exchange;
mod handshake;
mod head;
mod join;
mod links;
mod mesh;
mod moves;
mod notes;
mod pump;
mod transfer;

pub use join::{Endpoint, Network};
pub use links::Links;
pub use moves::IN_RANK_ORDER_BYTES;

pub(crate) use join::join;
pub(crate) use mesh::{Call, Deadline, EXCHANGES, Mesh, MeshError};
pub(crate) use moves::Moves;
pub(crate) use notes::exchange_notes;
pub(crate) use transfer::{Numbers, Transfer};
