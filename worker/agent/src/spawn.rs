//! Starting ranks so that none outlives the agent, whatever ends it.
//!
//! Every rank asks the kernel to be killed when its parent dies. For the kernel the parent is the *thread* that
//! forked, so all forks happen on one thread that lives as long as the agent. The same thread makes the groups'
//! memories, so that no other child can inherit a descriptor that is not yet marked. A descriptor that a rank shall have
//! loses its mark in that rank's process alone.

#![expect(
    unsafe_code,
    reason = "what a child does between fork and exec can only be said through pre_exec, which is unsafe"
)]

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::Stdio;
use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};
use lockstep_api::RANK_ENVIRONMENT;
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal};
use tokio::process::{Child, Command};
use tokio::sync::oneshot;

/// What to start.
#[derive(Debug)]
pub(crate) struct GangCommand {
    pub(crate) program: Utf8PathBuf,
    pub(crate) args: Vec<String>,
    /// Where they work.
    pub(crate) folder: Utf8PathBuf,
    /// One process each, in the order of ranks.
    pub(crate) members: Vec<Inherited>,
}

/// What one process has of a group, and no other does: it inherits it, or is handed it if it runs already.
#[derive(Debug)]
pub(crate) struct Inherited {
    /// Processes with the same number share a group memory.
    pub(crate) memory_index: usize,
    /// A listening socket, closed on exec. The agent's own copy goes once the process was started.
    pub(crate) listener: Option<OwnedFd>,
    /// Its control group, by the files into which it has to write before it runs. Closed on exec.
    pub(crate) entrances: Vec<OwnedFd>,
    /// Whether the process runs already.
    pub(crate) is_running: bool,
}

/// Processes of one group. Each is the leader of a process group of its own.
#[derive(Debug)]
pub(crate) struct Gang {
    /// In the order of ranks.
    pub(crate) members: Vec<Joined>,
}

/// A process and its group.
#[derive(Debug)]
pub(crate) enum Joined {
    /// It was started.
    Started {
        /// With standard input and standard error piped.
        child: Child,
        /// Its group memory's descriptor in it.
        group_fd: i32,
        /// Its listening socket's.
        listener_fd: Option<i32>,
    },
    /// It runs already, and is to be handed these.
    Running {
        /// Its group's memory.
        memory: Arc<OwnedFd>,
        /// Its listening socket.
        listener: Option<OwnedFd>,
    },
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
                drop(answer.send(start_gang(command)));
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

fn start_gang(wanted: GangCommand) -> io::Result<Gang> {
    let GangCommand { program, args, folder, members } = wanted;
    let mut memories: BTreeMap<usize, Arc<OwnedFd>> = BTreeMap::new();
    let mut started = Vec::with_capacity(members.len());
    for Inherited { memory_index, listener, entrances, is_running } in members {
        let memory = match memories.entry(memory_index) {
            Entry::Occupied(entry) => entry.get().clone(),
            Entry::Vacant(entry) => entry.insert(Arc::new(new_memory()?)).clone(),
        };
        if is_running {
            started.push(Joined::Running { memory, listener });
            continue;
        }
        let group_fd = memory.as_raw_fd();
        let listener_fd = listener.as_ref().map(|socket| socket.as_raw_fd());
        let mut command = Command::new(&program);
        command.args(&args).current_dir(&folder);
        let child = start_one(command, memory, (listener, entrances))?;
        started.push(Joined::Started { child, group_fd, listener_fd });
    }
    Ok(Gang { members: started })
}

/// Moves this process into the control groups with these entrances. What is safe between fork and exec is all it does.
fn enter_groups(entrances: &[OwnedFd]) -> io::Result<()> {
    for entrance in entrances {
        rustix::io::write(entrance, b"0")?;
    }
    Ok(())
}

/// Starts a program in a control group, as ranks are started, and waits for it.
///
/// # Errors
/// When it cannot be started there.
pub(crate) fn try_group(
    program: &Utf8Path,
    args: &[&str],
    entrances: Vec<OwnedFd>,
) -> io::Result<()> {
    let mut command = std::process::Command::new(program);
    command.args(args).env_clear().stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    // SAFETY: as in `start_one`; it writes to descriptors that are only read.
    unsafe {
        command.pre_exec(move || enter_groups(&entrances));
    }
    command.status().map(drop)
}

fn new_memory() -> io::Result<OwnedFd> {
    let memory = lockstep_shm::create_group_memory()?;
    fcntl_setfd(&memory, FdFlags::CLOEXEC)?;
    Ok(memory)
}

fn start_one(
    mut command: Command,
    memory: Arc<OwnedFd>,
    (listener, entrances): (Option<OwnedFd>, Vec<OwnedFd>),
) -> io::Result<Child> {
    command
        .env_clear()
        .envs(RANK_ENVIRONMENT)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true);
    let agent = getpid();
    // SAFETY: `pre_exec` requires that the closure does only what is safe between fork and exec in a program with
    // many threads: no allocation, no lock. It makes a few system calls (rustix issues them directly, without
    // libc) and builds errors from their numbers; the captured descriptors are only read.
    unsafe {
        command.pre_exec(move || {
            set_parent_process_death_signal(Some(Signal::KILL))?;
            // An agent that died before the line above is no longer there to send the signal.
            if getppid() != Some(agent) {
                return Err(rustix::io::Errno::SRCH.into());
            }
            enter_groups(&entrances)?;
            fcntl_setfd(&*memory, FdFlags::empty())?;
            if let Some(listener) = &listener {
                fcntl_setfd(listener, FdFlags::empty())?;
            }
            Ok(())
        });
    }
    command.spawn()
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::time::Duration;

    use rustix::process::Pid;

    use super::*;
    use crate::control_group::RankGroup;
    use crate::stat::process_state;
    use crate::tree::{Tree, living_members};

    const LIMIT: Duration = Duration::from_secs(20);

    fn shell(script: &str) -> GangCommand {
        GangCommand {
            program: "/bin/sh".into(),
            args: vec!["-c".to_owned(), script.to_owned()],
            folder: "/".into(),
            members: members(1),
        }
    }

    fn members(count: usize) -> Vec<Inherited> {
        let new = || Inherited {
            memory_index: 0,
            listener: None,
            entrances: Vec::new(),
            is_running: false,
        };
        (0..count).map(|_| new()).collect()
    }

    fn child(member: Joined) -> Child {
        match member {
            Joined::Started { child, .. } => child,
            Joined::Running { .. } => panic!("it was to be started"),
        }
    }

    /// Without a control group.
    fn tree(child: &Child) -> Tree {
        Tree::new(leader(child), RankGroup::default())
    }

    fn leader(child: &Child) -> Pid {
        Pid::from_raw(i32::try_from(child.id().unwrap()).unwrap()).unwrap()
    }

    async fn until_gone(pid: i32) {
        let gone = async {
            while !matches!(process_state(pid), None | Some('Z')) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(LIMIT, gone).await.unwrap_or_else(|_| panic!("{pid} still lives"));
    }

    /// The first line that a program writes, as a number.
    fn number(from: impl std::io::Read) -> i32 {
        let mut line = String::new();
        BufReader::new(from).read_line(&mut line).unwrap();
        line.trim().rsplit(' ').next().unwrap().parse().unwrap()
    }

    #[tokio::test]
    async fn killing_a_group_reaches_what_the_rank_started() {
        let spawner = Spawner::start().unwrap();
        let mut gang = spawner.gang(shell("sleep 1000 & echo $! >&2; wait")).await.unwrap();
        let mut child = child(gang.members.pop().unwrap());
        let stderr = child.stderr.take().unwrap().into_owned_fd().unwrap();
        let grandchild =
            tokio::task::spawn_blocking(|| number(std::fs::File::from(stderr))).await.unwrap();
        tree(&child).kill();
        child.wait().await.unwrap();
        until_gone(grandchild).await;
    }

    #[tokio::test]
    async fn what_a_rank_leaves_behind_is_gone_before_its_slot_is_free() {
        let spawner = Spawner::start().unwrap();
        // Deaf to everything but the last signal, and not the rank's own end.
        let script =
            "sh -c 'trap \"\" TERM HUP; echo $$ >&2; sleep 1000; sleep 1000' & read line; exit 0";
        let mut gang = spawner.gang(shell(script)).await.unwrap();
        let mut child = child(gang.members.pop().unwrap());
        let (tree, leader) = (tree(&child), leader(&child));
        let stderr = child.stderr.take().unwrap().into_owned_fd().unwrap();
        let left =
            tokio::task::spawn_blocking(|| number(std::fs::File::from(stderr))).await.unwrap();
        drop(child.stdin.take());
        child.wait().await.unwrap();
        assert!(living_members(leader).contains(&left));
        tokio::time::timeout(LIMIT, tree.end(|left| panic!("{left} does not die"))).await.unwrap();
        assert_eq!(living_members(leader), [0; 0]);
        assert!(matches!(process_state(left), None | Some('Z')));
    }

    #[tokio::test]
    async fn a_program_that_is_not_there_is_an_error_that_stops_nothing() {
        let spawner = Spawner::start().unwrap();
        let command = GangCommand { program: "/no/such/program".into(), ..shell("") };
        assert_eq!(spawner.gang(command).await.unwrap_err().kind(), io::ErrorKind::NotFound);
        let three = GangCommand { members: members(3), ..shell("exit 7") };
        let mut gang = spawner.gang(three).await.unwrap();
        for member in gang.members.drain(..) {
            assert_eq!(child(member).wait().await.unwrap().code(), Some(7));
        }
    }

    #[tokio::test]
    async fn a_rank_dies_with_an_agent_that_is_killed() {
        let mut agent = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "spawn::tests::acts_as_an_agent", "--ignored", "--nocapture"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        writeln!(agent.stdin.take().unwrap(), "go").unwrap();
        let rank = number(agent.stderr.take().unwrap());
        assert!(process_state(rank).is_some());
        agent.kill().unwrap();
        agent.wait().unwrap();
        until_gone(rank).await;
    }

    /// Not a test: starts a rank, says its number, and waits to be killed. Passes when nobody says "go".
    #[tokio::test]
    #[ignore = "is started by another test as an agent"]
    async fn acts_as_an_agent() {
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).unwrap();
        if line.trim() == "go" {
            let gang = Spawner::start().unwrap().gang(shell("exec sleep 1000")).await.unwrap();
            let child = child(gang.members.into_iter().next().unwrap());
            writeln!(std::io::stderr(), "{}", child.id().unwrap()).unwrap();
            std::future::pending::<()>().await;
        }
    }
}
