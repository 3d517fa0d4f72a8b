//! A throw-away Postgres for tests, for checking queries, and for looking around.

use anyhow::Context as _;
use camino::Utf8Path;
use lockstep_postgres::Cluster;

use crate::{out, shell};

/// A running cluster in a temporary folder. Stops and is removed when dropped.
pub(crate) struct Throwaway {
    cluster: Cluster,
    // Dropped after the cluster: the folder goes last.
    _folder: tempfile::TempDir,
}

impl Throwaway {
    /// Starts one, with an empty database `lockstep`.
    pub(crate) fn start() -> anyhow::Result<Self> {
        todo_cluster()
    }

    /// URL of the database `lockstep`.
    pub(crate) fn url(&self) -> String {
        self.cluster.url("lockstep")
    }
}

/// Runs one until Ctrl-C.
pub(crate) fn run(root: &Utf8Path) -> anyhow::Result<()> {
    let database = Throwaway::start()?;
    migrate(root, &database.url())?;
    out::say(&database.url());
    out::note("Ctrl-C stops it");
    wait_for_interrupt()
}
