//! The server through its front door: a real router over a real, empty, migrated database. One file a noun.

#![expect(clippy::unwrap_used, reason = "a test stops where it fails")]

mod agent;
mod common;

mod agents;
mod attempts;
mod checkpoints;
mod chunk_store;
mod data;
mod elastic;
mod events;
mod gangs;
mod jobs;
mod nodes;
mod openapi;
mod preemption;
mod problems;
mod ranks;
mod retention;
mod retries;
mod schema;
mod secrets;
mod stops;
mod timeline;
mod tokens;
