//! Where gangs grow and what they give back, told and drawn.

use lockstep_api::RankRange;
use proptest::prelude::*;
use uuid::Uuid;

use super::super::tests::node;
use super::*;

fn elastic(min: u32, max: u32) -> RankCount {
    RankCount::Elastic(RankRange { min, max })
}

fn ask(ranks: RankCount, transport: Transport) -> Request {
    Request { ranks, slot: SlotSpec::default(), transport }
}

fn places(request: Request, nodes: &[NodeOffer]) -> Vec<(i32, u128)> {
    let Decision::Placed(places) = &schedule(&[request], nodes).decisions[0] else {
        return Vec::new();
    };
    places.iter().map(|it| (it.rank.0, it.node.0.as_u128())).collect()
}

#[test]
fn a_gang_begins_with_as_many_ranks_as_there_is_room_for() {
    let nodes = [node(1, &[false, true]), node(2, &[true, false, false])];
    let placed = |min, max, transport| places(ask(elastic(min, max), transport), &nodes);
    assert_eq!(placed(1, 8, Transport::Auto), [(0, 1), (1, 2), (2, 2)]);
    assert_eq!(placed(1, 2, Transport::Auto), [(0, 2), (1, 2)]);
    assert_eq!(placed(1, 8, Transport::Shm), [(0, 2), (1, 2)]);
    assert_eq!(placed(4, 8, Transport::Auto), []);
    let mut avoided = nodes.clone();
    avoided[1].is_avoided = true;
    assert_eq!(places(ask(elastic(1, 8), Transport::Auto), &avoided), [(0, 1)]);
    let waits = &schedule(&[ask(elastic(4, 8), Transport::Auto)], &nodes).decisions[0];
    let Decision::Waits(reason) = waits else { panic!("{waits:?}") };
    assert!(reason.to_string().starts_with("waits for 4 free slots"), "{reason}");
}

fn growing(on: &[u128], max: u32, transport: Transport) -> Growing {
    let nodes = on.iter().map(|number| NodeId(Uuid::from_u128(*number))).collect();
    Growing { nodes, ranks: elastic(1, max), slot: SlotSpec::default(), transport }
}

#[test]
fn a_gang_grows_where_it_is_first_and_never_on_another_node_that_is_avoided() {
    let mut beta = node(2, &[false; 3]);
    beta.is_avoided = true;
    let offers = [node(1, &[true, false]), beta, node(3, &[false, false]), node(4, &[false])];
    let grown = |on: &[u128], max, transport| -> Vec<_> {
        let mut spare = offers.to_vec();
        let places = grow(&growing(on, max, transport), &mut spare);
        let again = grow(&growing(on, max, transport), &mut spare);
        assert!(
            again
                .iter()
                .all(|it| places.iter().all(|was| (was.node, was.index) != (it.node, it.index)))
        );
        places.iter().map(|it| (it.rank.0, it.node.0.as_u128(), it.index)).collect()
    };
    assert_eq!(grown(&[1], 8, Transport::Auto), [(1, 1, 1), (2, 3, 0), (3, 3, 1), (4, 4, 0)]);
    assert_eq!(grown(&[1], 3, Transport::Tcp), [(1, 1, 1), (2, 3, 0)]);
    assert_eq!(grown(&[1], 8, Transport::Shm), [(1, 1, 1)]);
    assert_eq!(grown(&[4, 4], 2, Transport::Auto), []);
    assert_eq!(grown(&[2], 3, Transport::Shm), [(1, 2, 0), (2, 2, 1)], "it is there already");
}

fn candidate(number: u128, min: u32, slots: &[(u128, i32)]) -> Reclaimable {
    let key = |(node, index): &(u128, i32)| SlotKey {
        node: NodeId(Uuid::from_u128(*node)),
        device: DeviceKind::Cpu,
        index: *index,
    };
    let attempt = AttemptId(Uuid::from_u128(number));
    Reclaimable { attempt, ranks: elastic(min, 8), slots: slots.iter().map(key).collect() }
}

fn asked_back(
    request: &Request,
    nodes: &[NodeOffer],
    coming: &[(u128, i32)],
    candidates: &[Reclaimable],
) -> Vec<(u128, Vec<i32>)> {
    let coming = candidate(0, 1, coming).slots.into_iter().collect();
    let ranks = reclaim(std::slice::from_ref(request), nodes, &coming, candidates);
    ranks
        .iter()
        .map(|(attempt, ranks)| (attempt.0.as_u128(), ranks.iter().map(|it| it.0).collect()))
        .collect()
}

#[test]
fn a_job_that_waits_gets_back_what_it_needs_and_no_more() {
    let nodes = [node(1, &[true, true, true]), node(2, &[true, true])];
    let (a, b) = (candidate(7, 1, &[(1, 0), (1, 1), (1, 2)]), candidate(8, 1, &[(2, 0), (2, 1)]));
    let candidates = [a.clone(), b.clone()];
    let fixed = |ranks, transport| ask(RankCount::Fixed(ranks), transport);
    let back = |request: &Request| asked_back(request, &nodes, &[], &candidates);
    assert_eq!(back(&fixed(1, Transport::Auto)), [(7, vec![2])], "of the one with most to spare");
    assert_eq!(back(&fixed(3, Transport::Auto)), [(7, vec![1, 2]), (8, vec![1])]);
    assert_eq!(back(&fixed(2, Transport::Shm)), [(7, vec![1, 2])], "on one node");
    assert_eq!(back(&fixed(4, Transport::Auto)), [], "the fewest stay");
    assert_eq!(
        back(&ask(elastic(1, 5), Transport::Auto)),
        [(7, vec![2])],
        "the fewest that it needs"
    );
    let one = fixed(1, Transport::Auto);
    assert_eq!(asked_back(&one, &nodes, &[(2, 1)], &candidates), [], "a slot will be free anyway");
    let shm = fixed(2, Transport::Shm);
    let low = [candidate(7, 1, &[(1, 0), (1, 1), (2, 0)])];
    assert_eq!(
        asked_back(&shm, &nodes[..1], &[], &low),
        [(7, vec![0, 1])],
        "whichever ranks are there"
    );
    let candidates = [candidate(7, 1, &[(1, 0), (2, 0), (1, 1)]), b];
    assert_eq!(
        asked_back(&shm, &nodes, &[(1, 2)], &candidates),
        [(7, vec![2])],
        "of no use elsewhere"
    );
}

#[test]
fn nothing_is_reclaimed_that_would_be_kept_for_a_job_before() {
    let nodes = [node(1, &[true, true, true])];
    let gang = [candidate(7, 1, &[(1, 0), (1, 1), (1, 2)])];
    let fixed = |ranks| ask(RankCount::Fixed(ranks), Transport::Auto);
    let back = |queue: &[Request]| reclaim(queue, &nodes, &BTreeSet::new(), &gang).len();
    assert_eq!(back(&[fixed(2)]), 1);
    assert_eq!(back(&[fixed(3)]), 0, "the fewest stay");
    assert_eq!(back(&[fixed(3), fixed(2)]), 0, "the first would keep what is freed");
    assert_eq!(back(&[fixed(4), fixed(2)]), 1, "one that never fits keeps nothing");
    // The first job keeps what is free on the larger node: the rank that is there stays.
    let nodes = [node(1, &[true, true, true]), node(2, &[true, true])];
    let gang = [candidate(7, 1, &[(2, 0), (2, 1), (1, 0)])];
    let queue = [ask(RankCount::Fixed(3), Transport::Shm), fixed(1)];
    let asked = reclaim(&queue, &nodes, &BTreeSet::new(), &gang);
    assert_eq!(asked.into_values().collect::<Vec<_>>(), [BTreeSet::from([Rank(1)])]);
}

#[test]
fn a_gang_is_nearly_done_when_what_is_left_takes_less_than_ten_seconds() {
    let so_far = TimeDelta::seconds(20);
    assert!(is_nearly_done((100, 49), so_far) && is_nearly_done((100, 0), so_far));
    assert!(!is_nearly_done((100, 50), so_far));
    assert!(!is_nearly_done((0, 1), so_far), "one step in 20 s at the most");
}

proptest! {
    /// What is given back lets the job begin, leaves every gang its fewest, and none of it could be spared.
    #[test]
    fn exactly_what_a_job_needs_is_given_back(
        sizes in prop::collection::vec((1u32..4, 1u32..5), 1..4), wanted in 1u32..8, is_shm: bool,
        free in prop::collection::vec(any::<bool>(), 3),
    ) {
        // One node a gang, and a slot beside it that may be free.
        let mut nodes = Vec::new();
        let mut candidates = Vec::new();
        for (place, ((min, more), free)) in sizes.iter().zip(&free).enumerate() {
            let (number, size) = (place as u128 + 1, min + more);
            let mut held = vec![true; size as usize];
            held.push(!free);
            nodes.push(node(number, &held));
            let slots: Vec<_> = (0..size.cast_signed()).map(|index| (number, index)).collect();
            candidates.push(candidate(number, *min, &slots));
        }
        let transport = if is_shm { Transport::Shm } else { Transport::Auto };
        let request = ask(RankCount::Fixed(wanted), transport);
        let given = reclaim(std::slice::from_ref(&request), &nodes, &BTreeSet::new(), &candidates);
        let fits = |given: &BTreeMap<AttemptId, BTreeSet<Rank>>| {
            let mut nodes = nodes.clone();
            for candidate in &candidates {
                for rank in given.get(&candidate.attempt).into_iter().flatten() {
                    let key = candidate.slots[rank.0 as usize];
                    let node = nodes.iter_mut().find(|it| it.node == key.node).unwrap();
                    node.slots[key.index as usize].is_held = false;
                }
            }
            matches!(schedule(std::slice::from_ref(&request), &nodes).decisions[0], Decision::Placed(_))
        };
        for candidate in &candidates {
            let left = candidate.slots.len() - given.get(&candidate.attempt).map_or(0, BTreeSet::len);
            prop_assert!(candidate.ranks.min() as usize <= left);
        }
        let all = candidates.iter().map(|it| {
            let ranks = (it.ranks.min().cast_signed()..).take(it.slots.len() - it.ranks.min() as usize);
            (it.attempt, ranks.map(Rank).collect())
        });
        let all: BTreeMap<AttemptId, BTreeSet<Rank>> = all.collect();
        if given.is_empty() {
            prop_assert!(fits(&given) || !fits(&all), "it would have helped");
        } else {
            prop_assert!(fits(&given));
            for (attempt, rank) in given.iter().flat_map(|(it, ranks)| ranks.iter().map(move |rank| (*it, *rank))) {
                let mut fewer = given.clone();
                fewer.get_mut(&attempt).unwrap().remove(&rank);
                prop_assert!(!fits(&fewer), "{rank} of {attempt} was not needed");
            }
        }
    }
}
