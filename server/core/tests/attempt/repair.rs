//! Attempts that go on after they lost ranks.

use lockstep_core::{NewSlot, Refill, Replacement, Seated};

use super::*;

/// A gang whose ranks are copies of each other, at work.
pub(super) fn at_work(nodes: &[u128]) -> Attempt {
    let mut attempt = placed(nodes);
    attempt.gang.has_copies = true;
    attempt.gang.has_progressed = true;
    attempt.stage = Stage::Running;
    attempt
}

pub(super) fn next() -> Generation {
    GENERATION.next()
}

/// Under the next generation.
fn then(number: u128, word: Word) -> Event {
    Event::Said { node: node(number), generation: next(), word }
}

/// A process in the slot of the one with the number of its rank.
fn same_slot(rank: i32, process: i32) -> Replacement {
    Replacement { rank: Rank(rank), process, slot: NewSlot::Of(rank) }
}

/// All in one memory.
fn seats(processes: &[i32]) -> Vec<Seated> {
    let seat = |(rank, &process)| Seated { process, rank: Rank(rank), memory_index: 0 };
    (0..).zip(processes).map(seat).collect()
}

pub(super) fn elsewhere(rank: i32, number: u128) -> Refill {
    let (device, index) = (lockstep_api::DeviceKind::Cpu, 0);
    Refill { rank: Rank(rank), node: node(number), node_name: format!("n{number}"), device, index }
}

pub(super) fn begun(effects: &[Effect]) -> Vec<&Effect> {
    effects.iter().filter(|it| matches!(it, Effect::Begin { .. })).collect()
}

#[test]
fn a_rank_that_was_killed_is_replaced_in_its_slot_and_the_others_go_on() {
    let (attempt, effects) = go(at_work(&[1, 1]), &[(10, says(1, exit(1, None, Some(9))))]);
    assert_eq!(filed(&effects), [(FailureCode::PeerGone, Some(1), Standing::Verdict)]);
    let (replacements, seats) = (vec![same_slot(1, 2)], seats(&[0, 2]));
    let begin = Effect::Begin { replacements, seats, is_paid: false };
    assert_eq!(effects[2..], [begin, Effect::Reassign]);
    assert_eq!(attempt.gang.generation, next());
    assert_eq!(attempt.stage, Stage::Recovering { since: at(10) });
    let (kept, new) = (&attempt.gang.members[&Rank(0)], &attempt.gang.members[&Rank(1)]);
    assert_eq!((kept.process, kept.first_generation), (0, GENERATION));
    assert_eq!((new.process, new.first_generation, new.place), (2, next(), Place::Held));
    let (attempt, _) = go(attempt, &[(20, then(1, Word::Formed)), (30, then(1, Word::Progressed))]);
    assert_eq!(attempt.stage, Stage::Running);
    assert!(attempt.gang.has_progressed);
}

#[test]
fn a_frozen_rank_is_replaced_once_nothing_else_explains_why_it_is_missed() {
    let symptom = says(1, failed(FailureCode::NotEntered, Some(1)));
    let (attempt, effects) = go(at_work(&[1, 1]), &[(0, symptom), (599, Event::Tick)]);
    assert_eq!((attempt.stage, begun(&effects).len()), (Stage::Running, 0));
    let (attempt, effects) = go(attempt, &[(600, Event::Tick)]);
    assert_eq!(effects[0], Effect::PromoteSuspect);
    assert_eq!(begun(&effects).len(), 1);
    assert_eq!(attempt.gang.members[&Rank(1)].process, 2);
    assert_eq!(attempt.gang.suspect, None, "the new group has nobody to suspect");
}

#[test]
fn a_rank_that_is_missed_on_a_silent_node_waits_for_the_nodes_lease() {
    let symptom = says(1, failed(FailureCode::PeerGone, Some(1)));
    let (mut attempt, _) = go(at_work(&[1, 2]), &[(100, symptom)]);
    let seen_at = |attempt: &mut Attempt, ms| {
        attempt.gang.members.get_mut(&Rank(1)).unwrap().node_seen_at = at(ms);
    };
    seen_at(&mut attempt, 99);
    assert_eq!(go(attempt.clone(), &[(5_000, Event::Tick)]), (attempt.clone(), vec![]));
    let lost = Event::NodeLost { node: node(2), loss: NodeLoss::LeaseExpired };
    let (_, effects) = go(attempt.clone(), &[(6_000, lost)]);
    assert_eq!(filed(&effects), [(FailureCode::NodeLost, None, Standing::Verdict)]);
    seen_at(&mut attempt, 100);
    let (_, effects) = go(attempt, &[(5_000, Event::Tick)]);
    assert_eq!(effects[0], Effect::PromoteSuspect, "the node lives, the rank does not answer");
}

#[test]
fn what_a_node_says_of_the_group_before_changes_nothing_unless_a_rank_that_goes_on_is_gone() {
    let (attempt, _) = go(at_work(&[1, 1, 1]), &[(10, says(1, exit(1, None, Some(9))))]);
    let late = [
        (11, says(1, failed(FailureCode::NotEntered, Some(0)))),
        (12, says(1, exit(1, None, Some(9)))),
        (13, says(1, Word::Progressed)),
    ];
    let (same, effects) = go(attempt.clone(), &late);
    assert_eq!(filed(&effects), [(FailureCode::NotEntered, Some(0), Standing::Effect)]);
    assert_eq!(same, attempt);
    let (attempt, effects) = go(attempt, &[(14, says(1, exit(2, None, Some(9))))]);
    assert_eq!(filed(&effects), [(FailureCode::PeerGone, Some(2), Standing::Verdict)]);
    let is_paid = |it: &Effect| matches!(it, Effect::Begin { is_paid: true, .. });
    assert!(effects.iter().any(is_paid), "no step was done in between");
    assert_eq!(attempt.gang.generation, next().next());
}

#[test]
fn a_group_that_breaks_again_before_a_step_costs_a_retry_and_ends_when_none_is_left() {
    let (attempt, _) = go(at_work(&[1, 1]), &[(0, says(1, exit(1, None, Some(9))))]);
    let death = then(1, exit(2, None, Some(9)));
    let broke = Terms { can_pay: false, ..terms() };
    let (ended, effects) = attempt.step(death, broke, at(1)).unwrap();
    assert_eq!(ended.stage, Stage::Ended(AttemptOutcome::Failed));
    assert_eq!(effects.last(), Some(&over(AttemptOutcome::Failed, Blame::Infrastructure)));
}

#[test]
fn the_ranks_of_a_node_that_is_silent_get_slots_elsewhere_and_keep_theirs_until_they_are_gone() {
    let lost = Event::NodeLost { node: node(2), loss: NodeLoss::LeaseExpired };
    let (attempt, effects) = go(at_work(&[1, 2, 2]), &[(0, lost)]);
    assert_eq!(filed(&effects), [(FailureCode::NodeLost, None, Standing::Verdict)]);
    let evicted = [1, 2].map(|rank| Effect::Evict { rank: Rank(rank) });
    assert_eq!(effects[1..], evicted);
    assert_eq!(attempt.gang.vacant(), [1, 2].map(Rank).into());
    assert_eq!(attempt.gang.generation, GENERATION, "nothing begins before there are slots");
    let refused = attempt.clone().step(says(2, Word::Renewed), terms(), at(1));
    assert!(matches!(refused, Err(StepError::NotAMember { .. })), "{refused:?}");
    let (same, effects) = go(attempt.clone(), &[(1, Event::Refilled(vec![elsewhere(1, 3)]))]);
    assert_eq!((same, effects), (attempt.clone(), vec![]), "all or none");
    let places = vec![elsewhere(1, 3), elsewhere(2, 1)];
    let (refilled, effects) = go(attempt.clone(), &[(1, Event::Refilled(places))]);
    let Effect::Begin { replacements, seats, .. } = &effects[0] else { panic!("{effects:?}") };
    assert!(replacements.iter().all(|it| matches!(it.slot, NewSlot::Free(_))));
    assert_eq!(seats.iter().map(|it| it.memory_index).collect::<Vec<_>>(), [0, 1, 2]);
    assert!(refilled.gang.rendezvous_by.is_some(), "they have to meet");
    let (ended, effects) = go(attempt, &[(10_000, says(1, Word::Renewed)), (60_000, Event::Tick)]);
    assert_eq!(ended.stage, Stage::Ended(AttemptOutcome::LeaseLost));
    assert_eq!(effects.last(), Some(&over(AttemptOutcome::LeaseLost, Blame::Infrastructure)));
}

#[test]
fn a_rank_that_was_lost_on_a_node_that_is_shunned_goes_elsewhere() {
    let mut attempt = at_work(&[1, 2]);
    attempt.gang.shunned.insert(node(2));
    let (attempt, effects) = go(attempt, &[(0, says(2, exit(1, None, Some(9))))]);
    assert_eq!(effects.last(), Some(&Effect::Evict { rank: Rank(1) }));
    assert_eq!(attempt.gang.vacant(), [Rank(1)].into());
    let mut attempt = at_work(&[1, 2]);
    attempt.gang.shunned.insert(node(2));
    let (attempt, _) = go(attempt, &[(0, says(1, exit(0, None, Some(9))))]);
    assert!(attempt.holds_slot(Rank(0)), "the other node is not");
}

#[test]
fn the_ranks_of_an_agent_that_is_back_are_started_there_again() {
    let lost = Event::NodeLost { node: node(2), loss: NodeLoss::Restarted };
    let (attempt, effects) = go(at_work(&[1, 2]), &[(0, lost)]);
    assert_eq!(begun(&effects).len(), 1);
    assert_eq!(attempt.gang.members[&Rank(1)].node, node(2));
    assert!(attempt.holds_slot(Rank(1)));
}

#[test]
fn an_attempt_ends_when_nobody_has_the_state_or_the_job_itself_is_at_fault() {
    let death = |rank| says(1, exit(rank, None, Some(9)));
    let is_over = |attempt: Attempt, event: Event| {
        matches!(go(attempt, &[(0, event)]).0.stage, Stage::Ended(AttemptOutcome::Failed))
    };
    assert!(is_over(at_work(&[1]), death(0)), "the only rank");
    let mut in_parts = at_work(&[1, 1]);
    in_parts.gang.has_copies = false;
    assert!(is_over(in_parts, death(0)), "each rank has a part of the state");
    assert!(is_over(at_work(&[1, 1]), says(1, failed(FailureCode::GuestTrap, Some(0)))));
    assert!(is_over(at_work(&[1, 1]), says(1, failed(FailureCode::Diverged, Some(0)))));
    let (leaving, _) = go(at_work(&[1, 1]), &[(0, says(1, exit(1, Some(0), None)))]);
    assert!(is_over(leaving, death(0)), "the others have finished and left");
}

/// A gang that waits for slots for rank 1, whose node is silent.
fn awaiting_slots() -> Attempt {
    let lost = Event::NodeLost { node: node(2), loss: NodeLoss::LeaseExpired };
    go(at_work(&[1, 2, 3, 4]), &[(0, lost)]).0
}

#[test]
fn what_breaks_while_slots_are_awaited_is_no_second_verdict_and_whoever_is_lost_gets_one_too() {
    let waiting = awaiting_slots();
    let more = [
        (1, says(1, failed(FailureCode::PeerGone, Some(1)))),
        (2, says(1, failed(FailureCode::GuestTrap, Some(0)))),
        (3, says(3, exit(2, None, Some(9)))),
        (4, Event::Tick),
        (5, Event::NodeLost { node: node(4), loss: NodeLoss::LeaseExpired }),
    ];
    let (attempt, effects) = go(waiting.clone(), &more);
    let filed = filed(&effects);
    assert_eq!(filed.len(), 4);
    assert!(filed.iter().all(|it| it.2 == Standing::Effect), "{filed:?}");
    assert!(!effects.contains(&Effect::PromoteSuspect));
    assert_eq!(attempt.gang.vacant(), [1, 2, 3].map(Rank).into());
    assert_eq!(attempt.stage, Stage::Recovering { since: at(0) }, "the wait is not longer for it");
    let places = [1, 2, 3].map(|rank| elsewhere(rank, 5)).to_vec();
    let (begun_again, effects) = go(attempt.clone(), &[(6, Event::Refilled(places))]);
    assert_eq!((begun(&effects).len(), begun_again.gang.suspect), (1, None));
    let (ended, effects) = go(attempt, &[(7, says(1, exit(0, Some(1), None)))]);
    assert_eq!(ended.stage, Stage::Ended(AttemptOutcome::Failed), "nobody has the state");
    assert_eq!(effects.last(), Some(&over(AttemptOutcome::Failed, Blame::Infrastructure)));
}

#[test]
fn ranks_that_nobody_renews_do_not_wait_for_slots() {
    let (ended, effects) = go(awaiting_slots(), &[(1, Event::Tick), (20_000, Event::Tick)]);
    assert_eq!(ended.stage, Stage::Ended(AttemptOutcome::LeaseLost));
    assert_eq!(filed(&effects), [(FailureCode::NodeLost, None, Standing::Effect)]);
}

/// Of attempts that repair themselves and change their size, told as what follows from the state that it meets.
#[derive(Debug, Clone)]
enum Turn {
    /// Said under a generation so many before the present one.
    Word(u128, i64, Word),
    /// Whatever else.
    Event(Event),
    /// Slots on a node for whoever waits, all or some.
    Refill(u128, usize),
    /// So many slots on a node for more ranks.
    Grow(u128, i32),
    /// Some ranks are wanted back.
    GiveBack(BTreeSet<i32>),
}

fn any_turn() -> impl Strategy<Value = Turn> {
    prop_oneof![
        8 => (1..4u128, prop::sample::select(vec![0, 0, 0, 1]), any_word())
            .prop_map(|(number, late, word)| Turn::Word(number, late, word)),
        4 => any_other_event().prop_map(Turn::Event),
        2 => (1..6u128, 0..6usize).prop_map(|(number, most)| Turn::Refill(number, most)),
        2 => (1..6u128, 1..3i32).prop_map(|(number, more)| Turn::Grow(number, more)),
        1 => prop::collection::btree_set(0..5i32, 1..3).prop_map(Turn::GiveBack),
    ]
}

impl Turn {
    fn event(self, attempt: &Attempt) -> Event {
        match self {
            Self::Word(number, late, word) => {
                let generation = Generation(attempt.gang.generation.0 - late);
                Event::Said { node: node(number), generation, word }
            }
            Self::Event(event) => event,
            Self::Refill(number, most) => {
                let vacant = attempt.gang.vacant();
                let places = vacant.iter().map(|rank| elsewhere(rank.0, number));
                Event::Refilled(places.take(most).collect())
            }
            Self::Grow(number, more) => {
                let size = i32::try_from(attempt.gang.members.len()).unwrap();
                Event::Grown((size..size + more).map(|rank| elsewhere(rank, number)).collect())
            }
            Self::GiveBack(ranks) => Event::Reclaimed(ranks.into_iter().map(Rank).collect()),
        }
    }
}

proptest! {
    /// Whatever arrives: a generation has one verdict at most, and another begins only after it; a process number is given
    /// once, and only in the place of one that is lost; the end is told once.
    #[test]
    fn every_generation_has_one_verdict_and_every_process_one_number(
        gang in prop::collection::vec(1..4u128, 2..5), shunned in prop::option::of(1..4u128),
        elastic in prop::option::of((1..3u32, 0..3u32)),
        turns in prop::collection::vec((any_turn(), 0..4_000i64), 0..60),
    ) {
        let mut attempt = at_work(&gang);
        attempt.gang.shunned.extend(shunned.map(node));
        let size = u32::try_from(gang.len()).unwrap();
        if let Some((min, more)) = elastic {
            attempt.gang.ranks = RankCount::Elastic(RankRange { min, max: size + more });
        }
        let sizes = attempt.gang.ranks.min()..=attempt.gang.ranks.max();
        let (mut ms, mut overs, mut verdicts, mut symptoms) = (0, 0, 0, 0);
        for (turn, passed) in turns {
            ms += passed;
            let before = attempt.clone();
            let event = turn.event(&before);
            let is_resized = matches!(event, Event::Grown(_) | Event::Reclaimed(_));
            let Ok((next, effects)) = attempt.clone().step(event, terms(), at(ms)) else { continue };
            for effect in &effects {
                match effect {
                    Effect::File { generation, standing, .. } if *generation == before.gang.generation => {
                        match standing { Standing::Verdict => verdicts += 1, Standing::Effect => symptoms += 1 }
                    }
                    // Of the group before, if that was sound.
                    Effect::File { standing: Standing::Verdict, .. } => {
                        prop_assert!(before.gang.is_planned && matches!(next.stage, Stage::Ended(_)));
                    }
                    Effect::File { standing: Standing::Effect, .. } => {}
                    Effect::PromoteSuspect => {
                        prop_assert!(0 < symptoms, "nothing was filed that could be promoted");
                        verdicts += 1;
                    }
                    Effect::Release { rank } => prop_assert!(before.holds_slot(*rank)),
                    Effect::Evict { rank } => {
                        prop_assert!(before.gang.members[rank].place != Place::Vacant);
                        let is_smaller = next.gang.members.len() < before.gang.members.len();
                        prop_assert!(is_smaller || next.gang.members[rank].place == Place::Vacant);
                    }
                    Effect::Begin { replacements, seats, .. } => {
                        let mut numbers: Vec<i32> = replacements.iter().map(|it| it.process).collect();
                        numbers.sort_unstable();
                        let given: Vec<i32> = (before.gang.next_process..next.gang.next_process).collect();
                        prop_assert_eq!(numbers, given);
                        prop_assert!(next.gang.members.values().all(|it| it.place == Place::Held));
                        prop_assert_eq!(next.gang.generation, before.gang.generation.next());
                        prop_assert!(sizes.contains(&u32::try_from(seats.len()).unwrap()));
                        prop_assert!(next.gang.members.keys().copied().eq((0..).map(Rank).take(seats.len())));
                        let goes_on = |it: &&Member| it.first_generation != next.gang.generation;
                        prop_assert!(next.gang.members.values().find(goes_on).is_some(), "nobody has the state");
                    }
                    Effect::Over { .. } => overs += 1,
                    Effect::Reassign => {}
                }
            }
            prop_assert!(verdicts <= 1, "a second verdict in {before:?}: {effects:?}");
            let has_begun = !begun(&effects).is_empty();
            prop_assert_eq!(has_begun, next.gang.generation != before.gang.generation);
            if has_begun {
                prop_assert_eq!(verdicts, i32::from(!is_resized), "a group was given up for no reason");
                (verdicts, symptoms) = (0, 0);
            }
            prop_assert!(verdicts == 0 || next.gang.suspect.is_none() || overs == 1, "{next:?}");
            if let Stage::Ended(_) = before.stage {
                prop_assert_eq!(next.stage, before.stage);
            }
            attempt = next;
        }
        prop_assert_eq!(overs, i32::from(matches!(attempt.stage, Stage::Ended(_))));
    }
}

/// Rank 2 has left because of what rank 0 complains of, some time before the verdict.
fn with_a_free_slot(transport: Transport) -> (Attempt, Vec<Effect>) {
    let mut attempt = at_work(&[1, 1, 1]);
    attempt.gang.transport = transport;
    let symptom = says(1, failed(FailureCode::NotEntered, Some(1)));
    let left = says(1, exit(2, Some(1), None));
    let (attempt, effects) = go(attempt, &[(0, symptom), (10, left)]);
    assert!(effects.contains(&Effect::Release { rank: Rank(2) }) && begun(&effects).is_empty());
    go(attempt, &[(600, Event::Tick)])
}

#[test]
fn a_slot_that_others_may_have_taken_is_not_taken_for_granted() {
    let (attempt, effects) = with_a_free_slot(Transport::Auto);
    assert!(effects.contains(&Effect::Evict { rank: Rank(2) }) && begun(&effects).is_empty());
    assert_eq!(attempt.gang.vacant(), [Rank(2)].into());
    let (ended, effects) = with_a_free_slot(Transport::Shm);
    assert!(begun(&effects).is_empty());
    assert_eq!(ended.stage, Stage::Ended(AttemptOutcome::Failed), "it has to stay where it was");
}
