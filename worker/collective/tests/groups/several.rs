//! Several groups of the same ranks, used by several threads at one time.

use std::thread;

use lockstep_collective::{
    CpuGroup, Dtype, Formed, FormedLanes, Plan, ProcessGroup as _, ReduceOp, Span, SumOrder, What,
};
use lockstep_shm::FlightRecord;
use proptest::prelude::*;

use crate::harness::{PATIENT, Site, any_nodes, as_ranks, plan, value};

/// Sums over the ranks of what each has at `index`, in rank order.
fn sum(world: usize, index: usize) -> f32 {
    (1..world).fold(value(0, index), |sum, rank| sum + value(rank, index))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]
    /// Each lane reduces every other bucket, while the group beside them adds up numbers of its own.
    #[test]
    fn groups_over_the_same_ranks_do_not_disturb_each_other(
        nodes in any_nodes(), lanes in 1..4_usize, lens in proptest::collection::vec(0..3000_usize, 1..7),
        sums in 1..40_usize,
    ) {
        let site = Site::new(&nodes);
        let world = site.topology.world();
        let plan = plan(&nodes, &lens);
        let beside = Plan { nodes: nodes.clone(), arena_len: 64, slots: 1, ..Plan::default() };
        let order = &SumOrder::in_rank_order(0..world);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("record");
        let results = as_ranks(0..world, |rank| {
            let mut join = site.join(rank, PATIENT);
            if rank == 0 {
                join.record = Some(FlightRecord::create(&path, 0).unwrap().into());
            }
            let beside = std::slice::from_ref(&beside);
            let (formed, mut others) = CpuGroup::form_all(&join, &plan, lanes, beside).unwrap();
            let FormedLanes { groups, mut arena, board: _ } = formed;
            let Formed { group: mut other, arena: mut own, board: _ } = others.remove(0);
            for (at, float) in arena.floats_mut(0, 0..plan.arena_len).iter_mut().enumerate() {
                *float = value(rank, at);
            }
            let mut work: Vec<Vec<_>> = groups.iter().map(|_| Vec::new()).collect();
            for (bucket, it) in plan.buckets.iter().enumerate() {
                let lease = arena.lease_for(bucket % lanes, 0..1, it.range.clone());
                work[bucket % lanes].push((bucket, lease));
            }
            thread::scope(|scope| {
                for (mut group, work) in groups.into_iter().zip(work) {
                    scope.spawn(move || {
                        for (bucket, lease) in work {
                            let span = Span::floats(lease.range());
                            let what = What::Bucket(bucket);
                            group.all_reduce(what, lease, span, ReduceOp::Sum, order).unwrap();
                        }
                        group.barrier().unwrap();
                        Box::new(group).leave();
                    });
                }
                scope.spawn(|| {
                    for turn in 0..sums {
                        own.doubles_mut(0, 2).copy_from_slice(&[turn as f64, rank as f64]);
                        let span = Span { first: 0, dtype: Dtype::F64, len: 2 };
                        let lease = own.lease(0..1, 0..4);
                        let done =
                            other.all_reduce(What::Numbers, lease, span, ReduceOp::Sum, order);
                        drop(done.unwrap());
                        let expected = [(turn * world) as f64, (world * (world - 1) / 2) as f64];
                        assert_eq!(own.doubles_mut(0, 2), expected);
                    }
                    other.barrier().unwrap();
                    Box::new(other).leave();
                });
            });
            arena.floats(0, 0..plan.arena_len).to_vec()
        });
        let record = FlightRecord::open(&path).unwrap().read().unwrap();
        for (lane, found) in record.lanes.iter().enumerate() {
            // The barrier of the formation, what the lane is for, and the barrier at the end.
            let expected = match lane {
                _ if lane < lanes => 2 + lens.len().saturating_sub(lane).div_ceil(lanes) as u64,
                _ if lane == lanes => 2 + sums as u64,
                _ => 0,
            };
            prop_assert_eq!((found.entered, found.left), (expected, expected), "lane {}", lane);
        }
        for floats in results {
            for (index, found) in floats.iter().enumerate() {
                prop_assert_eq!(found.to_bits(), sum(world, index).to_bits(), "{}", index);
            }
        }
    }
}
