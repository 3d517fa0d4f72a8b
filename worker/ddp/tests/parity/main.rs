//! Training on two ranks against figures recorded with PyTorch's `DistributedDataParallel`.
//!
//! The truth is the same run in f64 on one thread, whose operations the engine's own tests hold to PyTorch's f64.
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod cases;
mod course;
#[path = "../../../tensor/tests/golden_training/mod.rs"]
#[expect(dead_code, reason = "the engine's tests use the rest")]
mod golden_training;
mod joint;
mod recorded;
#[path = "../../../tensor/tests/recording/mod.rs"]
mod recording;
mod threads;
mod unused;
