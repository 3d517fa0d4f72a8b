//! Real groups with real processes. Where none can be made, a test says so and looks at what holds then.

use std::io::{Read as _, Write as _};
use std::process::{Child, Command, Stdio};

use super::*;
use crate::spawn::try_group;
use crate::stat::process_state;

const LIMIT: Duration = Duration::from_secs(20);

/// The groups of a test whose own folder is `base`.
pub(crate) fn control_groups(base: &Utf8Path) -> ControlGroups {
    let (name, record) = names(base);
    ControlGroups::set_up(&name, &record, enter).unwrap()
}

fn names(base: &Utf8Path) -> (String, Utf8PathBuf) {
    let name = format!("lockstep-{}{}", std::process::id(), base.file_name().unwrap());
    (name, base.join("control-groups"))
}

fn enter(group: &RankGroup) -> io::Result<()> {
    try_group(Utf8Path::new("/bin/true"), &[], group.entrances()?)
}

/// Why a test looks at less here.
fn say(why: &str) {
    writeln!(io::stderr(), "{why}").unwrap();
}

/// Groups and the folder that they are named after; `None`, and a word about it, if there can be none.
fn permitted() -> Option<(ControlGroups, tempfile::TempDir)> {
    let folder = tempfile::tempdir().unwrap();
    let groups = control_groups(Utf8Path::from_path(folder.path()).unwrap());
    if !groups.kills_trees() {
        say("no control groups can be made here");
        let group = groups.attempt("none");
        group.make(1).unwrap();
        assert!(group.rank(0).unwrap().entrances().unwrap().is_empty() && group.try_end());
        return None;
    }
    Some((groups, folder))
}

/// Starts a shell in a group. Its first line is the script's.
fn shell(group: &RankGroup, script: &str) -> Child {
    // The shell enters by itself, so that nothing unsafe is needed here.
    let enter: String =
        group.folders.iter().map(|it| format!("echo 0 > {}/cgroup.procs\n", it.path)).collect();
    let mut command = Command::new("sh");
    command.args(["-c", &format!("{enter}{script}")]).stdout(Stdio::piped());
    command.spawn().unwrap()
}

/// Until the program has said that it is there.
fn hear(child: &mut Child) {
    let mut octet = [0];
    child.stdout.as_mut().unwrap().read_exact(&mut octet).unwrap();
}

fn until(mut is_it: impl FnMut() -> bool) {
    let end = Instant::now() + LIMIT;
    while !is_it() {
        assert!(Instant::now() < end, "it did not happen in time");
        std::thread::sleep(LEFTOVER_LOOK);
    }
}

#[test]
fn a_group_is_removed_only_once_nobody_is_in_it_however_often_it_has_forked() {
    let Some((groups, _folder)) = permitted() else { return };
    let attempt = groups.attempt("forks");
    attempt.make(256).unwrap();
    let rank = attempt.rank(0).unwrap();
    let script =
        "setsid sh -c 'setsid sleep 1000 >/dev/null & sleep 1000 >/dev/null & echo x; wait' & wait";
    let mut child = shell(&rank, script);
    hear(&mut child);
    let members = rank.processes();
    assert!(4 <= members.len(), "{}", described(&members));
    assert!(rank.folders.iter().all(|it| it.remove().is_err()), "somebody is in it");
    until(|| rank.try_end());
    child.wait().unwrap();
    until(|| !members.iter().any(|pid| !matches!(process_state(*pid), None | Some('Z'))));
    assert!(rank.processes().is_empty() && attempt.try_end());
    assert_eq!(groups.attempts(), [""; 0]);
}

#[test]
fn without_a_way_to_kill_a_tree_in_one_step_all_are_killed_one_by_one() {
    let Some((groups, _folder)) = permitted() else { return };
    let Some(at) = groups.folders.iter().position(|it| it.kind == Kind::MemoryV1) else {
        return say("no memory hierarchy of version 1 here");
    };
    let attempt = AttemptGroup { folders: vec![groups.folders[at].child("singly")] };
    attempt.make(256).unwrap();
    let rank = attempt.rank(0).unwrap();
    let mut child = shell(&rank, "setsid sleep 1000 >/dev/null & echo x; wait");
    hear(&mut child);
    until(|| rank.try_end());
    child.wait().unwrap();
    assert!(attempt.try_end());
}

#[test]
fn what_an_agent_that_was_killed_left_behind_is_ended_at_the_next_start() {
    let Some((groups, folder)) = permitted() else { return };
    let attempt = groups.attempt("left");
    attempt.make(256).unwrap();
    let mut child = shell(&attempt.rank(0).unwrap(), "setsid sleep 1000 >/dev/null & echo x; wait");
    hear(&mut child);
    // Nobody removes anything.
    std::mem::forget(groups);
    let (name, record) = names(Utf8Path::from_path(folder.path()).unwrap());
    std::fs::write(
        &record,
        format!("{}/tmp\n{}", folder.path().display(), std::fs::read_to_string(&record).unwrap()),
    )
    .unwrap();
    std::fs::create_dir(folder.path().join("tmp")).unwrap();
    let next = ControlGroups::set_up(&name, &record, enter).unwrap();
    until(|| child.try_wait().unwrap().is_some());
    assert_eq!(next.attempts(), [""; 0]);
    assert!(folder.path().join("tmp").exists(), "that is not this agent's");
    let paths: Vec<Utf8PathBuf> = next.folders.iter().map(|it| it.path.clone()).collect();
    drop(next);
    assert!(paths.iter().all(|it| !it.exists()), "they go with the agent");
}

#[test]
fn where_no_process_can_enter_a_group_there_is_none() {
    let folder = tempfile::tempdir().unwrap();
    let (name, record) = names(Utf8Path::from_path(folder.path()).unwrap());
    let refused = |_: &RankGroup| Err(io::Error::other("not permitted"));
    let groups = ControlGroups::set_up(&name, &record, refused).unwrap();
    assert!(!groups.kills_trees() && !groups.limits_memory());
    let paths = std::fs::read_to_string(&record).unwrap();
    assert!(paths.lines().all(|it| !Utf8Path::new(it).exists()), "{paths}");
}

#[test]
fn a_limit_is_lowered_only_below_what_is_not_in_use() {
    let Some((groups, _folder)) = permitted() else { return };
    let Some(at) = groups.folders.iter().position(|it| it.kind != Kind::TreeV2) else {
        return say("memory cannot be limited here");
    };
    let attempt = groups.attempt("less");
    attempt.make(512).unwrap();
    let limit = || attempt.folders[at].memory_limit().unwrap() >> 20;
    assert_eq!(limit(), 512);
    let rank = attempt.rank(0).unwrap();
    // A variable of a shell: some 64 MiB.
    let script =
        "x=$(head -c 64000000 /dev/zero | tr '\\0' x); echo x; sleep 1000; echo \"$x\" >/dev/null";
    let mut child = shell(&rank, script);
    hear(&mut child);
    attempt.make(16).unwrap();
    assert_eq!(limit(), 512, "it would be killed for what it has been given");
    attempt.make(256).unwrap();
    assert_eq!(limit(), 256);
    until(|| rank.try_end());
    child.wait().unwrap();
    assert_eq!(rank.exceeded_memory_mib(), None);
    until(|| {
        attempt.make(16).unwrap();
        limit() == 16
    });
    assert!(attempt.try_end());
}
