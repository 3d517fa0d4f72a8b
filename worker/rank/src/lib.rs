//! One rank's process: the training loop; also the check at submit, and text from a language model.

mod train;

mod describe;
mod joint;
mod left_out;
mod replicas;
mod report;
mod setup;
mod shard;
mod start;
mod statistics;
mod timeline;
mod unused;
mod update;

mod evaluate;

mod checkpoints;
mod snapshot;

pub mod check;

mod sample;

mod grain;

mod measure;

mod loss;

mod guest;

mod agreement;
mod group;

mod order;
mod pause;
mod schedule;

mod run;

mod descriptors;
mod faults;
mod link;
mod position;
mod recover;
mod seat;

mod failure;

pub use run::run;
pub use sample::sample;
