//! Links that are broken on purpose: what their ranks say of them.

use std::{sync::Barrier, time::Instant};

use lockstep_collective::{
    CpuGroup, Formed, GroupError, OwnArena, ProcessGroup, ReduceOp, Span, SumOrder, What,
};

use crate::harness::{PATIENT, SHORT, Site, as_ranks, plan};

/// More than is exchanged whole.
const NUMBERS: usize = 40_000;

fn reduce(group: &mut CpuGroup, arena: &mut OwnArena) -> Result<(), GroupError> {
    let lease = arena.lease(0..1, 0..NUMBERS);
    let order = SumOrder::in_rank_order(0..group.world_size());
    let span = Span::floats(0..NUMBERS);
    group.all_reduce(What::Bucket(0), lease, span, ReduceOp::Sum, &order).map(drop)
}

/// All ranks reduce twice; before the second time, the links of `rank` are broken.
fn broken(
    nodes: &[usize],
    rank: usize,
    encrypt: bool,
    harm: fn(&Site, usize),
) -> Vec<Result<(), GroupError>> {
    let plan = plan(nodes, &[NUMBERS]);
    let mut site = Site::new(nodes);
    site.encrypt = encrypt;
    let all_have_reduced = Barrier::new(site.topology.world());
    as_ranks(0..site.topology.world(), |own| {
        let Formed { mut group, mut arena, .. } = site.form(own, &plan, SHORT).unwrap();
        reduce(&mut group, &mut arena).unwrap();
        if own == rank {
            harm(&site, own);
        }
        all_have_reduced.wait();
        let result = reduce(&mut group, &mut arena);
        all_have_reduced.wait();
        result
    })
}

#[test]
fn both_ends_of_a_link_that_is_cut_miss_each_other_in_the_same_collective() {
    for (nodes, cut) in [(&[1, 1][..], 1), (&[2, 1], 2), (&[1, 1, 1], 0)] {
        for encrypt in [false, true] {
            let results = broken(nodes, cut, encrypt, |site, rank| site.links[rank].cut());
            let missed = |rank: usize| match &results[rank] {
                Err(GroupError::NotEntered { missing, at, .. }) => (missing.clone(), at.sequence),
                // One that is told by another node.
                other => panic!("{nodes:?}, rank {rank}: {other:?}"),
            };
            let (missing, sequence) = missed(cut);
            assert!(!missing.contains(&cut), "{nodes:?}: {missing:?}");
            for other in missing {
                assert_eq!(missed(other), (vec![cut], sequence), "{nodes:?}");
            }
        }
    }
}

#[test]
fn a_slow_link_delays_and_harms_nothing() {
    let began = Instant::now();
    let results = broken(&[1, 1], 1, false, |site, rank| site.links[rank].slow(SHORT / 2));
    assert!(results.iter().all(Result::is_ok), "{results:?}");
    assert!(SHORT / 2 <= began.elapsed() && began.elapsed() < PATIENT);
}

#[test]
fn what_was_changed_on_its_way_is_noticed_by_whoever_gets_it() {
    for encrypt in [false, true] {
        let results = broken(&[2, 1], 2, encrypt, |site, rank| site.links[rank].flip_next());
        let Err(error @ GroupError::Garbage { detail, .. }) = &results[2] else {
            panic!("{results:?}");
        };
        assert!(detail.contains("checksum") && error.is_retryable(), "{error}");
        for other in &results[..2] {
            assert!(matches!(other, Err(GroupError::Aborted { by: Some(2) })), "{results:?}");
        }
    }
}
