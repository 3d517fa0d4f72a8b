//! Running other programs, and finding the repository.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use camino::{Utf8Path, Utf8PathBuf};

use crate::out;

/// The repository: the parent of this crate.
pub(crate) fn root() -> anyhow::Result<Utf8PathBuf> {
    Utf8Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .map(Utf8Path::to_owned)
        .context("xtask lies in a folder of the repository")
}

/// A setting from the environment: xtask's own config module.
#[expect(clippy::disallowed_methods, reason = "the one place where xtask reads its environment")]
pub(crate) fn setting(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Where builds of this project may keep what outlives a clone.
pub(crate) fn cache_dir() -> anyhow::Result<Utf8PathBuf> {
    let base = match setting("XDG_CACHE_HOME") {
        Some(dir) => Utf8PathBuf::from(dir),
        None => {
            Utf8PathBuf::from(setting("HOME").context("neither XDG_CACHE_HOME nor HOME is set")?)
                .join(".cache")
        }
    };
    Ok(base.join("lockstep"))
}

/// Where cargo puts what it builds.
pub(crate) fn target_dir(root: &Utf8Path) -> Utf8PathBuf {
    setting("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |dir| root.join(dir))
}

/// Runs a program to its end, its output on ours.
pub(crate) fn run(command: &mut Command) -> anyhow::Result<()> {
    let line = describe(command);
    out::note(&line);
    let status = command.status().with_context(|| format!("starting `{line}`"))?;
    if !status.success() {
        bail!("`{line}` ended with {status}");
    }
    Ok(())
}

/// Runs a program and returns its standard output.
pub(crate) fn read(command: &mut Command) -> anyhow::Result<String> {
    let line = describe(command);
    let output =
        command.stderr(Stdio::inherit()).output().with_context(|| format!("starting `{line}`"))?;
    if !output.status.success() {
        bail!("`{line}` ended with {}", output.status);
    }
    String::from_utf8(output.stdout).with_context(|| format!("the output of `{line}` is no text"))
}

/// Whether a program is on the path.
pub(crate) fn has(program: &str) -> bool {
    let paths = setting("PATH").unwrap_or_default();
    paths.split(':').any(|dir| Utf8Path::new(dir).join(program).is_file())
}

/// cargo, in the repository.
pub(crate) fn cargo(root: &Utf8Path) -> Command {
    let mut command = Command::new(setting("CARGO").unwrap_or_else(|| "cargo".to_owned()));
    command.current_dir(root);
    command
}

/// npm, in the web page's folder: the set-up's own if it had to install one.
pub(crate) fn npm(root: &Utf8Path, arguments: &[&str]) -> Command {
    let own = own_node().ok().filter(|bin| bin.join("npm").exists());
    let mut command = match own {
        None => Command::new("npm"),
        Some(bin) => {
            let mut command = Command::new(bin.join("npm"));
            // npm is a script, and so is what it runs: they look for `node` on the path.
            command.env("PATH", format!("{bin}:{}", setting("PATH").unwrap_or_default()));
            command
        }
    };
    command.current_dir(root.join("ui")).args(arguments);
    command
}

/// Programs of the Node.js that the set-up installs where the system's is too old.
pub(crate) fn own_node() -> anyhow::Result<Utf8PathBuf> {
    Ok(cache_dir()?.join("node/node_modules/.bin"))
}

fn describe(command: &Command) -> String {
    let mut line = command.get_program().to_string_lossy().into_owned();
    for argument in command.get_args() {
        line.push(' ');
        line.push_str(&argument.to_string_lossy());
    }
    line
}

/// A program that runs in the background and is stopped, with all it started, when this is dropped.
pub(crate) struct Background {
    child: Child,
    what: String,
}

/// How long a background program may take to stop before it is killed.
const STOP_GRACE: Duration = Duration::from_secs(40);

impl Background {
    /// Starts it.
    pub(crate) fn start(command: &mut Command) -> anyhow::Result<Self> {
        let what = describe(command);
        let child =
            command.stdin(Stdio::null()).spawn().with_context(|| format!("starting `{what}`"))?;
        Ok(Self { child, what })
    }

    /// Waits until `ready` answers something; fails if the program ends first or at the deadline.
    pub(crate) fn wait_until<T>(
        &mut self,
        deadline: Duration,
        mut ready: impl FnMut() -> Option<T>,
    ) -> anyhow::Result<T> {
        let start = Instant::now();
        loop {
            if let Some(found) = ready() {
                return Ok(found);
            }
            if let Some(status) = self.child.try_wait()? {
                bail!("`{}` ended with {status} before it was ready", self.what);
            }
            if deadline <= start.elapsed() {
                bail!("`{}` was not ready within {deadline:?}", self.what);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Leaves it running; answers its process id.
    pub(crate) fn keep(self) -> u32 {
        let pid = self.child.id();
        std::mem::forget(self);
        pid
    }

    /// Asks it to stop, waits, kills it if it does not.
    pub(crate) fn stop(&mut self) -> anyhow::Result<()> {
        if self.child.try_wait()?.is_some() {
            return Ok(());
        }
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::INT)?;
        let start = Instant::now();
        while start.elapsed() < STOP_GRACE {
            if self.child.try_wait()?.is_some() {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        self.child.kill()?;
        self.child.wait()?;
        bail!("`{}` did not stop within {STOP_GRACE:?} and was killed", self.what)
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        if let Err(error) = self.stop() {
            out::note(&format!("{error:#}"));
        }
    }
}
