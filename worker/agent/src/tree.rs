//! What a rank started, and how it is ended: by its process group and `/proc` everywhere, by its control group where there is one.

use std::time::Duration;

use rustix::process::{Pid, Signal};
use tokio::time::Instant;

use crate::control_group::{AttemptGroup, LEFTOVER_LOOK, RankGroup, described};
use crate::stat::Stat;

/// After how long of looking whether what a rank left behind is gone somebody is told.
const LEFTOVER_WARNING: Duration = Duration::from_secs(5);

/// A rank's process and whatever it started.
#[derive(Debug)]
pub(crate) struct Tree {
    /// The leader of the process group.
    leader: Pid,
    group: RankGroup,
}

impl Tree {
    pub(crate) fn new(leader: Pid, group: RankGroup) -> Self {
        Self { leader, group }
    }

    /// Kills all of it. Only as long as the rank's process has not been reaped: its number may be another's afterwards.
    pub(crate) fn kill(&self) {
        kill_group(self.leader);
        self.group.kill();
    }

    /// The memory, MiB, for whose want the kernel killed one of it; see [`RankGroup::exceeded_memory_mib`]. Not after [`Tree::end`].
    pub(crate) fn exceeded_memory_mib(&self) -> Option<u32> {
        self.group.exceeded_memory_mib()
    }

    /// Kills what a rank that is gone has left behind, and comes back once none of it lives: only then is its slot free.
    ///
    /// `is_stuck` is told again and again who does not die.
    pub(crate) async fn end(&self, mut is_stuck: impl FnMut(&str)) {
        let mut warned_at = Instant::now();
        loop {
            let of_group = living_members(self.leader);
            if !of_group.is_empty() {
                kill_group(self.leader);
            }
            if self.group.try_end() && of_group.is_empty() {
                return;
            }
            if LEFTOVER_WARNING <= warned_at.elapsed() {
                warned_at = Instant::now();
                let mut left = self.group.processes();
                left.extend(of_group);
                left.sort_unstable();
                left.dedup();
                is_stuck(&described(&left));
            }
            // Of processes that are not its children the kernel tells nobody.
            tokio::time::sleep(LEFTOVER_LOOK).await;
        }
    }
}

/// Ends what is left in an attempt's group: nothing, unless a rank could not be started or got out of its own group.
pub(crate) async fn end_attempt(group: &AttemptGroup) {
    let mut warned_at = Instant::now();
    while !group.try_end() {
        if LEFTOVER_WARNING <= warned_at.elapsed() {
            warned_at = Instant::now();
            tracing::warn!(left = %group.left(), "what an attempt started does not die; its slots are held");
        }
        tokio::time::sleep(LEFTOVER_LOOK).await;
    }
}

/// Kills every process of a rank's process group. One that is gone already is fine.
fn kill_group(leader: Pid) {
    match rustix::process::kill_process_group(leader, Signal::KILL) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => {}
        Err(error) => tracing::error!(pid = leader.as_raw_pid(), %error, "cannot kill a rank"),
    }
}

/// The processes of a group, whose leader has been reaped, that are not merely waiting to be reaped as well.
pub(crate) fn living_members(leader: Pid) -> Vec<i32> {
    // The kernel gives a number to another process only once nothing is left of its group.
    if std::fs::exists(format!("/proc/{}", leader.as_raw_pid())).unwrap_or(false) {
        return Vec::new();
    }
    let Ok(processes) = std::fs::read_dir("/proc") else { return Vec::new() };
    let of_group = |entry: std::fs::DirEntry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let Stat { state, group, .. } = Stat::of(pid)?;
        (!matches!(state, 'Z' | 'X') && group == leader.as_raw_pid()).then_some(pid)
    };
    processes.flatten().filter_map(of_group).collect()
}
