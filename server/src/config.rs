//! Every setting, typed, with its default and unit. From the command line or `LOCKSTEP_SERVER_*`.

use std::net::SocketAddr;
use std::time::Duration;

use camino::Utf8PathBuf;
use clap::{Args, Parser, Subcommand};

use crate::chunk_store::ChunkStoreUrl;

/// The control plane of Lockstep.
#[derive(Parser)]
#[command(name = "lockstep-server", version)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// Log filter: `info,lockstep_server=debug`.
    #[arg(
        long,
        env = "LOCKSTEP_SERVER_LOG",
        default_value = "info,sqlx::postgres::notice=warn",
        global = true
    )]
    pub log: String,
    /// Write log lines as JSON.
    #[arg(long, env = "LOCKSTEP_SERVER_LOG_JSON", global = true)]
    pub log_json: bool,
}

/// What to do.
#[derive(Subcommand)]
pub enum Command {
    /// Migrate the database and serve.
    Serve(ServeArgs),
    /// Migrate the database, make organisation, project and admin if absent, and print fresh tokens as one line of JSON.
    Init(InitArgs),
    /// Print the API's description.
    Openapi,
}

/// Of `serve`.
#[derive(Args)]
pub struct ServeArgs {
    /// Address to listen on; port 0 picks one.
    #[arg(long, env = "LOCKSTEP_SERVER_LISTEN", default_value = "127.0.0.1:7878")]
    pub listen: SocketAddr,
    /// `postgres://user@host/database`.
    #[arg(long, env = "LOCKSTEP_SERVER_DATABASE_URL", hide_env_values = true)]
    pub database_url: String,
    /// The `lockstep-rank` program, which checks jobs at submit. Default: beside this program.
    #[arg(long, env = "LOCKSTEP_SERVER_RANK_BINARY")]
    pub rank_binary: Option<Utf8PathBuf>,
    /// Folder for caches. Everything that matters is in the database.
    #[arg(long, env = "LOCKSTEP_SERVER_DATA_DIR")]
    pub data_dir: Utf8PathBuf,
    /// Where the bytes of chunks are stored: `postgres:`, `file:///folder`, `s3://bucket/prefix`, `gs://bucket/prefix` or
    /// `az://container/prefix`. Credentials come from the provider's own environment variables.
    #[arg(
        long,
        env = "LOCKSTEP_SERVER_CHUNK_STORE",
        hide_env_values = true,
        value_name = "URL",
        default_value = "postgres:"
    )]
    pub chunk_store: String,
    /// How often agents send a heartbeat, milliseconds.
    #[arg(long, env = "LOCKSTEP_SERVER_HEARTBEAT_MS", default_value_t = 5_000, value_parser = clap::value_parser!(u64).range(50..=60_000))]
    pub heartbeat_ms: u64,
    /// How long a lease lasts without one, milliseconds.
    #[arg(long, env = "LOCKSTEP_SERVER_LEASE_MS", default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(200..=600_000))]
    pub lease_ms: u64,
    /// How long ranks go on while no server answers their agent, milliseconds.
    #[arg(long, env = "LOCKSTEP_SERVER_ORPHAN_GRACE_MS", default_value_t = 600_000, value_parser = clap::value_parser!(u64).range(..=86_400_000))]
    pub orphan_grace_ms: u64,
    /// Longest check of a job at submit, milliseconds.
    #[arg(long, env = "LOCKSTEP_SERVER_CHECK_MS", default_value_t = 60_000, value_parser = clap::value_parser!(u64).range(100..=600_000))]
    pub check_ms: u64,
    /// File to write the address to once connections are accepted.
    #[arg(long, env = "LOCKSTEP_SERVER_PORT_FILE")]
    pub port_file: Option<Utf8PathBuf>,
}

/// Of `init`.
#[derive(Args)]
pub struct InitArgs {
    /// `postgres://user@host/database`.
    #[arg(long, env = "LOCKSTEP_SERVER_DATABASE_URL", hide_env_values = true)]
    pub database_url: String,
    /// Name of organisation and project.
    #[arg(long, default_value = "default")]
    pub name: String,
}

/// What the running service needs to know.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The `lockstep-rank` program.
    pub rank_binary: Utf8PathBuf,
    /// Folder for caches.
    pub data_dir: Utf8PathBuf,
    /// How often agents send a heartbeat.
    pub heartbeat: Duration,
    /// How long a lease lasts without one.
    pub lease: Duration,
    /// How long ranks go on while no server answers their agent.
    pub orphan_grace: Duration,
    /// Longest check of a job at submit. A cold compilation of a large component takes seconds.
    pub check_time: Duration,
}

impl ServeArgs {
    /// Where chunks are stored. Not parsed by clap, which would repeat what it refuses.
    ///
    /// # Errors
    /// A sentence that names the setting.
    pub fn chunk_store_url(&self) -> Result<ChunkStoreUrl, String> {
        self.chunk_store.parse().map_err(|error| format!("--chunk-store: {error}"))
    }

    /// Checks what clap cannot.
    ///
    /// # Errors
    /// A sentence that names the setting.
    pub fn settings(&self, beside: Option<Utf8PathBuf>) -> Result<Settings, String> {
        if self.lease_ms <= self.heartbeat_ms {
            return Err(format!(
                "--lease-ms must be above --heartbeat-ms = {}, got {}",
                self.heartbeat_ms, self.lease_ms
            ));
        }
        let rank_binary = self
            .rank_binary
            .clone()
            .or_else(|| Some(beside?.join("lockstep-rank")))
            .ok_or("--rank-binary is needed: this program's own folder is unknown")?;
        Ok(Settings {
            rank_binary,
            data_dir: self.data_dir.clone(),
            heartbeat: Duration::from_millis(self.heartbeat_ms),
            lease: Duration::from_millis(self.lease_ms),
            orphan_grace: Duration::from_millis(self.orphan_grace_ms),
            check_time: Duration::from_millis(self.check_ms),
        })
    }
}

/// The URL may hold a password.
impl std::fmt::Debug for ServeArgs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServeArgs").field("listen", &self.listen).finish_non_exhaustive()
    }
}

/// The URL may hold a password.
impl std::fmt::Debug for InitArgs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InitArgs").field("name", &self.name).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Command {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Serve(_) => "Serve",
            Self::Init(_) => "Init",
            Self::Openapi => "Openapi",
        })
    }
}

impl std::fmt::Debug for Cli {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cli").field("command", &self.command).finish_non_exhaustive()
    }
}
