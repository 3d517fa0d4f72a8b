//! What attempts leave behind: metrics, the ledger of samples, timelines, logs, verdicts, and the outbox of events.

pub(crate) mod http;
mod place;
pub(crate) mod store;
pub(crate) mod text;
