//! What users submit: from a request to a checked row, and what is shown of it. Attempts carry it out.

pub(crate) mod check;
pub(crate) mod cursor;
mod faults;
pub(crate) mod http;
pub(crate) mod materials;
pub(crate) mod store;
pub(crate) mod submit;
pub(crate) mod view;
