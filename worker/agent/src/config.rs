//! Every setting, typed, with its default and unit.

use std::fmt;
use std::net::IpAddr;

use anyhow::{Context as _, ensure};
use camino::{Utf8Path, Utf8PathBuf};
use lockstep_service::LogFormat;

/// Settings of the agent: flags, or the environment.
#[derive(Clone, clap::Parser)]
#[command(
    name = "lockstep-agent",
    version,
    about = "Offers this machine's slots to a Lockstep server"
)]
pub struct Config {
    /// The server: http://HOST:PORT
    #[arg(long, env = "LOCKSTEP_AGENT_SERVER", value_name = "URL")]
    pub server: String,
    /// Folder for what this node keeps: its identity, reports not yet delivered, fetched files
    #[arg(long, env = "LOCKSTEP_AGENT_DATA_DIR", value_name = "DIR")]
    pub data_dir: Utf8PathBuf,
    /// Token to join with, needed once
    #[arg(long, env = "LOCKSTEP_AGENT_JOIN_TOKEN", hide_env_values = true, value_name = "TOKEN")]
    pub join_token: Option<String>,
    /// File that holds the token to join with
    #[arg(
        long,
        env = "LOCKSTEP_AGENT_JOIN_TOKEN_FILE",
        value_name = "FILE",
        conflicts_with = "join_token"
    )]
    pub join_token_file: Option<Utf8PathBuf>,
    /// Name of this node [default: the machine's name]
    #[arg(long, env = "LOCKSTEP_AGENT_NAME", value_name = "NAME")]
    pub name: Option<String>,
    /// Ranks that may run here at once [default: one a core]
    #[arg(long, env = "LOCKSTEP_AGENT_CPU_SLOTS", value_name = "N", value_parser = clap::value_parser!(u32).range(0..=1024))]
    pub cpu_slots: Option<u32>,
    /// Address at which ranks on other hosts reach those of this node [default: the one that the server is reached from,
    /// and those of other interfaces]
    #[arg(long, env = "LOCKSTEP_AGENT_ADVERTISE_ADDRESS", value_name = "IP")]
    pub advertise_address: Option<IpAddr>,
    /// The program that ranks run [default: lockstep-rank beside this program]
    #[arg(long, env = "LOCKSTEP_AGENT_RANK_BINARY", value_name = "PATH")]
    pub rank_binary: Option<Utf8PathBuf>,
    /// Folder for sockets [default: lockstep in $XDG_RUNTIME_DIR, or lockstep-UID in /tmp]
    #[arg(long, env = "LOCKSTEP_AGENT_RUNTIME_DIR", value_name = "DIR")]
    pub runtime_dir: Option<Utf8PathBuf>,
    /// Where the system wants sockets.
    #[arg(long, env = "XDG_RUNTIME_DIR", hide = true)]
    pub xdg_runtime_dir: Option<Utf8PathBuf>,
    /// Most that fetched files may take, MiB
    #[arg(long, env = "LOCKSTEP_AGENT_CACHE_MIB", default_value_t = 10 * 1024, value_name = "MIB")]
    pub cache_mib: u64,
    /// What to log: level,target=level
    #[arg(long, env = "LOCKSTEP_AGENT_LOG", default_value = "info", value_name = "FILTER")]
    pub log: String,
    /// Log JSON
    #[arg(long, env = "LOCKSTEP_AGENT_LOG_JSON")]
    pub log_json: bool,
}

/// Without the token.
impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("server", &self.server)
            .field("data_dir", &self.data_dir)
            .finish_non_exhaustive()
    }
}

impl Config {
    /// How log lines look.
    pub fn log_format(&self) -> LogFormat {
        if self.log_json { LogFormat::Json } else { LogFormat::Text }
    }

    /// The token to join with, if one was given.
    pub(crate) fn join_token(&self) -> anyhow::Result<Option<String>> {
        let Some(file) = &self.join_token_file else { return Ok(self.join_token.clone()) };
        let text = std::fs::read_to_string(file)
            .with_context(|| format!("cannot read the join token from {file}"))?;
        Ok(Some(text.trim().to_owned()))
    }

    pub(crate) fn name(&self) -> anyhow::Result<String> {
        if let Some(name) = &self.name {
            return Ok(name.clone());
        }
        let machine = rustix::system::uname();
        let name =
            machine.nodename().to_str().context("the machine's name is no UTF-8; give --name")?;
        ensure!(!name.is_empty(), "the machine has no name; give --name");
        Ok(name.to_owned())
    }

    pub(crate) fn rank_binary(&self) -> anyhow::Result<Utf8PathBuf> {
        let path = match &self.rank_binary {
            Some(path) => path.clone(),
            None => {
                let own = std::env::current_exe().context("cannot find this program's own file")?;
                Utf8PathBuf::try_from(own)?.with_file_name("lockstep-rank")
            }
        };
        ensure!(path.is_file(), "there is no rank program at {path}; give --rank-binary");
        Ok(path.canonicalize_utf8()?)
    }

    /// The folder under which this agent makes one of its own.
    pub(crate) fn runtime_base(&self) -> Utf8PathBuf {
        let uid = rustix::process::getuid().as_raw();
        match (&self.runtime_dir, &self.xdg_runtime_dir) {
            (Some(folder), _) => folder.clone(),
            (None, Some(folder)) if !folder.as_str().is_empty() => folder.join("lockstep"),
            _ => Utf8Path::new("/tmp").join(format!("lockstep-{uid}")),
        }
    }
}
