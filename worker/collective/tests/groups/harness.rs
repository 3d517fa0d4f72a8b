//! Groups of threads: each rank maps its node's memory for itself, as a process would.

use std::{ops::Range, thread, time::Duration};

use lockstep_collective::{
    Ballot, Bucket, CpuGroup, Formed, GroupError, Intent, Network, Plan, PlanParam,
};
use proptest::prelude::*;

pub(crate) use crate::site::Site;

/// Long enough for a loaded machine; no test that passes waits for it.
pub(crate) const PATIENT: Duration = Duration::from_secs(30);
/// For tests that wait until it is over.
pub(crate) const SHORT: Duration = Duration::from_secs(3);

impl Site {
    /// Where a rank listens.
    pub(crate) fn address(&self, rank: usize) -> std::net::SocketAddr {
        self.endpoints[rank][0]
    }

    pub(crate) fn form_over(
        &self,
        rank: usize,
        plan: &Plan,
        timeout: Duration,
        network: Network,
    ) -> Result<Formed, GroupError> {
        CpuGroup::form(&self.join_over(rank, timeout, network), plan)
    }

    pub(crate) fn form(
        &self,
        rank: usize,
        plan: &Plan,
        timeout: Duration,
    ) -> Result<Formed, GroupError> {
        CpuGroup::form(&self.join(rank, timeout), plan)
    }
}

/// One bucket of each of these lengths, one parameter in each.
pub(crate) fn plan(nodes: &[usize], lens: &[usize]) -> Plan {
    let mut arena_len = 0;
    let bucket = |(index, len): (usize, &usize)| {
        arena_len += len;
        let params = vec![PlanParam { name: format!("p{index}"), shape: vec![*len] }];
        Bucket { range: arena_len - len..arena_len, params }
    };
    let buckets = lens.iter().enumerate().map(bucket).collect();
    let settings = vec![("the reduction".to_owned(), "fast".to_owned())];
    let (nodes, slots, grain_rows, grain_columns) = (nodes.to_vec(), 2, 8, 2);
    Plan { nodes, arena_len, slots, settings, grain_rows, grain_columns, buckets }
}

/// Runs `body` as every one of `ranks`, on threads, and returns the answers in their order.
pub(crate) fn as_ranks<T: Send>(ranks: Range<usize>, body: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let body = &body;
    thread::scope(|scope| {
        let threads: Vec<_> = ranks.map(|rank| scope.spawn(move || body(rank))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

pub(crate) fn value(rank: usize, index: usize) -> f32 {
    (index * 7 + rank * 13 + 1) as f32 / (3 + rank) as f32
}

pub(crate) const BALLOT: Ballot = Ballot {
    step: 5,
    grains_total: 3,
    grains: 0..1,
    intent: Intent::GoOn,
    non_finite: false,
    digest: 0,
};

/// Some nodes of some ranks each, at most six ranks: one node, a rank on each, and between.
pub(crate) fn any_nodes() -> impl Strategy<Value = Vec<usize>> {
    proptest::collection::vec(1..4_usize, 1..4)
        .prop_filter("at most six ranks", |nodes| nodes.iter().sum::<usize>() <= 6)
}
