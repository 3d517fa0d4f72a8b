//! One module for each noun.

pub(crate) mod checkpoints;
pub(crate) mod find;
pub(crate) mod jobs;
pub(crate) mod logs;
mod model_file;
pub(crate) mod nodes;
pub(crate) mod ranks;
pub(crate) mod sample;
pub(crate) mod submit;
pub(crate) mod tokens;
pub(crate) mod trace;
