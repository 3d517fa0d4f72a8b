//! Puts the parts together: folders, identity, tasks, and the order in which they end.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use camino::{Utf8Path, Utf8PathBuf};
use lockstep_api::{Digest, Inventory, JoinRequest, ProblemCode};
use lockstep_client::retry::{self, Policy};
use lockstep_client::{Client, ClientError, ClientOptions};
use lockstep_service::{Clock, Shutdown, Stage};
use rand::rngs::StdRng;
use rand::{RngCore as _, SeedableRng as _};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::cache::Cache;
use crate::config::Config;
use crate::control_group::ControlGroups;
use crate::files::{lock_folder, private_folder, remove_folder};
use crate::identity::Identity;
use crate::inventory::inventory;
use crate::network::{Reach, host_identity};
use crate::node::{Node, Places, Server, blocking};
use crate::session::{Living, Session, heartbeats, polls, withdraw};
use crate::ship::{settle, ship};
use crate::spawn::{Spawner, try_group};
use crate::spool::{SPOOL_CAP_BYTES, Spool};
use lockstep_service::chain;

/// From the signal to stop until the agent leaves whatever still runs.
const LEAVE_GRACE: Duration = Duration::from_secs(10);
/// How long last reports may take when the agent leaves.
const LAST_REPORTS: Duration = Duration::from_secs(2);

/// Runs the agent until a signal ends it.
///
/// # Errors
/// When it cannot start: a folder, the server's refusal, another agent in the same folder.
pub async fn run(config: Config) -> anyhow::Result<()> {
    let data = absolute(&config.data_dir)?;
    private_folder(&data)?;
    let _lock = lock_folder(&data)?;
    let places = make_places(&config, &data)?;
    let control_groups = find_control_groups(&data, places.rank_binary.clone()).await?;
    let clock = Clock::system();
    let shutdown = Shutdown::new();
    let cache_bytes = config.cache_mib.saturating_mul(1 << 20);
    let cache = Arc::new(Cache::open(&data.join("cache"), cache_bytes, clock.clone())?);
    let spool_path = data.join("reports.jsonl");
    let spool = Spool::open(&spool_path, SPOOL_CAP_BYTES)
        .with_context(|| format!("cannot open the spool {spool_path}"))?;
    let offer = inventory(config.cpu_slots);
    let boot_id = boot_id();
    let joiner = Joiner::new(&config, &data, (offer.clone(), boot_id.clone()))?;

    let reach = Reach {
        node_name: joiner.name.clone(),
        host: host_identity(&boot_id),
        advertised: config.advertise_address,
        server: config.server.clone(),
    };
    let (notes, noted) = mpsc::unbounded_channel();
    let node = Arc::new(Node {
        server: Server::new(joiner.anonymous.clone()),
        spool,
        cache,
        spawner: Spawner::start()?,
        control_groups,
        clock,
        places,
        reach,
        notes,
    });
    let arrive = arrive(&node, &joiner);
    let identity = tokio::select! {
        identity = arrive => identity?,
        stopped = stop_signal() => return stopped,
    };
    spawn_tasks(&shutdown, &node, joiner, (offer, boot_id), &identity, noted);
    match shutdown.run_until_stopped(LEAVE_GRACE).await? {
        Stage::Clean => {}
        Stage::Forced => tracing::warn!("left before everything was finished"),
    }
    if let Err(error) = remove_folder(&node.places.sockets) {
        tracing::debug!(%error, "cannot remove the folder of sockets");
    }
    tracing::info!("agent has left");
    Ok(())
}

/// A signal that comes before there is anything to end.
async fn stop_signal() -> anyhow::Result<()> {
    Shutdown::new().run_until_stopped(Duration::ZERO).await?;
    Ok(())
}

/// Joins if need be, and learns what the server has seen of the spool.
async fn arrive(node: &Node, joiner: &Joiner) -> anyhow::Result<Identity> {
    let mut identity = joiner.identity(&node.server).await?;
    match settle(node).await {
        Err(error) if error.code() == Some(ProblemCode::Unauthenticated) => {
            joiner.join_again(&node.server).await?;
            identity = joiner.identity(&node.server).await?;
            settle(node).await.context("the server took this node and then did not know it")?;
        }
        other => other.context("the server refuses this node's reports")?,
    }
    tracing::info!(node = %identity.node_id, "joined");
    Ok(identity)
}

fn spawn_tasks(
    shutdown: &Shutdown,
    node: &Arc<Node>,
    joiner: Joiner,
    (offer, boot_id): (Inventory, String),
    identity: &Identity,
    noted: mpsc::UnboundedReceiver<crate::node::Note>,
) {
    let living = Living::default();
    let end = shutdown.soft().clone();
    let all_reported = CancellationToken::new();
    let (answers, answered) = mpsc::channel(1);
    let every = identity.heartbeat();
    shutdown.spawn(heartbeats(node.clone(), living.clone(), boot_id.clone(), every, end.clone()));
    shutdown.spawn(polls(node.clone(), joiner, offer, boot_id.clone(), answers, end.clone()));
    shutdown.spawn(ship(node.clone(), all_reported.clone()));
    let mut session = Session::new(node.clone(), living, identity.orphan_grace());
    let node = node.clone();
    shutdown.spawn(async move {
        session.run(answered, noted, end).await;
        let farewell = withdraw(&node, boot_id).await;
        session.leave(farewell).await;
        let newest = *node.spool.newest().borrow();
        let mut acked = node.spool.acked();
        let last = acked.wait_for(|acked| newest <= *acked);
        if tokio::time::timeout(LAST_REPORTS, last).await.is_err() {
            tracing::warn!("the last reports stay on disk for the next start");
        }
        all_reported.cancel();
    });
}

/// How this node becomes known to the server.
#[derive(Debug)]
pub(crate) struct Joiner {
    anonymous: Client,
    path: Utf8PathBuf,
    token: Option<JoinToken>,
    name: String,
    offer: Inventory,
    boot_id: String,
}

/// Not shown by `Debug`.
struct JoinToken(String);

impl std::fmt::Debug for JoinToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("JoinToken")
    }
}

impl Joiner {
    fn new(
        config: &Config,
        data: &Utf8Path,
        (offer, boot_id): (Inventory, String),
    ) -> anyhow::Result<Self> {
        let options =
            ClientOptions { connect_timeout: Duration::from_secs(2), ..ClientOptions::default() };
        let anonymous = Client::with_options(&config.server, None, options)?;
        let token = config.join_token()?.map(JoinToken);
        let (path, name) = (data.join("node.json"), config.name()?);
        Ok(Self { anonymous, path, token, name, offer, boot_id })
    }

    /// The kept identity, or a new one.
    async fn identity(&self, server: &Server) -> anyhow::Result<Identity> {
        match Identity::read(&self.path)? {
            Some(identity) => {
                server.set_client(self.anonymous.with_token(identity.token())?);
                Ok(identity)
            }
            None => self.join(server).await,
        }
    }

    /// The server no longer knows the kept identity.
    pub(crate) async fn join_again(&self, server: &Server) -> anyhow::Result<()> {
        self.join(server).await.map(drop)
    }

    async fn join(&self, server: &Server) -> anyhow::Result<Identity> {
        let Some(JoinToken(token)) = &self.token else {
            bail!("this node has to join: give --join-token or --join-token-file");
        };
        let request = JoinRequest {
            join_token: token.clone(),
            name: self.name.clone(),
            boot_id: Some(self.boot_id.clone()),
            inventory: self.offer.clone(),
        };
        let answer = retry::run(Policy::PATIENT, || async {
            let answer = server.note(self.anonymous.join(&request).await);
            if let Err(error @ ClientError::Unreachable { .. }) = &answer {
                tracing::warn!(error = %chain(error), "cannot join yet");
            }
            answer
        });
        let identity = Identity::from(answer.await.context("the server refuses this node")?);
        identity.write(&self.path)?;
        server.set_client(self.anonymous.with_token(identity.token())?);
        Ok(identity)
    }
}

/// Folders; what the last agent left behind is removed.
fn make_places(config: &Config, data: &Utf8Path) -> anyhow::Result<Places> {
    let base = config.runtime_base();
    private_folder(&base)?;
    let name = short_name(data);
    let places = Places {
        rank_binary: config.rank_binary()?,
        attempts: data.join("attempts"),
        sockets: base.join(name),
        compiled: data.join("compiled"),
    };
    for folder in [&places.attempts, &places.sockets] {
        remove_folder(folder).with_context(|| format!("cannot empty {folder}"))?;
    }
    for folder in [&places.attempts, &places.sockets, &places.compiled] {
        private_folder(folder)?;
    }
    Ok(places)
}

/// What is permitted here is known once a process was started in a group: the program that ranks run, which is there.
async fn find_control_groups(
    data: &Utf8Path,
    rank_binary: Utf8PathBuf,
) -> anyhow::Result<ControlGroups> {
    let name = format!("lockstep-{}", short_name(data));
    let record = data.join("control-groups");
    blocking(move || {
        ControlGroups::set_up(&name, &record, |group| {
            try_group(&rank_binary, &["--version"], group.entrances()?)
        })
    })
    .await
}

/// One agent a data folder, so one name a data folder.
fn short_name(data: &Utf8Path) -> String {
    Digest::of(data.as_str().as_bytes()).hex()[..12].to_owned()
}

fn absolute(path: &Utf8Path) -> anyhow::Result<Utf8PathBuf> {
    let path = std::path::absolute(path).with_context(|| format!("cannot find {path}"))?;
    Ok(Utf8PathBuf::try_from(path)?)
}

/// Random, so that no two starts are alike.
fn boot_id() -> String {
    let mut random = StdRng::from_os_rng();
    format!("{:016x}", random.next_u64())
}
