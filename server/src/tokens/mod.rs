//! Access tokens of people and programs, and the tokens that nodes join with. Only hashes are kept.

pub(crate) mod http;
pub(crate) mod secret;
pub(crate) mod store;
