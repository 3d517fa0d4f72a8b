//! One attempt on this node, from fetching its files to reporting that its ranks are gone.
//!
//! `course` decides (pure), `drive` acts; `prepare` fetches, `meet` exchanges endpoints with other nodes, `link` talks with the ranks, `process` watches them,
//! `output` reads their standard error, `reporter` batches what they say, `checkpoints` uploads,
//! `watchdog` looks for ranks that nobody would miss.

mod checkpoints;
mod course;
mod drive;
mod link;
pub(crate) mod meet;
mod output;
mod positions;
mod prepare;
mod process;
mod reporter;
mod watchdog;

pub(crate) use course::{Ending, own_failure};
#[cfg(test)]
pub(crate) use drive::tests as drive_tests;
pub(crate) use drive::{Told, run};
pub(crate) use positions::Positions;
