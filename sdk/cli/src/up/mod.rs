//! `lockstep up`: database, server and one agent on this machine, for as long as this process lives.
//!
//! Everything is our child and gets a signal when we end, however that happens; the folder's lock is the kernel's.
//! So a crash leaves nothing that the next start could stumble over.

mod credentials;
mod folder;
mod part;
mod running;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context as _;
use camino::Utf8Path;
use lockstep_client::profile::{Profile, Profiles};
use serde::Serialize;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::args::{Global, UpArgs};
use crate::failure::Failure;
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

/// A profile of a server on another machine is not replaced: its token is shown nowhere else. `token`: of this one.
fn keep_foreign_profile(path: &Utf8Path, name: &str, token: &str) -> anyhow::Result<()> {
    let profiles = Profiles::read(path).context("reading settings")?;
    match profiles.profiles.get(name) {
        Some(profile) if profile.token != token && !is_local(&profile.url) => {
            let text = format!(
                "--profile: {name:?} in {path} is for {}, which `up` would replace; expected another name",
                profile.url
            );
            Err(Failure::Usage(text).into())
        }
        Some(_) | None => Ok(()),
    }
}

/// Whether a server's address is one of this machine's own, as `up` has them.
fn is_local(url: &str) -> bool {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let address = rest.trim_end_matches('/');
    address.parse::<SocketAddr>().is_ok_and(|it| it.ip().is_loopback() || it.ip().is_unspecified())
        || address.starts_with("localhost:")
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
    keep_foreign_profile(&config, &global.profile, &access.token)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_of_another_machine_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = Utf8Path::from_path(folder.path()).unwrap().join("config.toml");
        let kept = |url: &str, token: &str| {
            let profile = Profile { url: url.to_owned(), token: "lsk_theirs".to_owned() };
            Profiles::set(&path, "default", profile).unwrap();
            keep_foreign_profile(&path, "default", token)
        };
        for url in ["http://127.0.0.1:7878", "http://[::1]:7878/", "http://localhost:7878"] {
            kept(url, "lsk_ours").unwrap();
        }
        let error = kept("https://cluster.example:7878", "lsk_ours").unwrap_err().to_string();
        assert!(error.contains("is for https://cluster.example:7878"), "{error}");
        assert!(!error.contains("lsk_"), "{error}");
        // This one's own, which listens for other machines.
        kept("http://10.0.0.5:7878", "lsk_theirs").unwrap();
        keep_foreign_profile(&path, "another", "lsk_ours").unwrap();
    }
}
