//! The reducer: from the gradients of grains to the gradient of the global batch.

use std::{ops::Range, sync::Arc};

use lockstep_collective::{
    Aborter, Ballot, Board, CpuGroup, Findings, FormedLanes, GroupError, Join, Lease, OwnArena,
    Plan, SumOrder, Tally, Topology,
};
use lockstep_shm::{FlightRecord, monotonic_ns};
use lockstep_tensor::{Accumulate, Layout, ParamId};

use crate::{
    BatchPeers, BucketSpan, GrainSums, HookKind, Node, ReducerConfig, ReducerSink, Reduction,
    StepOutcome, Votes,
    comm::{Comm, Launch, Reply},
    config::COLUMNS,
    digest::Digest,
    grains_of, tree,
};

mod between;

pub use between::Divergence;

/// One rank's end of data-parallel training. Works in steps: [`Reducer::begin_step`], then for each
/// own grain [`Reducer::sink`] and [`Reducer::finish_grain`], then [`Reducer::finish_step`].
///
/// Buckets are launched strictly in one order, during the backward of the last own grain; the
/// last one waits for the votes. In the first step that is the order of the plan; afterwards the one in which
/// rank 0's became ready. After an error the group is dead and the reducer must be dropped,
/// which tells the other ranks.
#[derive(Debug)]
pub struct Reducer {
    rank: usize,
    topology: Topology,
    config: ReducerConfig,
    layout: Arc<Layout>,
    plan: Plan,
    bucket_of: Vec<usize>,
    arena: OwnArena,
    board: Board,
    /// The first lane's: votes and all that happens between steps go there.
    comm: Comm,
    /// The other lanes'.
    more: Vec<Comm>,
    peers: Option<PeersGuard>,
    record: Option<Arc<FlightRecord>>,
    issued: u64,
    /// The orders for the last number of grains, which seldom changes.
    orders: Option<(usize, Orders)>,
    /// Buckets in the order of their launch, the same on every rank.
    launch_order: Vec<usize>,
    /// The order in which buckets became ready in the first step, until all ranks know rank 0's.
    observed: Option<Vec<usize>>,
    /// Of everything that was reduced.
    digest: Digest,
    /// Parameters that this rank's last grain did not depend on, in order.
    unused: Vec<ParamId>,
    step: Option<Step>,
}

/// A reducer that is dropped in the middle of its work keeps nobody waiting, whoever else has the peers.
#[derive(Debug)]
struct PeersGuard(Arc<BatchPeers>);

impl Drop for PeersGuard {
    fn drop(&mut self) {
        self.0.give_up();
    }
}

/// In which order contributions are added.
#[derive(Debug, Clone)]
struct Orders {
    /// In rank order, for buckets so small that every rank's part travels anyway.
    small: Arc<SumOrder>,
    /// Node by node, so that one sum of each node travels.
    large: Arc<SumOrder>,
}

/// Where the current step is.
#[derive(Debug)]
struct Step {
    step: u64,
    grains_total: usize,
    grains: Range<usize>,
    orders: Orders,
    /// Nothing is sent but the votes.
    is_local: bool,
    /// Partial sums in the arenas, from 0 on, without the grain in work.
    stack: Vec<Node>,
    /// The grain in work, if any.
    current: Option<Current>,
    /// Own grains that are finished.
    finished: usize,
    /// Parameters of each bucket that are not ready, in the last grain.
    left: Vec<usize>,
    /// Buckets launched.
    launched: usize,
    /// When each bucket became ready, and since launched and done.
    spans: Vec<BucketSpan>,
    non_finite: bool,
    /// Of this rank's grains.
    own_weight: f64,
    tally: Option<Tally>,
}

impl Step {
    /// A bucket is done.
    fn see(&mut self, reply: Reply) {
        if let Reply::Reduced { bucket, launched_ns, done_ns, tally } = reply {
            let span = &mut self.spans[bucket];
            (span.launched_ns, span.done_ns) = (launched_ns, done_ns);
            self.tally = self.tally.or(tally);
        }
    }
}

#[derive(Debug)]
struct Current {
    grain: usize,
    slot: usize,
    is_last: bool,
    /// What is added up once the grain is there, as (into, from).
    additions: Vec<(usize, usize)>,
    /// The partial sums afterwards.
    stack: Vec<Node>,
}

impl Reducer {
    /// Joins the group and starts the communication thread.
    ///
    /// # Errors
    /// Those of [`CpuGroup::form`].
    ///
    /// # Panics
    /// If the settings contradict each other.
    pub fn new(
        join: Join<'_>,
        layout: Arc<Layout>,
        config: ReducerConfig,
    ) -> Result<Self, GroupError> {
        let (rank, topology, record) = (join.rank, join.topology.clone(), join.record.clone());
        let timeout = join.timeout;
        let plan = config.plan(&layout, &topology);
        let bucket_of = plan
            .buckets
            .iter()
            .enumerate()
            .flat_map(|(index, bucket)| bucket.params.iter().map(move |_| index))
            .collect();
        let beside: Vec<Plan> =
            config.joins_batches.then(|| BatchPeers::plan(&topology)).into_iter().collect();
        let (formed, beside) = CpuGroup::form_all(&join, &plan, config.lanes, &beside)?;
        let peers = beside.into_iter().next().map(BatchPeers::new).map(Arc::new).map(PeersGuard);
        let FormedLanes { groups, arena, board } = formed;
        let start = |group| Comm::start(Box::new(group), config.way(&plan.buckets), timeout);
        let mut lanes = groups.into_iter().map(start).collect::<Result<Vec<_>, _>>()?;
        let comm = lanes.remove(0);
        Ok(Self {
            rank,
            topology,
            config,
            layout,
            launch_order: (0..plan.buckets.len()).collect(),
            observed: Some(Vec::new()),
            plan,
            bucket_of,
            arena,
            board,
            comm,
            more: lanes,
            peers,
            record,
            issued: 0,
            orders: None,
            digest: Digest::EMPTY,
            unused: Vec::new(),
            step: None,
        })
    }

    /// This rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How many ranks there are.
    pub fn world_size(&self) -> usize {
        self.topology.world()
    }

    /// The agreed plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The way to give the group up from another thread.
    pub fn aborter(&self) -> Aborter {
        self.comm.aborter()
    }

    /// Begins a step and says which of its grains are this rank's.
    ///
    /// # Panics
    /// If the last step is not finished, or the number of grains is 0 or above the agreed most.
    pub fn begin_step(&mut self, step: u64, grains_total: usize) -> Range<usize> {
        self.begin(step, grains_total, false)
    }

    /// Begins a step whose gradient stays this rank's own: only votes and sums of grains travel.
    ///
    /// # Panics
    /// As [`Reducer::begin_step`].
    pub fn begin_local_step(&mut self, step: u64, grains_total: usize) -> Range<usize> {
        self.begin(step, grains_total, true)
    }

    fn begin(&mut self, step: u64, grains_total: usize, is_local: bool) -> Range<usize> {
        assert!(self.step.is_none(), "step {step} begins before the last one is finished");
        assert!(
            0 < grains_total && grains_total <= self.config.max_grains,
            "{grains_total} grains, at most {}",
            self.config.max_grains
        );
        let grains = grains_of(self.rank, self.world_size(), grains_total);
        self.step = Some(Step {
            step,
            grains_total,
            grains: grains.clone(),
            orders: self.orders_for(grains_total),
            is_local,
            stack: Vec::new(),
            current: None,
            finished: 0,
            left: self.plan.buckets.iter().map(|bucket| bucket.params.len()).collect(),
            launched: 0,
            spans: vec![BucketSpan::default(); self.plan.buckets.len()],
            non_finite: false,
            own_weight: 0.0,
            tally: None,
        });
        if let Some(record) = &self.record {
            record.set_step(i64::try_from(step).unwrap_or(i64::MAX));
        }
        grains
    }

    /// What backward must do with the memory of own grain `grain`.
    ///
    /// # Panics
    /// Outside a step.
    pub fn accumulate(&self, grain: usize) -> Accumulate {
        let step = self.step.as_ref().expect("a step has begun");
        match self.config.reduction {
            Reduction::Fast if grain != step.grains.start => Accumulate::Add,
            Reduction::Fast | Reduction::FixedTree => Accumulate::Overwrite,
        }
    }

    /// The sink for the backward of own grain `grain`; backward must do with it what
    /// [`Reducer::accumulate`] says.
    ///
    /// # Panics
    /// If it is not the next own grain of the step.
    pub fn sink(&mut self, grain: usize) -> ReducerSink<'_> {
        let reduction = self.config.reduction;
        let step = self.step.as_mut().expect("a step has begun");
        let next = step.grains.start + step.finished;
        assert!(
            grain == next && grain < step.grains.end && step.current.is_none(),
            "grain {grain} of {:?}, the next is {next}",
            step.grains
        );
        let mut stack = step.stack.clone();
        let mut additions = Vec::new();
        let slot = match reduction {
            Reduction::Fast => 0,
            Reduction::FixedTree => {
                let slot = stack.len();
                tree::push_grain(&mut stack, grain, step.grains_total, |into, from| {
                    additions.push((into, from));
                });
                slot
            }
        };
        let is_last = grain + 1 == step.grains.end;
        step.current = Some(Current { grain, slot, is_last, additions, stack });
        self.unused.clear();
        ReducerSink::new(self)
    }

    /// Hands in what own grain `grain` adds to the step's sums, after its backward.
    ///
    /// # Panics
    /// If it is not the grain of the last [`Reducer::sink`], or the number of metrics is not the
    /// agreed one.
    pub fn finish_grain(&mut self, grain: usize, sums: &GrainSums) {
        let step = self.step.as_mut().expect("a step has begun");
        let current = step.current.take().expect("the grain has a sink");
        assert!(grain == current.grain, "grain {grain} is not grain {}", current.grain);
        let metric_count = self.config.metric_count;
        assert!(sums.metrics.len() == metric_count, "{} metrics", sums.metrics.len());
        let mut row = vec![sums.loss_sum, sums.weight];
        row.extend(sums.metrics.iter().flat_map(|(sum, weight)| [*sum, *weight]));
        self.board.write(step.step, grain, &row);
        step.non_finite |= !(sums.loss_sum.is_finite() && sums.weight.is_finite());
        step.own_weight += sums.weight;
        if !current.is_last {
            for (into, from) in &current.additions {
                self.arena.add(*into, *from, 0..self.layout.len());
            }
        }
        step.stack = current.stack;
        step.finished += 1;
        if current.is_last {
            // What is still to be launched needs the additions of this grain.
            step.current = Some(Current { stack: Vec::new(), ..current });
        }
    }

    /// Waits until the step's gradient is complete on every rank; [`Reducer::gradients`] has it then.
    ///
    /// # Errors
    /// See [`GroupError`]; the step must not be applied.
    ///
    /// # Panics
    /// If own grains are missing.
    pub fn finish_step(&mut self, votes: Votes) -> Result<StepOutcome, GroupError> {
        let step = self.step.as_ref().expect("a step has begun");
        let missing = step.grains.len() - step.finished;
        assert!(missing == 0, "{missing} own grains of {:?} are not finished", step.grains);
        self.launch_rest(votes)?;
        self.outcome()
    }

    /// Ends a step that this rank cannot do: it contributes zeros to what is not launched, and its
    /// votes, which say why. No rank waits for it, and none may apply the step.
    ///
    /// # Errors
    /// See [`GroupError`].
    ///
    /// # Panics
    /// Outside a step.
    pub fn give_up_step(&mut self, votes: Votes) -> Result<StepOutcome, GroupError> {
        let step = self.step.as_mut().expect("a step has begun");
        // Additions of a grain that is not complete mean nothing.
        step.current = None;
        let ranges: Vec<Range<usize>> = self.launch_order[step.launched..]
            .iter()
            .map(|bucket| self.plan.buckets[*bucket].range.clone())
            .collect();
        let slots = step.orders.large.slots_of(self.rank).max(1);
        for range in ranges {
            (0..slots).for_each(|slot| self.arena.floats_mut(slot, range.clone()).fill(0.0));
        }
        self.launch_rest(votes)?;
        self.outcome()
    }

    /// Launches what is left, the last bucket with the votes, which need to know what the other lanes have found.
    fn launch_rest(&mut self, votes: Votes) -> Result<(), GroupError> {
        while let Some(step) = &self.step
            && step.launched < self.plan.buckets.len()
        {
            let is_last = step.launched + 1 == self.plan.buckets.len();
            let ballot = Ballot {
                step: step.step,
                grains_total: step.grains_total as u64,
                grains: step.grains.clone(),
                intent: votes.intent,
                non_finite: votes.non_finite || step.non_finite,
                // What was reduced comes to it when the bucket is launched.
                digest: votes.weights_digest,
            };
            if !is_last {
                self.launch_next(None);
                continue;
            }
            let findings = self.findings()?;
            self.launch_next(Some((ballot, findings)));
        }
        Ok(())
    }

    /// What the other lanes have found in this step.
    fn findings(&mut self) -> Result<Vec<Findings>, GroupError> {
        let Some(step) = &mut self.step else { return Ok(Vec::new()) };
        self.more.iter_mut().map(|comm| comm.take_findings(|reply| step.see(reply))).collect()
    }

    /// Waits for everything that was launched.
    fn outcome(&mut self) -> Result<StepOutcome, GroupError> {
        let mut step = self.step.take().expect("a step has begun");
        self.comm.replies(|reply| step.see(reply))?;
        let tally = step.tally.ok_or(GroupError::Aborted { by: None })?;
        let sums = self.board.sum(step.step, step.grains_total);
        let metrics = sums[COLUMNS..].chunks_exact(2).map(|pair| (pair[0], pair[1])).collect();
        let ranks =
            |mask: u64| (0..self.topology.world()).filter(move |rank| mask >> rank & 1 == 1);
        let outcome = StepOutcome {
            loss_sum: sums[0],
            weight: sums[1],
            own_weight: step.own_weight,
            metrics,
            stop: tally.stop,
            non_finite: tally.non_finite,
            non_finite_ranks: ranks(tally.non_finite_ranks).collect(),
            out_of_memory_ranks: ranks(tally.out_of_memory_ranks).collect(),
            diverged_ranks: ranks(tally.digest_ranks).collect(),
            buckets: self.launch_order.iter().map(|bucket| step.spans[*bucket]).collect(),
        };
        if outcome.non_finite || !outcome.out_of_memory_ranks.is_empty() {
            self.drop_leftovers()?;
        }
        self.agree_on_launch_order()?;
        Ok(outcome)
    }

    /// The gradient of the sum of the losses over the global batch, not divided by the weight.
    /// `[layout.len()]`, f32, arena order; the same bits on every rank.
    ///
    /// # Panics
    /// During a step, once a bucket is launched; and after an error.
    pub fn gradients(&self) -> &[f32] {
        self.arena.floats(0, 0..self.layout.len())
    }

    /// For the tape, if batch norms take their statistics over the grains of all ranks.
    pub fn batch_peers(&self) -> Option<&Arc<BatchPeers>> {
        self.peers.as_ref().map(|guard| &guard.0)
    }

    /// Leaves the group after the last step, without disturbing the others.
    pub fn close(self) {
        if let Some(PeersGuard(peers)) = &self.peers {
            peers.leave();
        }
        self.more.into_iter().for_each(Comm::close);
        self.comm.close();
    }

    /// The parameters that the loss of this rank's last grain did not depend on, in arena order. What they got is 0 from
    /// that grain, and whatever other grains bring.
    pub fn unused(&self) -> &[ParamId] {
        &self.unused
    }

    pub(crate) fn note_unused(&mut self, param: ParamId) {
        self.unused.push(param);
    }

    pub(crate) fn grad(&mut self, param: ParamId) -> &mut [f32] {
        let slot = self.current().slot;
        match self.layout.param(param) {
            Some(param) => self.arena.floats_mut(slot, param.range.clone()),
            None => &mut [],
        }
    }

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
            None => {
                self.issue();
                self.comm.reduce(launch);
            }
            Some(other) => self.more[other].reduce(launch),
        }
    }

    fn orders_for(&mut self, grains_total: usize) -> Orders {
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

    fn issue(&mut self) {
        self.issued += 1;
        if let Some(record) = &self.record {
            record.set_issued(self.issued);
        }
    }

    fn between_steps(&mut self, operation: &str) {
        assert!(self.step.is_none(), "{operation} during a step");
        self.issue();
    }

    fn current(&self) -> &Current {
        let current = self.step.as_ref().and_then(|step| step.current.as_ref());
        current.expect("a sink lives only while its grain is in work")
    }
}
