//! The control plane: HTTP, SQL, reconcilers, wiring.
//!
//! A folder is a noun; its `http.rs` speaks HTTP, its `store.rs` speaks SQL, and nothing else does either.

pub mod app;
pub mod config;
pub mod db;
pub mod init;
pub mod openapi;
pub mod problem;
pub mod router;
pub mod serve;

mod audit;
mod data;
mod events;
mod extract;
mod jobs;
mod tokens;
mod ui;
