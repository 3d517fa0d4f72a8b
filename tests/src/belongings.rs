//! What a process has of the system.

use std::fs;

/// Counted from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Belongings {
    /// Memories of process groups, as descriptors or mapped.
    pub group_memories: usize,
    /// Sockets of all kinds.
    pub sockets: usize,
    /// Threads.
    pub threads: usize,
}

impl Belongings {
    /// Of a running process.
    ///
    /// # Errors
    /// When it is not there, or is somebody else's.
    pub fn of(pid: i32) -> anyhow::Result<Self> {
        const MEMORY: &str = "memfd:lockstep-group";
        let (mut group_memories, mut sockets) = (0, 0);
        for entry in fs::read_dir(format!("/proc/{pid}/fd"))? {
            // One that is closed meanwhile is none.
            let Ok(target) = fs::read_link(entry?.path()) else { continue };
            let target = target.to_string_lossy();
            group_memories += usize::from(target.contains(MEMORY));
            sockets += usize::from(target.starts_with("socket:"));
        }
        let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
        group_memories += maps.lines().filter(|line| line.contains(MEMORY)).count();
        let threads = fs::read_dir(format!("/proc/{pid}/task"))?.count();
        Ok(Self { group_memories, sockets, threads })
    }
}
