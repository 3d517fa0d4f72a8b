//! One rank's process: the training loop, and the check at submit.

mod train;

mod setup;
mod update;

mod evaluate;

mod checkpoints;

pub mod check;

mod grain;

mod measure;

mod loss;

mod guest;

mod agreement;

mod order;
mod schedule;

mod run;

mod link;
mod position;

mod failure;

pub use run::run;
