//! Write data loaders and losses for Lockstep: WebAssembly components in a few lines of Rust.
//!
//! Implement [`Loader`], [`Loss`] or [`RawLoss`] and export it with the macro of the same name:
//!
//! ```ignore
//! use lockstep_guest::{Built, Error, Loss, Tensor, Tensors, export_loss};
//!
//! struct SquaredError;
//!
//! impl Loss for SquaredError {
//!     fn build(_config: &str, outputs: &Tensors, batch: &Tensors) -> Result<Built, Error> {
//!         let (prediction, target) = (outputs.get("logits")?, batch.get("y")?);
//!         let samples = Tensor::number(target.rows() as f32);
//!         Ok(Built::new(prediction.mse_loss(target).sum(), samples))
//!     }
//! }
//!
//! export_loss!(SquaredError);
//! ```
//!
//! A guest has no clock, no files, no network and no randomness but the seeds it is given. What it prints
//! with [`log`] goes to the job's log; a panic's message becomes the job's failure. Memory, time and output
//! of each call are limited by the job.

mod loader;
mod loss;
mod raw_loss;

mod config;
pub mod log;
mod random;

mod panics;

#[doc(hidden)]
pub mod generated;

pub use config::config;
pub use generated::loader::exports::lockstep::guest::loader::Request;
pub use generated::loader::lockstep::guest::dataset;
pub use generated::loader::lockstep::guest::types::{Dtype, Error};
pub use generated::loss::lockstep::guest::graph::Tensor;
pub use generated::loss_raw::exports::lockstep::guest::loss_raw::{Output, View};
pub use loader::{Element, Loader, files, put, put_bytes, read_file};
pub use loss::{Built, Loss, Tensors};
pub use random::Random;
pub use raw_loss::{RawLoss, find};

#[doc(hidden)]
pub use {loader::LoaderGuest, loss::LossGuest, raw_loss::RawLossGuest};

impl Error {
    /// The dataset is not what the guest expects.
    pub fn data(message: impl Into<String>) -> Self {
        Self::Data(message.into())
    }

    /// One sample is unusable.
    pub fn sample(index: u64, message: impl Into<String>) -> Self {
        Self::Sample((index, message.into()))
    }

    /// Anything that has no kind of its own.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::Internal(message.into())
    }
}
