//! Control groups: a limit of memory for an attempt's ranks, and a way to end all that a rank has started.
//!
//! Whoever calls `setsid` leaves a rank's process group; nobody leaves its control group. Each attempt has a group with
//! the memory of its ranks' slots on this node, and in it each rank has one without a limit of its own. For a page that
//! ranks share counts for whichever of them touched it first, and one that a dead rank touched goes on counting: what a
//! rank alone takes up the kernel cannot tell, what the job has on this node it can, and that is what other jobs are
//! to be kept from.
//!
//! In a mixed setup both versions are used, the first for memory and the second to kill a whole tree in one step. Where
//! neither is permitted every call does nothing, and process groups and `/proc` are all there is.
//!
//! The few files are written by our own code: `cgroups-rs` brings a client of D-Bus along and has no `cgroup.kill`.

mod folder;
mod leftover;
mod place;
#[cfg(test)]
pub(crate) mod tests;

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use camino::{Utf8Path, Utf8PathBuf};

use crate::files::replace_file;
use crate::stat::Stat;
use folder::{Folder, Kind};
use leftover::end_leftovers;

/// How long what an agent before left behind may take to die at the start.
const LEFTOVER_LIMIT: Duration = Duration::from_secs(5);
pub(crate) const LEFTOVER_LOOK: Duration = Duration::from_millis(5);
/// The group in which it is tried whether a process may enter.
const TRIAL: &str = "trial";

/// This agent's groups: all of its attempts' are in them. They are removed with it.
#[derive(Debug, Default)]
pub(crate) struct ControlGroups {
    /// One in each hierarchy that is of use.
    folders: Vec<Folder>,
}

impl ControlGroups {
    /// Finds out what is permitted and says so, once. What an agent before has left under this name is ended first.
    ///
    /// `record` keeps where the groups are, for the next start may find itself in another group. `enter` starts any
    /// process in a group as ranks will be, and waits for it.
    ///
    /// # Errors
    /// When `record` cannot be read or written, or what was left behind does not die: its slots are not free.
    pub(crate) fn set_up(
        name: &str,
        record: &Utf8Path,
        enter: impl Fn(&RankGroup) -> io::Result<()>,
    ) -> anyhow::Result<Self> {
        let read = |file: &str| std::fs::read_to_string(file).unwrap_or_default();
        let places = place::own_places(&read("/proc/self/mountinfo"), &read("/proc/self/cgroup"));
        end_leftovers(name, record)?;
        let paths: Vec<Utf8PathBuf> = places.iter().map(|it| it.path.join(name)).collect();
        let lines: String = paths.iter().map(|path| format!("{path}\n")).collect();
        replace_file(record, lines.as_bytes()).with_context(|| format!("cannot write {record}"))?;

        let mut groups = Self::default();
        let mut refusals = Vec::new();
        for place in &places {
            let refusal = match settle(place, name, &enter) {
                Ok((folder, refusal)) => {
                    groups.folders.push(folder);
                    refusal
                }
                Err(error) => Some(error),
            };
            refusals.extend(refusal.map(|error| format!("{}: {error}", place.path)));
        }
        groups.say(&refusals);
        Ok(groups)
    }

    /// What holds, and why not more.
    fn say(&self, refusals: &[String]) {
        let why = match refusals {
            [] => "the kernel shows none".to_owned(),
            found => found.join("; "),
        };
        match (self.limits_memory(), self.folders.is_empty()) {
            (true, _) => {
                tracing::info!(
                    "ranks run in control groups: memory is limited, trees are killed whole"
                );
            }
            (false, false) => {
                tracing::warn!(%why, "ranks run in control groups: trees are killed whole, memory is not limited");
            }
            (false, true) => {
                tracing::warn!(%why, "ranks run in process groups alone: no control groups can be used");
            }
        }
    }

    /// Whether ranks that use more memory than they have are killed.
    pub(crate) fn limits_memory(&self) -> bool {
        self.folders.iter().any(|it| it.kind != Kind::TreeV2)
    }

    /// Whether all that a rank has started is ended with it.
    #[cfg(test)]
    pub(crate) fn kills_trees(&self) -> bool {
        !self.folders.is_empty()
    }

    /// Names of the groups that are there now.
    #[cfg(test)]
    pub(crate) fn attempts(&self) -> Vec<String> {
        let entries = self.folders.iter().flat_map(|it| it.path.read_dir_utf8().unwrap()).flatten();
        let folders = entries.filter(|it| it.file_type().unwrap().is_dir());
        let names = folders.map(|it| it.file_name().to_owned());
        names.filter(|it| it != place::AGENT).collect()
    }

    /// An attempt's group. Makes nothing yet.
    pub(crate) fn attempt(&self, name: &str) -> AttemptGroup {
        AttemptGroup { folders: self.folders.iter().map(|it| it.child(name)).collect() }
    }
}

impl Drop for ControlGroups {
    fn drop(&mut self) {
        for folder in &self.folders {
            // The agent itself may be in it, or a rank that it could not wait for: the next start looks again.
            if let Err(error) = folder.remove() {
                tracing::debug!(path = %folder.path, %error, "cannot remove this agent's control group");
            }
        }
    }
}

/// The agent's own group in `place`, if processes can be started in it, and why it limits no memory, if it does not.
fn settle(
    place: &Folder,
    name: &str,
    enter: impl Fn(&RankGroup) -> io::Result<()>,
) -> io::Result<(Folder, Option<io::Error>)> {
    let (own, refusal) = place::settle(place, name)?;
    let trial = own.child(TRIAL);
    let group = RankGroup { folders: vec![trial.clone()], attempt: Vec::new() };
    let outcome = trial.make().and_then(|()| enter(&group));
    let until = Instant::now() + LEFTOVER_LIMIT;
    while trial.remove().is_err() && Instant::now() < until {
        trial.kill();
        std::thread::sleep(LEFTOVER_LOOK);
    }
    if outcome.is_err() {
        drop(own.remove());
    }
    outcome.map(|()| (own, refusal))
}

/// The ranks of one attempt on this node.
#[derive(Debug, Clone, Default)]
pub(crate) struct AttemptGroup {
    folders: Vec<Folder>,
}

impl AttemptGroup {
    /// Makes it, with so much memory for all of its ranks together.
    ///
    /// # Errors
    /// As the kernel answers.
    pub(crate) fn make(&self, memory_mib: u64) -> io::Result<()> {
        for folder in &self.folders {
            folder.make()?;
            if folder.kind == Kind::MemoryV2 {
                folder.pass_memory_on()?;
            }
            if !folder.limit_memory(memory_mib << 20)? {
                tracing::info!(
                    group = %folder.path, memory_mib,
                    "the ranks that go on use more than their slots have: their limit stays as it was"
                );
            }
        }
        Ok(())
    }

    /// Makes the group of one of its processes.
    ///
    /// # Errors
    /// As the kernel answers.
    pub(crate) fn rank(&self, process: i32) -> io::Result<RankGroup> {
        let name = format!("rank-{process}");
        let folders: Vec<Folder> = self.folders.iter().map(|it| it.child(&name)).collect();
        folders.iter().try_for_each(Folder::make)?;
        Ok(RankGroup { folders, attempt: self.folders.clone() })
    }

    /// Kills whoever is in it and removes it; `false`: it has to be tried again.
    pub(crate) fn try_end(&self) -> bool {
        try_end(&self.folders)
    }

    /// Who is in it.
    pub(crate) fn left(&self) -> String {
        described(&processes(&self.folders))
    }
}

/// One rank and whatever it starts.
#[derive(Debug, Default)]
pub(crate) struct RankGroup {
    folders: Vec<Folder>,
    /// The group that has the limit, in each hierarchy.
    attempt: Vec<Folder>,
}

impl RankGroup {
    /// Whoever writes `0` into each of them is in the group.
    ///
    /// # Errors
    /// As the kernel answers.
    pub(crate) fn entrances(&self) -> io::Result<Vec<OwnedFd>> {
        self.folders.iter().map(Folder::entrance).collect()
    }

    /// Kills whoever is in it.
    pub(crate) fn kill(&self) {
        // Nobody is left to be killed one by one once a whole tree was killed in one step.
        self.folders.iter().rev().for_each(Folder::kill);
    }

    /// Kills whoever is in it and removes it; `false`: it has to be tried again.
    pub(crate) fn try_end(&self) -> bool {
        try_end(&self.folders)
    }

    /// Who is in it.
    pub(crate) fn processes(&self) -> Vec<i32> {
        processes(&self.folders)
    }

    /// The memory, MiB, that the attempt's ranks have here, if a process of this group was killed for want of more.
    ///
    /// The kernel counts those too that it kills because the machine has no memory left; then the limit was not met.
    pub(crate) fn exceeded_memory_mib(&self) -> Option<u32> {
        let of_attempt = self.folders.iter().zip(&self.attempt);
        let (_, full) = of_attempt
            .filter(|(own, _)| own.was_killed())
            .find(|(_, attempt)| attempt.has_met_limit())?;
        u32::try_from(full.memory_limit()? >> 20).ok()
    }
}

/// Who is in a group that is in several hierarchies.
fn processes(folders: &[Folder]) -> Vec<i32> {
    let mut found: Vec<i32> = folders.iter().flat_map(Folder::processes).collect();
    found.sort_unstable();
    found.dedup();
    found
}

fn try_end(folders: &[Folder]) -> bool {
    // The kernel removes a group only if nobody is in it.
    let mut is_gone = true;
    for folder in folders.iter().rev() {
        if folder.remove().is_err() {
            is_gone = false;
            folder.kill();
        }
    }
    is_gone
}

/// `77 (sleep, D), 78 (sh, S)`
pub(crate) fn described(processes: &[i32]) -> String {
    let described = processes.iter().map(|pid| match Stat::of(*pid) {
        Some(Stat { name, state, .. }) => format!("{pid} ({name}, {state})"),
        None => pid.to_string(),
    });
    described.collect::<Vec<_>>().join(", ")
}
