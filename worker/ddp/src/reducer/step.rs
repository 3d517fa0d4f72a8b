//! Where a step is.

use std::{ops::Range, sync::Arc};

use lockstep_collective::{SumOrder, Tally};

use crate::{BucketSpan, Node, comm::Reply};

/// In which order contributions are added.
#[derive(Debug, Clone)]
pub(super) struct Orders {
    /// In rank order, for buckets so small that every rank's part travels anyway.
    pub(super) small: Arc<SumOrder>,
    /// Node by node, so that one sum of each node travels.
    pub(super) large: Arc<SumOrder>,
}

/// Where the current step is.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) step: u64,
    pub(super) grains_total: usize,
    pub(super) grains: Range<usize>,
    pub(super) orders: Orders,
    /// Nothing is sent but the votes.
    pub(super) is_local: bool,
    /// Partial sums in the arenas, from 0 on, without the grain in work.
    pub(super) stack: Vec<Node>,
    /// The grain in work, if any.
    pub(super) current: Option<Current>,
    /// Own grains that are finished.
    pub(super) finished: usize,
    /// Parameters of each bucket that are not ready, in the last grain.
    pub(super) left: Vec<usize>,
    /// Buckets launched.
    pub(super) launched: usize,
    /// When each bucket became ready, and since launched and done.
    pub(super) spans: Vec<BucketSpan>,
    pub(super) non_finite: bool,
    /// Of this rank's grains.
    pub(super) own_weight: f64,
    pub(super) tally: Option<Tally>,
}

impl Step {
    /// A bucket is done.
    pub(super) fn see(&mut self, reply: Reply) {
        if let Reply::Reduced { bucket, launched_ns, done_ns, tally } = reply {
            let span = &mut self.spans[bucket];
            (span.launched_ns, span.done_ns) = (launched_ns, done_ns);
            self.tally = self.tally.or(tally);
        }
    }
}

#[derive(Debug)]
pub(super) struct Current {
    pub(super) grain: usize,
    pub(super) slot: usize,
    pub(super) is_last: bool,
    /// What is added up once the grain is there, as (into, from).
    pub(super) additions: Vec<(usize, usize)>,
    /// The partial sums afterwards.
    pub(super) stack: Vec<Node>,
}
