//! Published checkpoints: visible only when every byte is durable and was read back.

pub(crate) mod agent;
pub(crate) mod http;
pub(crate) mod pin;
pub(crate) mod publish;
pub(crate) mod reconcile;
pub(crate) mod retention;
pub(crate) mod store;
