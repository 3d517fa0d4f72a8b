//! The decisions of `course`, one by one and over drawn sequences.

use proptest::prelude::*;

use super::*;

const GRACES: Graces = Graces { stop: Duration::from_secs(2), leave: Duration::from_secs(1) };

fn course(count: i32) -> (Course, Instant) {
    let ranks: Vec<Rank> = (0..count).map(Rank).collect();
    (Course::new(&ranks, GRACES), Instant::now())
}

fn exit(code: Option<i32>, signal: Option<i32>) -> RankExit {
    let (phase, step) = (Phase::Backward, Step(41));
    RankExit { code, signal, phase, step, exceeded_memory_mib: None }
}

fn gone(rank: i32, exit: RankExit) -> Input {
    Input::Gone(Gone {
        process: rank,
        rank: Rank(rank),
        pid: 100 + rank,
        exit,
        last_words: Vec::new(),
    })
}

fn failure(code: FailureCode, missing: &[i32]) -> FailureReport {
    let evidence = json!({ "missing": missing });
    FailureReport { evidence, ..own_failure(code, code.as_str().to_owned()) }
}

fn failed(by: i32, code: FailureCode, missing: &[i32]) -> Input {
    Input::Failed { by: Rank(by), report: failure(code, missing) }
}

fn interrupted(by: i32, missing: &[i32]) -> Input {
    Input::Interrupted { by: Rank(by), report: failure(FailureCode::NotEntered, missing) }
}

fn reports(actions: &[Action]) -> Vec<&'static str> {
    actions
        .iter()
        .map(|action| match action {
            Action::Report(Report::Failed(report)) => report.code.as_str(),
            Action::Report(Report::RankExited { .. }) => "exited",
            Action::Report(_) => "other",
            Action::StopAll => "stop",
            Action::InterruptAll => "interrupt",
            Action::Kill(_) => "kill one",
            Action::KillAll => "kill",
        })
        .collect()
}

#[test]
fn a_rank_killed_by_a_signal_is_named_with_pid_signal_step_and_phase_and_the_others_wait() {
    let (mut course, now) = course(2);
    let actions = course.step(gone(1, exit(None, Some(9))), now);
    assert_eq!(reports(&actions), ["peer_gone", "exited", "interrupt"]);
    let Action::Report(Report::Failed(verdict)) = &actions[0] else { panic!("{actions:?}") };
    assert_eq!(
        verdict.message,
        "rank 1 (pid 101) was killed by signal 9 (SIGKILL) at step 41 in phase backward"
    );
    assert_eq!(verdict.rank, Some(Rank(1)));
    let last = course.step(gone(0, exit(None, Some(9))), now);
    assert_eq!(reports(&last), ["exited"]);
    assert_eq!(course.ending(), None, "the server may want them again");
    course.step(Input::KillAsked, now);
    assert_eq!(course.ending(), Some(Ending::Stopped));
}

#[test]
fn a_rank_that_was_killed_for_want_of_memory_is_named_with_what_its_job_has() {
    let (mut course, now) = course(2);
    let killed = RankExit { exceeded_memory_mib: Some(1024), ..exit(None, Some(9)) };
    let actions = course.step(gone(1, killed), now);
    assert_eq!(reports(&actions), ["out_of_memory", "exited", "interrupt"]);
    let Action::Report(Report::Failed(verdict)) = &actions[0] else { panic!("{actions:?}") };
    assert_eq!(
        verdict.message,
        "rank 1 (pid 101) was killed by signal 9 (SIGKILL) at step 41 in phase backward: the job's ranks there used more \
         than their 1024 MiB of memory (gang.slot.memory_mib)"
    );
    assert_eq!(verdict.exit, Some(killed));
}

#[test]
fn the_next_group_begins_with_a_clean_slate() {
    let (mut course, now) = course(2);
    course.step(gone(1, exit(None, Some(9))), now);
    assert_eq!(reports(&course.step(interrupted(0, &[1]), now)), [""; 0], "that is known");
    let _held = course.regroup([(Rank(0), Some(Rank(0))), (Rank(1), None)]);
    assert_eq!(reports(&course.step(interrupted(0, &[1]), now)), [""; 0], "held");
    assert_eq!(reports(&course.step(Input::Tick, now + HOLD)), ["not_entered", "interrupt"]);
    let _held = course.regroup([(Rank(0), Some(Rank(0))), (Rank(1), None)]);
    course.step(gone(0, exit(Some(0), None)), now);
    course.step(gone(1, exit(Some(0), None)), now);
    assert_eq!(course.ending(), Some(Ending::Finished));
}

#[test]
fn an_exit_that_was_held_back_is_told_with_the_next_group() {
    let (mut course, now) = course(3);
    course.step(failed(0, FailureCode::NotEntered, &[1]), now);
    assert_eq!(reports(&course.step(gone(0, exit(Some(1), None)), now)), [""; 0]);
    assert!(course.has_exited(Rank(0)));
    let held = course.regroup([(Rank(0), Some(Rank(1))), (Rank(1), Some(Rank(2)))]);
    assert!(matches!(held[..], [Report::RankExited { process: 0, .. }]), "{held:?}");
}

#[test]
fn ranks_that_were_never_started_keep_nobody_waiting() {
    for (ask, end) in
        [(Input::KillAsked, exit(None, Some(9))), (Input::StopAsked, exit(Some(1), None))]
    {
        let (mut course, now) = course(2);
        course.step(gone(1, exit(None, Some(9))), now);
        let _held = course.regroup([(Rank(0), Some(Rank(0))), (Rank(1), None)]);
        course.step(ask, now);
        assert_eq!(course.ending(), None, "one of them lives");
        course.step(gone(0, end), now);
        assert_eq!(course.ending(), Some(Ending::Stopped));
    }
}

#[test]
fn a_rank_that_moves_up_takes_what_is_known_of_it_along() {
    let (mut course, now) = course(3);
    course.step(gone(1, exit(Some(0), None)), now);
    course.step(failed(2, FailureCode::GuestTrap, &[]), now);
    let _held = course.regroup([(Rank(0), Some(Rank(1))), (Rank(1), Some(Rank(2)))]);
    let kill_at = course.deadline().expect("one of them is to leave");
    let actions = course.step(Input::Tick, kill_at);
    assert_eq!(reports(&actions), ["abort_hung", "kill one"]);
    assert_eq!(actions[1], Action::Kill(Rank(1)));
    course.step(gone(1, exit(Some(0), None)), kill_at);
    assert_eq!(course.ending(), Some(Ending::Finished), "the other one had left already");
}

#[test]
fn a_complaint_of_missing_ranks_is_an_effect_when_one_of_them_was_killed() {
    let (mut course, now) = course(2);
    assert_eq!(reports(&course.step(failed(0, FailureCode::NotEntered, &[1]), now)), [""; 0]);
    assert_eq!(reports(&course.step(gone(0, exit(Some(1), None)), now)), [""; 0]);
    assert_eq!(course.ending(), None);
    let actions = course.step(gone(1, exit(None, Some(9))), now);
    assert_eq!(reports(&actions), ["peer_gone", "not_entered", "exited", "exited", "interrupt"]);
}

#[test]
fn a_complaint_of_another_nodes_rank_is_held_if_one_here_may_be_the_cause() {
    let (mut course, now) = course(2);
    assert_eq!(reports(&course.step(failed(0, FailureCode::PeerGone, &[7]), now)), [""; 0]);
    let actions = course.step(gone(1, exit(None, Some(9))), now);
    assert_eq!(reports(&actions), ["peer_gone", "peer_gone", "exited", "interrupt"]);
    let Action::Report(Report::Failed(verdict)) = &actions[0] else { panic!("{actions:?}") };
    assert_eq!(verdict.rank, Some(Rank(1)), "the death goes first");
    let (mut alone, now) = self::course(1);
    let actions = alone.step(failed(0, FailureCode::PeerGone, &[7]), now);
    assert_eq!(reports(&actions), ["peer_gone"], "nobody here could be the cause");
}

#[test]
fn a_rank_that_stands_still_is_told_of_unless_something_else_is() {
    let still = || Input::StandsStill(failure(FailureCode::NotEntered, &[0]));
    let (mut course, now) = course(1);
    assert_eq!(reports(&course.step(still(), now)), ["not_entered", "interrupt"]);
    assert_eq!(reports(&course.step(still(), now)), [""; 0]);
    let (mut missed, now) = self::course(2);
    missed.step(interrupted(1, &[0]), now);
    assert_eq!(reports(&missed.step(still(), now)), [""; 0]);
    let (mut stopping, now) = self::course(1);
    stopping.step(Input::StopAsked, now);
    assert_eq!(reports(&stopping.step(still(), now)), [""; 0]);
}

#[test]
fn complaints_that_are_held_together_are_told_together() {
    let (mut course, now) = course(3);
    for (by, missing) in [(0, 2), (2, 0), (1, 2), (1, 0)] {
        assert_eq!(reports(&course.step(interrupted(by, &[missing]), now)), [""; 0]);
    }
    let actions = course.step(Input::Tick, now + HOLD);
    assert_eq!(reports(&actions), ["not_entered", "not_entered", "not_entered", "interrupt"]);
}

#[test]
fn a_complaint_that_no_death_explains_becomes_the_verdict_after_a_moment() {
    let (mut course, now) = course(2);
    course.step(failed(0, FailureCode::NotEntered, &[1]), now);
    course.step(gone(0, exit(Some(1), None)), now);
    assert_eq!(course.deadline(), Some(now + HOLD));
    assert_eq!(course.step(Input::Tick, now + HOLD / 2), []);
    assert_eq!(
        reports(&course.step(Input::Tick, now + HOLD)),
        ["not_entered", "exited", "interrupt"]
    );
}

#[test]
fn a_ranks_own_verdict_comes_first_and_its_exit_interrupts_the_others() {
    let (mut course, now) = course(2);
    assert_eq!(reports(&course.step(failed(1, FailureCode::GuestTrap, &[]), now)), ["guest_trap"]);
    assert_eq!(reports(&course.step(gone(1, exit(Some(1), None)), now)), ["exited", "interrupt"]);
    assert_eq!(reports(&course.step(interrupted(0, &[1]), now)), [""; 0]);
}

#[test]
fn a_rank_that_stays_after_its_verdict_is_killed() {
    let (mut course, now) = course(1);
    course.step(failed(0, FailureCode::GuestTrap, &[]), now);
    let actions = course.step(Input::Tick, now + GRACES.leave);
    assert_eq!(reports(&actions), ["abort_hung", "kill one"]);
    assert_eq!(actions[1], Action::Kill(Rank(0)));
}

#[test]
fn ranks_that_do_not_stop_are_killed_after_the_grace_without_a_verdict() {
    let (mut course, now) = course(2);
    assert_eq!(course.step(Input::StopAsked, now), [Action::StopAll]);
    assert_eq!(course.step(Input::StopAsked, now), []);
    assert_eq!(reports(&course.step(gone(0, exit(Some(0), None)), now)), ["exited"]);
    assert_eq!(course.step(Input::Tick, now + GRACES.stop / 2), []);
    assert_eq!(course.step(Input::Tick, now + GRACES.stop), [Action::KillAll]);
    assert_eq!(reports(&course.step(gone(1, exit(None, Some(9))), now)), ["exited"]);
    assert_eq!(course.ending(), Some(Ending::Stopped));
}

#[test]
fn all_that_leave_with_status_zero_have_finished() {
    let (mut course, now) = course(2);
    course.step(gone(0, exit(Some(0), None)), now);
    assert_eq!(course.ending(), None);
    course.step(gone(1, exit(Some(0), None)), now);
    assert_eq!(course.ending(), Some(Ending::Finished));
}

fn any_input() -> impl Strategy<Value = Input> {
    let any_exit = prop_oneof![
        Just(exit(Some(0), None)),
        Just(exit(Some(1), None)),
        Just(exit(None, Some(9)))
    ];
    prop_oneof![
        (0..3, any_exit).prop_map(|(rank, exit)| gone(rank, exit)),
        (0..3, proptest::collection::vec(0..4, 0..3)).prop_map(|(by, missing)| failed(
            by,
            FailureCode::NotEntered,
            &missing
        )),
        (0..3, proptest::collection::vec(0..4, 0..3))
            .prop_map(|(by, missing)| interrupted(by, &missing)),
        Just(failed(0, FailureCode::GuestTrap, &[])),
        Just(Input::Broken(own_failure(FailureCode::CheckpointFailed, String::new()))),
        Just(Input::StopAsked),
        Just(Input::KillAsked),
        Just(Input::Tick),
    ]
}

proptest! {
    /// Whatever happens, in whatever order: every rank's exit is reported once; ranks that left badly without
    /// having been killed have a verdict before the first such exit; and with time alone it comes to an end.
    #[test]
    fn every_course_ends_and_says_why(
        inputs in proptest::collection::vec((any_input(), 0..400u64), 0..40),
    ) {
        let (mut course, mut now) = course(3);
        let mut alive: std::collections::BTreeSet<Rank> = (0..3).map(Rank).collect();
        let mut exits = 0;
        let (mut was_killed, mut has_verdict) = (false, false);
        let mut take = |course: &mut Course, input: Input, now: Instant| {
            let bad_by_itself = matches!(&input, Input::Gone(it) if it.exit.code != Some(0)) && !was_killed;
            for action in course.step(input, now) {
                match action {
                    Action::Report(Report::Failed(_)) => has_verdict = true,
                    Action::Report(Report::RankExited { .. }) => {
                        exits += 1;
                        assert!(!bad_by_itself || has_verdict, "an exit came before its cause");
                    }
                    Action::Report(_)
                    | Action::StopAll
                    | Action::InterruptAll
                    | Action::Kill(_) => {}
                    Action::KillAll => was_killed = true,
                }
            }
            was_killed |= course.mode == Mode::Killed;
            was_killed
        };
        let mut killed = false;
        for (input, ms) in inputs {
            now += Duration::from_millis(ms);
            if let Input::Gone(gone) = &input && !alive.remove(&gone.rank) {
                continue;
            }
            killed = take(&mut course, input, now);
        }
        // The server takes the attempt away if it broke. Time passes; whoever was told to die dies, everyone else leaves.
        if course.mode == Mode::Interrupted || course.held.is_some() {
            killed = take(&mut course, Input::KillAsked, now);
        }
        let mut rounds = 0;
        while course.ending().is_none() {
            rounds += 1;
            prop_assert!(rounds < 20, "{course:?}");
            if let Some(deadline) = course.deadline() {
                now = now.max(deadline);
                killed = take(&mut course, Input::Tick, now);
            }
            if let Some(rank) = alive.pop_first() {
                let exit = if killed { exit(None, Some(9)) } else { exit(Some(0), None) };
                killed = take(&mut course, gone(rank.0, exit), now);
            } else if course.mode == Mode::Interrupted {
                killed = take(&mut course, Input::KillAsked, now);
            }
        }
        prop_assert_eq!(exits, 3);
        if course.ending() == Some(Ending::Finished) {
            prop_assert!(!has_verdict);
        }
    }
}
