//! A cluster's life with the real Postgres of this machine: start, use, stop, and every way to die.
#![expect(clippy::unwrap_used, reason = "a test says what went wrong by panicking")]

use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use camino::{Utf8Path, Utf8PathBuf};
use lockstep_postgres::{Cluster, Durability, Options, PostgresError};
use tempfile::TempDir;

/// Longest wait for something that takes milliseconds on a quiet machine.
const PATIENCE: Duration = Duration::from_secs(30);
/// Names the folder for the half of this program that plays an owner to be killed.
const OWNER_FOLDER: &str = "LOCKSTEP_TEST_OWNER_FOLDER";

fn throwaway() -> Options {
    Options { durability: Durability::Throwaway, ..Options::default() }
}

/// A folder that another user can reach, unlike `tempdir` itself.
fn open_folder() -> (TempDir, Utf8PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let folder = Utf8Path::from_path(dir.path()).unwrap().join("postgres");
    (dir, folder)
}

fn private_folder() -> (TempDir, Utf8PathBuf) {
    let (dir, folder) = open_folder();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
    (dir, folder)
}

fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn is_alive(pid: i32) -> bool {
    // A zombie that nobody has reaped yet is dead.
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit(')').next().unwrap_or("").trim_start().starts_with('Z'))
}

/// Processes at work in the cluster, the postmaster included.
fn postgres_in(folder: &Utf8Path) -> Vec<i32> {
    let data = folder.join("data");
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| {
        std::fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd == data.as_std_path())
    })
    .collect()
}

fn kill(pid: i32, signal: &str) {
    assert!(Command::new("kill").args([signal, &pid.to_string()]).status().unwrap().success());
}

fn psql(cluster: &Cluster, database: &str, sql: &str) -> String {
    let output = Command::new("psql")
        .args(["-X", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d", &cluster.url(database), "-c", sql])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

fn assert_nothing_left(folder: &Utf8Path) {
    assert_eq!(postgres_in(folder), [] as [i32; 0]);
    for name in ["lock", "socket", "data/postmaster.pid"] {
        assert!(!folder.join(name).exists(), "{name} was left");
    }
}

#[test]
fn a_cluster_starts_keeps_what_it_was_given_and_stops_without_a_trace() {
    let (_dir, folder) = open_folder();
    let cluster = Cluster::start(&folder, &Options::default()).unwrap();
    cluster.create_database("lockstep").unwrap();
    cluster.create_database("lockstep").unwrap();
    psql(&cluster, "lockstep", "CREATE TABLE kept AS SELECT 42 AS answer");
    assert_eq!(psql(&cluster, "lockstep", "SHOW listen_addresses"), "");
    assert_eq!(psql(&cluster, "lockstep", "SHOW fsync"), "on");
    let mode = folder.join("socket").metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    cluster.stop().unwrap();
    assert_nothing_left(&folder);

    let cluster = Cluster::start(&folder, &Options::default()).unwrap();
    assert_eq!(psql(&cluster, "lockstep", "SELECT answer FROM kept"), "42");
    drop(cluster);
    assert_nothing_left(&folder);
}

#[test]
fn a_folder_that_only_its_owner_can_reach_is_enough() {
    let (_dir, folder) = private_folder();
    let cluster = Cluster::start(&folder, &throwaway()).unwrap();
    assert_eq!(psql(&cluster, "postgres", "SHOW fsync"), "off");
    cluster.stop().unwrap();
    let cluster = Cluster::start(&folder, &throwaway()).unwrap();
    cluster.stop().unwrap();
    assert_nothing_left(&folder);
}

#[test]
fn a_folder_too_deep_for_a_socket_gets_one_elsewhere() {
    let (_dir, folder) = open_folder();
    let folder = folder.join("d".repeat(100));
    let cluster = Cluster::start(&folder, &throwaway()).unwrap();
    assert_eq!(psql(&cluster, "postgres", "SELECT 1"), "1");
    assert!(cluster.url("x").contains("host=/tmp/lockstep-"), "{}", cluster.url("x"));
    cluster.stop().unwrap();
    assert!(!folder.join("socket").exists());
}

#[test]
fn a_second_owner_is_refused_and_told_who_the_first_is() {
    let (_dir, folder) = open_folder();
    let cluster = Cluster::start(&folder, &throwaway()).unwrap();
    match Cluster::start(&folder, &throwaway()) {
        Err(error @ PostgresError::InUse { .. }) => {
            let text = error.to_string();
            assert!(text.contains(&std::process::id().to_string()), "{text}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(psql(&cluster, "postgres", "SELECT 1"), "1", "the first was disturbed");
}

#[test]
fn a_killed_server_is_noticed_and_does_not_prevent_the_next_start() {
    let (_dir, folder) = open_folder();
    let cluster = Cluster::start(&folder, &Options::default()).unwrap();
    psql(&cluster, "postgres", "CREATE TABLE kept AS SELECT 42 AS answer");
    kill(cluster.pid(), "-KILL");
    until("the exit is noticed", || !cluster.is_running());
    cluster.stop().unwrap();

    let cluster = Cluster::start(&folder, &Options::default()).unwrap();
    assert_eq!(psql(&cluster, "postgres", "SELECT answer FROM kept"), "42");
    cluster.stop().unwrap();
    assert_nothing_left(&folder);
}

#[test]
fn a_start_that_fails_says_why_and_leaves_nothing() {
    let (_dir, folder) = open_folder();
    Cluster::start(&folder, &throwaway()).unwrap().stop().unwrap();
    let impossible = Options { max_connections: 0, ..throwaway() };
    let error = Cluster::start(&folder, &impossible).unwrap_err().to_string();
    assert!(error.contains("max_connections"), "{error}");
    assert_nothing_left(&folder);
}

#[test]
fn a_half_made_cluster_is_thrown_away() {
    let (_dir, folder) = open_folder();
    std::fs::create_dir_all(folder.join("data.new-1/base")).unwrap();
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o711)).unwrap();
    Cluster::start(&folder, &throwaway()).unwrap().stop().unwrap();
    assert!(!folder.join("data.new-1").exists());
}

/// Not a test of its own: the owner that the next tests kill. Does nothing unless they name a folder.
#[test]
fn play_owner() {
    let Some(folder) = std::env::var_os(OWNER_FOLDER) else { return };
    let folder = Utf8PathBuf::from_path_buf(folder.into()).unwrap();
    let cluster = Cluster::start(folder, &Options::default()).unwrap();
    println!("started {}", cluster.pid());
    std::thread::sleep(PATIENCE);
}

/// Starts this program as an owner in another process; returns it and its server's pid.
fn start_owner(folder: &Utf8Path) -> (Child, i32) {
    let mut owner = Command::new(std::env::current_exe().unwrap())
        .args(["play_owner", "--exact", "--nocapture"])
        .env(OWNER_FOLDER, folder)
        .stdout(Stdio::piped())
        .process_group(0)
        .spawn()
        .unwrap();
    let lines = BufReader::new(owner.stdout.take().unwrap()).lines();
    let pid = lines
        .map_while(Result::ok)
        .find_map(|line| Some(line.split_once("started ")?.1.trim().parse().unwrap()))
        .expect("the owner says when it has started");
    (owner, pid)
}

#[test]
fn an_owner_that_is_killed_takes_its_server_along() {
    for (_dir, folder) in [open_folder(), private_folder()] {
        let (mut owner, server) = start_owner(&folder);
        match Cluster::start(&folder, &Options::default()) {
            Err(PostgresError::InUse { pid, .. }) => {
                assert_eq!(pid, i32::try_from(owner.id()).ok());
            }
            other => panic!("{other:?}"),
        }
        kill(i32::try_from(owner.id()).unwrap(), "-KILL");
        owner.wait().unwrap();
        until("the server follows its owner", || !is_alive(server));
        until("its children as well", || postgres_in(&folder).is_empty());

        Cluster::start(&folder, &Options::default()).unwrap().stop().unwrap();
        assert_nothing_left(&folder);
    }
}

#[test]
fn owner_and_server_killed_at_once_do_not_prevent_an_immediate_start() {
    let (_dir, folder) = open_folder();
    let (mut owner, server) = start_owner(&folder);
    // Frozen first, so that its children cannot leave before the next start looks for them.
    kill(server, "-STOP");
    for pid in postgres_in(&folder) {
        // One that ended by itself since the list was made is as good as frozen.
        let _status = Command::new("kill").args(["-STOP", &pid.to_string()]).status().unwrap();
    }
    kill(i32::try_from(owner.id()).unwrap(), "-KILL");
    kill(server, "-KILL");
    owner.wait().unwrap();
    let cluster = Cluster::start(&folder, &Options::default()).unwrap();
    assert_eq!(psql(&cluster, "postgres", "SELECT 1"), "1");
    cluster.stop().unwrap();
    assert_nothing_left(&folder);
}

#[test]
fn a_server_that_still_runs_without_owner_is_stopped_first() {
    let (_dir, folder) = open_folder();
    let (mut owner, server) = start_owner(&folder);
    // A stopped process does not act on its death signal until it goes on.
    kill(server, "-STOP");
    kill(i32::try_from(owner.id()).unwrap(), "-KILL");
    owner.wait().unwrap();
    let starter = {
        let folder = folder.clone();
        std::thread::spawn(move || Cluster::start(&folder, &Options::default()))
    };
    let our_pid = std::process::id().to_string();
    until("the next owner has the lock", || {
        std::fs::read_to_string(folder.join("lock")).is_ok_and(|text| text.trim() == our_pid)
    });
    kill(server, "-CONT");
    let cluster = starter.join().unwrap().unwrap();
    assert_ne!(cluster.pid(), server);
    let log = std::fs::read_to_string(cluster.log_path()).unwrap();
    assert!(
        !log.contains("not properly shut down"),
        "it was not given the time to end cleanly: {log}"
    );
    cluster.stop().unwrap();
    assert_nothing_left(&folder);
}
