//! The three parts in the order they need each other: database, server, agent. Stopped the other way round.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context as _;
use camino::Utf8PathBuf;
use lockstep_client::Client;
use lockstep_postgres::{Cluster, Options};
use rustix::process::Signal;

use crate::args::UpArgs;
use crate::out::Out;
use crate::programs;
use crate::up::credentials::{self, refresh_join_token};
use crate::up::folder::{Folder, remove};
use crate::up::part::{Backoff, Part, gone};

/// The database that everything is in.
const DATABASE: &str = "lockstep";
/// How long a part may take to be ready. Migrations of a large database take their time.
const READY_CAP: Duration = Duration::from_secs(60);
/// How often a part that starts is looked at.
const READY_POLL: Duration = Duration::from_millis(10);
/// How long the agent may take to end its ranks.
const AGENT_GRACE: Duration = Duration::from_secs(15);
/// How long the server may take to finish requests. Its own limit is shorter.
const SERVER_GRACE: Duration = Duration::from_secs(12);

/// What is running.
#[derive(Debug, Default)]
pub(crate) struct Running {
    cluster: Option<Cluster>,
    server: Option<Part>,
    agent: Option<Part>,
}

/// How to reach it.
#[derive(Debug)]
pub(crate) struct Access {
    pub(crate) url: String,
    pub(crate) token: String,
    client: Client,
}

impl Running {
    /// Starts everything and waits until jobs would run.
    pub(crate) async fn start(
        &mut self,
        folder: &Folder,
        args: &UpArgs,
        out: Out,
    ) -> anyhow::Result<Access> {
        let programs = Programs::beside_us()?;
        let mut agent = Part::new("agent", programs.agent, Signal::TERM, folder);
        // Everything of the server's that matters is in the database: nothing to finish.
        let mut server = Part::new("server", programs.server.clone(), Signal::KILL, folder);
        agent.end_stale(folder.path()).await?;
        server.end_stale(folder.path()).await?;

        let database_url = match &args.database_url {
            Some(url) => url.clone(),
            None => {
                let cluster = self.cluster.insert(start_cluster(folder, args).await?);
                cluster.url(DATABASE)
            }
        };
        let token = match credentials::stored(folder) {
            Some(token) => token,
            None => credentials::make(&programs.server, &database_url, folder).await?,
        };
        server = server.environment("LOCKSTEP_SERVER_DATABASE_URL", database_url.clone());
        if let Some(url) = &args.chunk_store {
            server = server.environment("LOCKSTEP_SERVER_CHUNK_STORE", url.clone());
        }
        server.arguments = server_arguments(folder, &programs.rank, args.listen);
        let server = self.server.insert(server);
        let listen = start_server(server, folder, out).await?;
        // Where it came to listen is where it comes back to, whatever port was asked for.
        server.arguments = server_arguments(folder, &programs.rank, listen);
        let url = format!("http://{}", reachable(listen));

        let mut access = Access { client: Client::new(&url, &token)?, url, token };
        if !credentials::is_good(&access.client).await? {
            access.token = credentials::make(&programs.server, &database_url, folder).await?;
            access.client = Client::new(&access.url, &access.token)?;
        }
        refresh_join_token(&access.client, folder).await?;
        agent.arguments = agent_arguments(folder, &access.url, args.slots);
        let agent = self.agent.insert(agent);
        start_agent(agent, &access.client, out).await?;
        if !listen.ip().is_loopback() {
            out.note("listening beyond this machine without TLS: tokens travel readable; use a tunnel or a private network");
        }
        Ok(access)
    }

    /// Starts again whatever ends, until an error that a restart does not mend.
    pub(crate) async fn keep(
        &mut self,
        folder: &Folder,
        args: &UpArgs,
        access: &Access,
        out: Out,
    ) -> anyhow::Result<Infallible> {
        let Self { cluster, server, agent } = self;
        tokio::select! {
            end = keep_cluster(cluster, folder, args, out) => end,
            end = keep_server(server, out) => end,
            end = keep_agent(agent, folder, &access.client, out) => end,
        }
    }

    /// Stops everything. When `hurry` ends (a second Ctrl-C), server and agent are killed.
    pub(crate) async fn stop(
        self,
        folder: &Folder,
        out: Out,
        hurry: impl Future<Output = ()>,
    ) -> anyhow::Result<()> {
        use futures::FutureExt as _;
        let hurry = hurry.shared();
        for (part, grace) in [(self.agent, AGENT_GRACE), (self.server, SERVER_GRACE)] {
            if let Some(mut part) = part {
                part.stop(grace, hurry.clone(), out).await;
            }
        }
        remove(&folder.address())?;
        remove(&folder.join_token())?;
        if let Some(cluster) = self.cluster {
            tokio::task::spawn_blocking(|| cluster.stop())
                .await?
                .context("stopping the database")?;
        }
        Ok(())
    }
}

/// The programs that we start.
struct Programs {
    server: Utf8PathBuf,
    agent: Utf8PathBuf,
    rank: Utf8PathBuf,
}

impl Programs {
    fn beside_us() -> anyhow::Result<Self> {
        Ok(Self {
            server: programs::beside_us("lockstep-server")?,
            agent: programs::beside_us("lockstep-agent")?,
            rank: programs::beside_us("lockstep-rank")?,
        })
    }
}

fn server_arguments(folder: &Folder, rank: &Utf8PathBuf, listen: SocketAddr) -> Vec<String> {
    let flags = [
        ("--listen", listen.to_string()),
        ("--data-dir", folder.server().into_string()),
        ("--rank-binary", rank.to_string()),
        ("--port-file", folder.address().into_string()),
    ];
    std::iter::once("serve".to_owned())
        .chain(flags.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]))
        .collect()
}

fn agent_arguments(folder: &Folder, url: &str, slots: Option<u32>) -> Vec<String> {
    let mut flags = vec![
        ("--server", url.to_owned()),
        ("--data-dir", folder.agent().into_string()),
        ("--join-token-file", folder.join_token().into_string()),
        ("--name", node_name()),
    ];
    flags.extend(slots.map(|slots| ("--cpu-slots", slots.to_string())));
    flags.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]).collect()
}

/// This machine's name.
fn node_name() -> String {
    let name = rustix::system::uname();
    let name = name.nodename().to_string_lossy();
    if name.is_empty() { "localhost".to_owned() } else { name.into_owned() }
}

/// Where we ourselves find a server that listens everywhere.
fn reachable(listen: SocketAddr) -> SocketAddr {
    if !listen.ip().is_unspecified() {
        return listen;
    }
    let ip = if listen.is_ipv4() {
        std::net::Ipv4Addr::LOCALHOST.into()
    } else {
        std::net::Ipv6Addr::LOCALHOST.into()
    };
    SocketAddr::new(ip, listen.port())
}

async fn start_cluster(folder: &Folder, args: &UpArgs) -> anyhow::Result<Cluster> {
    let path = folder.postgres();
    let options = Options { bin_dir: args.postgres_bin.clone(), ..Options::default() };
    let start = move || {
        let cluster = Cluster::start(path, &options)?;
        cluster.create_database(DATABASE)?;
        Ok(cluster)
    };
    tokio::task::spawn_blocking(start).await?.map_err(|error: lockstep_postgres::PostgresError| {
        anyhow::Error::new(error).context("starting the database")
    })
}

/// Starts the server and reads where it listens.
async fn start_server(server: &mut Part, folder: &Folder, out: Out) -> anyhow::Result<SocketAddr> {
    let address = folder.address();
    remove(&address)?;
    server.start()?;
    let written = async {
        loop {
            // The server renames it into place when it is whole.
            if let Ok(text) = std::fs::read_to_string(&address)
                && let Some(url) = text.strip_suffix('\n')
            {
                return url.trim_start_matches("http://").parse();
            }
            tokio::time::sleep(READY_POLL).await;
        }
    };
    let listen = tokio::select! {
        listen = written => listen.with_context(|| format!("reading {address}"))?,
        exited = server.exited(out) => {
            exited?;
            return Err(server.ended_early());
        }
        () = tokio::time::sleep(READY_CAP) => anyhow::bail!("the server was not ready after {READY_CAP:?}"),
    };
    Ok(listen)
}

/// Starts the agent and waits until the server has heard of it since.
async fn start_agent(agent: &mut Part, client: &Client, out: Out) -> anyhow::Result<()> {
    let name = node_name();
    let last_seen = async || {
        let nodes = client.nodes().await.context("listing nodes")?;
        let node = nodes.into_iter().find(|node| node.name == name);
        anyhow::Ok(node.filter(|node| node.is_live).map(|node| node.last_seen_at))
    };
    let before = last_seen().await?;
    agent.start()?;
    let joined = async {
        loop {
            // A lease of the agent before it may still hold: only a new sign of life counts.
            let now = last_seen().await?;
            if now.is_some() && now != before {
                return anyhow::Ok(());
            }
            tokio::time::sleep(READY_POLL).await;
        }
    };
    tokio::select! {
        joined = joined => joined,
        exited = agent.exited(out) => {
            exited?;
            Err(agent.ended_early())
        }
        () = tokio::time::sleep(READY_CAP) => anyhow::bail!("the agent had not joined after {READY_CAP:?}"),
    }
}

async fn keep_server(server: &mut Option<Part>, out: Out) -> anyhow::Result<Infallible> {
    let server = server.as_mut().context("the server was started")?;
    let mut backoff = Backoff::default();
    loop {
        server.wait_for_restart(&mut backoff, out).await?;
        server.start()?;
    }
}

async fn keep_agent(
    agent: &mut Option<Part>,
    folder: &Folder,
    client: &Client,
    out: Out,
) -> anyhow::Result<Infallible> {
    let agent = agent.as_mut().context("the agent was started")?;
    let mut backoff = Backoff::default();
    loop {
        agent.wait_for_restart(&mut backoff, out).await?;
        // It joins again only if its own credentials are refused; the server may be away just now.
        if let Err(error) = refresh_join_token(client, folder).await {
            out.error(&error);
        }
        agent.start()?;
    }
}

async fn keep_cluster(
    slot: &mut Option<Cluster>,
    folder: &Folder,
    args: &UpArgs,
    out: Out,
) -> anyhow::Result<Infallible> {
    let mut backoff = Backoff::default();
    loop {
        let Some(cluster) = slot.as_ref() else { return std::future::pending().await };
        let since = std::time::Instant::now();
        gone(cluster.exit_signal()).await?;
        let delay = backoff.after(since.elapsed());
        out.note(&format!(
            "postgres ended; starting it again in {delay:?}; its log is {}",
            cluster.log_path()
        ));
        if let Some(ended) = slot.take() {
            tokio::task::spawn_blocking(|| ended.stop())
                .await?
                .context("cleaning up after the database")?;
        }
        tokio::time::sleep(delay).await;
        *slot = Some(start_cluster(folder, args).await?);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_listens_everywhere_is_reached_on_this_machine() {
        let reach = |listen: &str| reachable(listen.parse().unwrap()).to_string();
        assert_eq!(reach("0.0.0.0:80"), "127.0.0.1:80");
        assert_eq!(reach("[::]:80"), "[::1]:80");
        assert_eq!(reach("10.0.0.1:80"), "10.0.0.1:80");
    }
}
