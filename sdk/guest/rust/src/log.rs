//! Lines for the job's log.

use crate::generated::loader::lockstep::guest::log::{Level, write};

/// For whoever debugs.
pub fn debug(message: &str) {
    write(Level::Debug, message);
}

/// Normal.
pub fn info(message: &str) {
    write(Level::Info, message);
}

/// Odd, work goes on.
pub fn warn(message: &str) {
    write(Level::Warn, message);
}

/// Something failed.
pub fn error(message: &str) {
    write(Level::Error, message);
}
