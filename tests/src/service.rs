//! One server and its agents, each a process that a test may kill and start again.

use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;
use camino::{Utf8Path, Utf8PathBuf};
use lockstep_api::JobView;
use lockstep_client::Client;
use lockstep_postgres::{Cluster, Durability, Options};
use serde::Deserialize;

use crate::process::{Process, programs, repository, tell};
use crate::wait_for;

/// How long a lease lasts in these tests; the heartbeat is a third of it.
pub const LEASE: Duration = Duration::from_secs(8);

/// Longest wait for a program to be ready.
const READY: Duration = Duration::from_secs(120);

/// What `lockstep-server init` prints.
#[derive(Debug, Deserialize)]
struct Credentials {
    token: String,
    join_token: String,
}

/// A server over a database of its own, and agents.
#[derive(Debug)]
pub struct Service {
    /// For asking the server.
    pub client: Client,
    url: String,
    /// Where the server listens at first.
    listen: String,
    /// Besides what every server here is told.
    server_arguments: Vec<String>,
    token: String,
    join_token: String,
    server: Option<Process>,
    agents: Vec<Agent>,
    database_url: String,
    programs: Utf8PathBuf,
    // The last two go last, in this order.
    cluster: Option<Cluster>,
    folder: tempfile::TempDir,
}

#[derive(Debug)]
struct Agent {
    name: String,
    slots: u32,
    /// What comes before its command.
    behind: Vec<String>,
    process: Option<Process>,
}

impl Service {
    /// A server and one agent with so many CPU slots.
    ///
    /// # Errors
    /// When anything does not come up.
    pub async fn start(slots: u32) -> anyhow::Result<Self> {
        let mut service = Self::start_server_alone().await?;
        service.add_agent("first", slots).await?;
        Ok(service)
    }

    /// A server and two agents: a gang of more ranks than either has slots goes over both.
    ///
    /// # Errors
    /// When anything does not come up.
    pub async fn start_two_nodes((first, second): (u32, u32)) -> anyhow::Result<Self> {
        let mut service = Self::start(first).await?;
        service.add_agent("second", second).await?;
        Ok(service)
    }

    /// The same with more words on the server's command line.
    ///
    /// # Errors
    /// When anything does not come up.
    pub async fn start_with(slots: u32, server_arguments: &[&str]) -> anyhow::Result<Self> {
        let words = server_arguments.iter().map(|word| (*word).to_owned()).collect();
        let mut service = Self::start_server_of("127.0.0.1", words).await?;
        service.add_agent("first", slots).await?;
        Ok(service)
    }

    /// A server without agents.
    ///
    /// # Errors
    /// When it does not come up.
    pub async fn start_server_alone() -> anyhow::Result<Self> {
        Self::start_server_at("127.0.0.1").await
    }

    /// A server at an address, without agents.
    ///
    /// # Errors
    /// When it does not come up.
    pub async fn start_server_at(address: &str) -> anyhow::Result<Self> {
        Self::start_server_of(address, Vec::new()).await
    }

    async fn start_server_of(address: &str, server_arguments: Vec<String>) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new().prefix("lockstep-e2e-").tempdir()?;
        let path = utf8(&folder)?.to_owned();
        let cluster = tokio::task::spawn_blocking(move || {
            let options = Options { durability: Durability::Throwaway, ..Options::default() };
            let cluster = Cluster::start(path.join("postgres"), &options)?;
            cluster.create_database("lockstep")?;
            anyhow::Ok(cluster)
        })
        .await??;
        let programs = programs()?;
        let database_url = cluster.url("lockstep");
        let init = Command::new(programs.join("lockstep-server"))
            .args(["init", "--database-url", &database_url])
            .output()?;
        anyhow::ensure!(init.status.success(), "{}", String::from_utf8_lossy(&init.stderr));
        let credentials: Credentials =
            serde_json::from_slice(&init.stdout).context("reading what init printed")?;
        let mut service = Self {
            client: Client::anonymous("http://127.0.0.1:1")?,
            url: String::new(),
            listen: format!("{address}:0"),
            server_arguments,
            token: credentials.token,
            join_token: credentials.join_token,
            server: None,
            agents: Vec::new(),
            database_url,
            programs,
            cluster: Some(cluster),
            folder,
        };
        service.start_server().await?;
        Ok(service)
    }

    /// Where the service keeps everything.
    ///
    /// # Panics
    /// Never: it was made from text.
    pub fn folder(&self) -> &Utf8Path {
        utf8(&self.folder).expect("the path was text when it was made")
    }

    /// Where the server listens.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The server's process.
    ///
    /// # Panics
    /// While it is killed.
    pub fn server(&self) -> &Process {
        self.server.as_ref().expect("the server runs")
    }

    /// An agent's process.
    ///
    /// # Panics
    /// While it is killed.
    pub fn agent(&self, index: usize) -> &Process {
        self.agents[index].process.as_ref().expect("the agent runs")
    }

    /// Starts the server: at first anywhere, later at the same address.
    ///
    /// # Errors
    /// When it is not ready in time.
    pub async fn start_server(&mut self) -> anyhow::Result<()> {
        let folder = self.folder().to_owned();
        let port_file = folder.join("port");
        if port_file.exists() {
            std::fs::remove_file(&port_file)?;
        }
        let listen = self.url.strip_prefix("http://").unwrap_or(&self.listen).to_owned();
        let lease_ms = LEASE.as_millis();
        let mut command = Command::new(self.programs.join("lockstep-server"));
        command.arg("serve").args(["--listen", &listen, "--database-url", &self.database_url]);
        command.args(["--data-dir", folder.join("server").as_str()]);
        command.args(["--rank-binary", self.programs.join("lockstep-rank").as_str()]);
        command.args([
            "--heartbeat-ms",
            &(lease_ms / 3).to_string(),
            "--lease-ms",
            &lease_ms.to_string(),
        ]);
        command.args(["--port-file", port_file.as_str()]).args(&self.server_arguments);
        self.server = Some(Process::start(&mut command, &folder.join("server.log"))?);
        let url = wait_for("the server is ready", READY, || async {
            std::fs::read_to_string(&port_file).ok().filter(|text| text.ends_with('\n'))
        })
        .await?;
        self.url = url.trim().to_owned();
        self.client = Client::new(&self.url, &self.token)?;
        Ok(())
    }

    /// `kill -9` of the server.
    ///
    /// # Errors
    /// Of the system.
    pub fn kill_server(&mut self) -> anyhow::Result<()> {
        self.server.take().context("the server runs")?.kill_now()
    }

    /// Starts one more agent and waits until the server knows it.
    ///
    /// # Errors
    /// When it is not ready in time.
    pub async fn add_agent(&mut self, name: &str, slots: u32) -> anyhow::Result<()> {
        self.add_agent_behind(name, slots, Vec::new()).await
    }

    /// The same with something before its command, which becomes the agent.
    ///
    /// # Errors
    /// When it is not ready in time.
    pub async fn add_agent_behind(
        &mut self,
        name: &str,
        slots: u32,
        behind: Vec<String>,
    ) -> anyhow::Result<()> {
        self.agents.push(Agent { name: name.to_owned(), slots, behind, process: None });
        self.start_agent(self.agents.len() - 1).await
    }

    /// Starts an agent that was killed.
    ///
    /// # Errors
    /// When it is not ready in time.
    pub async fn start_agent(&mut self, index: usize) -> anyhow::Result<()> {
        let folder = self.folder().to_owned();
        let agent = &mut self.agents[index];
        let program = self.programs.join("lockstep-agent").into_string();
        let mut words = agent.behind.iter().chain([&program]);
        let mut command = Command::new(words.next().expect("one is the program's own"));
        command.args(words);
        command.args([
            "--server",
            &self.url,
            "--name",
            &agent.name,
            "--join-token",
            &self.join_token,
        ]);
        command.args(["--data-dir", folder.join(&agent.name).as_str()]);
        command.args(["--cpu-slots", &agent.slots.to_string()]);
        let log = folder.join(format!("{}.log", agent.name));
        agent.process = Some(Process::start(&mut command, &log)?);
        let name = agent.name.clone();
        wait_for("the agent has joined", READY, || async {
            let nodes = self.client.nodes().await.ok()?;
            nodes.into_iter().find(|node| node.name == name && node.is_live)
        })
        .await?;
        Ok(())
    }

    /// Starts every agent anew that has ended by itself.
    ///
    /// # Errors
    /// When one is not ready in time.
    pub async fn revive_agents(&mut self) -> anyhow::Result<()> {
        for index in 0..self.agents.len() {
            if let Some(process) = &mut self.agents[index].process
                && process.has_ended()?
            {
                self.start_agent(index).await?;
            }
        }
        Ok(())
    }

    /// `kill -9` of an agent.
    ///
    /// # Errors
    /// Of the system.
    pub fn kill_agent(&mut self, index: usize) -> anyhow::Result<()> {
        self.agents[index].process.take().context("the agent runs")?.kill_now()
    }

    /// Tells an agent to stop, and waits until it has left.
    ///
    /// # Errors
    /// When it is still there at the deadline.
    pub fn interrupt_agent(&mut self, index: usize, deadline: Duration) -> anyhow::Result<()> {
        let mut agent = self.agents[index].process.take().context("the agent runs")?;
        agent.interrupt(deadline).map(drop)
    }

    /// The command line, as this service's admin.
    pub fn lockstep(&self) -> Command {
        let mut command = Command::new(self.programs.join("lockstep"));
        command.current_dir(repository());
        command.env("LOCKSTEP_CONFIG", self.folder().join("config.toml"));
        command.env("LOCKSTEP_URL", &self.url).env("LOCKSTEP_TOKEN", &self.token);
        command
    }

    /// `lockstep submit FILE --set …`, through the command line.
    ///
    /// # Errors
    /// Its refusal, with its words.
    pub fn submit(&self, job: &str, settings: &[&str]) -> anyhow::Result<JobView> {
        let mut command = self.lockstep();
        command.args(["submit", job, "--json"]);
        for setting in settings {
            command.args(["--set", setting]);
        }
        let output = command.output()?;
        let words = String::from_utf8_lossy(&output.stderr);
        anyhow::ensure!(output.status.success(), "submit ended with {}: {words}", output.status);
        serde_json::from_slice(&output.stdout).context("reading what submit printed")
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.tell_logs();
        }
        self.agents.clear();
        self.server = None;
        if let Some(Err(error)) = self.cluster.take().map(Cluster::stop) {
            tell(&format!("stopping postgres: {error}"));
        }
    }
}

impl Service {
    /// The ends of all logs, for whoever reads a failed test.
    fn tell_logs(&self) {
        let names = self.agents.iter().map(|agent| agent.name.as_str()).chain(["server"]);
        for name in names {
            let path = self.folder().join(format!("{name}.log"));
            let text = std::fs::read_to_string(path).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            tell(&format!("--- {name}"));
            for line in &lines[lines.len().saturating_sub(40)..] {
                tell(line);
            }
        }
    }
}

fn utf8(folder: &tempfile::TempDir) -> anyhow::Result<&Utf8Path> {
    Utf8Path::from_path(folder.path()).context("the temporary folder's path is no text")
}
