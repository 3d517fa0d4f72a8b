//! One node's daemon: offers slots, starts and watches ranks, ships what they report.
//!
//! The server says what should run here (`session`), `gang` compares it with what does, and one task for each
//! attempt (`attempt`) makes it so. What ranks report goes to the `spool` on disk first and is shipped from there,
//! so that a server that is away, or an agent that restarts, loses nothing.

mod attempt;
mod cache;
mod config;
mod control_group;
mod fetch;
mod files;
mod folder;
mod gang;
mod identity;
mod inventory;
mod network;
mod node;
mod run;
mod session;
mod ship;
mod spawn;
mod spool;
mod stat;
mod tree;

pub use config::Config;
pub use run::run;
