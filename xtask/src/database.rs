//! A throw-away Postgres for tests, for checking queries, and for looking around.

use std::process::Command;

use anyhow::Context as _;
use camino::Utf8Path;
use lockstep_postgres::{Cluster, Durability, Options};

use crate::{out, shell};

/// Tests hold a pool each; several run at once.
const CONNECTIONS_CAP: u32 = 300;

/// A running cluster in a temporary folder. Stops and is removed when dropped.
pub(crate) struct Throwaway {
    cluster: Cluster,
    // After the cluster: the folder goes last.
    _folder: tempfile::TempDir,
}

impl Throwaway {
    /// Starts one, with an empty database `lockstep`.
    pub(crate) fn start() -> anyhow::Result<Self> {
        // Not under the target folder: as root the server runs as another user, who may not reach it there.
        let folder = tempfile::Builder::new().prefix("lockstep-db-").tempdir()?;
        let path =
            Utf8Path::from_path(folder.path()).context("the temporary folder's path is no text")?;
        let options = Options {
            durability: Durability::Throwaway,
            max_connections: CONNECTIONS_CAP,
            ..Options::default()
        };
        let cluster = Cluster::start(path.join("cluster"), &options)?;
        cluster.create_database("lockstep")?;
        Ok(Self { cluster, _folder: folder })
    }

    /// URL of the database `lockstep`.
    pub(crate) fn url(&self) -> String {
        self.cluster.url("lockstep")
    }
}

/// Applies every migration, in order.
pub(crate) fn migrate(root: &Utf8Path, database: &Throwaway) -> anyhow::Result<()> {
    let folder = root.join("migrations");
    let entries = folder.read_dir_utf8().with_context(|| format!("listing {folder}"))?;
    let mut files: Vec<_> = entries.flatten().map(|entry| entry.into_path()).collect();
    files.retain(|path| path.extension() == Some("sql"));
    files.sort();
    let mut psql = Command::new("psql");
    psql.args(["--quiet", "--no-psqlrc", "--set", "ON_ERROR_STOP=1", "--dbname", &database.url()]);
    for file in files {
        psql.args(["--file", file.as_str()]);
    }
    shell::run(&mut psql)
}

/// Runs one until the end of its input.
pub(crate) fn run(root: &Utf8Path) -> anyhow::Result<()> {
    let database = Throwaway::start()?;
    migrate(root, &database)?;
    out::say(&database.url());
    out::note("ends at end of input (Ctrl-D)");
    // The cluster dies with this process in any case; reading to the end also stops it cleanly in scripts.
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
    Ok(())
}
