//! Everything that a reducer can do besides the exact sum: shards, hooks, local steps; and what ranks find out
//! about each other. Ranks are threads, over every arrangement of nodes.
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod batches;
mod give_up;
mod hooks;
mod launch;
mod local;
mod ranks;
mod replicas;
mod rotation;
mod shards;
#[path = "../../../collective/tests/groups/site.rs"]
mod site;
