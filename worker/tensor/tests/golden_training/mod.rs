//! Models as PyTorch trained them, and how its figures are compared with ours.

pub(crate) mod case;
pub(crate) mod nets;
pub(crate) mod run;
pub(crate) mod tolerance;
