//! PowerSGD: a gradient matrix travels as the product of two thin ones.
//!
//! Of a bucket's parameters those that are worth it are matrices M of `[rows, columns]`, each with its gradient and
//! what earlier steps left over; the others are summed plainly. A step has two collectives:
//!
//! ```text
//! Q orthonormal;  P = Σ M Q, travels with the plain ones;  P orthonormal;  Q = Σ Mᵀ P, travels;  the sum is P Qᵀ
//! left over: M - P Qᵀ / world size
//! ```
//!
//! P Qᵀ is the sum of the ranks' matrices as P's columns see it, and the sum of all that is left over is what they
//! do not see: in time everything arrives. PyTorch divides Q and the plain ones by the world size and keeps the
//! mean; otherwise this is its `powerSGD_hook`, but for three things. Plain parameters leave nothing over, for they
//! are exact. A column that vanishes, as with gradients of zero, is zero or drawn anew instead of undefined. And a
//! gradient that is not finite spoils its own step alone.
//!
//! # Source
//! Vogels, Karimireddy and Jaggi, "PowerSGD: practical low-rank gradient compression for distributed optimization",
//! 2019.

mod columns;
mod plan;

use std::num::NonZeroUsize;

use lockstep_collective::{Bucket, GroupError, PlanParam};
use lockstep_tensor::init::Stream;

use crate::hook::{BucketComm, Dtype, Hook, HookState, HookStateError};
use columns::{Column, add_transposed_product, orthonormalise, product};
use plan::BucketPlan;

/// Settings, the same on every rank.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PowerSgdConfig {
    /// Columns of P and Q; fewer where a matrix is narrower.
    pub rank: NonZeroUsize,
    /// Steps before that are summed plainly: at first gradients change too fast to be worth remembering.
    pub start_step: u64,
    /// A matrix is compressed if what travels of it, times this, is less than the matrix. Above 0.
    pub min_compression_rate: f64,
    /// Begin each step with the last step's Q instead of a drawn one.
    pub warm_start: bool,
    /// Add to a gradient what earlier steps left over.
    pub error_feedback: bool,
    /// For the drawn Q.
    pub seed: u64,
}

impl Default for PowerSgdConfig {
    /// PyTorch's: rank 1 after 1000 steps, where it saves half or more.
    fn default() -> Self {
        Self {
            rank: NonZeroUsize::MIN,
            start_step: 1000,
            min_compression_rate: 2.0,
            warm_start: true,
            error_feedback: true,
            seed: 0,
        }
    }
}

/// Sums gradients by way of thin matrices. See the module.
///
/// What is left over has the scale of the gradients that it comes from: with changing sums of weights it counts as
/// much as they did. [`Hook::drop_leftovers`] is for when that is wrong.
#[derive(Debug)]
pub struct PowerSgd {
    config: PowerSgdConfig,
    buckets: Vec<BucketState>,
    /// P and the plain parameters of the bucket in work.
    scratch: Vec<f32>,
}

/// Of one bucket.
#[derive(Debug)]
struct BucketState {
    plan: BucketPlan,
    steps: u64,
    /// Q of each matrix, by columns: before a step the last one's sum, which is the same on every rank.
    q: Vec<f32>,
    /// Each matrix by rows: between steps what is left over, in a step M.
    leftovers: Vec<f32>,
}

impl PowerSgd {
    /// For gradients in these buckets.
    ///
    /// # Panics
    /// If the least rate of compression is not above 0, or a bucket's parameters do not fill it.
    pub fn new(config: PowerSgdConfig, buckets: &[Bucket]) -> Self {
        let rate = config.min_compression_rate;
        assert!(0.0 < rate, "the minimal rate of compression is {rate}");
        let state = |bucket| {
            let plan = BucketPlan::new(bucket, config.rank.get(), rate);
            let (q, leftovers) = (vec![0.0; plan.q_len], vec![0.0; plan.matrices_len]);
            let mut state = BucketState { plan, steps: 0, q, leftovers };
            state.draw(config.seed, 0);
            state
        };
        let buckets: Vec<_> = buckets.iter().map(state).collect();
        let scratch_len = buckets.iter().map(|bucket| bucket.plan.first_len()).max();
        Self { config, buckets, scratch: vec![0.0; scratch_len.unwrap_or(0)] }
    }
}

impl Hook for PowerSgd {
    /// # Panics
    /// If the bucket is not one of those that the hook was made for.
    fn reduce(
        &mut self,
        bucket: usize,
        params: &[PlanParam],
        comm: &mut dyn BucketComm,
    ) -> Result<(), GroupError> {
        let state = &mut self.buckets[bucket];
        let (len, found) = (comm.bucket().len(), state.plan.len);
        assert!(
            len == found && params.len() == state.plan.params,
            "bucket {bucket} has {} parameters, {len} floats; expected {}, {found}",
            params.len(),
            state.plan.params
        );
        if state.steps < self.config.start_step || state.plan.matrices.is_empty() {
            comm.all_reduce(Dtype::F32, len)?;
        } else {
            state.reduce(&self.config, &mut self.scratch, comm)?;
        }
        state.steps += 1;
        Ok(())
    }

    fn drop_leftovers(&mut self) {
        for bucket in &mut self.buckets {
            bucket.leftovers.fill(0.0);
        }
    }

    /// Shared: Q of each matrix in bucket order, by columns. Leftovers: this rank's, by rows.
    fn state(&self) -> HookState {
        let concat = |part: fn(&BucketState) -> &[f32]| {
            self.buckets.iter().flat_map(part).copied().collect::<Vec<f32>>()
        };
        HookState {
            steps: self.buckets.first().map_or(0, |bucket| bucket.steps),
            shared: concat(|bucket| &bucket.q),
            leftovers: concat(|bucket| &bucket.leftovers),
        }
    }

    fn restore(&mut self, state: &HookState) -> Result<(), HookStateError> {
        let sum = |len: fn(&BucketPlan) -> usize| -> usize {
            self.buckets.iter().map(|bucket| len(&bucket.plan)).sum()
        };
        state.check_lens(sum(|plan| plan.q_len), sum(|plan| plan.matrices_len))?;
        let (mut shared, mut own) = (&state.shared[..], &state.leftovers[..]);
        for bucket in &mut self.buckets {
            bucket.steps = state.steps;
            take(&mut shared, &mut bucket.q);
            if state.leftovers.is_empty() {
                bucket.leftovers.fill(0.0);
            } else {
                take(&mut own, &mut bucket.leftovers);
            }
        }
        Ok(())
    }

    fn memory_bytes(&self) -> usize {
        let own = self.buckets.iter().map(|bucket| bucket.q.len() + bucket.leftovers.len());
        (own.sum::<usize>() + self.scratch.len()) * size_of::<f32>()
    }
}

impl BucketState {
    /// A step of two collectives.
    fn reduce(
        &mut self,
        config: &PowerSgdConfig,
        scratch: &mut [f32],
        comm: &mut dyn BucketComm,
    ) -> Result<(), GroupError> {
        self.begin(config, comm.bucket());
        // P lies first in the scratch, the plain parameters behind; both go into the bucket's front and come back.
        let first = &mut scratch[..self.plan.first_len()];
        self.plan.pack_plain(comm.bucket(), &mut first[self.plan.p_len..]);
        for matrix in &self.plan.matrices {
            let (m, q) = (&self.leftovers[matrix.own.clone()], &self.q[matrix.q.clone()]);
            product(m, q, matrix.columns, &mut first[matrix.p.clone()]);
        }
        sum(comm, first)?;

        self.q.fill(0.0);
        for matrix in &self.plan.matrices {
            let p = &mut first[matrix.p.clone()];
            orthonormalise(p, matrix.rows, |_, column| column.fill(0.0));
            let (m, q) = (&self.leftovers[matrix.own.clone()], &mut self.q[matrix.q.clone()]);
            add_transposed_product(m, p, matrix.columns, q);
        }
        sum(comm, &mut self.q)?;

        self.finish(config, first, comm.world_size(), comm.bucket());
        Ok(())
    }

    /// M from gradients and leftovers, Q orthonormal.
    fn begin(&mut self, config: &PowerSgdConfig, bucket: &[f32]) {
        if !config.warm_start {
            self.draw(config.seed, self.steps);
        }
        if !config.error_feedback {
            self.leftovers.fill(0.0);
        }
        for matrix in &self.plan.matrices {
            for (m, gradient) in
                self.leftovers[matrix.own.clone()].iter_mut().zip(&bucket[matrix.place.clone()])
            {
                *m += gradient;
            }
            // A column that has vanished saw nothing: another one may.
            let stream = Stream::new(config.seed, &matrix.name);
            let draw = Draw { stream, step: self.steps, len: matrix.columns };
            let q = &mut self.q[matrix.q.clone()];
            orthonormalise(q, matrix.columns, |index, column| draw.fill(index, column));
        }
    }

    /// P Qᵀ and the plain sums into the bucket; what is left over.
    fn finish(&mut self, config: &PowerSgdConfig, first: &[f32], world: usize, bucket: &mut [f32]) {
        let (p, plain) = first.split_at(self.plan.p_len);
        self.plan.unpack_plain(plain, bucket);
        let share = 1.0 / world as f32;
        for matrix in &self.plan.matrices {
            let (p, q) = (&p[matrix.p.clone()], &self.q[matrix.q.clone()]);
            let (sum, own) =
                (&mut bucket[matrix.place.clone()], &mut self.leftovers[matrix.own.clone()]);
            matrix.expand(p, q, sum);
            for (leftover, sum) in own.iter_mut().zip(sum) {
                *leftover -= *sum * share;
            }
        }
        // Seen alike by every rank, since P and Q are. The bucket says it to those who apply the step.
        let is_finite = p.iter().chain(&self.q).all(|x| x.is_finite());
        if !is_finite {
            self.leftovers.fill(0.0);
            self.draw(config.seed, self.steps);
        }
    }

    /// Draws every Q anew.
    fn draw(&mut self, seed: u64, step: u64) {
        for matrix in &self.plan.matrices {
            let stream = Stream::new(seed, &matrix.name);
            let draw = Draw { stream, step, len: matrix.columns };
            let columns = self.q[matrix.q.clone()].chunks_exact_mut(matrix.columns);
            columns.enumerate().for_each(|(index, column)| draw.fill(index, column));
        }
    }
}

/// Sums `values` over the ranks by way of the bucket's front.
fn sum(comm: &mut dyn BucketComm, values: &mut [f32]) -> Result<(), GroupError> {
    comm.bucket()[..values.len()].copy_from_slice(values);
    comm.all_reduce(Dtype::F32, values.len())?;
    values.copy_from_slice(&comm.bucket()[..values.len()]);
    Ok(())
}

/// Moves the first floats of `from` into `into`.
fn take(from: &mut &[f32], into: &mut [f32]) {
    let (first, rest) = from.split_at(into.len());
    into.copy_from_slice(first);
    *from = rest;
}

/// The random columns of one Q in one step.
struct Draw {
    stream: Stream,
    step: u64,
    len: usize,
}

impl Draw {
    fn fill(&self, index: usize, column: &mut Column) {
        // A column is far shorter than 2⁴⁰: steps do not share numbers.
        let start = (self.step << 40) + (index * self.len) as u64;
        for (at, value) in (start..).zip(column) {
            *value = self.stream.normal(at) as f32;
        }
    }
}
