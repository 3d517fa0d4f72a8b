//! Child processes that do not outlive us.

use std::os::unix::net::UnixStream;
use std::process::{Command, ExitStatus};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::Signal;

use crate::process::Process;
use crate::spawn::bind;

/// A child that gets a signal when this process ends, however it ends. Dropping it kills it.
#[derive(Debug)]
pub struct OwnedProcess {
    process: Process,
    /// The thread that started the child: the death signal is bound to it, so it lives until the child is gone.
    keeper: Option<JoinHandle<std::io::Result<ExitStatus>>>,
    /// The keeper holds the other end and lets go of it when the child is gone.
    exited: UnixStream,
}

impl OwnedProcess {
    /// Starts `command` in a process group of its own, without standard input; it gets `death_signal` when we end.
    ///
    /// # Errors
    /// Of the system.
    pub fn spawn(mut command: Command, death_signal: Signal) -> std::io::Result<Self> {
        bind(&mut command, None, death_signal);
        Self::keep(command)
    }

    /// Starts a command that was bound before, on a thread of its own.
    pub(crate) fn keep(mut command: Command) -> std::io::Result<Self> {
        let (sender, receiver) = mpsc::sync_channel(1);
        let (exited, lifeline) = UnixStream::pair()?;
        let name = "child-keeper".to_owned();
        let keeper = std::thread::Builder::new().name(name).spawn(move || {
            let mut child = match command.spawn() {
                Ok(child) => child,
                Err(error) => {
                    // Read by `recv` below, which waits for it.
                    drop(sender.send(Err(std::io::Error::from(error.kind()))));
                    return Err(error);
                }
            };
            // Not reaped before `wait` below, so the number cannot have been used again.
            let process = i32::try_from(child.id()).ok().and_then(Process::open);
            drop(
                sender.send(process.ok_or_else(|| std::io::Error::other("no pidfd for the child"))),
            );
            let status = child.wait();
            drop(lifeline);
            status
        })?;
        match receiver.recv().map_err(std::io::Error::other)? {
            Ok(process) => Ok(Self { process, keeper: Some(keeper), exited }),
            Err(error) => match keeper.join() {
                Ok(Err(precise)) => Err(precise),
                Ok(Ok(_)) | Err(_) => Err(error),
            },
        }
    }

    /// The child, for signals and waits.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Its number.
    pub fn pid(&self) -> i32 {
        self.process.pid()
    }

    /// A stream that nothing is ever written to: it ends (and so becomes readable) when the child is gone. Does not
    /// block; for waiting along with other things.
    ///
    /// # Errors
    /// Of the system.
    pub fn exit_signal(&self) -> std::io::Result<UnixStream> {
        let exited = self.exited.try_clone()?;
        exited.set_nonblocking(true)?;
        Ok(exited)
    }

    /// Waits for the child's end; `None` when `timeout` passes first.
    ///
    /// # Errors
    /// Of the system, and when it was waited for before.
    pub fn wait(&mut self, timeout: Duration) -> std::io::Result<Option<ExitStatus>> {
        if !self.process.wait_gone(timeout) {
            return Ok(None);
        }
        let keeper = self.keeper.take();
        let keeper = keeper.ok_or_else(|| std::io::Error::other("it was waited for before"))?;
        keeper.join().map_err(|_| std::io::Error::other("the child's keeper panicked"))?.map(Some)
    }
}

impl Drop for OwnedProcess {
    fn drop(&mut self) {
        if self.keeper.is_some() {
            self.process.signal(Signal::KILL);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    /// Longest wait for what takes milliseconds.
    const PATIENCE: Duration = Duration::from_secs(20);

    #[test]
    fn a_child_is_waited_for_with_its_status_and_a_program_that_is_not_there_is_named_so() {
        let mut command = Command::new("sh");
        command.args(["-c", "exit 7"]);
        let mut child = OwnedProcess::spawn(command, Signal::KILL).unwrap();
        let mut exited = child.exit_signal().unwrap();
        exited.set_nonblocking(false).unwrap();
        assert_eq!(exited.read(&mut [0]).unwrap(), 0);
        assert_eq!(child.wait(PATIENCE).unwrap().unwrap().code(), Some(7));
        let error =
            OwnedProcess::spawn(Command::new("/no/such/program"), Signal::KILL).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
    }

    #[test]
    fn a_dropped_child_is_killed() {
        let mut command = Command::new("sleep");
        command.arg("1000");
        let child = OwnedProcess::spawn(command, Signal::KILL).unwrap();
        let watch = Process::open(child.pid()).unwrap();
        drop(child);
        assert!(watch.wait_gone(PATIENCE));
    }
}
