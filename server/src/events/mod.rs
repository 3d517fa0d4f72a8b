//! The live stream of one job, fed by its outbox (`progress::store`).

pub(crate) mod http;
