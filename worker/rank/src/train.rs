//! The loop: load → forward → backward → reduce → step → report → evaluate → checkpoint.

use std::time::Instant;

use lockstep_api::{FailureCode, JobSpec, Phase, Rank, RankConfig};
use lockstep_ddp::{GrainSums, Intent, Reducer, StepOutcome, Votes};
use lockstep_models::Mode;
use lockstep_sandbox::Batch;
use lockstep_tensor::{OpError, StepFactors};

use crate::checkpoints::Checkpoints;
use crate::failure::{Failure, GuestCall};
use crate::link::AgentLink;
use crate::loss::MAX_METRICS;
use crate::order::{Permutation, sample_seed};
use crate::position::Position;
use crate::report::{Told, non_finite, signed};
use crate::schedule::Place;
use crate::setup::Ready;
use crate::statistics::Statistics;
use crate::unused::Unused;
use lockstep_service::chain;

/// One rank between its first and its last step. `G`: its process group, or nothing between two of them.
#[derive(Debug)]
pub(crate) struct Trainer<G = Reducer> {
    pub(crate) spec: JobSpec,
    pub(crate) rank: Rank,
    pub(crate) link: AgentLink,
    pub(crate) position: Position,
    pub(crate) ready: Ready<G>,
    pub(crate) checkpoints: Checkpoints,
    pub(crate) statistics: Statistics,
    /// Steps left out since the last good one.
    pub(crate) skipped_in_row: u32,
    /// This rank's weights may be other than the others'.
    pub(crate) has_strayed: bool,
    /// The weights of all ranks are to be compared as soon as they may.
    pub(crate) is_comparison_due: bool,
    /// What the loss of the first grain did not depend on.
    pub(crate) unused: Unused,
    /// What was told of steps, to be told again if whoever told it is lost.
    pub(crate) told: Told,
    /// What follows the last step, evaluation and checkpoint, is still to be done; and whether all agreed to stop there.
    pub(crate) follow_up: Option<bool>,
    pub(crate) standing: Standing,
}

/// How this rank stands with its group.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Standing {
    /// Whether its state is the job's: not that of a process in the place of a lost one until it has taken over another's.
    pub(crate) is_healed: bool,
    /// Whether a pause is announced.
    pub(crate) is_pausing: bool,
}

impl Trainer<()> {
    /// Everything but a group.
    pub(crate) fn new(
        config: &RankConfig,
        link: &AgentLink,
        position: &Position,
        ready: Ready<()>,
    ) -> Self {
        let dir = config.checkpoint_dir.clone().into();
        let checkpoints = Checkpoints::new(dir, (config.generation, config.rank), link.clone());
        let (width, grains) = (ready.engine.buffers.len(), ready.schedule.max_grains());
        let statistics = Statistics::new(config.spec.ddp.reduction, width, grains);
        Self {
            spec: config.spec.clone(),
            rank: config.rank,
            link: link.clone(),
            position: position.clone(),
            ready,
            checkpoints,
            statistics,
            skipped_in_row: 0,
            has_strayed: false,
            is_comparison_due: false,
            unused: Unused::default(),
            told: Told::default(),
            follow_up: None,
            standing: Standing { is_healed: !config.heals, is_pausing: false },
        }
    }
}

impl<G> Trainer<G> {
    /// The same with another group.
    pub(crate) fn with_group<H>(self, reducer: H) -> (Trainer<H>, G) {
        let (ready, old) = self.ready.with_group(reducer);
        let trainer = Trainer {
            spec: self.spec,
            rank: self.rank,
            link: self.link,
            position: self.position,
            ready,
            checkpoints: self.checkpoints,
            statistics: self.statistics,
            skipped_in_row: self.skipped_in_row,
            has_strayed: self.has_strayed,
            is_comparison_due: self.is_comparison_due,
            unused: self.unused,
            told: self.told,
            follow_up: self.follow_up,
            standing: Standing { is_pausing: false, ..self.standing },
        };
        (trainer, old)
    }

    /// Rank 0 speaks for all: what it reports is the same on every rank.
    pub(crate) fn is_reporter(&self) -> bool {
        self.rank == Rank(0)
    }
}

impl Trainer {
    /// Trains to the end, or until all ranks agree to stop.
    ///
    /// # Errors
    /// What ended it.
    pub(crate) fn run(&mut self) -> Result<(), Failure> {
        self.begin_pause()?;
        self.prepare_checkpoints()?;
        let steps_total = self.ready.schedule.steps_total();
        loop {
            if let Some(is_stopped) = self.follow_up {
                let is_over = self.follow_step(is_stopped)?;
                self.follow_up = None;
                if is_over {
                    break;
                }
            }
            if self.ready.next_step == steps_total {
                break;
            }
            let step = self.ready.next_step;
            let place = self.ready.schedule.place(step);
            let began = Instant::now();
            self.position.begin_step(signed(step));
            let weights = &mut self.ready.engine.weights;
            self.position.faults().corrupt(self.rank, signed(step), weights);
            let outcome = self.reduce_grains(step, place)?;
            let grad_norm = self.update_weights(step, &outcome)?;
            self.gather_strays(step)?;
            self.position.timeline().end_step();
            self.report(step, place, &outcome, (grad_norm, began.elapsed()));
            self.ready.next_step += 1;
            self.end_pause()?;
            self.keep_statistics();
            self.follow_up = Some(outcome.stop);
        }
        self.refuse_untrained()?;
        self.position.enter(Phase::Checkpoint);
        self.checkpoints.finish()?;
        self.position.enter(Phase::Done);
        Ok(())
    }

    /// What follows a step: evaluation and checkpoint, if they are due. Says whether training ends here. Done again, it
    /// changes nothing.
    fn follow_step(&mut self, is_stopped: bool) -> Result<bool, Failure> {
        let step = self.ready.next_step.saturating_sub(1);
        let is_due = self.is_evaluation_due(step);
        if is_stopped || is_due || self.is_checkpoint_due() {
            self.share_statistics()?;
            self.gather_all()?;
        }
        let is_stopping = is_stopped || (is_due && self.evaluate(self.ready.next_step)?);
        if is_stopping || self.is_checkpoint_due() {
            // The one before may still be on its way to the disk.
            self.begin_pause()?;
            self.checkpoint()?;
            self.end_pause()?;
        }
        Ok(is_stopping)
    }

    /// Leaves the group without disturbing the others.
    pub(crate) fn close(self) {
        self.ready.reducer.close();
    }

    /// This rank's grains of the step, one after another, and the sum over all ranks.
    fn reduce_grains(&mut self, step: u64, place: Place) -> Result<StepOutcome, Failure> {
        let total = self.ready.schedule.grain_count(place.sample_count);
        self.begin_statistics();
        let grains = match self.is_local(step) {
            true => self.ready.reducer.begin_local_step(step, total),
            false => self.ready.reducer.begin_step(step, total),
        };
        let own = grains.len();
        for grain in grains {
            self.position.enter(Phase::Data);
            let samples = self.samples_of(grain, place);
            let batch = self.load(&samples, place.data_epoch)?;
            let done = self.run_grain(step, grain, &batch, &samples);
            done.map_err(|failure| self.give_up(failure))?;
        }
        self.position.enter(Phase::Reduce);
        self.stand_in(step, place, (own, total))?;
        let votes = Votes {
            intent: if self.link.is_stop_requested() { Intent::Stop } else { Intent::GoOn },
            weights_digest: self.weights_digest(step),
            ..Votes::default()
        };
        let outcome = self.ready.reducer.finish_step(votes);
        let outcome = outcome.map_err(|error| Failure::of_group(&error))?;
        self.position.timeline().buckets(&outcome.buckets);
        if !outcome.out_of_memory_ranks.is_empty() {
            return Err(Failure::of_others_memory(step, &outcome.out_of_memory_ranks));
        }
        self.refuse_divergence(step, &outcome)?;
        self.finish_statistics(total)?;
        self.agree_on_unused(step)?;
        Ok(outcome)
    }

    /// A rank that has no memory for its grain ends the step for all, so that nobody waits for it.
    fn give_up(&mut self, failure: Failure) -> Failure {
        if failure.code == FailureCode::GuestMemoryLimit {
            if let Some(peers) = self.ready.reducer.batch_peers() {
                // Others wait for it in the middle of a pass, and cannot vote.
                peers.give_up();
            }
            let votes = Votes { intent: Intent::OutOfMemory, ..Votes::default() };
            // It is this failure that counts, whatever becomes of the others.
            if let Err(error) = self.ready.reducer.give_up_step(votes) {
                tracing::debug!(%error, "the others have not heard that this rank gives up");
            }
        }
        failure
    }

    /// The samples of one grain of a step.
    pub(crate) fn samples_of(&self, grain: usize, place: Place) -> Vec<u64> {
        let schedule = &self.ready.schedule;
        let order = Permutation::new(self.spec.train.seed, place.data_epoch, schedule.samples());
        let positions =
            schedule.grain(grain, place.sample_count).map(|it| place.first_position + it);
        positions.map(|position| order.sample_at(schedule.place_in_order(position))).collect()
    }

    pub(crate) fn load(&mut self, samples: &[u64], data_epoch: u64) -> Result<Batch, Failure> {
        let seed = |sample: &u64| sample_seed(self.spec.train.seed, data_epoch, *sample);
        let seeds: Vec<u64> = samples.iter().map(seed).collect();
        let batch = self.ready.train.load(samples, &seeds, true);
        batch.map_err(|error| Failure::of_guest(&error, self.call("loader", samples)))
    }

    /// Forward and backward; the gradient goes straight to where it is reduced.
    fn run_grain(
        &mut self,
        step: u64,
        grain: usize,
        batch: &Batch,
        samples: &[u64],
    ) -> Result<(), Failure> {
        self.position.enter(Phase::Forward);
        let call = GuestCall { guest: "loss", rank: self.rank, samples };
        let mode = self.mode(step, grain);
        self.begin_joint_grain();
        let value = self.ready.engine.forward(batch, samples, mode);
        self.check_joint_grain()?;
        let mut value = value.map_err(|error| error.failure(call))?;
        self.take_statistics(grain);
        self.position.enter(Phase::Backward);
        let scale = self.seed_scale(step) as f32;
        let accumulate = self.ready.reducer.accumulate(grain);
        let mut sink = self.ready.reducer.sink(grain);
        let done = self.ready.engine.backward(&mut value, scale, accumulate, &mut sink);
        self.end_joint_grain()?;
        done.map_err(|error| self.no_gradient(&error))?;
        self.watch_unused(step)?;
        let mut metrics = value.metrics;
        metrics.resize(MAX_METRICS, (0.0, 0.0));
        let sums = GrainSums { loss_sum: value.sum, weight: value.weight, metrics };
        self.ready.reducer.finish_grain(grain, &sums);
        Ok(())
    }

    /// Whichever rank has the grain, its dropout is the same.
    pub(crate) fn mode(&self, step: u64, grain: usize) -> Mode {
        Mode::Train {
            key: sample_seed(self.spec.train.seed, step, grain as u64),
            precision: self.spec.train.precision,
            checkpointing: self.spec.train.activation_checkpointing,
        }
    }

    /// The loss guest's graph does not lead to a sum that has a gradient.
    pub(crate) fn no_gradient(&self, error: &OpError) -> Failure {
        Failure::new(FailureCode::GuestShape, chain(error)).of_rank(self.rank)
    }

    /// Says how long the gradient was, if it had to be measured.
    fn update_weights(&mut self, step: u64, outcome: &StepOutcome) -> Result<Option<f64>, Failure> {
        self.position.enter(Phase::Optimizer);
        let scale = self.seed_scale(step);
        if self.is_left_out(step, outcome) {
            return Ok(None);
        }
        let is_local = self.is_local(step);
        let Ready {
            update, learning_rate, average, optimizer_state, reducer, engine, shard, ..
        } = &mut self.ready;
        let gradients = reducer.gradients();
        if outcome.non_finite || !outcome.loss_sum.is_finite() {
            let params = engine.model.layout().params();
            let is_at_fault = |param: &&lockstep_tensor::Param| {
                !gradients[param.range.clone()].iter().all(|gradient| gradient.is_finite())
            };
            // In parts this rank does not see all of the sum.
            let parameter = params.iter().rev().find(is_at_fault).map(|param| param.name.as_str());
            let parameter = parameter.filter(|_| shard.is_none());
            let failure = non_finite(step, outcome, parameter);
            return Err(self.with_scale(failure));
        }
        if outcome.weight <= 0.0 {
            let message = format!(
                "step {step}: the loss weights sum up to {}, so there is no mean loss",
                outcome.weight
            );
            return Err(Failure::new(FailureCode::NonFinite, message));
        }
        let weight = if is_local { outcome.own_weight } else { outcome.weight };
        if weight <= 0.0 {
            // A rank without data in a step of its own stands still; its count goes on with the others'.
            optimizer_state.step += 1;
            return Ok(None);
        }
        let factors = StepFactors {
            lr_factor: learning_rate.factor(step),
            grad_scale: 1.0 / (weight * scale),
        };
        let rank_error =
            |error: &dyn std::error::Error| Failure::new(FailureCode::RankError, chain(error));
        let grad_norm = match shard {
            Some(shard) => shard.step(reducer, &mut engine.weights, factors, optimizer_state)?,
            None => {
                let taken =
                    update.step(&mut engine.weights, reducer.gradients(), factors, optimizer_state);
                taken.map_err(|error| rank_error(&error))?.grad_norm
            }
        };
        if let Some((ema, average)) = average {
            ema.update(average, &engine.weights, optimizer_state.step - 1)
                .map_err(|error| rank_error(&error))?;
        }
        Ok(grad_norm)
    }

    /// After the passes over the data that the job names, and at the end.
    fn is_evaluation_due(&self, step: u64) -> bool {
        let schedule = &self.ready.schedule;
        let epochs = schedule.place(step).data_epoch + 1;
        let is_last = step + 1 == schedule.steps_total();
        let is_due = epochs.is_multiple_of(u64::from(self.spec.eval.every_epochs.max(1)));
        schedule.ends_epoch(step) && (is_due || is_last)
    }

    pub(crate) fn call<'a>(&self, guest: &'static str, samples: &'a [u64]) -> GuestCall<'a> {
        GuestCall { guest, rank: self.rank, samples }
    }
}
