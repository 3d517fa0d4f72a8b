//! A private Postgres cluster in a folder of ours: found, initialised, started, stopped. Nothing of the machine's own
//! clusters is ever touched; no TCP port is opened; whoever starts it owns it, and it does not outlive its owner.
//!
//! ```text
//! <folder>/lock          held for as long as the owner lives; its text is the owner's pid
//! <folder>/data          the cluster, made under another name and renamed when it is whole
//! <folder>/socket        mode 0700 (elsewhere when the path would be too long for a socket)
//! <folder>/pg_hba.conf   and pg_ident.conf: who may connect
//! <folder>/postgres.log
//! ```

mod cluster;
mod error;
mod find;
mod identity;
mod initialise;
mod lock;
mod owned;
mod process;
mod socket;
mod spawn;
mod stale;
mod wire;

pub use cluster::{Cluster, Durability, Options};
pub use error::PostgresError;
pub use find::MIN_MAJOR;
pub use lock::FolderLock;
pub use owned::OwnedProcess;
pub use process::Process;
