//! Sums by way of thin matrices.

use std::num::NonZeroUsize;

use lockstep_collective::{Bucket, PlanParam};
use lockstep_ddp::hook::{Dtype, Hook, PowerSgd, PowerSgdConfig};
use lockstep_tensor::init::Stream;
use proptest::prelude::*;

use crate::comm::on_ranks;

/// One bucket of these parameters.
pub(crate) fn bucket(shapes: &[&[usize]]) -> Bucket {
    let params: Vec<_> = shapes
        .iter()
        .enumerate()
        .map(|(index, shape)| PlanParam { name: format!("p{index}"), shape: shape.to_vec() })
        .collect();
    let len = params.iter().map(|param| param.shape.iter().product::<usize>()).sum();
    Bucket { range: 0..len, params }
}

fn config(rank: usize, min_compression_rate: f64) -> PowerSgdConfig {
    let rank = NonZeroUsize::new(rank).unwrap();
    PowerSgdConfig { rank, min_compression_rate, start_step: 0, seed: 5, ..Default::default() }
}

fn drawn(len: usize, seed: u64, name: &str) -> Vec<f32> {
    let stream = Stream::new(seed, name);
    (0..len as u64).map(|at| stream.normal(at) as f32).collect()
}

/// What each rank is left with.
struct Run {
    /// Each step's sum: the same on every rank.
    sums: Vec<Vec<f32>>,
    hooks: Vec<PowerSgd>,
    traffic: Vec<(Dtype, usize)>,
}

/// Reduces `gradient(rank, step)`, step by step.
fn run(
    hooks: Vec<PowerSgd>,
    bucket: &Bucket,
    steps: std::ops::Range<usize>,
    gradient: impl Fn(usize, usize) -> Vec<f32> + Sync,
) -> Run {
    let hooks: Vec<_> = hooks.into_iter().map(|hook| std::sync::Mutex::new(Some(hook))).collect();
    let ranks = on_ranks(hooks.len(), |rank, mut comm| {
        let mut hook = hooks[rank].lock().unwrap().take().unwrap();
        let reduce = |step| {
            comm.bucket = gradient(rank, step);
            hook.reduce(0, &bucket.params, &mut comm).unwrap();
            comm.bucket.clone()
        };
        let sums: Vec<_> = steps.clone().map(reduce).collect();
        (sums, hook, comm.traffic)
    });
    let (mut all_sums, mut hooks, mut all_traffic) = (Vec::new(), Vec::new(), Vec::new());
    for (sums, hook, traffic) in ranks {
        all_sums.push(sums);
        hooks.push(hook);
        all_traffic.push(traffic);
    }
    let bits = |sums: &[Vec<f32>]| sums.iter().flatten().map(|x| x.to_bits()).collect::<Vec<_>>();
    assert!(all_sums.iter().all(|sums| bits(sums) == bits(&all_sums[0])), "ranks differ");
    assert!(all_traffic.iter().all(|traffic| *traffic == all_traffic[0]));
    Run { sums: all_sums.swap_remove(0), hooks, traffic: all_traffic.swap_remove(0) }
}

fn fresh(world: usize, config: PowerSgdConfig, bucket: &Bucket) -> Vec<PowerSgd> {
    (0..world).map(|_| PowerSgd::new(config, std::slice::from_ref(bucket))).collect()
}

fn length(values: impl IntoIterator<Item = f64>) -> f64 {
    values.into_iter().map(|x| x * x).sum::<f64>().sqrt()
}

/// The sum over ranks and steps, in f64.
fn total(world: usize, steps: usize, gradient: impl Fn(usize, usize) -> Vec<f32>) -> Vec<f64> {
    let mut sum = vec![0.0; gradient(0, 0).len()];
    for (rank, step) in (0..world).flat_map(|rank| (0..steps).map(move |step| (rank, step))) {
        sum.iter_mut().zip(gradient(rank, step)).for_each(|(sum, x)| *sum += f64::from(x));
    }
    sum
}

/// How far `ours` is from `right`, as a part of its length.
fn off(ours: &[f32], right: &[f64]) -> f64 {
    let gap = ours.iter().zip(right).map(|(ours, right)| f64::from(*ours) - right);
    length(gap) / length(right.iter().copied())
}

fn summed(sums: &[Vec<f32>]) -> Vec<f32> {
    (0..sums[0].len()).map(|at| sums.iter().map(|sum| sum[at]).sum()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn at_full_rank_the_sum_is_the_plain_one(
        world in 1..5_usize,
        rows in 2..20_usize,
        columns in 2..20_usize,
        plain in 0..9_usize,
        seed in any::<u64>(),
    ) {
        // A rate that even a whole matrix beats.
        let bucket = bucket(&[&[plain], &[rows, columns], &[columns, rows]]);
        let config = config(20, 0.01);
        let gradient = |rank: usize, step: usize| {
            drawn(bucket.range.len(), seed ^ (step * 8 + rank) as u64, "gradient")
        };
        let found = run(fresh(world, config, &bucket), &bucket, 0..3, gradient);
        for (step, sum) in found.sums.iter().enumerate() {
            let off = off(sum, &total(world, 1, |rank, _| gradient(rank, step)));
            prop_assert!(off < 1e-4, "step {step}: {off}");
        }
        prop_assert_eq!(found.traffic.len(), 6);
    }

    /// Each rank's matrix is one column by one row, the same column for all: their sum has rank 1. The first step
    /// finds the row, unless the drawn columns happen to be at right angles to it.
    #[test]
    fn a_sum_of_low_rank_arrives_whole(
        world in 1..5_usize,
        rows in 16..40_usize,
        columns in 16..40_usize,
        rank in 1..4_usize,
        seed in any::<u64>(),
    ) {
        let bucket = bucket(&[&[rows, columns]]);
        let left = drawn(rows, seed, "column");
        let gradient = |rank: usize, _| -> Vec<f32> {
            let right = drawn(columns, seed ^ rank as u64, "row");
            left.iter().flat_map(|left| right.iter().map(move |right| left * right)).collect()
        };
        let config = PowerSgdConfig { error_feedback: false, ..config(rank, 1.0) };
        let found = run(fresh(world, config, &bucket), &bucket, 0..4, gradient);
        for (step, sum) in found.sums.iter().enumerate().skip(1) {
            let off = off(sum, &total(world, 1, gradient));
            prop_assert!(off < 1e-4, "step {step}: {off}");
        }
    }

    /// Nothing is lost: what has not arrived is left over on some rank.
    #[test]
    fn sums_and_leftovers_are_all_there_was(world in 1..4_usize, steps in 1..8_usize, seed in any::<u64>()) {
        let bucket = bucket(&[&[24, 30], &[7], &[18, 2, 11]]);
        let gradient = |rank: usize, step: usize| {
            drawn(bucket.range.len(), seed ^ (step * 8 + rank) as u64, "gradient")
        };
        let found = run(fresh(world, config(2, 2.0), &bucket), &bucket, 0..steps, gradient);
        let mut arrived = found.sums;
        for hook in &found.hooks {
            let own = hook.state().leftovers;
            let (first, second) = own.split_at(24 * 30);
            arrived.push([first, &[0.0; 7], second].concat());
        }
        let off = off(&summed(&arrived), &total(world, steps, gradient));
        prop_assert!(off < 1e-5, "{off}");
    }
}

/// How far the sums over so many steps are from that of the gradients, which stay the same.
fn drift(steps: usize, error_feedback: bool) -> f64 {
    let bucket = bucket(&[&[32, 40]]);
    let config = PowerSgdConfig { error_feedback, ..config(2, 2.0) };
    let gradient = |rank: usize, _| drawn(bucket.range.len(), rank as u64, "gradient");
    let found = run(fresh(2, config, &bucket), &bucket, 0..steps, gradient);
    off(&summed(&found.sums), &total(2, steps, gradient))
}

#[test]
fn with_feedback_everything_arrives_in_time_and_without_it_never() {
    let (few, many) = (drift(20, true), drift(160, true));
    assert!(many < 0.12 && many < few / 4.0, "{few} after 20 steps, {many} after 160");
    assert!(0.7 < drift(160, false));
}

#[test]
fn the_first_steps_are_plain_and_later_ones_have_two_collectives() {
    let bucket = bucket(&[&[32, 20], &[32], &[16, 32]]);
    let config = PowerSgdConfig { start_step: 2, ..config(2, 2.0) };
    let gradient = |rank: usize, step: usize| drawn(bucket.range.len(), (rank + step) as u64, "g");
    let found = run(fresh(2, config, &bucket), &bucket, 0..4, gradient);
    let exact = |step: usize| -> Vec<f32> {
        gradient(0, step).iter().zip(gradient(1, step)).map(|(left, right)| left + right).collect()
    };
    assert_eq!(found.sums[..2], [exact(0), exact(1)]);
    let (p, q, plain) = (2 * (32 + 16), 2 * (20 + 32), 32);
    let step = [(Dtype::F32, p + plain), (Dtype::F32, q)];
    assert_eq!(found.traffic[..2], [(Dtype::F32, 1184); 2]);
    assert_eq!(found.traffic[2..], [step, step].concat());
    // What is not compressed is exact, and nothing of it is left over.
    assert_eq!(found.sums[3][640..672], exact(3)[640..672]);
    let floats = (640 + 512) + q + (p + plain);
    assert_eq!(found.hooks[0].memory_bytes(), 4 * floats);
}

#[test]
fn a_run_that_continues_from_a_state_has_the_same_bits() {
    let bucket = bucket(&[&[32, 20], &[32], &[16, 32]]);
    let config = PowerSgdConfig { start_step: 2, ..config(2, 2.0) };
    let gradient =
        |rank: usize, step: usize| drawn(bucket.range.len(), (rank + 9 * step) as u64, "g");
    let whole = run(fresh(2, config, &bucket), &bucket, 0..8, gradient);
    for cut in [1, 5] {
        let first = run(fresh(2, config, &bucket), &bucket, 0..cut, gradient);
        let mut hooks = fresh(2, PowerSgdConfig { seed: 99, ..config }, &bucket);
        for (hook, before) in hooks.iter_mut().zip(&first.hooks) {
            hook.restore(&before.state()).unwrap();
            assert_eq!(hook.state(), before.state());
        }
        let second = run(hooks, &bucket, cut..8, gradient);
        assert_eq!(second.sums, whole.sums[cut..]);
    }
}

#[test]
fn a_state_of_other_lengths_is_refused_and_one_without_leftovers_is_not() {
    let bucket = bucket(&[&[32, 20]]);
    let gradient = |rank: usize, _| drawn(bucket.range.len(), rank as u64, "gradient");
    let found = run(fresh(2, config(2, 2.0), &bucket), &bucket, 0..2, gradient);
    let right = found.hooks[0].state();
    assert_eq!((right.steps, right.shared.len(), right.leftovers.len()), (2, 40, 640));
    assert_eq!(right.shared, found.hooks[1].state().shared);
    let [mut hook] = fresh(1, config(2, 2.0), &bucket).try_into().unwrap();
    let before = hook.state();

    let mut short = right.clone();
    short.leftovers.pop();
    let error = hook.restore(&short).unwrap_err().to_string();
    assert_eq!(error, "the hook has 640 leftover floats, the state 639");
    short.shared.pop();
    let error = hook.restore(&short).unwrap_err().to_string();
    assert_eq!(error, "the hook has 40 shared floats, the state 39");
    assert_eq!(hook.state(), before);
    assert!(lockstep_ddp::hook::Mean.restore(&right).is_err());

    short = lockstep_ddp::hook::HookState { leftovers: vec![], ..right };
    hook.restore(&short).unwrap();
    assert_eq!((hook.state().steps, hook.state().shared), (2, short.shared));
    assert_eq!(hook.state().leftovers, [0.0; 640]);
}

#[test]
fn what_is_not_finite_is_seen_by_all_and_gone_in_the_next_step() {
    let bucket = bucket(&[&[32, 20], &[5]]);
    for bad in [f32::INFINITY, f32::NAN, f32::MAX] {
        for place in [3, 641] {
            let gradient = |rank: usize, step: usize| {
                let mut gradient = drawn(bucket.range.len(), (rank + 9 * step) as u64, "gradient");
                // Two of the greatest number overflow where they are added.
                if step == 1 && (rank == 1 || bad == f32::MAX) {
                    gradient[place] = bad;
                }
                gradient
            };
            let found = run(fresh(2, config(2, 2.0), &bucket), &bucket, 0..3, gradient);
            let is_finite: Vec<_> =
                found.sums.iter().map(|sum| sum.iter().all(|x| x.is_finite())).collect();
            assert_eq!(is_finite, [true, false, true], "{bad} at {place}");
            assert!(
                found.hooks.iter().all(|hook| hook.state().leftovers.iter().all(|x| x.is_finite()))
            );
        }
    }
}

#[test]
fn gradients_may_vanish_and_come_back() {
    let bucket = bucket(&[&[32, 20]]);
    let gradient = |rank: usize, step: usize| match step {
        1..3 => vec![0.0; 640],
        _ => drawn(640, (rank + 9 * step) as u64, "gradient"),
    };
    let config = PowerSgdConfig { error_feedback: false, ..config(2, 2.0) };
    let found = run(fresh(2, config, &bucket), &bucket, 0..4, gradient);
    assert_eq!(found.sums[1..3], [vec![0.0; 640], vec![0.0; 640]]);
    let right = total(2, 1, |rank, _| gradient(rank, 3));
    let off = off(&found.sums[3], &right);
    assert!(off < 1.0, "{off}: as good as nothing arrives");
    // Both columns see something again.
    let q = found.hooks[0].state().shared;
    assert!(q.chunks(20).all(|column| 0.0 < length(column.iter().map(|x| f64::from(*x)))));
}

#[test]
fn leftovers_are_dropped_when_asked() {
    let bucket = bucket(&[&[32, 20]]);
    let gradient = |rank: usize, _| drawn(640, rank as u64, "gradient");
    let mut hook = run(fresh(1, config(2, 2.0), &bucket), &bucket, 0..2, gradient).hooks.remove(0);
    let before = hook.state();
    assert!(before.leftovers.iter().any(|x| *x != 0.0));
    hook.drop_leftovers();
    assert_eq!(hook.state().leftovers, [0.0; 640]);
    assert_eq!((hook.state().steps, hook.state().shared), (before.steps, before.shared));
}

#[test]
fn without_a_warm_start_each_step_draws_other_columns() {
    let bucket = bucket(&[&[32, 20]]);
    let config = PowerSgdConfig { warm_start: false, error_feedback: false, ..config(2, 2.0) };
    let gradient = |rank: usize, _| drawn(640, rank as u64, "gradient");
    let cold = run(fresh(2, config, &bucket), &bucket, 0..12, gradient);
    let again = run(fresh(2, config, &bucket), &bucket, 0..12, gradient);
    assert_eq!(cold.sums, again.sums);
    let warm = PowerSgdConfig { warm_start: true, ..config };
    let warm = run(fresh(2, warm, &bucket), &bucket, 0..12, gradient);
    assert_eq!(cold.sums[0], warm.sums[0]);
    assert_ne!(cold.sums[1], warm.sums[1]);
    // Of a gradient that stays, the warm ones find the best columns.
    let right = total(2, 1, gradient);
    assert!(off(&warm.sums[11], &right) < off(&cold.sums[11], &right));
}
