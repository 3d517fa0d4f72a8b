//! What attempts leave behind: metrics, the ledger of samples, logs, verdicts, and the outbox of events.

pub(crate) mod http;
pub(crate) mod store;
pub(crate) mod text;
