//! The training engine: tape, arenas, operations with forward and backward, optimizers. CPU.
//!
//! Weights, gradients and moments live in flat arenas that the caller owns; a [`Layout`] says where
//! each parameter lies in all of them. A [`Tape`] computes each operation as it is applied and then,
//! in [`Tape::backward`], writes every parameter's gradient straight into the caller's memory and says
//! when it is final, so that its reduction over ranks can start while backward goes on.
//!
//! Rules kept here: results depend on the inputs and on the kind of machine alone, never on timing or
//! threads; orders of summation are written down in the kernels; no input makes it panic: what does
//! not fit is an [`OpError`] that names the operation and the shapes.
//!
//! ```
//! use std::sync::Arc;
//! use lockstep_tensor::{Accumulate, Activation, GradBuffer, Layout, Op, Tape};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let layout = Arc::new(Layout::new(vec![
//!     ("w".to_owned(), vec![1, 2]),
//!     ("b".to_owned(), vec![1]),
//! ])?);
//! let (w, b) = (layout.id("w").ok_or("w")?, layout.id("b").ok_or("b")?);
//! let weights = [0.5_f32, 2.0, 3.0]; // b lies first: it is used last
//!
//! let mut tape = Tape::new(Arc::clone(&layout));
//! let x = tape.input(&[1, 2], &[10.0, 20.0])?;
//! let (w, b) = (tape.param(w), tape.param(b));
//! let y = tape.apply(Op::Linear(Activation::None), &[x, w, b], &weights)?;
//! assert_eq!(tape.values(y)?, [80.5]);
//!
//! let mut gradients = GradBuffer::new(layout);
//! tape.backward(&[(y, &[1.0])], &weights, Accumulate::Overwrite, &mut gradients)?;
//! assert_eq!(gradients.values(), [1.0, 10.0, 20.0]);
//! # Ok(())
//! # }
//! ```

mod tape;

mod ops;
mod peers;

mod compiled;
mod layout;
mod meta;
mod real;
mod special;

mod sink;

mod optimizer;

mod schedule;

mod plateau;

mod ema;

mod loss_scale;

mod recipe;

pub mod init;

mod error;
mod glob;
mod kernel;
mod setting;

pub use ema::{Ema, EmaWarmUp};
pub use error::{Metas, OpError};
pub use kernel::{Threads, ThreadsError};
pub use layout::{Layout, LayoutError, Param, ParamId};
pub use loss_scale::{LossScale, LossScaleSettings, LossScaleState, StepDecision};
pub use meta::{DType, Dims, MAX_ELEMENTS, MAX_RANK, Meta};
pub use ops::{
    Activation, Attention, Axes, BatchNorm, Clamp, Conv2d, CrossEntropy, Dropout, Half, LayerNorm,
    Op, Pool2d, RmsNorm, ScatterAdd, Slice, norm,
};
pub use optimizer::{
    Clip, GroupUpdate, Optimizer, OptimizerState, PIECE_LEN, ParamGroup, PlanError, Segment,
    StateError, StepError, StepFactors, StepReport, UpdatePlan,
};
pub use peers::Peers;
pub use plateau::{Goal, Plateau, PlateauSettings, PlateauState, Threshold};
pub use real::Real;
pub use recipe::{MAX_RECIPE_CONSTANTS, MAX_RECIPE_NODES, Node, Recipe, RecipeBuilder, Replay};
pub use schedule::{LrCurve, LrSchedule, WarmUp};
pub use setting::SettingError;
pub use sink::{Accumulate, GradBuffer, GradSink};
pub use tape::{MAX_TAPE_NODES, Tape, Value};
