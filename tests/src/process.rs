//! Programs under test: found beside the test's own binary, started, killed, waited for.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use camino::{Utf8Path, Utf8PathBuf};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};

/// The repository.
///
/// # Panics
/// Never: this crate lies in a folder of it.
pub fn repository() -> &'static Utf8Path {
    Utf8Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("this crate lies in a folder of the repository")
}

/// The folder that holds `lockstep` and its fellows: where cargo put this program.
///
/// # Errors
/// When they are not there.
pub fn programs() -> anyhow::Result<Utf8PathBuf> {
    let own = Utf8PathBuf::try_from(std::env::current_exe()?)?;
    let folder = own.ancestors().find(|folder| folder.join("lockstep-server").is_file());
    folder
        .map(Utf8Path::to_owned)
        .context("lockstep-server is not built; run `cargo build --workspace --bins`")
}

/// A running program. Killed when dropped.
#[derive(Debug)]
pub struct Process {
    child: Child,
    what: String,
}

impl Process {
    /// Starts it; its standard error goes to `log`, appended.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(command: &mut Command, log: &Utf8Path) -> anyhow::Result<Self> {
        let what = command.get_program().to_string_lossy().into_owned();
        let log = std::fs::OpenOptions::new().create(true).append(true).open(log)?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let child = command.spawn().with_context(|| format!("starting {what}"))?;
        Ok(Self { child, what })
    }

    /// Its process id.
    pub fn pid(&self) -> i32 {
        Pid::from_child(&self.child).as_raw_pid()
    }

    /// Whether it is over.
    ///
    /// # Errors
    /// Of the system.
    pub fn has_ended(&mut self) -> anyhow::Result<bool> {
        Ok(self.child.try_wait()?.is_some())
    }

    /// SIGKILL, and gone.
    ///
    /// # Errors
    /// Of the system.
    pub fn kill_now(&mut self) -> anyhow::Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// SIGINT, then waits.
    ///
    /// # Errors
    /// When it is still there at the deadline.
    pub fn interrupt(&mut self, deadline: Duration) -> anyhow::Result<std::process::ExitStatus> {
        if self.child.try_wait()?.is_none() {
            kill_process(Pid::from_child(&self.child), Signal::INT)?;
        }
        self.wait(deadline)
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// When it is still there at the deadline.
    pub fn wait(&mut self, deadline: Duration) -> anyhow::Result<std::process::ExitStatus> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            if deadline <= start.elapsed() {
                bail!("{} is still there after {deadline:?}", self.what);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // A test that failed is over; what is left of it must not outlive it.
        if let Ok(None) = self.child.try_wait()
            && self.child.kill().is_ok()
            && let Err(error) = self.child.wait()
        {
            tell(&format!("{}: {error}", self.what));
        }
    }
}

#[expect(clippy::print_stderr, reason = "a test's own words")]
pub(crate) fn tell(line: &str) {
    eprintln!("{line}");
}

/// Whether a process is there (a zombie is not).
pub fn is_running(pid: i32) -> bool {
    let is_there = Pid::from_raw(pid).is_some_and(|pid| test_kill_process(pid).is_ok());
    let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    is_there && !state.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z'))
}

/// SIGSTOP to any process.
///
/// # Errors
/// When there is none.
pub fn freeze(pid: i32) -> anyhow::Result<()> {
    let pid = Pid::from_raw(pid).context("a process id is above 0")?;
    Ok(kill_process(pid, Signal::STOP)?)
}

/// SIGKILL to any process.
///
/// # Errors
/// When there is none.
pub fn kill_now(pid: i32) -> anyhow::Result<()> {
    let pid = Pid::from_raw(pid).context("a process id is above 0")?;
    Ok(kill_process(pid, Signal::KILL)?)
}
