//! `lockstep up`: starts everything, stops everything, and stands up again after a crash.

use std::process::Command;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use lockstep_client::Client;
use lockstep_e2e::{Process, is_running, programs, wait_for};
use serde::Deserialize;

/// Longest wait for `up`; the product promises far less, and a test machine is busy.
const READY: Duration = Duration::from_secs(120);

/// Longest wait for everything to be gone.
const GONE: Duration = Duration::from_secs(40);

#[derive(Debug, Deserialize)]
struct Ready {
    url: String,
    token: String,
}

struct Folder {
    temporary: tempfile::TempDir,
}

impl Folder {
    fn new() -> anyhow::Result<Self> {
        Ok(Self { temporary: tempfile::Builder::new().prefix("lockstep-up-").tempdir()? })
    }

    fn join(&self, name: &str) -> Utf8PathBuf {
        Utf8Path::from_path(self.temporary.path()).expect("a temporary path is text").join(name)
    }

    fn up(&self) -> anyhow::Result<Command> {
        let mut command = Command::new(programs()?.join("lockstep"));
        command.env("LOCKSTEP_CONFIG", self.join("config.toml"));
        command.args(["up", "--data-dir", self.join("data").as_str(), "--listen", "127.0.0.1:0"]);
        command.args(["--slots", "1", "--ready-file", self.join("ready.json").as_str()]);
        Ok(command)
    }

    async fn started(&self) -> anyhow::Result<(Process, Ready)> {
        let ready_file = self.join("ready.json");
        if ready_file.exists() {
            std::fs::remove_file(&ready_file)?;
        }
        let process = Process::start(&mut self.up()?, &self.join("up.log"))?;
        let ready = wait_for("up is ready", READY, || async {
            serde_json::from_slice(&std::fs::read(&ready_file).ok()?).ok()
        })
        .await?;
        Ok((process, ready))
    }

    /// Every process whose command line names this folder.
    fn processes(&self) -> Vec<i32> {
        let path = self.join("data");
        let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        pids.filter(|pid| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).contains(path.as_str()) && is_running(*pid)
        })
        .collect()
    }

    async fn assert_nothing_runs(&self) -> anyhow::Result<()> {
        wait_for("no process is left", GONE, || async { self.processes().is_empty().then_some(()) })
            .await
    }
}

#[tokio::test]
async fn up_starts_everything_and_an_interrupt_leaves_no_process_and_no_socket()
-> anyhow::Result<()> {
    let folder = Folder::new()?;
    let (mut up, ready) = folder.started().await?;
    let client = Client::new(&ready.url, &ready.token)?;
    assert_eq!(client.me().await?.role, lockstep_api::Role::Admin);
    let nodes = client.nodes().await?;
    assert_eq!(nodes.len(), 1);
    assert_eq!(nodes[0].slots.len(), 1);
    assert!(1 < folder.processes().len(), "server, agent and database run");

    assert!(Client::anonymous(&ready.url)?.me().await.is_err(), "there is no unauthenticated mode");

    let status = up.interrupt(GONE)?;
    assert!(status.success(), "{status}");
    folder.assert_nothing_runs().await?;
    let sockets = std::fs::read_dir(folder.join("data").join("postgres").join("socket"));
    let left = sockets.into_iter().flatten().flatten().count();
    assert_eq!(left, 0, "sockets and their locks are gone");
    Ok(())
}

#[tokio::test]
async fn a_second_up_on_the_same_folder_says_so_and_ends() -> anyhow::Result<()> {
    let folder = Folder::new()?;
    let (first, _) = folder.started().await?;
    let second = folder.up()?.output()?;
    assert_eq!(second.status.code(), Some(1));
    let words = String::from_utf8(second.stderr)?;
    assert!(words.contains(&first.pid().to_string()), "it names who holds the folder: {words}");
    Ok(())
}

#[tokio::test]
async fn a_crash_does_not_prevent_the_next_start_and_the_token_stays() -> anyhow::Result<()> {
    let folder = Folder::new()?;
    let (mut up, first) = folder.started().await?;
    up.kill_now()?;
    folder.assert_nothing_runs().await?;
    let (_up, second) = folder.started().await?;
    assert_eq!(first.token, second.token, "the stored token is still good");
    Client::new(&second.url, &second.token)?.me().await?;
    Ok(())
}
