//! Process groups, with ranks as threads.
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod faults;
mod formation;
mod harness;
mod links;
mod numbers;
mod pauses;
mod several;
mod site;
mod votes;
