//! Ranks as threads, and gradients that are drawn.

use std::{ops::Range, sync::Arc, thread, time::Duration};

use lockstep_ddp::{GrainSums, Reducer, ReducerConfig, StepOutcome, Votes};
use lockstep_tensor::{Accumulate, GradSink, Layout, ParamId};

use crate::site::Site;

pub(crate) const PATIENT: Duration = Duration::from_secs(30);

/// One node, a rank on each, and between.
pub(crate) const ARRANGEMENTS: [&[usize]; 4] = [&[3], &[1, 1, 1], &[2, 1], &[1, 2]];

/// Several parameters of very different sizes, in buckets of which some are larger than a piece of the network's.
pub(crate) fn layout() -> Arc<Layout> {
    let named = |name: &str, shape: &[usize]| (name.to_owned(), shape.to_vec());
    let used = vec![
        named("embedding", &[300, 300]),
        named("first.weight", &[40, 30]),
        named("first.bias", &[40]),
        named("last.weight", &[7, 40]),
        named("last.bias", &[7]),
    ];
    Arc::new(Layout::new(used).unwrap())
}

pub(crate) fn config() -> ReducerConfig {
    ReducerConfig {
        bucket_bytes: 5000,
        first_bucket_bytes: 100,
        max_grains: 12,
        ..ReducerConfig::default()
    }
}

/// What `work` returns for each rank.
pub(crate) fn on_ranks<R: Send>(
    nodes: &[usize],
    config: &ReducerConfig,
    work: impl Fn(&mut Reducer) -> R + Sync,
) -> Vec<R> {
    let site = &Site::new(nodes);
    let run = |rank| {
        let join = site.join(rank, PATIENT);
        let mut reducer = Reducer::new(join, layout(), config.clone()).unwrap();
        let result = work(&mut reducer);
        reducer.barrier().unwrap();
        reducer.close();
        result
    };
    thread::scope(|scope| {
        let run = &run;
        let ranks: Vec<_> =
            (0..site.topology.world()).map(|rank| scope.spawn(move || run(rank))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// A gradient's element, of many magnitudes.
pub(crate) fn drawn(step: u64, grain: usize, index: usize) -> f32 {
    let mixed = ((grain * 100_003 + index) as u64 + 1)
        .wrapping_mul(0x9E37_79B9_7F4A_7C15)
        .wrapping_add(step << 17)
        .wrapping_mul(0xD6E8_FEB8_6659_FD93);
    (mixed >> 40) as f32 / 8e6 - 1.0
}

/// Forward and backward of one own grain: its gradients are drawn, its weight is 1 + grain.
pub(crate) fn do_grain(reducer: &mut Reducer, step: u64, grain: usize) {
    let accumulate = reducer.accumulate(grain);
    let mut sink = reducer.sink(grain);
    for (index, param) in layout().params().iter().enumerate() {
        for (grad, at) in sink.grad(ParamId(index)).iter_mut().zip(param.range.clone()) {
            let value = drawn(step, grain, at);
            *grad = match accumulate {
                Accumulate::Overwrite => value,
                Accumulate::Add => *grad + value,
            };
        }
        sink.ready(ParamId(index));
    }
    let weight = 1.0 + grain as f64;
    reducer.finish_grain(grain, &GrainSums { loss_sum: 0.5, weight, metrics: vec![] });
}

pub(crate) fn do_grains(reducer: &mut Reducer, step: u64, grains: Range<usize>) {
    grains.for_each(|grain| do_grain(reducer, step, grain));
}

/// A whole step.
pub(crate) fn do_step(reducer: &mut Reducer, step: u64, grains_total: usize) -> StepOutcome {
    let grains = reducer.begin_step(step, grains_total);
    do_grains(reducer, step, grains);
    reducer.finish_step(Votes::default()).unwrap()
}

/// The sum that a step must give, in f64.
pub(crate) fn exact(step: u64, grains_total: usize, index: usize) -> f64 {
    (0..grains_total).map(|grain| f64::from(drawn(step, grain, index))).sum()
}
