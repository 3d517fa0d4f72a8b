//! Buckets on their way to the communication threads: in one order, each as soon as it and all before it are ready.

use std::sync::Arc;

use lockstep_collective::{Ballot, Findings, GroupError, Lease, SumOrder};
use lockstep_shm::monotonic_ns;
use lockstep_tensor::ParamId;

use super::{Reducer, step::Orders};
use crate::{
    BucketSpan, HookKind, Reduction, Votes,
    comm::{Comm, Launch, Worker},
    grains_of, tree,
};

impl Reducer {
    pub(crate) fn ready(&mut self, param: ParamId) {
        if !self.current().is_last {
            return;
        }
        let Some(step) = &mut self.step else { return };
        let bucket = self.bucket_of[param.0];
        let left = &mut step.left[bucket];
        debug_assert!(0 < *left, "parameter {} is ready twice", param.0);
        *left = left.saturating_sub(1);
        if *left == 0 {
            step.spans[bucket] =
                BucketSpan { bucket, ready_ns: monotonic_ns(), ..step.spans[bucket] };
            if let Some(observed) = &mut self.observed {
                observed.push(bucket);
            }
        }
        // The last bucket is held back: the votes go with it.
        while let Some(step) = &self.step
            && step.launched + 1 < self.plan.buckets.len()
            && step.left[self.launch_order[step.launched]] == 0
        {
            self.launch_next(None);
        }
    }

    /// Adds up what the last grain completes in the next bucket, and hands it to the next lane.
    fn launch_next(&mut self, ballot: Option<(Ballot, Vec<Findings>)>) {
        let step = self.step.as_mut().expect("a bucket is launched in a step");
        let bucket = self.launch_order[step.launched];
        step.launched += 1;
        if step.spans[bucket].ready_ns == 0 {
            step.spans[bucket] =
                BucketSpan { bucket, ready_ns: monotonic_ns(), ..step.spans[bucket] };
        }
        let range = self.plan.buckets[bucket].range.clone();
        if let Some(current) = &step.current {
            for (into, from) in &current.additions {
                self.arena.add(*into, *from, range.clone());
            }
        }
        let is_small = range.len() * size_of::<f32>() <= lockstep_collective::IN_RANK_ORDER_BYTES;
        let order = if is_small { &step.orders.small } else { &step.orders.large };
        let order = Arc::clone(order);
        let slots = order.slots_of(self.rank).max(1);
        if step.grains.is_empty() && (step.is_local || self.config.hook != HookKind::Mean) {
            // Nobody has written there, and this rank's numbers count.
            self.arena.floats_mut(0, range.clone()).fill(0.0);
        }
        // Whatever carries votes goes the first way.
        let is_first = ballot.is_some() || step.is_local;
        let lane = if is_first { 0 } else { (step.launched - 1) % (1 + self.more.len()) };
        let is_local = step.is_local;
        self.digest.add(bucket as u64);
        self.digest.add(range.len() as u64);
        let ballot = ballot.map(|(ballot, findings)| {
            let mut digest = self.digest;
            digest.add(ballot.digest);
            let digest = if self.config.is_strict { digest.value() } else { 0 };
            (Ballot { digest, ..ballot }, findings)
        });
        let lease: Lease = self.arena.lease_for(lane, 0..slots, range);
        let launch = Launch { bucket, lease, order, is_local, ballot };
        match lane.checked_sub(1) {
            None => self.comm.reduce(launch),
            Some(other) => self.more[other].reduce(launch),
        }
    }

    /// Launches what is left, the last bucket with the votes, which need to know what the other lanes have found.
    pub(super) fn launch_rest(&mut self, votes: Votes) -> Result<(), GroupError> {
        while let Some(step) = &self.step
            && step.launched + 1 < self.plan.buckets.len()
        {
            self.launch_next(None);
        }
        let findings = self.findings()?;
        let Some(step) = self.step.as_ref().filter(|step| step.launched < self.launch_order.len())
        else {
            return Ok(());
        };
        let ballot = Ballot {
            step: step.step,
            grains_total: step.grains_total as u64,
            grains: step.grains.clone(),
            intent: votes.intent,
            non_finite: votes.non_finite || step.non_finite,
            // What was reduced comes to it when the bucket is launched.
            digest: votes.weights_digest,
        };
        self.launch_next(Some((ballot, findings)));
        Ok(())
    }

    /// What the other lanes have found in this step.
    fn findings(&mut self) -> Result<Vec<Findings>, GroupError> {
        let Some(step) = &mut self.step else { return Ok(Vec::new()) };
        let mut take = |comm: &mut Comm| comm.ask(Worker::take_findings, |reply| step.see(reply));
        self.more.iter_mut().map(&mut take).collect()
    }

    pub(super) fn orders_for(&mut self, grains_total: usize) -> Orders {
        if let Some((total, orders)) = &self.orders
            && *total == grains_total
        {
            return orders.clone();
        }
        let world = self.world_size();
        // A hook's collectives are over all ranks.
        let is_plain = self.config.hook == HookKind::Mean;
        let has_part = |rank: usize| !is_plain || !grains_of(rank, world, grains_total).is_empty();
        let orders = match self.config.reduction {
            Reduction::Fast => Orders {
                small: Arc::new(SumOrder::in_rank_order((0..world).filter(|rank| has_part(*rank)))),
                large: Arc::new(SumOrder::by_node(&self.topology, has_part)),
            },
            Reduction::FixedTree => {
                let tree = Arc::new(tree::tree_order(world, grains_total));
                Orders { small: Arc::clone(&tree), large: tree }
            }
        };
        self.orders = Some((grains_total, orders.clone()));
        orders
    }
}
