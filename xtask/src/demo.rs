//! `cargo xtask demo`: from nothing to trained weights, through every real part.

use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;
use camino::{Utf8Path, Utf8PathBuf};
use clap::Args;
use serde::Deserialize;

use crate::shell::Background;
use crate::{out, setup, shell};

/// Settings of `cargo xtask demo`.
#[derive(Args)]
pub(crate) struct Demo {
    /// World size of the job. The test loss is the same for any.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=8))]
    ranks: u32,
    /// Leave the service running afterwards.
    #[arg(long)]
    keep: bool,
    /// Build with optimisation.
    #[arg(long)]
    release: bool,
}

/// Longest wait for `lockstep up` to be ready.
const READY: Duration = Duration::from_secs(60);

#[derive(Deserialize)]
struct Ready {
    url: String,
}

impl Demo {
    /// Sets up what is missing, builds, runs the job.
    pub(crate) fn run(&self, root: &Utf8Path) -> anyhow::Result<()> {
        setup::run(root)?;
        let programs = build(root, self.release)?;
        let folder = tempfile::Builder::new().prefix("lockstep-demo-").tempdir()?;
        let folder = if self.keep { Folder::Kept(folder.keep()) } else { Folder::Removed(folder) };
        let home = folder.path()?;
        let lockstep = || {
            let mut command = Command::new(programs.join("lockstep"));
            // A profile of its own: the demo touches no one's settings.
            command.env("LOCKSTEP_CONFIG", home.join("config.toml"));
            command
        };

        let ready_file = home.join("ready.json");
        let mut up = lockstep();
        up.arg("up").args(["--data-dir", home.join("data").as_str(), "--listen", "127.0.0.1:0"]);
        up.args(["--ready-file", ready_file.as_str(), "--slots", &self.ranks.to_string()]);
        let mut service = Background::start(&mut up)?;
        let ready: Ready = service.wait_until(READY, || read_json(&ready_file))?;
        out::say(&format!("web page {}", ready.url));

        let mut run = lockstep();
        run.current_dir(root).args(["run", "examples/digits/job.toml"]);
        run.args(["--set", &format!("gang.ranks={}", self.ranks)]);
        shell::run(&mut run)?;
        let (loss, accuracy) = results(&lockstep)?;
        if self.keep {
            let pid = service.keep();
            let config = home.join("config.toml");
            out::note(&format!(
                "still running at {}; settings: LOCKSTEP_CONFIG={config}",
                ready.url
            ));
            out::note(&format!("the page's token is in that file; stop it with `kill -INT {pid}`"));
        } else {
            service.stop()?;
        }
        out::say(&format!("test loss {loss:.4}"));
        out::say(&format!("test accuracy {accuracy:.4}"));
        Ok(())
    }
}

enum Folder {
    Kept(std::path::PathBuf),
    Removed(tempfile::TempDir),
}

impl Folder {
    fn path(&self) -> anyhow::Result<&Utf8Path> {
        let path = match self {
            Self::Kept(path) => path.as_path(),
            Self::Removed(folder) => folder.path(),
        };
        Utf8Path::from_path(path).context("the temporary folder's path is no text")
    }
}

/// Builds every program and says where they are.
pub(crate) fn build(root: &Utf8Path, release: bool) -> anyhow::Result<Utf8PathBuf> {
    let mut build = shell::cargo(root);
    build.args(["build", "--locked", "--workspace", "--bins"]);
    if release {
        build.arg("--release");
    }
    shell::run(&mut build)?;
    Ok(shell::target_dir(root).join(if release { "release" } else { "debug" }))
}

fn read_json<T: for<'de> Deserialize<'de>>(path: &Utf8Path) -> Option<T> {
    serde_json::from_slice(&std::fs::read(path).ok()?).ok()
}

#[derive(Deserialize)]
struct Jobs {
    items: Vec<Job>,
}

#[derive(Deserialize)]
struct Job {
    id: String,
}

#[derive(Deserialize)]
struct Shown {
    metrics: std::collections::BTreeMap<String, f64>,
}

/// Loss and accuracy of the newest job's last evaluation.
fn results(lockstep: &dyn Fn() -> Command) -> anyhow::Result<(f64, f64)> {
    let jobs: Jobs = serde_json::from_str(&shell::read(lockstep().args(["ps", "--json"]))?)?;
    let newest = jobs.items.first().context("the server lists no job")?;
    let shown = shell::read(lockstep().args(["show", &newest.id, "--json"]))?;
    let shown: Shown = serde_json::from_str(&shown)?;
    let metric = |name: &str| {
        shown.metrics.get(name).copied().with_context(|| format!("the job has no metric {name}"))
    };
    Ok((metric("eval/loss")?, metric("eval/accuracy")?))
}
