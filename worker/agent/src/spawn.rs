//! Starting ranks so that none outlives the agent, whatever ends it.
//!
//! Every rank asks the kernel to be killed when its parent dies. For the kernel the parent is the *thread* that
//! forked, so all forks happen on one thread that lives as long as the agent. The same thread makes the group's
//! memory, so that no other child can inherit a descriptor that is not yet marked.

#![expect(
    unsafe_code,
    reason = "what a child does between fork and exec can only be said through pre_exec, which is unsafe"
)]

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::process::Stdio;
use std::sync::Arc;

use camino::Utf8PathBuf;
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Pid, Signal, getpid, getppid, set_parent_process_death_signal};
use tokio::process::{Child, Command};
use tokio::sync::oneshot;

/// What to start.
#[derive(Debug, Clone)]
pub(crate) struct GangCommand {
    pub(crate) program: Utf8PathBuf,
    pub(crate) args: Vec<String>,
    /// Where they work.
    pub(crate) folder: Utf8PathBuf,
    /// How many.
    pub(crate) count: usize,
}

/// Processes that share one group memory. Each is the leader of a process group of its own.
#[derive(Debug)]
pub(crate) struct Gang {
    /// In the order of ranks, with standard input and standard error piped.
    pub(crate) children: Vec<Child>,
    /// The group memory's descriptor, the same number in every child.
    pub(crate) group_fd: i32,
}

struct Request {
    command: GangCommand,
    answer: oneshot::Sender<io::Result<Gang>>,
}

/// The thread that forks.
#[derive(Debug, Clone)]
pub(crate) struct Spawner {
    requests: std::sync::mpsc::Sender<Request>,
}

impl Spawner {
    /// Starts the thread. Must be called within the runtime that will wait for the children.
    pub(crate) fn start() -> io::Result<Self> {
        let (requests, inbox) = std::sync::mpsc::channel::<Request>();
        let runtime = tokio::runtime::Handle::current();
        std::thread::Builder::new().name("spawner".to_owned()).spawn(move || {
            let _inside = runtime.enter();
            for Request { command, answer } in inbox {
                // The asker may be gone: dropping the gang kills it.
                drop(answer.send(start_gang(&command)));
            }
            // The senders are gone, so the agent is ending; its children must not die of this thread's end
            // before the agent has reaped them.
            std::thread::park();
        })?;
        Ok(Self { requests })
    }

    /// Starts the processes.
    ///
    /// # Errors
    /// When one of them cannot be started; the others are killed.
    pub(crate) async fn gang(&self, command: GangCommand) -> io::Result<Gang> {
        let (answer, started) = oneshot::channel();
        let gone = || io::Error::other("the thread that starts processes is gone");
        self.requests.send(Request { command, answer }).map_err(|_| gone())?;
        started.await.map_err(|_| gone())?
    }
}

fn start_gang(wanted: &GangCommand) -> io::Result<Gang> {
    let memory = lockstep_shm::create_group_memory()?;
    fcntl_setfd(&memory, FdFlags::CLOEXEC)?;
    let group_fd = memory.as_raw_fd();
    let memory = Arc::new(memory);
    let children: io::Result<Vec<Child>> =
        (0..wanted.count).map(|_| start_one(wanted, memory.clone())).collect();
    Ok(Gang { children: children?, group_fd })
}

fn start_one(wanted: &GangCommand, memory: Arc<OwnedFd>) -> io::Result<Child> {
    let mut command = Command::new(&wanted.program);
    command
        .args(&wanted.args)
        .current_dir(&wanted.folder)
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true);
    let agent = getpid();
    // SAFETY: `pre_exec` requires that the closure does only what is safe between fork and exec in a program with
    // many threads: no allocation, no lock. It makes three system calls (rustix issues them directly, without
    // libc) and builds errors from their numbers; the captured `Arc` is only read.
    unsafe {
        command.pre_exec(move || {
            set_parent_process_death_signal(Some(Signal::KILL))?;
            // An agent that died before the line above is no longer there to send the signal.
            if getppid() != Some(agent) {
                return Err(rustix::io::Errno::SRCH.into());
            }
            fcntl_setfd(&*memory, FdFlags::empty())?;
            Ok(())
        });
    }
    command.spawn()
}

/// Kills every process of a rank's group. One that is gone already is fine.
pub(crate) fn kill_group(leader: Pid) {
    match rustix::process::kill_process_group(leader, Signal::KILL) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => {}
        Err(error) => tracing::error!(pid = leader.as_raw_pid(), %error, "cannot kill a rank"),
    }
}
