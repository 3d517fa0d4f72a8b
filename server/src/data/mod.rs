//! Bytes by digest: chunks, files of chunks, datasets of files. Whoever puts a digest proves it with the bytes.

pub(crate) mod check;
pub(crate) mod chunks;
pub(crate) mod collect;
pub(crate) mod http;
pub(crate) mod readback;
pub(crate) mod reconcile;
pub(crate) mod store;
