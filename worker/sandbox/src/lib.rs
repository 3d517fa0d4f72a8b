//! Guests: wasmtime engine, limits, host interfaces, loaders and losses.
//!
//! A guest is a WebAssembly component that a tenant wrote: a loader, which makes tensors of samples, or
//! a loss, which combines a model's outputs and a batch. `sdk/guest/wit` is all it can reach; there is
//! no clock, no randomness, no file system and no network. Memory, time, stack, handles, log and output
//! are limited, and whatever a guest does ends in a [`GuestError`] that names the call and the limit.
//!
//! A [`Sandbox`] compiles components (or takes them from its cache), [`Loader`], [`LossGraph`] and
//! [`RawLoss`] run them. After a trap a guest is spent: every later call says so.
//!
//! The rule kept here: nothing that a guest can do or answer panics the host, and every buffer that a
//! guest can fill has a ceiling.

mod sandbox;

mod component;

mod loader;

mod loss;

mod raw_loss;

mod error;
mod limits;

mod guest;

mod host;

mod bindings;
mod cache;
mod trusted_files;

pub use component::{GuestComponent, World};
pub use error::{GuestError, GuestErrorKind, SandboxError};
pub use host::batch::{Batch, BatchData, BatchTensor};
pub use host::log::{LogLevel, LogSink};
pub use limits::Limits;
pub use loader::Loader;
pub use loss::{BuiltLoss, LossGraph};
pub use raw_loss::{RawLoss, RawOutput};
pub use sandbox::Sandbox;
