//! The reducer: from the gradients of grains to the gradient of the global batch.

use std::{ops::Range, sync::Arc};

use lockstep_collective::{
    Board, CpuGroup, FormedLanes, GroupError, Join, OwnArena, Plan, Topology,
};
use lockstep_shm::FlightRecord;
use lockstep_tensor::{Accumulate, Layout, ParamId};

use crate::{
    BatchPeers, BucketSpan, GrainSums, ReducerConfig, ReducerSink, Reduction, comm::Comm,
    digest::Digest, grains_of, tree,
};

mod between;
mod finish;
mod launch;
mod step;

pub use between::{Divergence, RestoreError};
use step::{Current, Step};

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
    /// The orders for the last number of grains, which seldom changes.
    orders: Option<(usize, step::Orders)>,
    /// Buckets in the order of their launch, the same on every rank.
    launch_order: Vec<usize>,
    /// The order in which buckets became ready in the first step, until all ranks know rank 0's.
    observed: Option<Vec<usize>>,
    /// Of which buckets were reduced, in order.
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
        let (formed, beside) = CpuGroup::form_all(&join, &plan, config.groups, &beside)?;
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

    fn between_steps(&self, operation: &str) {
        assert!(self.step.is_none(), "{operation} during a step");
    }

    fn current(&self) -> &Current {
        let current = self.step.as_ref().and_then(|step| step.current.as_ref());
        current.expect("a sink lives only while its grain is in work")
    }
}
