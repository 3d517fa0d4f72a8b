//! One rank's process: the training loop, and the check at submit.

pub mod link;
pub mod order;
pub mod schedule;
