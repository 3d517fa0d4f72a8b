//! Communication hooks between ranks that are threads.
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod comm;
mod half;
mod power_sgd;
mod recorded;
#[path = "../../../tensor/tests/recording/mod.rs"]
mod recording;
