//! The reducer: from the gradients of grains to the gradient of the global batch.

use std::{ops::Range, os::fd::AsFd, sync::Arc, time::Duration};

use lockstep_collective::{
    Aborter, Ballot, Board, Formed, GroupError, OwnArena, Plan, ShmGroup, SumOrder,
};
use lockstep_shm::FlightRecord;
use lockstep_tensor::{Accumulate, Layout, ParamId};

use crate::{
    GrainSums, Node, ReducerSink, buckets_of,
    comm::{Comm, Reply},
    grains_of, slots_needed, tree,
};

/// Loss and weight; two more for each metric.
const COLUMNS: usize = 2;

/// In which order gradients are added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reduction {
    /// Each rank adds up its grains, then ranks in order. Same world, same bits.
    Fast,
    /// Grains along a fixed binary tree: same bits for any number of ranks.
    FixedTree,
}

/// Settings of a reducer; the same on every rank.
#[derive(Debug, Clone)]
pub struct ReducerConfig {
    /// Ceiling of a bucket.
    pub bucket_bytes: usize,
    /// Ceiling of the first bucket.
    pub first_bucket_bytes: usize,
    /// In which order gradients are added.
    pub reduction: Reduction,
    /// The most grains that a step may have.
    pub max_grains: usize,
    /// Bounds the formation of the group, and later each wait for other ranks.
    pub timeout: Duration,
    /// How many metrics each grain reports.
    pub metric_count: usize,
}

/// What this rank says about a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Votes {
    /// It wants to stop after the step.
    pub stop: bool,
    /// Its loss is not finite. Gradients and the sums of grains are looked at without being told.
    pub non_finite: bool,
}

/// What came out of a step, identical on all ranks.
#[derive(Debug, Clone, PartialEq)]
pub struct StepOutcome {
    /// Sum of the loss over the global batch.
    pub loss_sum: f64,
    /// Sum of the weights over the global batch.
    pub weight: f64,
    /// (sum, weight) of each metric over the global batch.
    pub metrics: Vec<(f64, f64)>,
    /// Any rank wants to stop.
    pub stop: bool,
    /// Any loss or any gradient is not finite: the step must not be applied.
    pub non_finite: bool,
    /// On which ranks. Empty when only a sum of gradients overflowed.
    pub non_finite_ranks: Vec<usize>,
}

/// One rank's end of data-parallel training. Works in steps: [`Reducer::begin_step`], then for each
/// own grain [`Reducer::sink`] and [`Reducer::finish_grain`], then [`Reducer::finish_step`].
///
/// Buckets are launched strictly in index order, during the backward of the last own grain; the
/// last one waits for the votes. After an error the group is dead and the reducer must be dropped,
/// which tells the other ranks.
#[derive(Debug)]
pub struct Reducer {
    rank: usize,
    world: usize,
    config: ReducerConfig,
    layout: Arc<Layout>,
    plan: Plan,
    bucket_of: Vec<usize>,
    arena: OwnArena,
    board: Board,
    comm: Comm,
    record: Arc<FlightRecord>,
    issued: u64,
    /// The order for the last number of grains, which seldom changes.
    order: Option<(usize, Arc<SumOrder>)>,
    step: Option<Step>,
}

/// Where the current step is.
#[derive(Debug)]
struct Step {
    step: u64,
    grains_total: usize,
    grains: Range<usize>,
    order: Arc<SumOrder>,
    /// Partial sums in the arenas, from 0 on, without the grain in work.
    stack: Vec<Node>,
    /// The grain in work, if any.
    current: Option<Current>,
    /// Own grains that are finished.
    finished: usize,
    /// Parameters of each bucket that are not ready, in the last grain.
    left: Vec<usize>,
    next_bucket: usize,
    non_finite: bool,
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
    /// Forms the group whose memory is `fd` and starts the communication thread.
    ///
    /// # Errors
    /// Those of [`ShmGroup::form`].
    ///
    /// # Panics
    /// If `rank` is not below `world`, or `world` is above the largest.
    pub fn new(
        fd: impl AsFd,
        rank: usize,
        world: usize,
        layout: Arc<Layout>,
        config: ReducerConfig,
        record: Arc<FlightRecord>,
    ) -> Result<Self, GroupError> {
        let plan = plan_of(&layout, world, &config);
        let bucket_of = plan
            .buckets
            .iter()
            .enumerate()
            .flat_map(|(index, bucket)| bucket.params.iter().map(move |_| index))
            .collect();
        let Formed { group, arena, board } =
            ShmGroup::form(fd, rank, world, &plan, config.timeout, Some(Arc::clone(&record)))?;
        let comm = Comm::start(group, config.timeout)?;
        let (issued, order, step) = (0, None, None);
        Ok(Self {
            rank,
            world,
            config,
            layout,
            plan,
            bucket_of,
            arena,
            board,
            comm,
            record,
            issued,
            order,
            step,
        })
    }

    /// This rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How many ranks there are.
    pub fn world_size(&self) -> usize {
        self.world
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
        assert!(self.step.is_none(), "step {step} begins before the last one is finished");
        assert!(
            0 < grains_total && grains_total <= self.config.max_grains,
            "{grains_total} grains, at most {}",
            self.config.max_grains
        );
        let grains = grains_of(self.rank, self.world, grains_total);
        self.step = Some(Step {
            step,
            grains_total,
            grains: grains.clone(),
            order: self.order_for(grains_total),
            stack: Vec::new(),
            current: None,
            finished: 0,
            left: self.plan.buckets.iter().map(|bucket| bucket.params.len()).collect(),
            next_bucket: 0,
            non_finite: false,
        });
        self.record.set_step(i64::try_from(step).unwrap_or(i64::MAX));
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
        let (number, grains_total) = (step.step, step.grains_total);
        let ballot = Ballot {
            step: number,
            grains_total: grains_total as u64,
            grains: step.grains.len() as u64,
            stop: votes.stop,
            non_finite: votes.non_finite || step.non_finite,
        };
        while self.step.as_ref().is_some_and(|step| step.next_bucket < self.plan.buckets.len()) {
            self.launch_next(ballot);
        }
        let tally = match self.comm.last_reply()? {
            Reply::Voted(tally) => tally,
            Reply::Done | Reply::Floats(_) | Reply::Doubles(_) => {
                return Err(GroupError::Aborted { by: None });
            }
        };
        self.step = None;
        let sums = self.board.sum(number, grains_total);
        let metrics = sums[COLUMNS..].chunks_exact(2).map(|pair| (pair[0], pair[1])).collect();
        let ranks = (0..self.world).filter(|rank| tally.non_finite_ranks >> rank & 1 == 1);
        Ok(StepOutcome {
            loss_sum: sums[0],
            weight: sums[1],
            metrics,
            stop: tally.stop,
            non_finite: tally.non_finite,
            non_finite_ranks: ranks.collect(),
        })
    }

    /// The gradient of the sum of the losses over the global batch, not divided by the weight.
    /// `[layout.len()]`, f32, arena order; the same bits on every rank.
    ///
    /// # Panics
    /// During a step, once a bucket is launched; and after an error.
    pub fn gradients(&self) -> &[f32] {
        self.arena.floats(0, 0..self.layout.len())
    }

    /// Sums `values` over all ranks in rank order; exact where only one rank's entry is not zero.
    ///
    /// # Panics
    /// During a step.
    pub fn all_reduce_f64(&mut self, values: &mut [f64]) -> Result<(), GroupError> {
        self.between_steps("all_reduce_f64");
        let sums = self.comm.sum_f64(values.to_vec())?;
        values.copy_from_slice(&sums);
        Ok(())
    }

    /// Gives every rank the `values` of `root`, by pieces as long as the gradients, whose memory they use.
    ///
    /// # Panics
    /// During a step.
    pub fn broadcast(&mut self, root: usize, values: &mut [f32]) -> Result<(), GroupError> {
        self.between_steps("broadcast");
        for values in values.chunks_mut(self.layout.len().max(1)) {
            let range = 0..values.len();
            if self.rank == root {
                self.arena.floats_mut(0, range.clone()).copy_from_slice(values);
            }
            let lease = self.arena.lease(0..1, range);
            let received = self.comm.broadcast(root, lease, values.to_vec())?;
            values.copy_from_slice(&received);
        }
        Ok(())
    }

    /// Returns once every rank has called it.
    ///
    /// # Panics
    /// During a step.
    pub fn barrier(&mut self) -> Result<(), GroupError> {
        self.between_steps("barrier");
        self.comm.barrier()
    }

    /// Leaves the group after the last step, without disturbing the others.
    pub fn close(self) {
        self.comm.close();
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
        let left = &mut step.left[self.bucket_of[param.0]];
        debug_assert!(0 < *left, "parameter {} is ready twice", param.0);
        *left = left.saturating_sub(1);
        // The last bucket is held back: the votes go with it.
        while let Some(step) = &self.step
            && step.next_bucket + 1 < self.plan.buckets.len()
            && step.left[step.next_bucket] == 0
        {
            let order = Arc::clone(&step.order);
            let (bucket, lease) = self.lease_next();
            self.comm.reduce(bucket, lease, order);
        }
    }

    /// Launches the next bucket, the last one with the votes.
    fn launch_next(&mut self, ballot: Ballot) {
        let Some(step) = &self.step else { return };
        let order = Arc::clone(&step.order);
        let (bucket, lease) = self.lease_next();
        if bucket + 1 == self.plan.buckets.len() {
            self.comm.reduce_and_vote(bucket, lease, order, ballot);
        } else {
            self.comm.reduce(bucket, lease, order);
        }
    }

    /// Adds up what the last grain completes in the next bucket, and takes it out of use.
    fn lease_next(&mut self) -> (usize, lockstep_collective::Lease) {
        let step = self.step.as_mut().expect("a bucket is launched in a step");
        let bucket = step.next_bucket;
        step.next_bucket += 1;
        let range = self.plan.buckets[bucket].range.clone();
        if let Some(current) = &step.current {
            for (into, from) in &current.additions {
                self.arena.add(*into, *from, range.clone());
            }
        }
        let slots = step.order.slots_of(self.rank).max(1);
        self.issued += 1;
        self.record.set_issued(self.issued);
        (bucket, self.arena.lease(0..slots, range))
    }

    fn order_for(&mut self, grains_total: usize) -> Arc<SumOrder> {
        if let Some((total, order)) = &self.order
            && *total == grains_total
        {
            return Arc::clone(order);
        }
        let order = Arc::new(match self.config.reduction {
            Reduction::Fast => {
                let has_grains =
                    |rank: &usize| !grains_of(*rank, self.world, grains_total).is_empty();
                SumOrder::in_rank_order((0..self.world).filter(has_grains))
            }
            Reduction::FixedTree => tree::tree_order(self.world, grains_total),
        });
        self.order = Some((grains_total, Arc::clone(&order)));
        order
    }

    fn between_steps(&mut self, operation: &str) {
        assert!(self.step.is_none(), "{operation} during a step");
        self.issued += 1;
        self.record.set_issued(self.issued);
    }

    fn current(&self) -> &Current {
        let current = self.step.as_ref().and_then(|step| step.current.as_ref());
        current.expect("a sink lives only while its grain is in work")
    }
}

fn plan_of(layout: &Layout, world: usize, config: &ReducerConfig) -> Plan {
    let (reduction, slots) = match config.reduction {
        Reduction::Fast => ("fast", 1),
        Reduction::FixedTree => ("fixed-tree", slots_needed(world, config.max_grains)),
    };
    Plan {
        world,
        arena_len: layout.len(),
        slots,
        reduction: reduction.to_owned(),
        grain_rows: config.max_grains,
        grain_columns: COLUMNS + 2 * config.metric_count,
        buckets: buckets_of(layout, config.first_bucket_bytes, config.bucket_bytes),
    }
}
