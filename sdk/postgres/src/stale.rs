//! What an owner that died left behind. Called with the folder's lock held, so nobody alive claims any of it.

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use camino::Utf8Path;
use rustix::process::Signal;

use crate::PostgresError;
use crate::error::IoContext as _;
use crate::process::{IMMEDIATE_STOP, Process};
use crate::socket::SOCKET_FILE;

/// How long the children of a dead postmaster may take to leave before they are killed.
const ORPHAN_STOP: Duration = Duration::from_secs(2);
/// Begins the name of a cluster that is still being made.
pub(crate) const UNFINISHED: &str = "data.new-";

/// Removes half-made clusters.
pub(crate) fn remove_unfinished(folder: &Utf8Path) -> Result<(), PostgresError> {
    for entry in folder.read_dir_utf8().doing("list", folder)?.flatten() {
        if entry.file_name().starts_with(UNFINISHED) {
            std::fs::remove_dir_all(entry.path()).doing("remove", entry.path())?;
        }
    }
    Ok(())
}

/// Ends processes that still run on `data` and removes the files that would refuse a new one.
///
/// A server that lost its owner is stopped rather than adopted: it is shutting down already (its death signal), and
/// one that is not would outlive us.
pub(crate) fn clear(data: &Utf8Path, socket_dir: &Utf8Path) -> Result<(), PostgresError> {
    let pid_file = data.join("postmaster.pid");
    let Some(text) = read_optional(&pid_file)? else { return remove_sockets(socket_dir) };
    let pid = text.lines().next().and_then(|line| line.trim().parse().ok());
    if let Some(postmaster) = pid.and_then(Process::open).filter(|found| runs_on(found.pid(), data))
    {
        tracing::info!(pid = postmaster.pid(), "stopping a postgres whose owner is gone");
        postmaster.stop_postgres()?;
    }
    end_backends(data)?;
    for path in [&pid_file, &data.join("postmaster.opts")] {
        remove_optional(path)?;
    }
    remove_sockets(socket_dir)
}

/// Children of a postmaster that was killed: they leave by themselves when idle, and hold its shared memory until
/// they do, which refuses the next start.
fn end_backends(data: &Utf8Path) -> Result<(), PostgresError> {
    let entries = Utf8Path::new("/proc").read_dir_utf8().doing("list", "/proc".into())?;
    let backends: Vec<Process> = entries
        .flatten()
        .filter_map(|entry| Process::open(entry.file_name().parse().ok()?))
        .filter(|found| runs_on(found.pid(), data))
        .collect();
    for (signal, patience) in [(Signal::QUIT, ORPHAN_STOP), (Signal::KILL, IMMEDIATE_STOP)] {
        let deadline = Instant::now() + patience;
        backends.iter().for_each(|backend| backend.signal(signal));
        let is_gone = |backend: &Process| {
            backend.wait_gone(deadline.saturating_duration_since(Instant::now()))
        };
        // Each is waited for, whatever became of the one before.
        if backends.iter().filter(|backend| !is_gone(backend)).count() == 0 {
            return Ok(());
        }
    }
    let pid = backends.iter().find(|backend| !backend.wait_gone(Duration::ZERO)).map(Process::pid);
    pid.map_or(Ok(()), |pid| Err(PostgresError::StillRunning { pid }))
}

/// Whether `pid` is a postgres at work in `data`, so that a number used again by something else is left alone.
fn runs_on(pid: i32, data: &Utf8Path) -> bool {
    let proc = Utf8Path::new("/proc").join(pid.to_string());
    let is_postgres = std::fs::read_link(proc.join("exe")).is_ok_and(|exe| {
        // A program that was upgraded meanwhile reads `…/postgres (deleted)`.
        exe.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"postgres"))
    });
    is_postgres && std::fs::read_link(proc.join("cwd")).is_ok_and(|cwd| cwd == data.as_std_path())
}

pub(crate) fn remove_sockets(socket_dir: &Utf8Path) -> Result<(), PostgresError> {
    remove_optional(&socket_dir.join(SOCKET_FILE))?;
    remove_optional(&socket_dir.join(format!("{SOCKET_FILE}.lock")))
}

fn read_optional(path: &Utf8Path) -> Result<Option<String>, PostgresError> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).doing("read", path),
    }
}

fn remove_optional(path: &Utf8Path) -> Result<(), PostgresError> {
    match std::fs::remove_file(path) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error).doing("remove", path),
    }
}
