//! The cluster and its life: start, use, stop.

use std::fmt::Write as _;
use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::{Duration, Instant};

use camino::{Utf8Path, Utf8PathBuf};
use rustix::process::Signal;

use crate::PostgresError;
use crate::error::IoContext as _;
use crate::find::{Programs, locate};
use crate::identity::Identity;
use crate::initialise::{explain_spawn, initialise, tail, write_access};
use crate::lock::FolderLock;
use crate::owned::OwnedProcess;
use crate::socket::{self, PORT, SOCKET_FILE};
use crate::spawn::confine;
use crate::stale;
use crate::wire::Connection;

/// The cluster's one role, its superuser.
pub(crate) const OWNER: &str = "lockstep";
/// How often a starting server is looked at.
const READY_POLL: Duration = Duration::from_millis(5);
/// A log longer than this is set aside at the next start, bytes.
const LOG_CAP: u64 = 16 << 20;

/// What a crash of the machine may cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Durability {
    /// Nothing that was committed.
    #[default]
    Durable,
    /// Everything. For tests: nothing is flushed.
    Throwaway,
}

/// How to run a cluster.
#[derive(Debug, Clone)]
pub struct Options {
    /// Folder of `postgres` and `initdb`; found if absent.
    pub bin_dir: Option<Utf8PathBuf>,
    /// What a crash of the machine may cost.
    pub durability: Durability,
    /// Connections at once.
    pub max_connections: u32,
    /// How long it may take to be ready. Recovery after a crash replays up to `max_wal_size`.
    pub start_timeout: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            bin_dir: None,
            durability: Durability::Durable,
            max_connections: 100,
            start_timeout: Duration::from_secs(60),
        }
    }
}

/// A running private cluster. Dropping it stops it; so does the end of this process, however it ends.
///
/// All methods block; from async code call them on a blocking thread.
#[derive(Debug)]
pub struct Cluster {
    folder: Utf8PathBuf,
    socket_dir: Utf8PathBuf,
    server: OwnedProcess,
    is_stopped: bool,
    // Last, so that it is let go after everything else.
    _lock: FolderLock,
}

impl Cluster {
    /// Starts the cluster in `folder`, making it first if there is none.
    ///
    /// # Errors
    /// [`PostgresError::InUse`] when another process (or this one) already runs it; see [`PostgresError`] for the
    /// rest. A failed start leaves no process behind.
    pub fn start(folder: impl AsRef<Utf8Path>, options: &Options) -> Result<Self, PostgresError> {
        let folder = make_folder(folder.as_ref())?;
        let lock = FolderLock::acquire(&folder)?;
        stale::remove_unfinished(&folder)?;
        let data = folder.join("data");
        let existing = existing_major(&data)?;
        let wanted = existing.map(|major| (major, data.as_path()));
        let programs = locate(options.bin_dir.as_deref(), wanted)?;
        let identity = Identity::choose(&folder, &data)?;
        let socket_dir = socket::place(&folder, rustix::process::geteuid().as_raw());
        if existing.is_none() {
            initialise(&folder, &data, &programs, &identity, options.durability)?;
        }
        stale::clear(&data, &socket_dir)?;
        write_access(&folder, &identity)?;
        socket::prepare(&socket_dir, &identity)?;

        let log = open_log(&folder)?;
        let mut command = server_command(&folder, &data, &socket_dir, &programs, options);
        command.stdout(log.try_clone().doing("share", &folder.join("postgres.log"))?).stderr(log);
        confine(&mut command, &identity, Signal::INT);
        let server = OwnedProcess::keep(command)
            .map_err(|source| explain_spawn(source, &identity, &data))?;
        let cluster = Self { folder, socket_dir, server, is_stopped: false, _lock: lock };
        cluster.wait_ready(&data, options.start_timeout)?;
        tracing::info!(folder = %cluster.folder, pid = cluster.pid(), version = programs.major, "postgres is ready");
        Ok(cluster)
    }

    /// Where to connect, as sqlx and libpq read it.
    pub fn url(&self, database: &str) -> String {
        let mut host = String::new();
        for byte in self.socket_dir.as_str().bytes() {
            match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'-' | b'_' | b'.' => {
                    host.push(char::from(byte))
                }
                _ => write!(host, "%{byte:02X}").expect("a String takes everything"),
            }
        }
        format!("postgres://{OWNER}@localhost/{database}?host={host}&port={PORT}")
    }

    /// Makes a database if it is not there.
    ///
    /// # Errors
    /// A name that is not `[a-z0-9_]{1,63}`; the server's refusal.
    pub fn create_database(&self, name: &str) -> Result<(), PostgresError> {
        let is_plain = name.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'_'));
        if !is_plain || !(1..=63).contains(&name.len()) {
            return Err(PostgresError::BadDatabaseName { name: name.to_owned() });
        }
        let socket = self.socket();
        let connection = Connection::open(&socket, OWNER)?;
        let mut connection = connection.ok_or_else(|| PostgresError::Io {
            what: format!("connect to {socket}"),
            source: std::io::ErrorKind::ConnectionRefused.into(),
        })?;
        connection.create_database(name, &socket)
    }

    /// The server's process.
    pub fn pid(&self) -> i32 {
        self.server.pid()
    }

    /// Ends when the server's process is gone, wanted or not: see [`OwnedProcess::exit_signal`].
    ///
    /// # Errors
    /// Of the system.
    pub fn exit_signal(&self) -> std::io::Result<UnixStream> {
        self.server.exit_signal()
    }

    /// Whether the server's process is still there.
    pub fn is_running(&self) -> bool {
        !self.server.process().wait_gone(Duration::ZERO)
    }

    /// The server's log.
    pub fn log_path(&self) -> Utf8PathBuf {
        self.folder.join("postgres.log")
    }

    /// Ends sessions, flushes, stops: SIGINT, after 20 s SIGQUIT.
    ///
    /// # Errors
    /// [`PostgresError::StillRunning`].
    pub fn stop(mut self) -> Result<(), PostgresError> {
        self.shut_down()
    }

    fn shut_down(&mut self) -> Result<(), PostgresError> {
        if std::mem::replace(&mut self.is_stopped, true) {
            return Ok(());
        }
        self.server.process().stop_postgres()?;
        match self.server.wait(Duration::ZERO) {
            Ok(status) => tracing::debug!(?status, "postgres ended"),
            Err(error) => tracing::warn!(%error, "waiting for postgres failed"),
        }
        // A server that was killed leaves its socket.
        stale::remove_sockets(&self.socket_dir)?;
        std::fs::remove_dir(&self.socket_dir).doing("remove", &self.socket_dir)
    }

    fn socket(&self) -> Utf8PathBuf {
        self.socket_dir.join(SOCKET_FILE)
    }

    fn wait_ready(&self, data: &Utf8Path, timeout: Duration) -> Result<(), PostgresError> {
        let deadline = Instant::now() + timeout;
        loop {
            if says_ready(data) && Connection::open(&self.socket(), OWNER)?.is_some() {
                return Ok(());
            }
            if self.server.process().wait_gone(READY_POLL) {
                return Err(PostgresError::Program {
                    program: "postgres",
                    status: "it ended while starting".to_owned(),
                    output: self.log_tail(),
                });
            }
            if deadline <= Instant::now() {
                return Err(PostgresError::StartTimeout { waited: timeout, log: self.log_tail() });
            }
        }
    }

    fn log_tail(&self) -> String {
        tail(&std::fs::read(self.log_path()).unwrap_or_default())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // This waits, unlike other drops: whoever removes the folder next must not race a server that writes to it.
        if let Err(error) = self.shut_down() {
            tracing::error!(%error, "postgres did not stop cleanly");
        }
    }
}

/// Creates the folder (open for passing through when we are root, as Postgres then runs as someone else).
fn make_folder(folder: &Utf8Path) -> Result<Utf8PathBuf, PostgresError> {
    if !folder.is_dir() {
        if let Some(parent) = folder.parent().filter(|parent| !parent.as_str().is_empty()) {
            std::fs::create_dir_all(parent).doing("create", parent)?;
        }
        let mode = if rustix::process::geteuid().is_root() { 0o711 } else { 0o700 };
        DirBuilder::new().recursive(true).mode(mode).create(folder).doing("create", folder)?;
        // Whatever the umask says.
        std::fs::set_permissions(folder, Permissions::from_mode(mode)).doing("chmod", folder)?;
    }
    let real = folder.canonicalize().doing("resolve", folder)?;
    Utf8PathBuf::from_path_buf(real).map_err(|path| PostgresError::NotUtf8 { path })
}

/// The major version of the cluster, if there is one.
fn existing_major(data: &Utf8Path) -> Result<Option<u32>, PostgresError> {
    if !data.exists() {
        return Ok(None);
    }
    let version = std::fs::read_to_string(data.join("PG_VERSION")).ok();
    match version.and_then(|text| text.trim().parse().ok()) {
        Some(major) => Ok(Some(major)),
        None => Err(PostgresError::NotACluster { data: data.to_owned() }),
    }
}

fn open_log(folder: &Utf8Path) -> Result<File, PostgresError> {
    let path = folder.join("postgres.log");
    if path.metadata().is_ok_and(|meta| LOG_CAP < meta.len()) {
        std::fs::rename(&path, folder.join("postgres.log.1")).doing("set aside", &path)?;
    }
    OpenOptions::new().create(true).append(true).mode(0o600).open(&path).doing("open", &path)
}

fn server_command(
    folder: &Utf8Path,
    data: &Utf8Path,
    socket_dir: &Utf8Path,
    programs: &Programs,
    options: &Options,
) -> Command {
    let mut command = Command::new(programs.path("postgres"));
    command.args(["-D", data.as_str(), "-k", socket_dir.as_str(), "-p", &PORT.to_string()]);
    let mut settings = vec![
        "listen_addresses=".to_owned(),
        "unix_socket_permissions=0700".to_owned(),
        // Containers often have 64 MiB of /dev/shm.
        "dynamic_shared_memory_type=mmap".to_owned(),
        "shared_buffers=256MB".to_owned(),
        "max_wal_size=2GB".to_owned(),
        "wal_compression=on".to_owned(),
        format!("max_connections={}", options.max_connections),
        "log_destination=stderr".to_owned(),
        "logging_collector=off".to_owned(),
        format!("hba_file={folder}/pg_hba.conf"),
        format!("ident_file={folder}/pg_ident.conf"),
    ];
    match options.durability {
        Durability::Durable => {}
        Durability::Throwaway => settings.extend(
            ["fsync=off", "synchronous_commit=off", "full_page_writes=off"].map(str::to_owned),
        ),
    }
    for setting in settings {
        command.args(["-c", &setting]);
    }
    command
}

/// The eighth line of `postmaster.pid`.
fn says_ready(data: &Utf8Path) -> bool {
    std::fs::read_to_string(data.join("postmaster.pid"))
        .is_ok_and(|text| text.lines().nth(7).is_some_and(|line| line.trim() == "ready"))
}
