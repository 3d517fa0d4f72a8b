//! The live stream of one job, fed by its outbox.

pub(crate) mod http;
pub(crate) mod store;
