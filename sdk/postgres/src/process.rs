//! Processes by pidfd: a number that is used again cannot be mistaken for the process that had it.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::PostgresError;

/// How long a fast shutdown (SIGINT) may take before SIGQUIT.
pub(crate) const FAST_STOP: Duration = Duration::from_secs(20);
/// How long an immediate shutdown (SIGQUIT), and then a kill, may take.
pub(crate) const IMMEDIATE_STOP: Duration = Duration::from_secs(6);

/// A process, ours or not.
#[derive(Debug)]
pub struct Process {
    pid: Pid,
    fd: OwnedFd,
}

impl Process {
    /// `None` when there is no such process.
    pub fn open(pid: i32) -> Option<Self> {
        let pid = Pid::from_raw(pid)?;
        Some(Self { pid, fd: pidfd_open(pid, PidfdFlags::empty()).ok()? })
    }

    /// Its number.
    pub fn pid(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    /// Waits until it is gone; false when `timeout` passes first.
    pub fn wait_gone(&self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let left = Timespec::try_from(left).unwrap_or(Timespec { tv_sec: 60, tv_nsec: 0 });
            match poll(&mut [PollFd::new(&self.fd, PollFlags::IN)], Some(&left)) {
                Ok(0) => return false,
                Err(Errno::INTR) => {}
                Ok(_) => return true,
                Err(error) => {
                    tracing::warn!(pid = self.pid(), %error, "waiting for a process failed");
                    return false;
                }
            }
        }
    }

    /// Sends a signal; one that is gone already is fine.
    pub fn signal(&self, signal: Signal) {
        match pidfd_send_signal(&self.fd, signal) {
            Ok(()) | Err(Errno::SRCH) => {}
            Err(error) => {
                tracing::warn!(pid = self.pid(), ?signal, %error, "a signal was not sent")
            }
        }
    }

    /// Postgres's own ladder: fast, immediate, and the kernel's.
    pub(crate) fn stop_postgres(&self) -> Result<(), PostgresError> {
        for (signal, patience) in [
            (Signal::INT, FAST_STOP),
            (Signal::QUIT, IMMEDIATE_STOP),
            (Signal::KILL, IMMEDIATE_STOP),
        ] {
            self.signal(signal);
            if self.wait_gone(patience) {
                return Ok(());
            }
            tracing::warn!(pid = self.pid(), ?signal, ?patience, "postgres has not gone");
        }
        Err(PostgresError::StillRunning { pid: self.pid() })
    }
}
