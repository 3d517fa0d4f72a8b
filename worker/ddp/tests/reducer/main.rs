//! The reducer, with ranks as threads and as processes.
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod processes;
#[path = "../../../collective/tests/groups/site.rs"]
mod site;
mod threads;
mod work;
