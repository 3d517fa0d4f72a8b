//! The architectures that a job may name: layers on a tape, initial weights, state dicts, need of memory.
//!
//! A [`Model`] is built from a job's [`lockstep_api::ModelSpec`]. It knows names, shapes and the order of operations and
//! owns no numbers: weights and running statistics lie in flat arenas of the caller, whose places [`Model::layout`] and
//! [`Model::buffers`] say. Names and shapes are those of torchvision and Hugging Face, so that their `safetensors`
//! files load here ([`Model::load_weights`]); [`Model::named_tensors`] gives ours under the same names.
//!
//! # Precision
//! With bf16 or f16 the operands and results of linear layers, convolutions and attention are rounded to it, as
//! hardware that multiplies in half precision would see them; sums within products, biases, norms, softmax, residual
//! sums and losses are f32.

mod model;

mod arch;
mod attention;
mod blocks;

mod flow;
mod graph;
mod run;
mod shapes;

mod builder;
mod init;

mod half;
mod load;
mod named;
mod names;
mod safe;

mod error;
mod io;
mod memory;
mod mode;

pub use error::ModelError;
pub use io::{Extent, IDS, INPUT, InputMismatch, InputSpec, KINDS, MASK, OUTPUT, OutputSpec};
pub use load::{LoadError, Report};
pub use memory::Memory;
pub use mode::Mode;
pub use model::Model;
pub use named::{NamedTensor, TensorValues};
pub use run::Workspace;
