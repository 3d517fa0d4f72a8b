//! The control plane: HTTP, SQL, reconcilers, wiring.
//!
//! A folder is a noun; its `http.rs` speaks HTTP and its `store.rs` SQL. Besides them only [`db`], `audit` (one table, one
//! statement) and `data::collect` (what nothing refers to any more) speak SQL.

pub mod app;
pub mod chunk_store;
pub mod config;
pub mod db;
pub mod init;
pub mod openapi;
pub mod problem;
pub mod reconcile;
pub mod router;
pub mod serve;

mod attempts;
mod audit;
mod checkpoints;
mod data;
mod events;
mod extract;
mod jobs;
mod nodes;
mod progress;
mod projects;
mod tokens;
mod ui;
