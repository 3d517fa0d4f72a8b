//! One control group: a folder of the kernel's, whose files differ between its two versions.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;

use camino::{Utf8Path, Utf8PathBuf};
use rustix::process::{Pid, Signal, kill_process};

/// Which files a group has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Version 1, the hierarchy of memory: whoever is in it is killed one by one.
    MemoryV1,
    /// Version 2, with memory.
    MemoryV2,
    /// Version 2 beside a hierarchy of version 1 that has the memory, or without one.
    TreeV2,
}

/// What the kernel calls the same things in either version.
struct MemoryFiles {
    limit: &'static str,
    swap: &'static str,
    /// Keys of `memory.stat`: what no reclaim gives back, where the kernel would kill for a lower limit instead of refusing it.
    held: &'static [&'static str],
    /// How often the limit was met: file and, if it has lines, key.
    met: (&'static str, Option<&'static str>),
    /// How many processes of the group itself were killed for want of memory.
    killed: (&'static str, Option<&'static str>),
}

const V1: MemoryFiles = MemoryFiles {
    limit: "memory.limit_in_bytes",
    swap: "memory.swappiness",
    held: &[],
    met: ("memory.failcnt", None),
    killed: ("memory.oom_control", Some("oom_kill")),
};
const V2: MemoryFiles = MemoryFiles {
    limit: "memory.max",
    swap: "memory.swap.max",
    held: &["anon", "shmem"],
    met: ("memory.events", Some("oom")),
    killed: ("memory.events", Some("oom_kill")),
};

/// A group, and those that were made in it.
#[derive(Debug, Clone)]
pub(super) struct Folder {
    pub(super) kind: Kind,
    pub(super) path: Utf8PathBuf,
}

impl Folder {
    pub(super) fn new(kind: Kind, path: Utf8PathBuf) -> Self {
        Self { kind, path }
    }

    /// A group in this one. Makes nothing.
    pub(super) fn child(&self, name: &str) -> Self {
        Self::new(self.kind, self.path.join(name))
    }

    /// Makes it. One that is there is fine.
    pub(super) fn make(&self) -> io::Result<()> {
        match std::fs::create_dir(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            other => other,
        }
    }

    /// Lets it limit what its own groups use.
    pub(super) fn pass_memory_on(&self) -> io::Result<()> {
        write(&self.path.join("cgroup.subtree_control"), "+memory")
    }

    /// Whoever writes `0` there is in the group.
    pub(super) fn entrance(&self) -> io::Result<OwnedFd> {
        OpenOptions::new().write(true).open(self.path.join("cgroup.procs")).map(OwnedFd::from)
    }

    /// Who is in it or in a group below.
    pub(super) fn processes(&self) -> Vec<i32> {
        let in_one = |path: Utf8PathBuf| read(&path.join("cgroup.procs")).unwrap_or_default();
        let texts = self.with_all_below().into_iter().map(in_one);
        texts
            .flat_map(|text| text.lines().filter_map(|it| it.parse().ok()).collect::<Vec<i32>>())
            .collect()
    }

    /// Kills all that are in it and below. One that forks meanwhile may have to be killed again in version 1.
    pub(super) fn kill(&self) {
        if write(&self.path.join("cgroup.kill"), "1").is_ok() {
            return;
        }
        for pid in self.processes().into_iter().filter_map(Pid::from_raw) {
            match kill_process(pid, Signal::KILL) {
                Ok(()) | Err(rustix::io::Errno::SRCH) => {}
                Err(error) => tracing::error!(%pid, %error, "cannot kill what a rank started"),
            }
        }
    }

    /// Removes it and all below. The kernel refuses as long as a process is in one of them. One that is not there is fine.
    pub(super) fn remove(&self) -> io::Result<()> {
        for path in self.with_all_below().into_iter().rev() {
            match std::fs::remove_dir(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                Ok(()) | Err(_) => {}
            }
        }
        Ok(())
    }

    /// Itself first, whoever is below behind whom it is in.
    fn with_all_below(&self) -> Vec<Utf8PathBuf> {
        let mut found = vec![self.path.clone()];
        let mut next = 0;
        while let Some(folder) = found.get(next) {
            let entries = folder.read_dir_utf8().into_iter().flatten().flatten();
            let folders = entries.filter(|it| it.file_type().is_ok_and(|it| it.is_dir()));
            let below: Vec<Utf8PathBuf> = folders.map(|it| it.path().to_owned()).collect();
            found.extend(below);
            next += 1;
        }
        found
    }

    fn memory_files(&self) -> Option<&'static MemoryFiles> {
        match self.kind {
            Kind::MemoryV1 => Some(&V1),
            Kind::MemoryV2 => Some(&V2),
            Kind::TreeV2 => None,
        }
    }

    /// Limits what it and all below use together, swap left out: a slot's memory is memory.
    ///
    /// Less than is in use is not asked for. Says whether the limit holds from now on.
    pub(super) fn limit_memory(&self, bytes: u64) -> io::Result<bool> {
        let Some(files) = self.memory_files() else { return Ok(true) };
        // There is none without swap.
        if let Err(error) = write(&self.path.join(files.swap), "0") {
            tracing::debug!(path = %self.path, %error, "cannot keep a control group from swap");
        }
        let held = files.held.iter().filter_map(|key| self.number("memory.stat", Some(key)));
        if bytes < held.sum() {
            return Ok(false);
        }
        match write(&self.path.join(files.limit), &bytes.to_string()) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The limit, bytes. `None`: there is none.
    pub(super) fn memory_limit(&self) -> Option<u64> {
        self.number(self.memory_files()?.limit, None)
    }

    /// Whether its limit was met.
    pub(super) fn has_met_limit(&self) -> bool {
        self.memory_files().and_then(|it| self.number(it.met.0, it.met.1)).is_some_and(|it| 0 < it)
    }

    /// Whether the kernel killed a process in it for want of memory, its own limit's or the machine's.
    pub(super) fn was_killed(&self) -> bool {
        let killed = self.memory_files().and_then(|it| self.number(it.killed.0, it.killed.1));
        killed.is_some_and(|it| 0 < it)
    }

    /// The number in a file, or behind a key in it.
    fn number(&self, file: &str, key: Option<&str>) -> Option<u64> {
        let text = read(&self.path.join(file)).ok()?;
        match key {
            None => text.trim().parse().ok(),
            Some(key) => {
                let lines = text.lines().filter_map(|line| line.split_once(' '));
                lines.filter(|(name, _)| *name == key).find_map(|(_, it)| it.trim().parse().ok())
            }
        }
    }
}

/// The kernel's files are there or not: none is made.
pub(super) fn write(path: &Utf8Path, text: &str) -> io::Result<()> {
    OpenOptions::new().write(true).open(path)?.write_all(text.as_bytes())
}

pub(super) fn read(path: &Utf8Path) -> io::Result<String> {
    std::fs::read_to_string(path)
}
