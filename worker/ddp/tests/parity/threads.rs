//! Two ranks as threads that each map the group's memory for themselves.

use std::{os::fd::AsFd as _, sync::Arc, thread, time::Duration};

use lockstep_ddp::{Join, Reducer, ReducerConfig, Reduction};
use lockstep_shm::create_group_memory;
use lockstep_tensor::Layout;

pub(crate) const WORLD: usize = 2;

/// What `work` returns for each rank. Buckets are small, so that there are several.
pub(crate) fn on_ranks<R: Send>(
    layout: &Arc<Layout>,
    reduction: Reduction,
    work: impl Fn(usize, &mut Reducer) -> R + Sync,
) -> Vec<R> {
    let config = ReducerConfig {
        bucket_bytes: 1500,
        first_bucket_bytes: 100,
        reduction,
        ..ReducerConfig::default()
    };
    on_ranks_with(layout, &config, work)
}

/// The same with other settings.
pub(crate) fn on_ranks_with<R: Send>(
    layout: &Arc<Layout>,
    config: &ReducerConfig,
    work: impl Fn(usize, &mut Reducer) -> R + Sync,
) -> Vec<R> {
    let memory = &create_group_memory().unwrap();
    let config = &ReducerConfig { max_grains: 4, ..config.clone() };
    let run = |rank| {
        let join = Join::one_node(memory.as_fd(), rank, WORLD, Duration::from_secs(30));
        let mut reducer = Reducer::new(join, Arc::clone(layout), config.clone()).unwrap();
        let result = work(rank, &mut reducer);
        reducer.close();
        result
    };
    thread::scope(|scope| {
        let run = &run;
        let ranks: Vec<_> = (0..WORLD).map(|rank| scope.spawn(move || run(rank))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}
