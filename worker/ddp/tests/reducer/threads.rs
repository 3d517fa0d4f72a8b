//! Drawn gradients, with ranks as threads that each map the memory for themselves.

use std::{sync::Arc, thread, time::Duration};

use lockstep_ddp::{GrainSums, Join, Reducer, ReducerConfig, Reduction, Votes};
use lockstep_shm::FlightRecord;
use lockstep_tensor::{Accumulate, GradSink, Layout, ParamId};
use proptest::prelude::*;

use crate::site::Site;

const PATIENT: Duration = Duration::from_secs(30);

#[derive(Debug, Clone, PartialEq)]
struct Seen {
    gradients: Vec<u32>,
    loss_sum: u64,
    weight: f64,
    metric: (f64, f64),
}

/// Value of a gradient: many magnitudes, so that another order of additions gives other bits.
fn drawn(grain: usize, index: usize, seed: u64) -> f32 {
    let mixed = ((grain * 1009 + index) as u64 + 1).wrapping_mul(seed | 1).rotate_left(17);
    let mantissa = (mixed.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as f32 / 1e6 - 8.0;
    mantissa * [1e-4, 1.0, 3e3][(mixed % 3) as usize]
}

fn run_rank(
    site: &Site,
    rank: usize,
    layout: &Arc<Layout>,
    reduction: Reduction,
    steps: &[usize],
    seed: u64,
) -> Vec<Seen> {
    let config = ReducerConfig {
        bucket_bytes: 60,
        first_bucket_bytes: 20,
        reduction,
        max_grains: *steps.iter().max().unwrap(),
        metric_count: 1,
        ..ReducerConfig::default()
    };
    let join = site.join(rank, PATIENT);
    let mut reducer = Reducer::new(join, Arc::clone(layout), config).unwrap();
    let seen = (0_u64..)
        .zip(steps)
        .map(|(step, grains_total)| {
            for grain in reducer.begin_step(step, *grains_total) {
                let accumulate = reducer.accumulate(grain);
                let mut sink = reducer.sink(grain);
                for (index, param) in layout.params().iter().enumerate() {
                    let grads = sink.grad(ParamId(index));
                    for (grad, at) in grads.iter_mut().zip(param.range.clone()) {
                        let value = drawn(grain, at, seed ^ step);
                        match accumulate {
                            Accumulate::Overwrite => *grad = value,
                            Accumulate::Add => *grad += value,
                        }
                    }
                    sink.ready(ParamId(index));
                }
                let loss_sum = f64::from(drawn(grain, 99_999, seed));
                let metrics = vec![(grain as f64, 1.0)];
                reducer.finish_grain(grain, &GrainSums { loss_sum, weight: 2.0, metrics });
            }
            let outcome = reducer.finish_step(Votes::default()).unwrap();
            assert!(!outcome.stop && !outcome.non_finite);
            Seen {
                gradients: reducer.gradients().iter().map(|value| value.to_bits()).collect(),
                loss_sum: outcome.loss_sum.to_bits(),
                weight: outcome.weight,
                metric: outcome.metrics[0],
            }
        })
        .collect();
    reducer.close();
    seen
}

fn run(
    nodes: &[usize],
    layout: &Arc<Layout>,
    reduction: Reduction,
    steps: &[usize],
    seed: u64,
) -> Vec<Seen> {
    let site = &Site::new(nodes);
    let all = thread::scope(|scope| {
        let threads: Vec<_> = (0..site.topology.world())
            .map(|rank| scope.spawn(move || run_rank(site, rank, layout, reduction, steps, seed)))
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    for seen in &all {
        assert_eq!(seen, &all[0], "ranks differ");
    }
    all.into_iter().next().unwrap()
}

/// One node, a rank on each, and between.
fn any_nodes() -> impl Strategy<Value = Vec<usize>> {
    prop_oneof![
        (2..6_usize).prop_map(|world| vec![world]),
        (2..5_usize).prop_map(|world| vec![1; world]),
        Just(vec![2, 1]),
        Just(vec![1, 3]),
        Just(vec![2, 2]),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn gradients_are_exact_sums_and_the_tree_gives_the_same_bits_for_any_world(
        nodes in any_nodes(),
        lens in proptest::collection::vec(0..40_usize, 0..5),
        steps in proptest::collection::vec(1..14_usize, 1..4),
        seed in any::<u64>(),
    ) {
        let params = lens.iter().enumerate().map(|(i, len)| (format!("p{i}"), vec![*len])).collect();
        let layout = Arc::new(Layout::new(params).unwrap());
        let alone = run(&[1], &layout, Reduction::FixedTree, &steps, seed);
        let tree = run(&nodes, &layout, Reduction::FixedTree, &steps, seed);
        prop_assert_eq!(&alone, &tree);
        let fast = run(&nodes, &layout, Reduction::Fast, &steps, seed);
        for (step, ((tree, fast), grains)) in tree.iter().zip(&fast).zip(&steps).enumerate() {
            prop_assert_eq!((tree.loss_sum, tree.weight, tree.metric), (fast.loss_sum, fast.weight, fast.metric));
            prop_assert_eq!(tree.weight, 2.0 * *grains as f64);
            prop_assert_eq!(tree.metric, ((grains * (grains - 1) / 2) as f64, *grains as f64));
            for index in 0..layout.len() {
                let values = (0..*grains).map(|grain| f64::from(drawn(grain, index, seed ^ step as u64)));
                let exact: f64 = values.clone().sum();
                let bound = 1e-6 * values.map(f64::abs).sum::<f64>();
                for bits in [tree.gradients[index], fast.gradients[index]] {
                    let got = f64::from(f32::from_bits(bits));
                    prop_assert!((got - exact).abs() <= bound, "{} is not {}", got, exact);
                }
            }
        }
    }
}

#[test]
fn a_broadcast_and_sums_between_steps_do_not_disturb_them() {
    let layout = Arc::new(Layout::new(vec![("w".to_owned(), vec![10])]).unwrap());
    let site = &Site::new(&[3]);
    thread::scope(|scope| {
        for rank in 0..3 {
            let layout = Arc::clone(&layout);
            scope.spawn(move || {
                let folder = tempfile::tempdir().unwrap();
                let path = folder.path().join("record");
                let record = Arc::new(FlightRecord::create(&path, rank as u32).unwrap());
                let config = ReducerConfig {
                    bucket_bytes: 64,
                    first_bucket_bytes: 64,
                    reduction: Reduction::Fast,
                    max_grains: 3,
                    ..ReducerConfig::default()
                };
                let join = Join { record: Some(record), ..site.join(rank, PATIENT) };
                let mut reducer = Reducer::new(join, layout, config).unwrap();
                let mut weights = vec![rank as f32; 10];
                reducer.broadcast(1, &mut weights).unwrap();
                assert_eq!(weights, [1.0; 10]);
                for step in 0..3 {
                    let grains = reducer.begin_step(step, 2);
                    assert_eq!(grains.len(), usize::from(rank != 2));
                    for grain in grains {
                        let mut sink = reducer.sink(grain);
                        sink.grad(ParamId(0)).fill(1.0);
                        sink.ready(ParamId(0));
                        reducer.finish_grain(grain, &GrainSums::default());
                    }
                    reducer.finish_step(Votes::default()).unwrap();
                    assert_eq!(reducer.gradients(), [2.0; 10]);
                    let mut values = [0.0, 0.0, 0.0];
                    values[rank] = 0.1 * rank as f64;
                    reducer.all_reduce_f64(&mut values).unwrap();
                    assert_eq!(values, [0.0, 0.1, 0.2]);
                    reducer.barrier().unwrap();
                }
                reducer.close();
                let position = FlightRecord::open(&path).unwrap().read().unwrap();
                // A broadcast, the order of launches, and in each step a bucket, a sum and a barrier.
                let lane = position.lanes[0];
                assert_eq!((lane.entered, lane.met, lane.left), (11, 11, 11));
                assert_eq!(position.step, 2);
            });
        }
    });
}
