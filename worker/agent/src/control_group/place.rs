//! Where this process is among the control groups, and whether groups can be made below.

use std::io;

use camino::{Utf8Path, Utf8PathBuf};

use super::folder::{Folder, Kind, read, write};

/// Where an agent is that has its own group below that of its ranks: version 2 limits the memory of no group that has
/// processes beside its groups.
pub(super) const AGENT: &str = "agent";

/// The groups of this process where the kernel shows them: memory of version 1, and version 2.
pub(super) fn own_places(mounts: &str, own_groups: &str) -> Vec<Folder> {
    let find = |kind: Kind| {
        let inside = own_groups.lines().find_map(|line| own_path(line, kind))?;
        mounts.lines().find_map(|line| seen_at(line, kind, inside))
    };
    let kinds = [Kind::MemoryV1, Kind::TreeV2];
    kinds.into_iter().filter_map(|kind| Some(Folder::new(kind, find(kind)?))).collect()
}

/// A line of `/proc/self/cgroup`: `4:memory:/user.slice` or, of version 2, `0::/user.slice`.
fn own_path(line: &str, kind: Kind) -> Option<&str> {
    let (number, rest) = line.split_once(':')?;
    let (controllers, path) = rest.split_once(':')?;
    let is_it = match kind {
        Kind::MemoryV1 => controllers.split(',').any(|it| it == "memory"),
        Kind::MemoryV2 | Kind::TreeV2 => number == "0" && controllers.is_empty(),
    };
    is_it.then_some(path)
}

/// A line of `/proc/self/mountinfo`: where it shows `inside`, if it shows that hierarchy and so much of it.
fn seen_at(line: &str, kind: Kind, inside: &str) -> Option<Utf8PathBuf> {
    let (mount, system) = line.split_once(" - ")?;
    let mut fields = mount.split(' ').skip(3);
    let (root, point) = (fields.next()?, fields.next()?);
    let mut fields = system.split(' ');
    let (name, options) = (fields.next()?, fields.nth(1)?);
    let is_it = match kind {
        Kind::MemoryV1 => name == "cgroup" && options.split(',').any(|it| it == "memory"),
        Kind::MemoryV2 | Kind::TreeV2 => name == "cgroup2",
    };
    let below = Utf8Path::new(inside).strip_prefix(root).ok()?;
    // A group outside of this process's namespace is shown as `/../…`.
    let is_shown = below.components().all(|it| it.as_str() != "..");
    (is_it && is_shown).then(|| Utf8Path::new(point).join(below))
}

/// Makes this agent's own group in `place`. Also says why memory is not limited in it, if it is not.
///
/// # Errors
/// Whatever forbids it; nothing is left then.
pub(super) fn settle(place: &Folder, name: &str) -> io::Result<(Folder, Option<io::Error>)> {
    let mut own = place.child(name);
    own.make()?;
    if place.kind == Kind::MemoryV1 {
        if let Err(error) = counts_groups_below(&own) {
            drop(own.remove());
            return Err(error);
        }
        return Ok((own, None));
    }
    match take_memory(place, &own) {
        Ok(()) => {
            own.kind = Kind::MemoryV2;
            Ok((own, None))
        }
        Err(error) => Ok((own, Some(error))),
    }
}

/// In old kernels a group of version 1 counts what those below use only if it is told to.
fn counts_groups_below(own: &Folder) -> io::Result<()> {
    let switch = own.path.join("memory.use_hierarchy");
    if read(&switch)?.trim() == "1" { Ok(()) } else { write(&switch, "1") }
}

/// Has version 2 count the memory of the groups in `own`.
fn take_memory(place: &Folder, own: &Folder) -> io::Result<()> {
    let lists_memory = |file: &str| {
        let text = read(&place.path.join(file)).unwrap_or_default();
        text.split_whitespace().any(|it| it == "memory")
    };
    if !lists_memory("cgroup.controllers") {
        return Err(io::Error::other("its memory controller is not there"));
    }
    // The root has no such file, and may have processes.
    let is_root = !place.path.join("cgroup.type").exists();
    if !lists_memory("cgroup.subtree_control") {
        if is_root {
            place.pass_memory_on()?;
        } else {
            step_aside(place, own)?;
        }
    }
    own.pass_memory_on()
}

/// Moves this process out of `place`, if it is alone there, and limits memory below.
fn step_aside(place: &Folder, own: &Folder) -> io::Result<()> {
    let pid = std::process::id().to_string();
    let procs = |folder: &Folder| folder.path.join("cgroup.procs");
    let others = read(&procs(place))?.lines().filter(|it| *it != pid).count();
    if 0 < others {
        let why =
            format!("the agent's group has {others} other processes, expected the agent alone");
        return Err(io::Error::other(why));
    }
    let aside = own.child(AGENT);
    aside.make()?;
    let moved = write(&procs(&aside), &pid).and_then(|()| place.pass_memory_on());
    if moved.is_err() {
        drop(write(&procs(place), &pid));
        drop(aside.remove());
    }
    moved
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIXED: &str = "\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw";

    fn found(mounts: &str, own_groups: &str) -> Vec<(Kind, String)> {
        let places = own_places(mounts, own_groups).into_iter();
        places.map(|it| (it.kind, it.path.into_string())).collect()
    }

    #[test]
    fn the_own_group_is_found_in_either_version_and_in_both_at_once() {
        let own = "9:name=systemd:/\n4:cpu,memory:/a/b\n1:cpu:/\n0::/c\n";
        let memory = (Kind::MemoryV1, "/sys/fs/cgroup/memory/a/b".to_owned());
        let tree = (Kind::TreeV2, "/sys/fs/cgroup/unified/c".to_owned());
        assert_eq!(found(MIXED, own), [memory, tree]);
        let mounts = "29 22 0:26 /pod7 /sys/fs/cgroup rw,nosuid - cgroup2 cgroup rw,nsdelegate";
        let only = (Kind::TreeV2, "/sys/fs/cgroup/x.slice".to_owned());
        assert_eq!(found(mounts, "0::/pod7/x.slice\n"), [only]);
        assert_eq!(found(mounts, "0::/elsewhere\n"), [], "it is not shown");
        assert_eq!(found(&mounts.replace("/pod7", "/"), "0::/../../x\n"), [], "nor is that");
        assert_eq!(found("", "0::/\n"), []);
    }

    /// A folder with the files of version 2, as a kernel shows them to whoever is alone in a group.
    fn version_two(folder: &Utf8Path, members: &str) -> Folder {
        for (file, text) in [
            ("cgroup.controllers", "cpu memory pids\n"),
            ("cgroup.subtree_control", ""),
            ("cgroup.type", "domain\n"),
            ("cgroup.procs", members),
        ] {
            std::fs::write(folder.join(file), text).unwrap();
        }
        for made in ["own", "own/agent"] {
            std::fs::create_dir(folder.join(made)).unwrap();
        }
        for made in ["own/cgroup.subtree_control", "own/agent/cgroup.procs"] {
            std::fs::write(folder.join(made), "").unwrap();
        }
        Folder::new(Kind::TreeV2, folder.to_owned())
    }

    #[test]
    fn an_agent_that_is_alone_in_its_group_steps_aside_so_that_memory_is_limited() {
        let folder = tempfile::tempdir().unwrap();
        let folder = Utf8Path::from_path(folder.path()).unwrap();
        let pid = std::process::id().to_string();
        let place = version_two(folder, &format!("{pid}\n"));
        let (own, why) = settle(&place, "own").unwrap();
        assert!(own.kind == Kind::MemoryV2 && why.is_none());
        let read = |file: &str| std::fs::read_to_string(folder.join(file)).unwrap();
        assert_eq!(read("own/agent/cgroup.procs"), pid);
        assert_eq!(read("cgroup.subtree_control"), "+memory");
        assert_eq!(read("own/cgroup.subtree_control"), "+memory");
    }

    #[test]
    fn an_agent_that_shares_its_group_moves_nobody_and_limits_no_memory() {
        let folder = tempfile::tempdir().unwrap();
        let folder = Utf8Path::from_path(folder.path()).unwrap();
        let place = version_two(folder, &format!("1\n{}\n", std::process::id()));
        let (own, why) = settle(&place, "own").unwrap();
        assert_eq!(own.kind, Kind::TreeV2);
        let why = why.unwrap().to_string();
        assert_eq!(why, "the agent's group has 1 other processes, expected the agent alone");
        let moved = std::fs::read_to_string(folder.join("own/agent/cgroup.procs")).unwrap();
        assert_eq!(moved, "");
    }
}
