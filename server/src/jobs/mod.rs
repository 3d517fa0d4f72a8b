//! What users submit.

pub(crate) mod store;
