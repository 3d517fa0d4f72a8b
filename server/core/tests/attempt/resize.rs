//! Gangs whose size may change.

use lockstep_core::{NewSlot, Refill};

use super::repair::{at_work, begun, elsewhere};
use super::*;

/// At work, between so many ranks and so many.
fn elastic(nodes: &[u128], min: u32, max: u32) -> Attempt {
    let mut attempt = at_work(nodes);
    attempt.gang.ranks = RankCount::Elastic(RankRange { min, max });
    attempt
}

/// `(rank, process, node)`
fn seats(attempt: &Attempt) -> Vec<(i32, i32, u128)> {
    let members = attempt.gang.members.iter();
    members.map(|(rank, it)| (rank.0, it.process, it.node.0.as_u128())).collect()
}

fn under(generation: Generation, number: u128, word: Word) -> Event {
    Event::Said { node: node(number), generation, word }
}

#[test]
fn a_gang_grows_and_whoever_shares_a_node_stays_neighbours() {
    let places = vec![elsewhere(2, 1), elsewhere(3, 3)];
    let (attempt, effects) = go(elastic(&[1, 2], 1, 4), &[(5_000, Event::Grown(places))]);
    assert_eq!(seats(&attempt), [(0, 0, 1), (1, 2, 1), (2, 1, 2), (3, 3, 3)]);
    let Effect::Begin { replacements, seats, is_paid } = &effects[0] else { panic!("{effects:?}") };
    let started: Vec<_> = replacements.iter().map(|it| (it.rank.0, it.process)).collect();
    assert_eq!((started.as_slice(), *is_paid), (&[(1, 2), (3, 3)][..], false));
    let memories: Vec<_> = seats.iter().map(|it| it.memory_index).collect();
    assert_eq!(memories, [0, 0, 1, 2]);
    assert_eq!(attempt.stage, Stage::Recovering { since: at(5_000) });
    assert!(attempt.gang.rendezvous_by.is_some());
}

#[test]
fn a_gang_grows_only_while_it_is_at_work_and_within_its_size() {
    let more = |ranks: &[i32]| {
        Event::Grown(ranks.iter().map(|rank| elsewhere(*rank, 9)).collect::<Vec<Refill>>())
    };
    let stays = |attempt: Attempt, event: Event| {
        assert_eq!(go(attempt.clone(), &[(5_000, event)]), (attempt, vec![]));
    };
    let soon = elastic(&[1, 2], 1, 3);
    assert_eq!(go(soon.clone(), &[(4_999, more(&[2]))]), (soon, vec![]));
    stays(elastic(&[1, 2], 1, 3), more(&[2, 3]));
    stays(elastic(&[1, 2], 1, 9), more(&[3]));
    stays(elastic(&[1, 2], 1, 9), more(&[]));
    stays(at_work(&[1, 2]), more(&[2]));
    let mut fresh = elastic(&[1, 2], 1, 9);
    fresh.gang.has_progressed = false;
    stays(fresh, more(&[2]));
    let (leaving, _) = go(elastic(&[1, 2], 1, 9), &[(0, says(1, exit(0, Some(0), None)))]);
    stays(leaving, more(&[2]));
    let symptom = says(1, failed(FailureCode::NotEntered, Some(1)));
    stays(go(elastic(&[1, 2], 1, 9), &[(0, symptom)]).0, more(&[2]));
    stays(go(elastic(&[1, 2], 1, 9), &[(0, Event::StopRequested)]).0, more(&[2]));
}

#[test]
fn a_gang_gives_ranks_back_and_the_others_move_up() {
    let wanted = |ranks: &[i32]| Event::Reclaimed(ranks.iter().copied().map(Rank).collect());
    let (attempt, effects) = go(elastic(&[1, 1, 2], 2, 4), &[(0, wanted(&[0]))]);
    assert_eq!(seats(&attempt), [(0, 1, 1), (1, 2, 2)]);
    assert_eq!(effects[0], Effect::Evict { rank: Rank(0) });
    let Effect::Begin { replacements, is_paid, .. } = &effects[1] else { panic!("{effects:?}") };
    assert_eq!((replacements.len(), *is_paid), (0, false));
    let gone = under(GENERATION, 1, exit(0, None, Some(9)));
    assert_eq!(go(attempt.clone(), &[(1, gone)]), (attempt.clone(), vec![]), "it was given up");
    // It moved up: its number, not its old rank, says who is gone.
    let gone = under(GENERATION, 2, exit(2, None, Some(9)));
    let (attempt, effects) = go(attempt, &[(2, gone)]);
    assert_eq!(filed(&effects), [(FailureCode::PeerGone, Some(1), Standing::Verdict)]);
    assert_eq!(seats(&attempt), [(0, 1, 1), (1, 3, 2)]);
    for refused in [wanted(&[0, 1]), wanted(&[7]), wanted(&[])] {
        let before = elastic(&[1, 1, 2], 2, 4);
        assert_eq!(go(before.clone(), &[(0, refused)]), (before, vec![]));
    }
}

#[test]
fn a_gang_goes_on_without_the_ranks_of_a_lost_node_for_which_there_are_no_slots() {
    let lost = Event::NodeLost { node: node(1), loss: NodeLoss::LeaseExpired };
    let (waiting, _) = go(elastic(&[1, 2, 1, 3], 2, 4), &[(0, lost)]);
    assert_eq!(waiting.gang.vacant(), [0, 2].map(Rank).into());
    let (attempt, effects) = go(waiting.clone(), &[(1, Event::Refilled(vec![elsewhere(0, 3)]))]);
    assert_eq!(seats(&attempt), [(0, 4, 3), (1, 3, 3), (2, 1, 2)]);
    let Effect::Begin { replacements, .. } = &effects[0] else { panic!("{effects:?}") };
    assert_eq!(replacements[0].slot, NewSlot::Free(elsewhere(0, 3)));
    let (attempt, _) = go(waiting.clone(), &[(1, Event::Refilled(vec![]))]);
    assert_eq!(seats(&attempt), [(0, 1, 2), (1, 3, 3)]);
    let mut needs_three = waiting;
    needs_three.gang.ranks = RankCount::Elastic(RankRange { min: 3, max: 4 });
    let (same, effects) = go(needs_three.clone(), &[(1, Event::Refilled(vec![]))]);
    assert_eq!((same, begun(&effects).len()), (needs_three, 0));
}

/// One rank that was at work, and two newcomers on another node that have yet to take over its state.
fn just_grown() -> Attempt {
    let grown = Event::Grown(vec![elsewhere(1, 2), elsewhere(2, 2)]);
    go(elastic(&[1], 1, 3), &[(5_000, grown)]).0
}

#[test]
fn newcomers_that_break_before_a_step_are_done_without_for_nothing() {
    let now = |word| under(GENERATION.next(), 2, word);
    let broke = Terms { can_pay: false, ..terms() };
    for word in [
        exit(1, None, Some(9)),
        failed(FailureCode::PrepareFailed, None),
        failed(FailureCode::InterfaceUnreachable, None),
    ] {
        let (attempt, effects) = just_grown().step(now(word.clone()), broke, at(6_000)).unwrap();
        assert_eq!(filed(&effects)[0].2, Standing::Verdict, "{word:?}");
        let is_free = |it: &&Effect| matches!(it, Effect::Begin { is_paid: false, .. });
        assert_eq!(effects.iter().filter(is_free).count(), 1, "{word:?}: {effects:?}");
        assert_eq!(seats(&attempt)[0], (0, 0, 1));
        assert!(attempt.gang.members.len() < 3, "{word:?}");
    }
    let (attempt, _) = just_grown().step(now(exit(1, None, Some(9))), broke, at(6_000)).unwrap();
    let again = under(attempt.gang.generation, 2, exit(2, None, Some(9)));
    let (attempt, _) = attempt.step(again, broke, at(6_001)).unwrap();
    assert_eq!(seats(&attempt), [(0, 0, 1)], "as it was before it grew");
    let (ended, _) = go(just_grown(), &[(6_000, now(failed(FailureCode::GuestTrap, Some(2))))]);
    assert_eq!(ended.stage, Stage::Ended(AttemptOutcome::Failed), "a fault of the job's own");
    let survivor = under(GENERATION.next(), 1, exit(0, None, Some(9)));
    let (ended, _) = go(just_grown(), &[(6_000, survivor)]);
    assert_eq!(ended.stage, Stage::Ended(AttemptOutcome::Failed), "nobody has the state");
}

#[test]
fn training_that_was_over_before_its_node_heard_of_a_larger_group_is_over() {
    let late = |word| under(GENERATION, 1, word);
    let (left, effects) = go(just_grown(), &[(6_000, late(exit(0, Some(0), None)))]);
    assert_eq!(effects, [Effect::Release { rank: Rank(0) }]);
    let missed = under(GENERATION.next(), 2, failed(FailureCode::NotEntered, Some(0)));
    let (ended, effects) = go(left.clone(), &[(6_001, missed), (60_000, Event::Tick)]);
    assert_eq!(
        (begun(&effects).len(), ended.stage),
        (0, Stage::Ended(AttemptOutcome::Failed)),
        "no slot is taken back"
    );
    let (ended, effects) = go(left, &[(6_001, late(Word::Finished))]);
    assert_eq!(ended.stage, Stage::Ended(AttemptOutcome::Succeeded));
    assert_eq!(effects.last(), Some(&over(AttemptOutcome::Succeeded, Blame::Infrastructure)));
    assert!(ended.holds_slot(Rank(1)), "newcomers may live");
}

#[test]
fn what_ended_a_sound_group_counts_although_its_node_has_not_heard_of_the_next_one() {
    let late = |word| under(GENERATION, 1, word);
    let (ended, effects) =
        go(just_grown(), &[(6_000, late(failed(FailureCode::GuestTrap, Some(0))))]);
    assert_eq!(filed(&effects), [(FailureCode::GuestTrap, Some(0), Standing::Verdict)]);
    assert_eq!(effects.last(), Some(&over(AttemptOutcome::Failed, Blame::User)));
    assert_eq!(ended.stage, Stage::Ended(AttemptOutcome::Failed));
    let (_, effects) = go(just_grown(), &[(6_000, late(failed(FailureCode::NotEntered, Some(0))))]);
    assert_eq!(filed(&effects)[0].2, Standing::Effect, "who is gone is told of by its exit");
    let stopping = go(just_grown(), &[(6_000, Event::StopRequested)]).0;
    let (same, effects) = go(stopping.clone(), &[(6_001, late(Word::Progressed))]);
    assert_eq!(
        (same, effects),
        (stopping.clone(), vec![]),
        "its last step is one more before its checkpoint"
    );
    let gone = [(6_002, late(exit(0, Some(0), None))), (6_003, late(Word::Stopped))];
    let (attempt, _) = go(stopping, &gone);
    assert_eq!(attempt.gang.members[&Rank(0)].place, Place::Gone);
}
