//! Where a step's gradients come together: in this process's own memory, or over a group of ranks.

use std::{os::fd::AsFd as _, sync::Arc, time::Duration};

use anyhow::Context as _;
use lockstep_bench_ranks::RankArguments;
use lockstep_ddp::{GrainSums, Interrupt, Join, Reducer, ReducerConfig, Topology, Votes};
use lockstep_tensor::{Accumulate, GradBuffer, Layout, Tape, Value};

/// No step takes this long.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Gradients of one rank.
pub(crate) enum Gradients {
    /// Its own.
    Own(GradBuffer<f32>),
    /// The sum over all ranks, one grain of each.
    Reduced { reducer: Box<Reducer>, step: u64 },
}

impl Gradients {
    pub(crate) fn own(layout: &Arc<Layout>) -> anyhow::Result<Self> {
        Ok(Self::Own(GradBuffer::new(Arc::clone(layout))))
    }

    /// Joins the group: one node, the product's settings, a grain for each rank.
    pub(crate) fn reduced(
        layout: &Arc<Layout>,
        arguments: &RankArguments,
        threads: usize,
    ) -> anyhow::Result<Self> {
        let memory = arguments.memory()?;
        let world = arguments.world();
        let join = Join {
            memory: memory.as_fd(),
            rank: arguments.rank,
            topology: Topology::one_node(world),
            network: None,
            timeout: TIMEOUT,
            formation: TIMEOUT,
            // One more communicates.
            threads_per_rank: threads + 1,
            record: None,
            interrupt: Interrupt::default(),
        };
        let config = ReducerConfig { max_grains: world, ..ReducerConfig::default() };
        let reducer =
            Reducer::new(join, Arc::clone(layout), config).context("joining the group")?;
        Ok(Self::Reduced { reducer: Box::new(reducer), step: 0 })
    }

    /// Goes backward from `loss`, the mean over this rank's batch, and waits until the gradients are
    /// complete. The answer is what they are to be multiplied by.
    pub(crate) fn backward(
        &mut self,
        tape: &mut Tape<f32>,
        loss: Value,
        weights: &[f32],
    ) -> anyhow::Result<f64> {
        let seed = [(loss, &[1.0_f32][..])];
        match self {
            Self::Own(gradients) => {
                tape.backward(&seed, weights, Accumulate::Overwrite, gradients)?;
                Ok(1.0)
            }
            Self::Reduced { reducer, step } => {
                let grain = reducer.begin_step(*step, reducer.world_size()).start;
                *step += 1;
                let accumulate = reducer.accumulate(grain);
                tape.backward(&seed, weights, accumulate, &mut reducer.sink(grain))?;
                let loss_sum = f64::from(tape.values(loss)?[0]);
                let sums = GrainSums { loss_sum, weight: 1.0, metrics: Vec::new() };
                reducer.finish_grain(grain, &sums);
                let outcome = reducer.finish_step(Votes::default())?;
                anyhow::ensure!(!outcome.non_finite, "step {step} has no finite gradient");
                Ok(1.0 / outcome.weight)
            }
        }
    }

    /// `[layout.len()]`, complete after [`Gradients::backward`].
    pub(crate) fn values(&self) -> &[f32] {
        match self {
            Self::Own(gradients) => gradients.values(),
            Self::Reduced { reducer, .. } => reducer.gradients(),
        }
    }
}
