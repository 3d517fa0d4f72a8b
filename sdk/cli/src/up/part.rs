//! One program that `up` keeps running: its command, its log, its end.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::net::UnixStream;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use camino::{Utf8Path, Utf8PathBuf};
use lockstep_postgres::{OwnedProcess, Process};
use rustix::process::Signal;

use crate::out::Out;
use crate::up::folder::{Folder, remove, replace_private};

/// A log longer than this is set aside at the next start, bytes.
const LOG_CAP: u64 = 16 << 20;
/// How much of a log's end is read for an error, bytes, and how many lines of it are repeated.
const LOG_TAIL: u64 = 16 << 10;
const LOG_TAIL_LINES: usize = 6;
/// How many errors of one look are shown. What is wrong with one request is wrong with the next.
const ERRORS_SHOWN: usize = 3;
/// How much of a log is read at once for errors to show, bytes. What comes faster is only in the file.
const LOG_LOOK_CAP: u64 = 64 << 10;
/// How often a log is looked at for errors.
const LOG_LOOK: Duration = Duration::from_secs(1);
/// A part that lived so long and then ended counts as a first failure.
const SETTLED: Duration = Duration::from_secs(60);
/// Wait before the first restart; doubles with each further one.
const FIRST_DELAY: Duration = Duration::from_millis(200);
const MAX_DELAY: Duration = Duration::from_secs(10);
/// How long a part of an `up` that was killed may take to leave.
const STALE_STOP: Duration = Duration::from_secs(5);

/// A program and how to start it.
#[derive(Debug)]
pub(crate) struct Part {
    name: &'static str,
    program: Utf8PathBuf,
    /// Arguments; may be changed between two starts.
    pub(crate) arguments: Vec<String>,
    environment: Vec<(&'static str, String)>,
    /// What it gets when we are gone.
    death_signal: Signal,
    log: Utf8PathBuf,
    pid_file: Utf8PathBuf,
    process: Option<OwnedProcess>,
    looked_until: u64,
}

impl Part {
    /// Not started yet. `name` is also that of its log.
    pub(crate) fn new(
        name: &'static str,
        program: Utf8PathBuf,
        death_signal: Signal,
        folder: &Folder,
    ) -> Self {
        Self {
            name,
            program,
            arguments: Vec::new(),
            environment: Vec::new(),
            death_signal,
            log: folder.logs().join(format!("{name}.log")),
            pid_file: folder.path().join(format!("{name}.pid")),
            process: None,
            looked_until: 0,
        }
    }

    /// Sets a variable: for what the list of processes must not show.
    pub(crate) fn environment(mut self, name: &'static str, value: String) -> Self {
        self.environment.push((name, value));
        self
    }

    /// Ends the process that an `up` that was killed may have left.
    pub(crate) async fn end_stale(&self, folder: &Utf8Path) -> anyhow::Result<()> {
        let Ok(text) = std::fs::read_to_string(&self.pid_file) else { return Ok(()) };
        let stale = text.trim().parse().ok().and_then(Process::open);
        let stale = stale.filter(|found| is_ours(found.pid(), &self.program, folder));
        if let Some(stale) = stale {
            let end = move || {
                [Signal::TERM, Signal::KILL].into_iter().any(|signal| {
                    stale.signal(signal);
                    stale.wait_gone(STALE_STOP)
                })
            };
            let is_gone = tokio::task::spawn_blocking(end).await?;
            anyhow::ensure!(
                is_gone,
                "{} of an earlier start (pid {}) does not end",
                self.name,
                text.trim()
            );
        }
        remove(&self.pid_file)
    }

    /// Starts it.
    pub(crate) fn start(&mut self) -> anyhow::Result<()> {
        let log = self.open_log()?;
        let mut command = Command::new(&self.program);
        command
            .args(&self.arguments)
            .envs(self.environment.iter().map(|(name, value)| (name, value)));
        // Errors are for people; a panic still shows its own backtrace when asked to.
        command.env("RUST_LIB_BACKTRACE", "0").stdout(Stdio::null()).stderr(log);
        let process = OwnedProcess::spawn(command, self.death_signal);
        let process = process.with_context(|| format!("starting {}", self.program))?;
        replace_private(&self.pid_file, &format!("{}\n", process.pid()))?;
        self.process = Some(process);
        Ok(())
    }

    fn open_log(&mut self) -> anyhow::Result<File> {
        let path = &self.log;
        if path.metadata().is_ok_and(|meta| LOG_CAP < meta.len()) {
            std::fs::rename(path, format!("{path}.1"))
                .with_context(|| format!("setting {path} aside"))?;
        }
        let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path);
        let file = file.with_context(|| format!("opening {path}"))?;
        self.looked_until = file.metadata().with_context(|| format!("opening {path}"))?.len();
        Ok(file)
    }

    /// Waits until it is gone, showing the errors it logs meanwhile. For ever, if it was not started.
    pub(crate) async fn exited(&mut self, out: Out) -> anyhow::Result<()> {
        let Some(process) = &self.process else { return std::future::pending().await };
        let mut looks = tokio::time::interval(LOG_LOOK);
        let gone = gone(process.exit_signal());
        tokio::pin!(gone);
        loop {
            tokio::select! {
                outcome = &mut gone => return outcome,
                _ = looks.tick() => {
                    self.looked_until = show_errors(self.name, &self.log, self.looked_until, out);
                }
            }
        }
    }

    /// The error for a part that ended before it was ready, with the end of its log.
    pub(crate) fn ended_early(&mut self) -> anyhow::Error {
        let status = self.reap();
        anyhow::anyhow!(
            "{} ended before it was ready ({status}); the end of {}:\n{}",
            self.name,
            self.log,
            self.tail()
        )
    }

    /// How it ended. Call once it is gone.
    pub(crate) fn reap(&mut self) -> String {
        let status = self.process.take().map(|mut process| process.wait(STALE_STOP));
        match status {
            Some(Ok(Some(status))) => describe(status),
            Some(Err(error)) => error.to_string(),
            Some(Ok(None)) | None => "no status".to_owned(),
        }
    }

    fn tail(&self) -> String {
        let from = self.log.metadata().map_or(0, |meta| meta.len().saturating_sub(LOG_TAIL));
        let text = read_from(&self.log, from).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(LOG_TAIL_LINES)..].join("\n")
    }

    /// Waits for its end, says so, and waits the time before it should be started again.
    pub(crate) async fn wait_for_restart(
        &mut self,
        backoff: &mut Backoff,
        out: Out,
    ) -> anyhow::Result<()> {
        let since = Instant::now();
        self.exited(out).await?;
        let status = self.reap();
        let delay = backoff.after(since.elapsed());
        let (name, tail) = (self.name, self.tail());
        out.note(&format!(
            "{name} ended ({status}); starting it again in {delay:?}; the end of {}:\n{tail}",
            self.log
        ));
        tokio::time::sleep(delay).await;
        Ok(())
    }

    /// SIGTERM, and SIGKILL when `grace` has passed or `hurry` ends.
    pub(crate) async fn stop(
        &mut self,
        grace: Duration,
        hurry: impl Future<Output = ()>,
        out: Out,
    ) {
        if let Some(mut process) = self.process.take() {
            process.process().signal(Signal::TERM);
            let is_gone = tokio::select! {
                outcome = gone(process.exit_signal()) => outcome.is_ok(),
                () = hurry => false,
                () = tokio::time::sleep(grace) => false,
            };
            if !is_gone {
                out.note(&format!("{} does not end by itself; killing it", self.name));
                process.process().signal(Signal::KILL);
            }
            if let Err(error) = process.wait(STALE_STOP) {
                out.note(&format!("waiting for {}: {error}", self.name));
            }
        }
        if let Err(error) = remove(&self.pid_file) {
            out.error(&error);
        }
    }
}

/// Whether the process with that number is `program` at work on `folder`, and not a stranger with a used number.
fn is_ours(pid: i32, program: &Utf8Path, folder: &Utf8Path) -> bool {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let line = String::from_utf8_lossy(&line);
    let names_program = program
        .file_name()
        .is_some_and(|name| line.split('\0').next().is_some_and(|it| it.ends_with(name)));
    names_program && line.contains(folder.as_str())
}

/// Waits for the end of an exit signal.
pub(crate) async fn gone(exit_signal: std::io::Result<UnixStream>) -> anyhow::Result<()> {
    let readable = async { tokio::net::UnixStream::from_std(exit_signal?)?.readable().await };
    readable.await.context("watching a process")
}

fn describe(status: ExitStatus) -> String {
    // `exit status: 1`, `signal: 9 (SIGKILL)`
    status.to_string()
}

fn read_from(path: &Utf8Path, from: u64) -> std::io::Result<String> {
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(from))?;
    let mut bytes = Vec::new();
    file.take(LOG_LOOK_CAP).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Shows the lines of level ERROR after `from`; answers up to where the log was read.
fn show_errors(name: &str, log: &Utf8Path, from: u64, out: Out) -> u64 {
    let Ok(length) = log.metadata().map(|meta| meta.len()) else { return from };
    if length <= from {
        return length;
    }
    let text = read_from(log, from.max(length.saturating_sub(LOG_LOOK_CAP))).unwrap_or_default();
    // A line that is still being written waits for the next look.
    let Some(end) = text.rfind('\n') else { return from };
    let errors: Vec<&str> = text[..end].lines().filter(|line| line.contains(" ERROR ")).collect();
    for line in errors.iter().take(ERRORS_SHOWN) {
        out.note(&format!("{name}: {line}"));
    }
    if ERRORS_SHOWN < errors.len() {
        out.note(&format!("{name}: {} more errors are in {log}", errors.len() - ERRORS_SHOWN));
    }
    length - (text.len() - end - 1) as u64
}

/// Waits that double as long as a part keeps ending soon.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    failures: u32,
}

impl Backoff {
    /// How long to wait after a life of `lived`.
    pub(crate) fn after(&mut self, lived: Duration) -> Duration {
        if SETTLED <= lived {
            self.failures = 0;
        }
        let delay = FIRST_DELAY.saturating_mul(1 << self.failures.min(10)).min(MAX_DELAY);
        self.failures += 1;
        delay
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_a_cap_and_a_long_life_forgives() {
        let mut backoff = Backoff::default();
        let short = Duration::from_secs(1);
        let waits: Vec<u128> = (0..8).map(|_| backoff.after(short).as_millis()).collect();
        assert_eq!(waits, [200, 400, 800, 1600, 3200, 6400, 10_000, 10_000]);
        assert_eq!(backoff.after(SETTLED), FIRST_DELAY);
    }

    #[test]
    fn only_whole_error_lines_are_shown_and_each_is_read_once() {
        let dir = tempfile::tempdir().unwrap();
        let log = Utf8PathBuf::try_from(dir.path().join("log")).unwrap();
        let out = Out::new(false);
        std::fs::write(&log, "a INFO x\nb ERROR y\nc ERR").unwrap();
        let until = show_errors("server", &log, 0, out);
        assert_eq!(until, "a INFO x\nb ERROR y\n".len() as u64);
        std::fs::write(&log, "short\n").unwrap();
        assert_eq!(
            show_errors("server", &log, until, out),
            6,
            "a log that was set aside starts anew"
        );
    }
}
