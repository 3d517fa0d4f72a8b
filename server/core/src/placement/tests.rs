//! The cases worth telling, then drawn queues on drawn nodes.

use std::collections::BTreeSet;

use lockstep_api::RankRange;
use proptest::prelude::*;
use uuid::Uuid;

use super::*;

fn cpu(index: i32, is_held: bool) -> SlotOffer {
    SlotOffer { device: DeviceKind::Cpu, index, cores: 1, memory_mib: 1024, is_held }
}

pub(super) fn node(number: u128, held: &[bool]) -> NodeOffer {
    let slots = (0..).zip(held).map(|(index, held)| cpu(index, *held)).collect();
    let (node, name) = (NodeId(Uuid::from_u128(number)), format!("n{number}"));
    NodeOffer { node, name, is_avoided: false, slots }
}

fn ask(ranks: u32, transport: Transport) -> Request {
    Request { ranks: RankCount::Fixed(ranks), slot: SlotSpec::default(), transport }
}

fn auto(ranks: u32) -> Request {
    ask(ranks, Transport::Auto)
}

fn shm(ranks: u32) -> Request {
    ask(ranks, Transport::Shm)
}

fn sentence(decision: &Decision) -> String {
    match decision {
        Decision::Placed(places) => format!("placed {}", places.len()),
        Decision::Waits(reason) => reason.to_string(),
    }
}

fn first(request: Request, nodes: &[NodeOffer]) -> String {
    sentence(&schedule(&[request], nodes).decisions[0])
}

/// `(rank, number of the node, slot, group memory)`
fn places(request: Request, nodes: &[NodeOffer]) -> Vec<(i32, u128, i32, i32)> {
    let Decision::Placed(places) = &schedule(&[request], nodes).decisions[0] else {
        panic!("it fits")
    };
    places.iter().map(|p| (p.rank.0, p.node.0.as_u128(), p.index, p.memory_index)).collect()
}

#[test]
fn every_reason_says_what_is_wanted_and_what_there_is() {
    assert_eq!(first(auto(1), &[]), "no node is connected");
    let two = [node(1, &[false]), node(2, &[false])];
    assert_eq!(
        first(shm(2), &two),
        "no node offers 2 slots of 1 cpu core and 512 MiB: they would span nodes (n1 has 1, n2 has 1), \
         and `ddp.transport = \"shm\"` keeps it on one"
    );
    assert_eq!(
        first(shm(3), &two),
        "no node offers 3 slots of 1 cpu core and 512 MiB: the largest, n2, has 1"
    );
    assert_eq!(
        first(auto(3), &two),
        "all nodes together do not offer 3 slots of 1 cpu core and 512 MiB: they have 2"
    );
    let mut big = auto(1);
    big.slot.memory_mib = 4096;
    assert_eq!(first(big, &two), "no node offers a slot of 1 cpu core and 4096 MiB");
    let mut gpu = auto(1);
    gpu.slot.device = DeviceKind::Cuda;
    assert_eq!(first(gpu, &two), "no node offers a slot of 1 cuda device, 1 core and 512 MiB");
    let busy = [node(1, &[true, false]), node(2, &[true])];
    assert_eq!(
        first(shm(2), &busy),
        "waits for 2 free slots of 1 cpu core and 512 MiB on one node: 1 is free"
    );
    assert_eq!(
        first(auto(3), &busy),
        "waits for 3 free slots of 1 cpu core and 512 MiB: 1 is free"
    );
}

#[test]
fn a_gang_takes_the_tightest_node_and_its_lowest_slots() {
    let nodes = [node(1, &[false; 4]), node(2, &[true, false, false])];
    assert_eq!(places(auto(2), &nodes), [(0, 2, 1, 0), (1, 2, 2, 0)]);
}

#[test]
fn a_gang_that_no_node_has_room_for_goes_over_as_few_as_have() {
    let nodes = [node(1, &[false]), node(2, &[false; 3]), node(3, &[true, false, false])];
    assert_eq!(
        places(auto(4), &nodes),
        [(0, 1, 0, 0), (1, 2, 0, 1), (2, 2, 1, 1), (3, 2, 2, 1)],
        "the largest node whole, and the tightest for the rest"
    );
    assert_eq!(
        places(auto(5), &nodes),
        [(0, 2, 0, 0), (1, 2, 1, 0), (2, 2, 2, 0), (3, 3, 1, 1), (4, 3, 2, 1)]
    );
    assert!(first(shm(4), &nodes).contains("would span nodes"));
}

#[test]
fn a_node_that_is_avoided_gets_what_nobody_else_has_room_for() {
    let mut beta = node(2, &[false]);
    beta.is_avoided = true;
    let nodes = [beta.clone(), node(1, &[false; 3]), node(3, &[false])];
    assert_eq!(places(shm(1), &nodes), [(0, 3, 0, 0)]);
    assert_eq!(places(auto(4), &nodes).iter().filter(|it| it.1 == 2).count(), 0, "over two others");
    assert_eq!(places(auto(5), &nodes).iter().filter(|it| it.1 == 2).count(), 1);
    assert_eq!(places(shm(1), &[beta]), [(0, 2, 0, 0)]);
}

#[test]
fn lost_ranks_get_free_slots_on_few_nodes_and_on_avoided_ones_last() {
    let mut beta = node(2, &[false; 4]);
    beta.is_avoided = true;
    let nodes = [beta, node(1, &[true, false]), node(3, &[false, true, false])];
    let found = |ranks: &[i32], transport| {
        let ranks: BTreeSet<Rank> = ranks.iter().map(|rank| Rank(*rank)).collect();
        let refills = refill(&ranks, (&SlotSpec::default(), transport), &nodes);
        refills.iter().map(|it| (it.rank.0, it.node.0.as_u128(), it.index)).collect::<Vec<_>>()
    };
    assert_eq!(found(&[2, 5], Transport::Auto), [(2, 3, 0), (5, 3, 2)]);
    let four = [(0, 3, 0), (1, 3, 2), (2, 1, 1), (3, 2, 0)];
    assert_eq!(found(&[0, 1, 2, 3], Transport::Tcp), four);
    assert_eq!(found(&[0, 1, 2, 3, 4, 5, 6, 7], Transport::Auto).len(), 7, "as many as there are");
    assert_eq!(found(&[0], Transport::Shm), [], "the others' memory is elsewhere");
}

#[test]
fn with_tcp_every_rank_has_a_memory_of_its_own_even_on_one_node() {
    assert_eq!(
        places(ask(2, Transport::Tcp), &[node(1, &[false, false])]),
        [(0, 1, 0, 0), (1, 1, 1, 1)]
    );
}

#[test]
fn a_job_that_fits_passes_one_that_never_does_but_not_one_that_will() {
    let decisions = schedule(&[auto(9), auto(2), auto(1)], &[node(1, &[true, false])]).decisions;
    let got: Vec<_> = decisions.iter().map(sentence).collect();
    assert!(got[0].starts_with("all nodes together do not offer 9 slots"), "{}", got[0]);
    assert!(got[1].ends_with("1 is free"), "{}", got[1]);
    assert!(got[2].ends_with("0 are free"), "the free slot is kept for the second: {}", got[2]);
    let decisions = schedule(&[auto(9), auto(1)], &[node(1, &[true, false])]).decisions;
    assert_eq!(sentence(&decisions[1]), "placed 1");
}

#[test]
fn what_waits_for_several_nodes_keeps_the_free_slots_of_those_it_would_get() {
    let nodes = [node(1, &[true, false]), node(2, &[true, false]), node(3, &[false])];
    let decisions = schedule(&[auto(4), auto(1), auto(1)], &nodes).decisions;
    let Decision::Placed(small) = &decisions[1] else { panic!("n3 is not kept") };
    assert_eq!(small[0].node.0.as_u128(), 3);
    assert!(sentence(&decisions[2]).ends_with("0 are free"), "{}", sentence(&decisions[2]));
}

fn any_nodes() -> impl Strategy<Value = Vec<NodeOffer>> {
    let slot = (any::<bool>(), 1..4u32, prop::sample::select(DeviceKind::ALL));
    let slots = prop::collection::vec(slot, 0..6);
    prop::collection::vec(slots, 0..5).prop_map(|nodes| {
        (1..)
            .zip(nodes)
            .map(|(number, slots)| {
                let mut node = node(number, &[]);
                node.slots = (0..)
                    .zip(slots)
                    .map(|(index, (is_held, cores, device))| SlotOffer {
                        device,
                        index,
                        cores,
                        memory_mib: 512 * cores,
                        is_held,
                    })
                    .collect();
                node
            })
            .collect()
    })
}

fn any_request() -> impl Strategy<Value = Request> {
    let transport = prop::sample::select(vec![Transport::Auto, Transport::Shm, Transport::Tcp]);
    let ranks = (1..6u32, prop::option::of(0..4u32)).prop_map(|(min, more)| match more {
        None => RankCount::Fixed(min),
        Some(more) => RankCount::Elastic(RankRange { min, max: min + more }),
    });
    (ranks, 1..4u32, 1..2048u32, prop::sample::select(DeviceKind::ALL), transport).prop_map(
        |(ranks, cores, memory_mib, device, transport)| Request {
            ranks,
            slot: SlotSpec { device, cores, memory_mib },
            transport,
        },
    )
}

/// Free slots of each node that suit.
fn free(request: &Request, nodes: &[NodeOffer]) -> Vec<usize> {
    let free = |node: &NodeOffer| {
        node.slots.iter().filter(|s| s.suits(&request.slot) && !s.is_held).count()
    };
    nodes.iter().map(free).collect()
}

proptest! {
    /// All or nothing, on slots that suit, no slot twice; neighbours share a node, and a memory unless they speak TCP;
    /// and the same question has the same answer.
    #[test]
    fn a_gang_is_placed_whole_on_slots_that_are_nobodys(
        queue in prop::collection::vec(any_request(), 0..8), nodes in any_nodes(),
    ) {
        let decisions = schedule(&queue, &nodes).decisions;
        prop_assert_eq!(&decisions, &schedule(&queue, &nodes).decisions);
        let mut given = BTreeSet::new();
        for (request, decision) in queue.iter().zip(&decisions) {
            let Decision::Placed(places) = decision else { continue };
            let sizes = request.ranks.min()..=request.ranks.max();
            prop_assert!(sizes.contains(&as_count(places.len())));
            for (i, place) in (0..).zip(places) {
                prop_assert_eq!(place.rank, Rank(i));
                prop_assert!(given.insert((place.node, place.device, place.index)), "given twice");
                let node = nodes.iter().find(|n| n.node == place.node).unwrap();
                let slot = node.slots.iter().find(|s| (s.device, s.index) == (place.device, place.index)).unwrap();
                prop_assert!(slot.suits(&request.slot) && !slot.is_held);
            }
            prop_assert_eq!(places[0].memory_index, 0);
            let mut used = vec![places[0].node];
            for pair in places.windows(2) {
                let is_same = pair[0].node == pair[1].node;
                if !is_same {
                    prop_assert!(!used.contains(&pair[1].node), "ranks of a node are not neighbours");
                    used.push(pair[1].node);
                }
                let is_new_memory = request.transport == Transport::Tcp || !is_same;
                prop_assert_eq!(pair[1].memory_index - pair[0].memory_index, i32::from(is_new_memory));
            }
            prop_assert!(request.transport != Transport::Shm || used.len() == 1);
        }
    }

    /// Nobody waits who could have been placed first, nor gets fewer ranks than there is room for, and no gang is spread further
    /// than it must be.
    #[test]
    fn the_first_in_the_queue_waits_only_if_there_is_no_room(request in any_request(), nodes in any_nodes()) {
        let mut free = free(&request, &nodes);
        free.sort_unstable();
        // On how few nodes so many ranks have room.
        let fewest = |ranks: u32| {
            let (mut free, mut fewest, mut room) = (free.clone(), 0, 0);
            while room < ranks as usize && let Some(largest) = free.pop() {
                fewest += 1;
                room += largest;
            }
            let may_span = request.transport != Transport::Shm || fewest == 1;
            (ranks as usize <= room && may_span).then_some(fewest)
        };
        let sizes = request.ranks.min()..=request.ranks.max();
        let expected = sizes.rev().find_map(|ranks| Some((ranks as usize, fewest(ranks)?)));
        match &schedule(std::slice::from_ref(&request), &nodes).decisions[0] {
            Decision::Placed(places) => {
                let used: BTreeSet<_> = places.iter().map(|place| place.node).collect();
                prop_assert_eq!(Some((places.len(), used.len())), expected);
            }
            Decision::Waits(_) => prop_assert_eq!(expected, None),
        }
    }
}
