//! Machines that joined: their tokens, their slots, their leases.

pub(crate) mod admin;
pub(crate) mod caller;
pub(crate) mod drain;
pub(crate) mod http;
pub(crate) mod inventory;
pub(crate) mod quarantine;
pub(crate) mod reconcile;
pub(crate) mod store;
pub(crate) mod view;
