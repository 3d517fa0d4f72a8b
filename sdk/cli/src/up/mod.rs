//! `lockstep up`: database, server and one agent on this machine, for as long as this process lives.
//!
//! Everything is our child and gets a signal when we end, however that happens; the folder's lock is the kernel's.
//! So a crash leaves nothing that the next start could stumble over.

mod credentials;
mod folder;
mod part;
mod running;

use std::convert::Infallible;
use std::time::Duration;

use anyhow::Context as _;
use camino::Utf8Path;
use lockstep_client::profile::{Profile, Profiles};
use serde::Serialize;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::args::{Global, UpArgs};
use crate::out::Out;
use crate::settings::{config_path, default_data_dir};
use crate::up::folder::{Folder, replace_private};
use crate::up::running::Running;

/// How long a stop waits for all parts before it tells that something hangs. Each part has its own, shorter limit.
const STOP_CAP: Duration = Duration::from_secs(60);

/// What scripts get to know once everything is ready.
#[derive(Debug, Serialize)]
struct Ready<'a> {
    url: &'a str,
    token: &'a str,
    profile: &'a str,
}

/// Starts everything, keeps it running, stops everything at SIGINT, SIGTERM or SIGHUP.
pub(crate) async fn up(global: &Global, args: UpArgs, out: Out) -> anyhow::Result<()> {
    // First of all, so that nothing is started that an early Ctrl-C would not stop.
    let mut interrupts = Interrupts::new()?;
    let data_dir = match &args.data_dir {
        Some(data_dir) => data_dir.clone(),
        None => default_data_dir()?,
    };
    let folder = Folder::open(&data_dir)?;
    if let Some(path) = &args.ready_file {
        folder::remove(path)?;
    }
    let mut running = Running::default();
    let outcome = tokio::select! {
        outcome = start_and_keep(&mut running, &folder, global, &args, out) => outcome.map(|never| match never {}),
        () = interrupts.next() => Ok(()),
    };
    if outcome.is_ok() {
        out.note("stopping");
    }
    let stopped = running.stop(&folder, out, interrupts.next());
    let stopped = tokio::time::timeout(STOP_CAP, stopped).await;
    if let Some(path) = &args.ready_file {
        folder::remove(path)?;
    }
    outcome?;
    stopped.with_context(|| format!("not everything stopped within {STOP_CAP:?}"))?
}

async fn start_and_keep(
    running: &mut Running,
    folder: &Folder,
    global: &Global,
    args: &UpArgs,
    out: Out,
) -> anyhow::Result<Infallible> {
    let access = running.start(folder, args, out).await?;
    let config = config_path(global)?;
    let profile = Profile { url: access.url.clone(), token: access.token.clone() };
    Profiles::set(&config, &global.profile, profile).context("storing the profile")?;
    let ready = Ready { url: &access.url, token: &access.token, profile: &global.profile };
    tell(&ready, args.ready_file.as_deref(), out)?;
    out.note(&format!(
        "logs are in {}; the token is in {config}, profile {:?}",
        folder.logs(),
        global.profile
    ));
    running.keep(folder, args, &access, out).await
}

fn tell(ready: &Ready<'_>, ready_file: Option<&Utf8Path>, out: Out) -> anyhow::Result<()> {
    if let Some(path) = ready_file {
        replace_private(path, &serde_json::to_string(ready)?)?;
    }
    if out.is_json() {
        out.json(ready)?;
    }
    out.note(&format!("ready: {}", ready.url));
    Ok(())
}

/// The signals that end `up`.
struct Interrupts {
    signals: [Signal; 3],
}

impl Interrupts {
    fn new() -> anyhow::Result<Self> {
        let watch = |kind| signal(kind).context("watching for signals");
        Ok(Self {
            signals: [
                watch(SignalKind::interrupt())?,
                watch(SignalKind::terminate())?,
                watch(SignalKind::hangup())?,
            ],
        })
    }

    async fn next(&mut self) {
        let [interrupt, terminate, hangup] = &mut self.signals;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    }
}
