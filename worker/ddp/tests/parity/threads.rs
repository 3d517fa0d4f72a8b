//! Two ranks as threads that each map the group's memory for themselves.

use std::{sync::Arc, thread, time::Duration};

use lockstep_ddp::{Reducer, ReducerConfig, Reduction};
use lockstep_shm::{FlightRecord, create_group_memory};
use lockstep_tensor::Layout;

pub(crate) const WORLD: usize = 2;

/// What `work` returns for each rank. Buckets are small, so that there are several.
pub(crate) fn on_ranks<R: Send>(
    layout: &Arc<Layout>,
    reduction: Reduction,
    work: impl Fn(usize, &mut Reducer) -> R + Sync,
) -> Vec<R> {
    let fd = &create_group_memory().unwrap();
    let config = &ReducerConfig {
        bucket_bytes: 1500,
        first_bucket_bytes: 100,
        reduction,
        max_grains: 4,
        timeout: Duration::from_secs(30),
        metric_count: 0,
    };
    let run = |rank| {
        let folder = tempfile::tempdir().unwrap();
        let record = Arc::new(FlightRecord::create(folder.path().join("record"), 0).unwrap());
        let layout = Arc::clone(layout);
        let mut reducer = Reducer::new(fd, rank, WORLD, layout, config.clone(), record).unwrap();
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
