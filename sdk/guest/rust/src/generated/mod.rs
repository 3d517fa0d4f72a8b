//! What `wit-bindgen` makes of `../wit`: one module a world. Not edited by hand; `../README.md` says how to renew it.
//! The worlds share the types and the log of the first.

#[rustfmt::skip]
pub mod loader;
#[rustfmt::skip]
pub mod loss;
#[rustfmt::skip]
pub mod loss_raw;
