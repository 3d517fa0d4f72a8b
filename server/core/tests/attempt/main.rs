//! An attempt's life: the cases worth telling, then everything that could arrive, in every order.
#![expect(clippy::unwrap_used, reason = "a test ends where it is wrong")]

mod repair;
mod resize;
mod stall;

use std::collections::BTreeSet;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use lockstep_api::{
    AttemptOutcome, Blame, FailureCode, FailureReport, Generation, Lane, NodeId, Phase, Rank,
    RankCount, RankExit, RankRange, Step, Transport,
};
use lockstep_core::{
    Attempt, Effect, Event, Gang, LeaseTerms, Member, NodeLoss, Place, Readiness, Stage, Standing,
    StepError, Terms, Timeouts, Word,
};
use proptest::prelude::*;
use uuid::Uuid;

const GENERATION: Generation = Generation(7);

fn terms() -> Terms {
    let [heartbeat, lease, orphan] = [5, 20, 600].map(Duration::from_secs);
    Terms {
        lease: LeaseTerms::new(heartbeat, lease, orphan).unwrap(),
        timeouts: Timeouts::from_collective(Duration::from_secs(60)),
        can_pay: true,
    }
}

fn node(number: u128) -> NodeId {
    NodeId(Uuid::from_u128(number))
}

fn at(milliseconds: i64) -> DateTime<Utc> {
    DateTime::UNIX_EPOCH + TimeDelta::milliseconds(milliseconds)
}

/// One rank for each entry, on the node of that number.
fn placed(nodes: &[u128]) -> Attempt {
    let members = (0..).zip(nodes).map(|(rank, &number)| {
        let node_name = format!("n{number}");
        let (place, readiness) = (Place::Held, Readiness::default());
        let (process, first_generation) = (rank, GENERATION);
        let node = node(number);
        let member = Member {
            node,
            node_name,
            place,
            readiness,
            process,
            first_generation,
            node_seen_at: DateTime::<Utc>::MAX_UTC,
            news: None,
        };
        (Rank(rank), member)
    });
    Attempt::placed(Gang {
        generation: GENERATION,
        began_at: at(0),
        lease_expires_at: at(20_000),
        members: members.collect(),
        ranks: RankCount::Fixed(u32::try_from(nodes.len()).unwrap()),
        rendezvous_by: None,
        suspect: None,
        transport: Transport::Auto,
        has_copies: false,
        has_progressed: false,
        has_state_from: GENERATION,
        is_planned: false,
        next_process: i32::try_from(nodes.len()).unwrap(),
        shunned: BTreeSet::new(),
    })
}

fn says(number: u128, word: Word) -> Event {
    Event::Said { node: node(number), generation: GENERATION, word }
}

/// Of a process; the first ones have the numbers of their ranks.
fn exit(process: i32, code: Option<i32>, signal: Option<i32>) -> Word {
    let (phase, step) = (Phase::Backward, Step(12));
    let exit = RankExit { code, signal, phase, step, exceeded_memory_mib: None };
    Word::RankExited { process, exit }
}

fn report(code: FailureCode, rank: Option<i32>) -> FailureReport {
    FailureReport {
        code,
        rank: rank.map(Rank),
        exit: None,
        step: None,
        phase: None,
        message: "as the rank said".to_owned(),
        evidence: Default::default(),
    }
}

fn failed(code: FailureCode, rank: Option<i32>) -> Word {
    Word::Failed(report(code, rank))
}

fn go(attempt: Attempt, events: &[(i64, Event)]) -> (Attempt, Vec<Effect>) {
    events.iter().fold((attempt, vec![]), |(attempt, mut all), (ms, event)| {
        let (attempt, effects) = attempt.step(event.clone(), terms(), at(*ms)).unwrap();
        all.extend(effects);
        (attempt, all)
    })
}

/// `(code, rank, standing)` of what was filed.
fn filed(effects: &[Effect]) -> Vec<(FailureCode, Option<i32>, Standing)> {
    let files = effects.iter().filter_map(|effect| match effect {
        Effect::File { failure, standing, .. } => {
            Some((failure.report.code, failure.report.rank.map(|rank| rank.0), *standing))
        }
        Effect::PromoteSuspect
        | Effect::Evict { .. }
        | Effect::Begin { .. }
        | Effect::Release { .. }
        | Effect::Reassign
        | Effect::Over { .. } => None,
    });
    files.collect()
}

fn over(outcome: AttemptOutcome, blame: Blame) -> Effect {
    Effect::Over { outcome, blame }
}

#[test]
fn an_undisturbed_attempt_goes_from_placing_to_succeeded() {
    let (attempt, effects) =
        go(placed(&[1, 1]), &[(1, says(1, Word::RankStarted { rank: Rank(0) }))]);
    assert_eq!((attempt.stage, effects), (Stage::Starting, vec![]));
    let (attempt, _) = go(attempt, &[(2, says(1, Word::Progressed))]);
    assert_eq!(attempt.stage, Stage::Running);
    let exits = [(3, says(1, exit(0, Some(0), None))), (3, says(1, exit(1, Some(0), None)))];
    let (attempt, effects) = go(attempt, &exits);
    assert_eq!(attempt.stage, Stage::Running, "only the node's word says that training is over");
    let released = [0, 1].map(|rank| Effect::Release { rank: Rank(rank) });
    assert_eq!(effects, released);
    let (attempt, effects) = go(attempt, &[(4, says(1, Word::Finished))]);
    assert_eq!(attempt.stage, Stage::Ended(AttemptOutcome::Succeeded));
    assert_eq!(effects[0], Effect::Reassign);
}

#[test]
fn a_rank_that_died_by_a_signal_is_the_verdict_and_what_follows_are_effects() {
    let (attempt, effects) = go(placed(&[1, 1]), &[(1, says(1, exit(1, None, Some(9))))]);
    assert_eq!(filed(&effects), [(FailureCode::PeerGone, Some(1), Standing::Verdict)]);
    assert_eq!(effects.last(), Some(&over(AttemptOutcome::Failed, Blame::Infrastructure)));
    assert!(attempt.holds_slot(Rank(0)) && !attempt.holds_slot(Rank(1)));
    let later = [
        (2, says(1, failed(FailureCode::NotEntered, Some(1)))),
        (3, says(1, exit(0, None, Some(9)))),
    ];
    let (attempt, effects) = go(attempt, &later);
    assert_eq!(filed(&effects), [(FailureCode::NotEntered, Some(1), Standing::Effect)]);
    assert!(effects.contains(&Effect::Release { rank: Rank(0) }), "a late death frees its slot");
    assert_eq!(attempt.stage, Stage::Ended(AttemptOutcome::Failed));
}

#[test]
fn a_symptom_waits_for_its_cause_which_then_is_the_verdict() {
    let symptom = says(1, failed(FailureCode::NotEntered, Some(1)));
    let (attempt, effects) = go(placed(&[1, 1]), &[(100, symptom), (600, Event::Tick)]);
    assert_eq!(filed(&effects), [(FailureCode::NotEntered, Some(1), Standing::Effect)]);
    assert_eq!(attempt.stage, Stage::Placing, "not judged yet");
    let (other, effects) = go(attempt.clone(), &[(601, says(1, exit(0, None, Some(9))))]);
    assert_eq!(filed(&effects), [(FailureCode::PeerGone, Some(0), Standing::Effect)]);
    assert_eq!(other.stage, Stage::Placing, "the symptom cleared rank 0");
    let (attempt, effects) = go(attempt, &[(601, says(1, exit(1, None, Some(9))))]);
    assert_eq!(filed(&effects), [(FailureCode::PeerGone, Some(1), Standing::Verdict)]);
    assert_eq!(attempt.stage, Stage::Ended(AttemptOutcome::Failed));
}

#[test]
fn a_symptom_without_a_cause_is_the_verdict_after_the_window() {
    let symptom = says(1, failed(FailureCode::PlanMismatch, None));
    let (_, effects) = go(placed(&[1, 1]), &[(0, symptom)]);
    assert_eq!(
        effects.last(),
        Some(&over(AttemptOutcome::Failed, Blame::User)),
        "a cause is judged at once"
    );
    let symptom = says(1, failed(FailureCode::NotEntered, Some(1)));
    let (attempt, effects) = go(placed(&[1, 1]), &[(0, symptom), (600, Event::Tick)]);
    assert_eq!(attempt.stage, Stage::Ended(AttemptOutcome::Failed));
    assert!(effects.contains(&Effect::PromoteSuspect));
    assert_eq!(effects.last(), Some(&over(AttemptOutcome::Failed, Blame::Infrastructure)));
}

#[test]
fn a_stop_ends_when_all_are_gone_or_the_grace_is_over() {
    let (stopping, effects) = go(placed(&[1, 1]), &[(0, Event::StopRequested)]);
    assert_eq!(effects, [Effect::Reassign]);
    assert_eq!(go(stopping.clone(), &[(5, Event::StopRequested)]), (stopping.clone(), vec![]));
    let (attempt, effects) =
        go(stopping.clone(), &[(9, says(1, exit(0, None, Some(15)))), (9, says(1, Word::Stopped))]);
    assert_eq!(attempt.stage, Stage::Ended(AttemptOutcome::Cancelled));
    assert_eq!(filed(&effects), [], "ranks that were told to leave and left did not fail");
    let (attempt, _) = go(stopping.clone(), &[(14_999, Event::Tick)]);
    assert_eq!(attempt, stopping);
    let (attempt, effects) = go(stopping, &[(15_000, Event::Tick)]);
    assert_eq!(attempt.stage, Stage::Ended(AttemptOutcome::Cancelled));
    assert!(effects.contains(&Effect::Reassign), "the node must hear that it is to kill them");
    assert!(attempt.holds_slot(Rank(0)), "until it says so they may live");
}

#[test]
fn a_stop_waits_for_the_last_checkpoint_of_ranks_that_left_well() {
    let (stopping, _) = go(placed(&[1, 2]), &[(0, Event::StopRequested)]);
    let left = [(9, says(1, exit(0, Some(0), None))), (9, says(2, exit(1, Some(0), None)))];
    let (left, effects) = go(stopping, &left);
    assert_eq!(effects, [0, 1].map(|rank| Effect::Release { rank: Rank(rank) }));
    let (one, _) = go(left.clone(), &[(20_000, Event::Tick), (20_000, says(1, Word::Stopped))]);
    assert_eq!(one.stage.label(), lockstep_api::AttemptState::Stopping, "the other publishes");
    let (both, effects) = go(one, &[(20_001, says(2, Word::Stopped))]);
    assert_eq!(both.stage, Stage::Ended(AttemptOutcome::Cancelled));
    assert_eq!(effects.last(), Some(&over(AttemptOutcome::Cancelled, Blame::Infrastructure)));
    let (late, _) = go(left.clone(), &[(60_000, Event::Tick)]);
    assert_eq!(late.stage, Stage::Ended(AttemptOutcome::Cancelled), "not for ever");
    let gone = |number| Event::NodeLost { node: node(number), loss: NodeLoss::Restarted };
    let (lost, _) = go(left, &[(10, gone(1)), (11, gone(2))]);
    assert_eq!(lost.stage, Stage::Ended(AttemptOutcome::Cancelled));
}

#[test]
fn a_node_whose_lease_ran_out_keeps_its_slots_until_its_ranks_are_proved_gone() {
    let lost = |loss| Event::NodeLost { node: node(1), loss };
    let (attempt, effects) = go(placed(&[1, 2]), &[(0, lost(NodeLoss::LeaseExpired))]);
    assert_eq!(attempt.stage, Stage::Ended(AttemptOutcome::LeaseLost));
    assert_eq!(filed(&effects), [(FailureCode::NodeLost, None, Standing::Verdict)]);
    assert!(attempt.holds_slot(Rank(0)));
    let (attempt, effects) = go(attempt, &[(1, lost(NodeLoss::Restarted))]);
    assert_eq!(effects, [Effect::Release { rank: Rank(0) }]);
    assert!(!attempt.holds_slot(Rank(0)) && attempt.holds_slot(Rank(1)));
}

#[test]
fn a_lease_is_renewed_by_word_and_lost_by_silence() {
    let (attempt, effects) =
        go(placed(&[1]), &[(10_000, says(1, Word::Renewed)), (29_999, Event::Tick)]);
    assert_eq!((attempt.stage, effects), (Stage::Placing, vec![]));
    let (attempt, _) = go(attempt, &[(30_000, Event::Tick)]);
    assert_eq!(attempt.stage, Stage::Ended(AttemptOutcome::LeaseLost));
    let refused = attempt.step(says(1, Word::Renewed), terms(), at(30_001));
    assert_eq!(refused, Err(StepError::Over));
}

#[test]
fn words_under_another_generation_or_of_strangers_are_refused() {
    let stale = Event::Said { node: node(1), generation: Generation(6), word: Word::Finished };
    let error = placed(&[1]).step(stale, terms(), at(0)).unwrap_err();
    assert_eq!(error, StepError::Stale { got: Generation(6), held: GENERATION });
    for event in [says(2, Word::Finished), says(1, exit(1, None, Some(9)))] {
        let error = placed(&[1, 3]).step(event, terms(), at(0)).unwrap_err();
        assert!(matches!(error, StepError::NotAMember { .. }), "{error}");
    }
}

#[test]
fn a_finish_does_not_cover_up_a_rank_that_died() {
    let symptom = says(1, failed(FailureCode::NotEntered, Some(1)));
    let death = says(1, exit(0, None, Some(9)));
    let (attempt, _) =
        go(placed(&[1, 1]), &[(0, symptom), (1, death), (2, says(1, Word::Finished))]);
    assert_eq!(attempt.stage, Stage::Placing);
}

/// What the agent of a rank that was killed says, and that of one which misses it: it complains, leaves, and is all.
fn death_and_complaint() -> [Vec<Word>; 2] {
    let death = FailureReport {
        exit: Some(RankExit {
            code: None,
            signal: Some(9),
            phase: Phase::Backward,
            step: Step(12),
            exceeded_memory_mib: None,
        }),
        ..report(FailureCode::PeerGone, Some(1))
    };
    let death = vec![Word::Failed(death), exit(1, None, Some(9)), Word::Stopped];
    let complaint = failed(FailureCode::PeerGone, Some(1));
    [death, vec![complaint, exit(0, Some(1), None), Word::Stopped]]
}

#[test]
fn of_two_nodes_views_the_death_itself_is_the_verdict_whichever_comes_first() {
    let [death, complaint] = death_and_complaint().map(|it| it.into_iter());
    let death: Vec<_> = death.map(|word| (10, says(2, word))).collect();
    let complaint: Vec<_> = complaint.map(|word| (10, says(1, word))).collect();
    for (order, late) in [([&death, &complaint], 0), ([&complaint, &death], 1_900)] {
        let (attempt, first) = go(placed(&[1, 2]), order[0]);
        let (attempt, waited) = match attempt.stage {
            Stage::Ended(_) => (attempt, vec![]),
            _ => go(attempt, &[(10 + late, Event::Tick)]),
        };
        let (attempt, second) = go(attempt, order[1]);
        let all = [first, waited, second].concat();
        let verdicts: Vec<_> =
            filed(&all).into_iter().filter(|(_, _, it)| *it == Standing::Verdict).collect();
        assert_eq!(verdicts, [(FailureCode::PeerGone, Some(1), Standing::Verdict)]);
        assert!(!all.contains(&Effect::PromoteSuspect), "the complaint is no verdict");
        let signal = all.iter().find_map(|effect| match effect {
            Effect::File { failure, standing: Standing::Verdict, .. } => Some(failure.report.exit),
            _ => None,
        });
        assert_eq!(signal.flatten().and_then(|exit| exit.signal), Some(9));
        assert_eq!(attempt.stage, Stage::Ended(AttemptOutcome::Failed));
        assert!(!attempt.holds_slot(Rank(0)) && !attempt.holds_slot(Rank(1)));
    }
}

#[test]
fn of_a_chain_of_complaints_the_death_that_began_it_is_the_verdict() {
    // Rank 0 was killed, rank 1 left because of it, and rank 2 misses rank 1.
    let complaints = [
        (10, says(3, failed(FailureCode::PeerGone, Some(1)))),
        (11, says(3, exit(2, Some(1), None))),
        (13, says(2, failed(FailureCode::PeerGone, Some(0)))),
        (14, says(2, exit(1, Some(1), None))),
        (15, says(3, Word::Stopped)),
        (16, says(2, Word::Stopped)),
    ];
    let (attempt, effects) = go(placed(&[1, 2, 3, 3]), &complaints);
    assert!(filed(&effects).iter().all(|(_, _, standing)| *standing == Standing::Effect));
    let (_, effects) = go(attempt, &[(17, says(1, exit(0, None, Some(9))))]);
    assert_eq!(filed(&effects), [(FailureCode::PeerGone, Some(0), Standing::Verdict)]);
}

#[test]
fn a_complaint_that_no_node_explains_is_the_verdict_after_a_window_or_when_all_are_gone() {
    let complaint =
        [(0, says(1, failed(FailureCode::PeerGone, Some(1)))), (1, says(1, Word::Stopped))];
    let (waiting, _) = go(placed(&[1, 2]), &complaint);
    assert_eq!(waiting.stage, Stage::Placing, "the other node may know more");
    for (ms, end) in [(2_000, Event::Tick), (1, says(2, Word::Stopped))] {
        let (attempt, effects) = go(waiting.clone(), &[(ms, end)]);
        assert!(effects.contains(&Effect::PromoteSuspect));
        assert_eq!(attempt.stage, Stage::Ended(AttemptOutcome::Failed));
    }
}

/// A gang that has to be told by a second from its placement where its ranks listen.
fn meeting(nodes: &[u128]) -> Attempt {
    let mut attempt = placed(nodes);
    attempt.gang.rendezvous_by = Some(at(1_000));
    attempt
}

fn listens(rank: i32) -> Word {
    Word::RankListens { rank: Rank(rank) }
}

#[test]
fn nodes_hear_once_when_every_rank_listens_and_everything_is_prepared() {
    let (attempt, effects) = go(
        meeting(&[1, 2, 2]),
        &[
            (1, says(1, listens(0))),
            (2, says(2, listens(1))),
            (3, says(1, Word::Prepared)),
            (4, says(2, listens(2))),
            (2_000, Event::Tick),
        ],
    );
    assert_eq!(effects, [], "fetching may take longer than the rendezvous");
    let (attempt, effects) = go(attempt, &[(2_001, says(2, Word::Prepared))]);
    assert_eq!(effects, [Effect::Reassign]);
    let (_, effects) = go(attempt, &[(3, says(2, Word::Prepared)), (3, says(1, listens(0)))]);
    assert_eq!(effects, [], "what is said twice changes nothing");
    let error = meeting(&[1, 2]).step(says(1, listens(1)), terms(), at(0)).unwrap_err();
    assert!(matches!(error, StepError::NotAMember { .. }), "rank 1 is of the other node");
}

#[test]
fn a_rendezvous_that_ranks_miss_names_them() {
    let (attempt, effects) = go(meeting(&[1, 2, 2]), &[(1, says(1, listens(0)))]);
    assert_eq!(effects, []);
    let (attempt, effects) = go(attempt, &[(999, Event::Tick), (1_000, Event::Tick)]);
    assert_eq!(filed(&effects), [(FailureCode::RendezvousTimeout, Some(1), Standing::Verdict)]);
    let Effect::File { failure, .. } = &effects[0] else { panic!("{effects:?}") };
    assert_eq!(
        failure.report.message,
        "the group could not form: rank 1 on node n2, rank 2 on node n2 did not say in time where they listen"
    );
    assert_eq!(failure.report.evidence["missing"].to_string(), "[1,2]");
    assert_eq!(effects.last(), Some(&over(AttemptOutcome::Failed, Blame::Infrastructure)));
    assert!(attempt.holds_slot(Rank(0)), "a rank may be about to start");
    let refused = attempt.step(says(2, listens(1)), terms(), at(1_001));
    assert_eq!(refused, Err(StepError::Over));
}

fn any_word() -> impl Strategy<Value = Word> {
    let code = prop::sample::select(FailureCode::ALL);
    let status = prop::sample::select(vec![Some(0), Some(1), Some(3), Some(101), None]);
    prop_oneof![
        2 => (0..4i32).prop_map(|rank| Word::RankStarted { rank: Rank(rank) }),
        1 => Just(Word::Formed),
        2 => Just(Word::Progressed),
        2 => Just(Word::Renewed),
        3 => (0..4i32, status, prop::option::of(1..32i32))
            .prop_map(|(rank, code, signal)| exit(rank, code, signal)),
        1 => (code, prop::option::of(0..4i32)).prop_map(|(code, rank)| failed(code, rank)),
        2 => (0..4i32).prop_map(|rank| Word::RankListens { rank: Rank(rank) }),
        1 => Just(Word::Prepared),
        1 => Just(Word::Finished),
        1 => Just(Word::Stopped),
        1 => Just(Word::Absent),
    ]
}

/// That no node says.
fn any_other_event() -> impl Strategy<Value = Event> {
    let loss = prop::sample::select(vec![
        NodeLoss::LeaseExpired,
        NodeLoss::OrphanGracePassed,
        NodeLoss::Restarted,
        NodeLoss::Replaced,
    ]);
    prop_oneof![
        1 => (1..4u128, loss).prop_map(|(number, loss)| Event::NodeLost { node: node(number), loss }),
        1 => Just(Event::StopRequested),
        3 => Just(Event::Tick),
    ]
}

fn any_event() -> impl Strategy<Value = Event> {
    prop_oneof![
        8 => (1..4u128, 6..8i64, any_word()).prop_map(|(number, generation, word)| Event::Said {
            node: node(number), generation: Generation(generation), word,
        }),
        5 => any_other_event(),
    ]
}

proptest! {
    /// Whatever arrives, in whatever order: what is ended stays so, stale words are refused, a slot is freed at most
    /// once and only if it was held, at most one verdict is filed, and the job hears of the end exactly once.
    #[test]
    fn ended_is_final_and_every_slot_and_verdict_is_told_once(
        gang in prop::collection::vec(1..4u128, 1..4), has_rendezvous in any::<bool>(),
        events in prop::collection::vec((any_event(), 0..4_000i64), 0..60),
    ) {
        let mut attempt = if has_rendezvous { meeting(&gang) } else { placed(&gang) };
        let (mut ms, mut verdicts, mut overs, mut suspects) = (0, 0, 0, 0);
        for (event, passed) in events {
            ms += passed;
            let is_stale = matches!(&event, Event::Said { generation, .. } if *generation != GENERATION);
            let before = attempt.clone();
            let Ok((next, effects)) = attempt.clone().step(event, terms(), at(ms)) else { continue };
            if is_stale {
                prop_assert_eq!(next.stage, before.stage);
                prop_assert_eq!(&next.gang.members, &before.gang.members);
                let only_effects = effects.iter().all(|it| matches!(it, Effect::File { standing: Standing::Effect, .. }));
                prop_assert!(only_effects, "a stale word counted in {before:?}");
                continue;
            }
            if let Stage::Ended(_) = before.stage {
                prop_assert_eq!(next.stage, before.stage);
            }
            prop_assert_eq!(next.gang.generation, GENERATION);
            prop_assert!(before.gang.lease_expires_at <= next.gang.lease_expires_at);
            for effect in &effects {
                match effect {
                    Effect::Release { rank } => prop_assert!(before.holds_slot(*rank) && !next.holds_slot(*rank)),
                    Effect::File { standing: Standing::Verdict, .. } => verdicts += 1,
                    Effect::File { standing: Standing::Effect, .. } => suspects += 1,
                    Effect::PromoteSuspect => {
                        prop_assert!(0 < suspects, "nothing was filed that could be promoted");
                        verdicts += 1;
                    }
                    Effect::Over { outcome, .. } => {
                        overs += 1;
                        prop_assert_eq!(next.stage, Stage::Ended(*outcome));
                    }
                    Effect::Reassign => {}
                    Effect::Evict { .. } | Effect::Begin { .. } => {
                        prop_assert!(false, "no rank has a copy of another's state");
                    }
                }
            }
            for rank in next.gang.members.keys() {
                prop_assert!(before.holds_slot(*rank) || !next.holds_slot(*rank), "a slot was taken back");
                let was_freed = before.holds_slot(*rank) && !next.holds_slot(*rank);
                prop_assert_eq!(was_freed, effects.contains(&Effect::Release { rank: *rank }));
            }
            attempt = next;
        }
        let outcome = match attempt.stage { Stage::Ended(outcome) => Some(outcome), _ => None };
        prop_assert_eq!(overs, i32::from(outcome.is_some()));
        let is_broken = matches!(outcome, Some(AttemptOutcome::Failed | AttemptOutcome::LeaseLost));
        prop_assert_eq!(verdicts, i32::from(is_broken), "a broken attempt has one verdict, others none");
    }
}
