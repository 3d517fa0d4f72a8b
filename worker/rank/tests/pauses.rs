//! A rank that has said that it will be busy is waited for; silence is what counts as a fault.
#![expect(clippy::unwrap_used, reason = "a test's way to fail")]

#[expect(dead_code, reason = "each test file uses its part")]
mod harness;

use std::time::{Duration, Instant};

use harness::Gang;
use harness::jobs::{digits, digits_files};
use lockstep_api::Reduction;
use lockstep_shm::{FlightPosition, FlightRecord, monotonic_ns};

/// Longest wait for a state on a loaded machine.
const LIMIT: Duration = Duration::from_secs(60);

fn signal(name: &str, pid: u32) {
    let status = std::process::Command::new("kill").args([name, &pid.to_string()]).status();
    assert!(status.unwrap().success());
}

fn wait_until(gang: &Gang, rank: usize, what: &str, is_it: impl Fn(FlightPosition) -> bool) {
    let deadline = Instant::now() + LIMIT;
    loop {
        let found = FlightRecord::open(gang.record(rank)).and_then(|record| record.read());
        if found.is_ok_and(&is_it) {
            return;
        }
        assert!(Instant::now() < deadline, "rank {rank} was never seen {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_rank_that_is_silent_in_its_first_step_is_waited_for_beyond_the_deadline() {
    let mut spec = digits(2, Reduction::Fast, 1);
    spec.timeouts.collective = "3s".to_owned();
    spec.timeouts.formation = Some("60s".to_owned());
    let gang = Gang::start(&spec, &digits_files(), None);
    // Both form the group first: only then is there somebody to announce it to.
    wait_until(&gang, 1, "in a pause", |it| it.paused_until_ns != 0);
    signal("-STOP", gang.pid(1));
    let over = 4_500_000_000;
    wait_until(&gang, 0, "waiting for longer than the deadline", |it| {
        let lane = it.lanes[0];
        lane.is_inside() && lane.entered_ns + over < monotonic_ns()
    });
    signal("-CONT", gang.pid(1));
    let outcome = gang.finish();
    outcome.assert_success();
}
