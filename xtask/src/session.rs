//! One job on a service of its own: started on this machine, asked for results, stopped or kept.

use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;
use camino::{Utf8Path, Utf8PathBuf};
use clap::Args;
use serde::Deserialize;

use crate::shell::Background;
use crate::{out, setup, shell};

/// Settings of every task that trains something.
#[derive(Args)]
pub(crate) struct Settings {
    /// World size of the job.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=8))]
    pub(crate) ranks: u32,
    /// Leave the service running afterwards.
    #[arg(long)]
    pub(crate) keep: bool,
}

/// How programs are built.
#[derive(Clone, Copy)]
pub(crate) enum Profile {
    Debug,
    Release,
}

/// Longest wait for `lockstep up` to be ready.
const READY: Duration = Duration::from_secs(60);

/// A running service in a folder of its own. Stopped when dropped.
pub(crate) struct Session {
    programs: Utf8PathBuf,
    service: Background,
    folder: Folder,
    url: String,
    ranks: u32,
}

#[derive(Deserialize)]
struct Ready {
    url: String,
}

impl Session {
    /// Sets up what is missing, builds, starts everything.
    pub(crate) fn start(
        root: &Utf8Path,
        settings: &Settings,
        profile: Profile,
    ) -> anyhow::Result<Self> {
        setup::run(root)?;
        let programs = build(root, profile)?;
        let folder = tempfile::Builder::new().prefix("lockstep-demo-").tempdir()?;
        let folder = match settings.keep {
            true => Folder::Kept(folder.keep()),
            false => Folder::Removed(folder),
        };
        let home = folder.path()?;
        let ready_file = home.join("ready.json");
        let mut up = lockstep(&programs, home);
        up.arg("up").args(["--data-dir", home.join("data").as_str(), "--listen", "127.0.0.1:0"]);
        up.args(["--ready-file", ready_file.as_str(), "--slots", &settings.ranks.to_string()]);
        let mut service = Background::start(&mut up)?;
        let Ready { url } = service.wait_until(READY, || read_json(&ready_file))?;
        out::say(&format!("web page {url}"));
        Ok(Self { programs, service, folder, url, ranks: settings.ranks })
    }

    /// The command line, speaking to this service.
    pub(crate) fn lockstep(&self) -> anyhow::Result<Command> {
        Ok(lockstep(&self.programs, self.folder.path()?))
    }

    /// Submits a job file of the repository and follows the job to its end.
    pub(crate) fn train(&self, root: &Utf8Path, job: &str) -> anyhow::Result<()> {
        let mut run = self.lockstep()?;
        run.current_dir(root).args(["run", job]);
        run.args(["--set", &format!("gang.ranks={}", self.ranks)]);
        shell::run(&mut run)
    }

    /// What the newest job measured last.
    pub(crate) fn results(&self) -> anyhow::Result<Results> {
        let jobs: Jobs =
            serde_json::from_str(&shell::read(self.lockstep()?.args(["ps", "--json"]))?)?;
        let job = jobs.items.into_iter().next().context("the server lists no job")?.id;
        let shown = shell::read(self.lockstep()?.args(["show", &job, "--json"]))?;
        let Shown { metrics } = serde_json::from_str(&shown)?;
        Ok(Results { job, metrics })
    }

    /// Stops the service, or says how to reach and stop it.
    pub(crate) fn end(mut self) -> anyhow::Result<()> {
        let Folder::Kept(_) = self.folder else { return self.service.stop() };
        let config = config(self.folder.path()?);
        let pid = self.service.keep();
        out::note(&format!("still running at {}; settings: LOCKSTEP_CONFIG={config}", self.url));
        out::note(&format!("the page's token is in that file; stop it with `kill -INT {pid}`"));
        Ok(())
    }
}

fn config(home: &Utf8Path) -> Utf8PathBuf {
    home.join("config.toml")
}

fn lockstep(programs: &Utf8Path, home: &Utf8Path) -> Command {
    let mut command = Command::new(programs.join("lockstep"));
    // A profile of its own: these tasks touch no one's settings.
    command.env("LOCKSTEP_CONFIG", config(home));
    command
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
pub(crate) fn build(root: &Utf8Path, profile: Profile) -> anyhow::Result<Utf8PathBuf> {
    build_what(root, profile, &["--workspace", "--bins"])
}

/// Builds the programs of one crate and says where they are.
pub(crate) fn build_only(
    root: &Utf8Path,
    profile: Profile,
    name: &str,
) -> anyhow::Result<Utf8PathBuf> {
    build_what(root, profile, &["--package", name])
}

/// Builds everything as the tests use it, the programs included: with what only tests switch on in dependencies.
pub(crate) fn build_for_tests(root: &Utf8Path) -> Command {
    let mut build = shell::cargo(root);
    build.args(["build", "--locked", "--workspace", "--all-targets"]);
    build
}

fn build_what(root: &Utf8Path, profile: Profile, what: &[&str]) -> anyhow::Result<Utf8PathBuf> {
    let mut build = shell::cargo(root);
    build.args(["build", "--locked"]).args(what);
    let folder = match profile {
        Profile::Debug => "debug",
        Profile::Release => {
            build.arg("--release");
            "release"
        }
    };
    shell::run(&mut build)?;
    Ok(shell::target_dir(root).join(folder))
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

/// A job's last evaluation.
pub(crate) struct Results {
    pub(crate) job: String,
    metrics: std::collections::BTreeMap<String, f64>,
}

impl Results {
    /// Says each measure, `eval/loss` as `test loss`. One that is missing is an error.
    pub(crate) fn say(&self, names: &[&str]) -> anyhow::Result<()> {
        for name in names {
            let value = self.metrics.get(&format!("eval/{name}"));
            let value = value.with_context(|| format!("the job has no metric eval/{name}"))?;
            out::say(&format!("test {name} {value:.4}"));
        }
        Ok(())
    }
}
