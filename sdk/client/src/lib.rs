//! The typed HTTP client of Lockstep: retries, paging, problems as errors, live events.
//!
//! One [`Client`] speaks for one token: a user's (`lsk_…`), a node's (`lsn_…`), or none. Calls that may be
//! repeated without harm are retried by the client's [`retry::Policy`]; the others are sent once.
//!
//! Plain `http://` only for now: a server elsewhere is reached through a tunnel or a private network. A URL
//! with `https://` is refused by name, never downgraded.

mod agents;
mod client;
mod download;
mod error;
mod events;
pub mod profile;
pub mod retry;
mod sse;
mod transfer;
mod users;

pub use client::{Client, ClientOptions};
pub use download::Downloaded;
pub use error::ClientError;
pub use events::EventStream;
pub use transfer::{MAX_DATASET_FILES, manifest_of_bytes, manifest_of_file, verified_chunk};
