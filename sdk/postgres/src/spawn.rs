//! The one place with `unsafe`: what a child does between fork and exec.
#![expect(
    unsafe_code,
    reason = "a death signal and a user namespace can only be set up between fork and exec"
)]

use std::ffi::CStr;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal};

use crate::identity::{Identity, User};

/// Makes a Postgres program run as `identity`, without the caller's settings, bound to the caller's life.
pub(crate) fn confine(command: &mut Command, identity: &Identity, death_signal: Signal) {
    command.current_dir("/").env_clear();
    for name in ["PATH", "TZ", "LD_LIBRARY_PATH"] {
        if let Some(value) = std::env::var_os(name) {
            command.env(name, value);
        }
    }
    let namespace = match identity {
        Identity::Caller(_) => None,
        Identity::Other(user) => {
            // With a uid and no groups named, std also drops the supplementary groups.
            command.uid(user.uid).gid(user.gid);
            None
        }
        Identity::Namespaced(user) => Some(NamespaceMaps::new(user)),
    };
    bind(command, namespace, death_signal);
}

/// Puts `command` apart from the caller's terminal and lets it get `death_signal` when the *thread* that spawns it
/// ends.
pub(crate) fn bind(command: &mut Command, namespace: Option<NamespaceMaps>, death_signal: Signal) {
    command.stdin(Stdio::null()).process_group(0);
    let parent = rustix::process::getpid();
    // SAFETY: `pre_exec` asks that the closure only does what is allowed between fork and exec in a program with
    // threads: `enter` and `die_with` make system calls on memory prepared before the fork, and neither allocate nor
    // take locks. std changes uid and gid before it calls the closure.
    unsafe {
        command.pre_exec(move || {
            if let Some(maps) = &namespace {
                maps.enter()?;
            }
            // After every change of credentials, which would clear it.
            die_with(parent, death_signal)
        });
    }
}

fn die_with(parent: Pid, signal: Signal) -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(signal))?;
    // The parent may have died before the line above.
    if rustix::process::getppid() == Some(parent) {
        Ok(())
    } else {
        Err(rustix::io::Errno::SRCH.into())
    }
}

/// The text of the map files, made before the fork.
pub(crate) struct NamespaceMaps {
    uid_map: String,
    gid_map: String,
}

impl NamespaceMaps {
    /// Maps `user` inside to the caller outside.
    fn new(user: &User) -> Self {
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        Self {
            uid_map: format!("{} {uid} 1\n", user.uid),
            gid_map: format!("{} {gid} 1\n", user.gid),
        }
    }

    fn enter(&self) -> io::Result<()> {
        // SAFETY: `unshare` takes no pointer. It asks for a process with one thread, which a child between fork and
        // exec is.
        if unsafe { libc::unshare(libc::CLONE_NEWUSER) } != 0 {
            return Err(io::Error::last_os_error());
        }
        write_file(c"/proc/self/setgroups", b"deny")?;
        write_file(c"/proc/self/uid_map", self.uid_map.as_bytes())?;
        write_file(c"/proc/self/gid_map", self.gid_map.as_bytes())
    }
}

fn write_file(path: &CStr, text: &[u8]) -> io::Result<()> {
    let file = rustix::fs::open(path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::io::write(&file, text)?;
    Ok(())
}
