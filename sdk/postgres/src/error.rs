//! Why a cluster could not be had.

use std::io;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};

/// What went wrong with a private cluster, in words that say what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum PostgresError {
    /// No usable programs anywhere.
    #[error(
        "no Postgres programs (postgres and initdb, version {min} or newer) found; looked in {}. {hint}",
        list(.looked)
    )]
    NotFound {
        /// Oldest major version that will do.
        min: u32,
        /// Folders that were looked into.
        looked: Vec<Utf8PathBuf>,
        /// The command that installs it here.
        hint: String,
    },
    /// The cluster was made by a major version whose programs are not here.
    #[error(
        "{data} was made by Postgres {wanted}, whose programs are not installed (found: {found}); \
         install version {wanted}, or dump with it and restore into a new folder"
    )]
    MajorMissing {
        /// The cluster.
        data: Utf8PathBuf,
        /// Its major version.
        wanted: u32,
        /// What is installed.
        found: String,
    },
    /// Someone else owns the folder.
    #[error("the folder {folder} is in use by {}", owner(.pid))]
    InUse {
        /// The folder.
        folder: Utf8PathBuf,
        /// Who, if the lock file says.
        pid: Option<i32>,
    },
    /// The folder's `data` is something else.
    #[error("{data} exists but is no Postgres cluster (it has no PG_VERSION); move it away")]
    NotACluster {
        /// The folder.
        data: Utf8PathBuf,
    },
    /// Postgres refuses to run as root, and no other way works here.
    #[error(
        "Postgres does not run as root, and {why}; choose a folder that other users can reach \
         (such as /var/lib/lockstep), or allow user namespaces"
    )]
    NoIdentity {
        /// What stands in the way.
        why: String,
    },
    /// A program of Postgres failed.
    #[error("{program} failed ({status}): {output}")]
    Program {
        /// Which.
        program: &'static str,
        /// How it ended.
        status: String,
        /// The end of what it said.
        output: String,
    },
    /// The server did not accept connections in time.
    #[error("postgres was not ready after {waited:?}; the end of its log: {log}")]
    StartTimeout {
        /// How long it was given.
        waited: Duration,
        /// Last lines of its log.
        log: String,
    },
    /// A process did not go.
    #[error("postgres (pid {pid}) is still there after SIGINT, SIGQUIT and SIGKILL")]
    StillRunning {
        /// Which.
        pid: i32,
    },
    /// The server refused a statement.
    #[error("postgres refused: {message} (SQLSTATE {code})")]
    Refused {
        /// SQLSTATE.
        code: String,
        /// Its words.
        message: String,
    },
    /// A name that cannot be a database's here.
    #[error("expected a database name of 1 to 63 of a-z, 0-9 and _, got {name:?}")]
    BadDatabaseName {
        /// As given.
        name: String,
    },
    /// A path that is not UTF-8.
    #[error("{path:?} is not UTF-8")]
    NotUtf8 {
        /// The path.
        path: std::path::PathBuf,
    },
    /// The system said no.
    #[error("could not {what}")]
    Io {
        /// Verb and object.
        what: String,
        /// Its words.
        source: io::Error,
    },
}

fn list(folders: &[Utf8PathBuf]) -> String {
    if folders.is_empty() {
        return "no folder".to_owned();
    }
    folders.iter().map(|folder| folder.as_str()).collect::<Vec<_>>().join(", ")
}

fn owner(pid: &Option<i32>) -> String {
    pid.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"))
}

/// Adds verb and object to an I/O error.
pub(crate) trait IoContext<T> {
    fn doing(self, verb: &str, path: &Utf8Path) -> Result<T, PostgresError>;
}

impl<T, E: Into<io::Error>> IoContext<T> for Result<T, E> {
    fn doing(self, verb: &str, path: &Utf8Path) -> Result<T, PostgresError> {
        self.map_err(|source| PostgresError::Io {
            what: format!("{verb} {path}"),
            source: source.into(),
        })
    }
}
