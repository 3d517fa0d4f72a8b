//! The control plane: HTTP, SQL, reconcilers, wiring.
//!
//! A folder is a noun; its `http.rs` speaks HTTP, its `store.rs` speaks SQL, and nothing else does either.

pub mod app;
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
