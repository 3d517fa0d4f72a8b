//! Ranks that have entered a collective and hear nothing of each other.

use std::collections::BTreeMap;

use lockstep_core::News;
use serde_json::json;

use super::repair::{at_work, begun, next};
use super::*;

/// Of the rank `by`, on the node of that number: it waits for `missing` in collective 41.
fn complaint(number: u128, by: i32, missing: &[i32]) -> Event {
    complaint_of(FailureCode::NotEntered, number, (by, 41), missing)
}

fn complaint_of(
    code: FailureCode,
    number: u128,
    (by, collective): (i32, i64),
    missing: &[i32],
) -> Event {
    let evidence = json!({ "missing": missing, "by": by, "collective": collective, "lane": 0, "waited_ms": 2000, "what": "bucket 3 of 9" });
    let rank = missing.first().copied();
    says(number, Word::Failed(FailureReport { evidence, ..report(code, rank) }))
}

/// With another number in its evidence.
fn with(event: Event, field: &str, number: i64) -> Event {
    let Event::Said { node, generation, word: Word::Failed(mut report) } = event else {
        panic!("{event:?}")
    };
    report.evidence[field] = json!(number);
    Event::Said { node, generation, word: Word::Failed(report) }
}

/// The same a little later, of the next generation.
fn again((ms, event): (i64, Event)) -> (i64, Event) {
    match event {
        Event::Said { node, word, .. } => {
            (ms + 100, Event::Said { node, generation: next(), word })
        }
        other => (ms + 100, other),
    }
}

/// The codes that were filed as the verdict, with who is between.
fn verdicts(effects: &[Effect]) -> Vec<(FailureCode, serde_json::Value)> {
    let verdict = |effect: &Effect| match effect {
        Effect::File { failure, standing: Standing::Verdict, .. } => {
            Some((failure.report.code, failure.report.evidence["between"].clone()))
        }
        _ => None,
    };
    effects.iter().filter_map(verdict).collect()
}

#[test]
fn two_nodes_that_miss_each_other_in_one_collective_blame_the_link_and_form_again() {
    // Whichever is heard first; a rank that shares a memory with one of them speaks for it.
    let (there, here) = (complaint(1, 0, &[2]), complaint(2, 2, &[0]));
    let neighbour = complaint(1, 1, &[2]);
    let orders = [
        [there.clone(), here.clone()],
        [here.clone(), there],
        [neighbour.clone(), here.clone()],
        [here, neighbour],
    ];
    for events in orders {
        let [first, second] = events.map(|event| (100, event));
        let (attempt, effects) = go(at_work(&[1, 1, 2]), &[first, second]);
        let stall = (FailureCode::LinkOrDeviceStall, json!([0, 2]));
        assert_eq!(verdicts(&effects), [stall]);
        assert_eq!(attempt.gang.generation, next());
        let processes: Vec<i32> = attempt.gang.members.values().map(|it| it.process).collect();
        assert_eq!(processes, [0, 1, 2], "nobody is replaced");
        assert!(matches!(begun(&effects)[..], [Effect::Begin { is_paid: false, .. }]));
    }
}

#[test]
fn one_end_may_be_a_collective_ahead_whose_result_the_other_never_got() {
    for collective in [40, 42] {
        let ahead = complaint_of(FailureCode::NotEntered, 2, (1, collective), &[0]);
        let (_, effects) = go(at_work(&[1, 2]), &[(100, complaint(1, 0, &[1])), (100, ahead)]);
        assert_eq!(verdicts(&effects), [(FailureCode::LinkOrDeviceStall, json!([0, 1]))]);
    }
}

#[test]
fn a_link_stall_is_told_with_its_ends_and_the_collective() {
    let events = [(100, complaint(1, 0, &[1])), (100, complaint(2, 1, &[0]))];
    let (_, effects) = go(at_work(&[1, 2]), &events);
    let told = effects.iter().find_map(|effect| match effect {
        Effect::File { failure, standing: Standing::Verdict, .. } => Some(&failure.report.message),
        _ => None,
    });
    assert_eq!(
        told.unwrap(),
        "rank 0 on node n1 and rank 1 on node n2 have entered bucket 3 of 9 (collective 41) and hear nothing of each other: the link between them or one of their devices stands still"
    );
}

#[test]
fn a_stall_in_another_lane_says_so() {
    let ends = [complaint(1, 0, &[1]), complaint(2, 1, &[0])];
    let (_, effects) = go(at_work(&[1, 2]), &ends.map(|end| (100, with(end, "lane", 2))));
    let verdict = effects.iter().find_map(|effect| match effect {
        Effect::File { failure, standing: Standing::Verdict, .. } => Some(&failure.report),
        _ => None,
    });
    let verdict = verdict.unwrap();
    assert!(verdict.message.contains("(collective 41 of lane 2)"), "{}", verdict.message);
    assert_eq!(verdict.evidence["lane"], 2);
}

#[test]
fn whoever_closed_the_connection_because_it_had_waited_in_vain_is_not_gone() {
    let closed = complaint_of(FailureCode::PeerGone, 1, (0, 41), &[2]);
    let (_, effects) = go(at_work(&[1, 1, 2]), &[(1, complaint(2, 2, &[0])), (2, closed)]);
    assert_eq!(verdicts(&effects)[0].0, FailureCode::LinkOrDeviceStall);
}

#[test]
fn complaints_that_are_not_of_each_other_name_who_is_missing() {
    let missing =
        |code, (by, collective), missing: &[i32]| complaint_of(code, 2, (by, collective), missing);
    let answers = [
        // Its own neighbour is missed.
        complaint(2, 3, &[2]),
        // Of the other end's node, but of a third rank.
        complaint(2, 3, &[2, 0]),
        // Another collective.
        missing(FailureCode::NotEntered, (2, 43), &[0]),
        // Somebody else has left.
        missing(FailureCode::PeerGone, (2, 41), &[3]),
        // It came late, and found the others gone.
        with(missing(FailureCode::PeerGone, (2, 41), &[0]), "waited_ms", 5),
        // Another group of the same ranks.
        with(missing(FailureCode::NotEntered, (2, 41), &[0]), "lane", 1),
    ];
    for answer in answers {
        let (attempt, effects) =
            go(at_work(&[1, 1, 2, 2]), &[(100, complaint(1, 0, &[2])), (101, answer.clone())]);
        assert_eq!(verdicts(&effects), [], "{answer:?}");
        let (_, effects) = go(attempt, &[(5_000, Event::Tick)]);
        assert!(effects.contains(&Effect::PromoteSuspect), "{answer:?}");
    }
    // Both only see that the other is gone: nobody has been silent.
    let gone =
        |number, by, rank: i32| complaint_of(FailureCode::PeerGone, number, (by, 41), &[rank]);
    let (_, effects) = go(at_work(&[1, 2]), &[(1, gone(1, 0, 1)), (2, gone(2, 1, 0))]);
    assert_eq!(verdicts(&effects), []);
}

#[test]
fn a_rank_that_is_inside_by_fresh_news_and_runs_has_a_link_that_is_at_fault() {
    let inside_in = |lane, collective, ms| {
        let inside = BTreeMap::from([(Lane(lane), collective)]);
        Some(News { seen_at: at(ms), is_stopped: false, inside })
    };
    let inside = |collective, ms| inside_in(0, collective, ms);
    let seen = |nodes: &[u128], news| {
        let (mut attempt, _) = go(at_work(nodes), &[(100, complaint(1, 0, &[1]))]);
        attempt.gang.members.get_mut(&Rank(1)).unwrap().news = news;
        let (_, soon) = go(attempt.clone(), &[(101, Event::Tick)]);
        (soon, go(attempt, &[(5_000, Event::Tick)]).1)
    };
    let (soon, _) = seen(&[1, 2], inside(41, 100));
    assert_eq!(verdicts(&soon), [(FailureCode::LinkOrDeviceStall, json!([0, 1]))]);
    for (nodes, news) in [
        // Old news, an earlier collective, none, and ranks that have no link.
        ([1, 2], inside(41, 99)),
        ([1, 2], inside(40, 100)),
        ([1, 2], None),
        ([1, 1], inside(41, 100)),
    ] {
        let (soon, late) = seen(&nodes, news.clone());
        assert_eq!((soon, &late[0]), (vec![], &Effect::PromoteSuspect), "{news:?}");
    }
    // Each group of these ranks counts for itself; and of several that are missed one has not entered.
    let of_lane_1 = with(complaint(1, 0, &[1]), "lane", 1);
    let cases = [
        (of_lane_1.clone(), inside_in(1, 41, 100), true),
        (of_lane_1, inside(41, 100), false),
        (complaint(1, 0, &[1]), inside_in(1, 41, 100), false),
        (complaint(1, 0, &[1, 2]), inside(41, 100), false),
    ];
    for (missed, news, is_stall) in cases {
        let (mut attempt, _) = go(at_work(&[1, 2, 3]), &[(100, missed)]);
        attempt.gang.members.get_mut(&Rank(1)).unwrap().news = news.clone();
        let (_, effects) = go(attempt, &[(5_000, Event::Tick)]);
        assert_eq!(effects[0] != Effect::PromoteSuspect, is_stall, "{news:?}");
    }
}

#[test]
fn ranks_of_one_node_that_speak_over_tcp_have_links_and_one_of_them_keeps_the_state() {
    let mut attempt = at_work(&[1, 1]);
    attempt.gang.transport = Transport::Tcp;
    let (mut seen, _) = go(attempt.clone(), &[(100, complaint(1, 0, &[1]))]);
    let news =
        News { seen_at: at(100), is_stopped: false, inside: BTreeMap::from([(Lane(0), 41)]) };
    seen.gang.members.get_mut(&Rank(1)).unwrap().news = Some(news);
    let (_, effects) = go(seen, &[(101, Event::Tick)]);
    assert_eq!(verdicts(&effects), [(FailureCode::LinkOrDeviceStall, json!([0, 1]))]);
    let events = [(100, complaint(1, 0, &[1])), (100, complaint(1, 1, &[0]))];
    let (attempt, effects) = go(attempt, &events);
    assert_eq!(verdicts(&effects), [(FailureCode::LinkOrDeviceStall, json!([0, 1]))]);
    let (attempt, _) = go(attempt, &events.map(again));
    let processes: Vec<i32> = attempt.gang.members.values().map(|it| it.process).collect();
    assert_eq!(processes, [0, 2]);
}

#[test]
fn a_link_that_carries_nothing_is_the_doing_of_the_nodes_at_both_ends() {
    let attempt = at_work(&[1, 2, 3]);
    let events = [(100, complaint(1, 0, &[1])), (100, complaint(2, 1, &[0]))];
    let (_, effects) = go(attempt.clone(), &events);
    let verdict = effects.iter().find_map(|effect| match effect {
        Effect::File { failure, standing: Standing::Verdict, .. } => Some(failure),
        _ => None,
    });
    let blamed = lockstep_core::quarantine::blamed(&attempt.gang, verdict.unwrap());
    assert_eq!(blamed, BTreeSet::from([node(1), node(2)]));
}

#[test]
fn a_rank_whose_process_is_stopped_by_fresh_news_is_named_at_once() {
    let (mut attempt, _) = go(at_work(&[1, 2]), &[(100, complaint(1, 0, &[1]))]);
    for (ms, is_due) in [(99, false), (100, true)] {
        let news =
            News { seen_at: at(ms), is_stopped: true, inside: BTreeMap::from([(Lane(0), 41)]) };
        attempt.gang.members.get_mut(&Rank(1)).unwrap().news = Some(news);
        let (_, effects) = go(attempt.clone(), &[(101, Event::Tick)]);
        assert_eq!(effects.first() == Some(&Effect::PromoteSuspect), is_due);
    }
    // Others who say that it has left do not say that it is silent.
    let gone = complaint_of(FailureCode::PeerGone, 1, (0, 41), &[1]);
    let (mut other, _) = go(at_work(&[1, 2]), &[(100, gone)]);
    other.gang.members.get_mut(&Rank(1)).unwrap().news =
        attempt.gang.members[&Rank(1)].news.clone();
    assert_eq!(go(other, &[(101, Event::Tick)]).1, []);
}

#[test]
fn whoever_is_stopped_is_named_in_the_place_of_those_that_wait_for_it() {
    let (mut attempt, _) = go(at_work(&[1, 2, 3]), &[(100, complaint(1, 0, &[2]))]);
    let news = |is_stopped| {
        Some(News { seen_at: at(100), is_stopped, inside: BTreeMap::from([(Lane(0), 41)]) })
    };
    for (rank, is_stopped) in [(1, true), (2, false)] {
        attempt.gang.members.get_mut(&Rank(rank)).unwrap().news = news(is_stopped);
    }
    let (attempt, effects) = go(attempt, &[(101, Event::Tick)]);
    assert_eq!(filed(&effects), [(FailureCode::NotEntered, Some(1), Standing::Verdict)]);
    let processes: Vec<i32> = attempt.gang.members.values().map(|it| it.process).collect();
    assert_eq!(processes, [0, 3, 2]);
}

#[test]
fn a_link_that_fails_twice_in_a_row_costs_a_retry_and_the_end_with_fewer_ranks() {
    let events = [(100, complaint(1, 0, &[2])), (100, complaint(2, 2, &[0]))];
    let (attempt, _) = go(at_work(&[1, 1, 2]), &events);
    let (attempt, effects) = go(attempt, &events.map(again));
    let is_paid = |it: &Effect| matches!(it, Effect::Begin { is_paid: true, .. });
    assert!(effects.iter().any(is_paid), "{effects:?}");
    let processes: Vec<i32> = attempt.gang.members.values().map(|it| it.process).collect();
    assert_eq!(processes, [0, 1, 3]);
}

#[test]
fn a_message_that_was_changed_on_its_way_is_the_verdict_and_nobody_is_replaced() {
    let changed = complaint_of(FailureCode::CommError, 1, (0, 41), &[1]);
    let (attempt, effects) = go(at_work(&[1, 2]), &[(1, changed)]);
    assert_eq!(verdicts(&effects)[0].0, FailureCode::CommError);
    let processes: Vec<i32> = attempt.gang.members.values().map(|it| it.process).collect();
    assert_eq!((processes, attempt.gang.generation), (vec![0, 1], next()));
}

#[test]
fn a_group_that_does_not_meet_again_has_a_code_of_its_own() {
    let events = [(100, complaint(1, 0, &[1])), (100, complaint(2, 1, &[0]))];
    let (mut attempt, _) = go(at_work(&[1, 2]), &events);
    attempt.gang.lease_expires_at = at(100_000);
    let (_, effects) = go(attempt, &[(60_099, Event::Tick), (60_100, Event::Tick)]);
    let filed = filed(&effects);
    assert_eq!(filed, [(FailureCode::ReformTimeout, Some(0), Standing::Verdict)]);
}
