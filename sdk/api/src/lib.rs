//! The words every Lockstep program shares: ids, states, wire types, problems. No I/O, no async.

mod agent;
mod arrival;
mod check;
mod data;
mod ids;
mod job;
mod node;
mod position;
mod problem;
mod rank;
mod sample;
mod spec;
mod state;
mod state_dict;
mod timeline;

pub use agent::*;
pub use arrival::*;
pub use check::*;
pub use data::*;
pub use ids::*;
pub use job::*;
pub use node::*;
pub use position::*;
pub use problem::*;
pub use rank::*;
pub use sample::*;
pub use spec::*;
pub use state::*;
pub use state_dict::*;
pub use timeline::*;
