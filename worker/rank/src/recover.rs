//! From one process group to the next: what a rank does when its group is lost and it is not.
//!
//! A finished all-reduce proves that every rank entered it, so survivors differ by one applied step at most: some may have seen
//! the end of the last one and others not. The rank that is furthest gives its state to all, those that took the place of
//! lost ones included, and the step that was interrupted is done again. Its samples are the same: they follow from its number.

use lockstep_api::{FailureCode, Generation, LogLevel, LogSource, Phase, RankMessage, Shard};
use lockstep_ddp::Reducer;
use lockstep_tensor::LossScaleState;

use crate::failure::Failure;
use crate::seat::Seat;
use crate::train::Trainer;
use crate::update;

/// What is known of the group that a trainer joins.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Joining {
    /// Its fencing number.
    pub(crate) generation: Generation,
    /// Whether this rank knows of a group before it.
    pub(crate) is_anew: bool,
    /// Steps that the server has heard of.
    pub(crate) steps_reported: u64,
}

/// A trainer without a group, and why.
pub(crate) type Interrupted = Box<(Trainer<()>, Failure)>;

impl Trainer<()> {
    /// Joins a group: compares what all must see alike, or takes over the state of whoever is furthest.
    ///
    /// # Errors
    /// Gives the trainer back.
    pub(crate) fn join(
        self,
        reducer: Reducer,
        joining: Joining,
        shard: Shard,
    ) -> Result<Trainer, Interrupted> {
        let (mut trainer, ()) = self.with_group(reducer);
        let timeline = trainer.position.timeline().clone();
        let met = trainer.meet(joining).and_then(|is_anew| {
            trainer.ready.settle(&timeline, shard)?;
            Ok(is_anew)
        });
        match met {
            Ok(is_anew) => {
                trainer.announce();
                if !is_anew {
                    trainer.describe();
                }
                Ok(trainer)
            }
            Err(failure) => Err(Box::new((trainer.leave_group(), failure))),
        }
    }

    /// Says that the group is lost and waits for the next one. `None`: the rank is to leave.
    pub(crate) fn next_seat(&mut self, generation: Generation, failure: &Failure) -> Option<Seat> {
        let report = failure.report(&self.position);
        self.link.send(RankMessage::Interrupted { generation, report });
        self.position.enter(Phase::Recovering);
        let seat = self.link.next_seat()?;
        self.rank = seat.rank;
        self.position.seat(seat.rank);
        self.position.faults().forget(&seat.faults_done);
        Some(seat)
    }
}

impl Trainer {
    /// Gives the group up: everybody in it hears of that. What the step in work has changed is taken back.
    pub(crate) fn leave_group(self) -> Trainer<()> {
        let (mut trainer, reducer) = self.with_group(());
        // The tape lets go of it as well, so that its memory is unmapped before the next one is joined.
        trainer.ready.engine.set_peers(None);
        trainer.take_back_statistics();
        drop(reducer);
        trainer
    }

    /// Everybody hears how far each rank is and whether anyone knows of a group before this one: a rank whose process starts
    /// under a later generation may not. Says whether there was one; then its state is taken over.
    fn meet(&mut self, joining: Joining) -> Result<bool, Failure> {
        let (rank, world) = (self.ready.reducer.rank(), self.ready.reducer.world_size());
        let mut table = vec![0.0; world + 1];
        if self.standing.is_healed {
            table[rank] = 1.0 + self.ready.next_step as f64;
        }
        table[world] = f64::from(u8::from(joining.is_anew));
        self.sum(&mut table)?;
        let is_anew = table.pop() != Some(0.0);
        if is_anew {
            self.take_over(&table, joining)?;
        }
        self.ready.agree()?;
        Ok(is_anew)
    }

    /// The state of the rank that is furthest, the lowest of several, becomes everybody's. `done`, by rank: one more than the
    /// steps done; 0: it has no state.
    fn take_over(&mut self, done: &[f64], joining: Joining) -> Result<(), Failure> {
        let rank = self.ready.reducer.rank();
        let source =
            (0..done.len()).rev().max_by(|a, b| done[*a].total_cmp(&done[*b])).unwrap_or(0);
        if done[source] == 0.0 {
            let message = "no rank that was left had the state that the new ones need";
            return Err(Failure::new(FailureCode::HealFailed, message));
        }
        let was_behind = done[rank] < done[source];
        self.standing.is_healed &= !was_behind;
        self.copy_state(source)?;
        self.standing.is_healed = true;
        if was_behind {
            self.told.begin_at(self.ready.next_step);
        }
        self.unused.agree_again();
        if rank == source {
            self.tell_again(joining.steps_reported)?;
            let text = formed_again(source, done, self.ready.next_step);
            self.link.log(LogSource::Rank, LogLevel::Info, &text);
        }
        Ok(())
    }

    /// What the server may not have heard because the rank that told it is lost.
    fn tell_again(&self, steps_reported: u64) -> Result<(), Failure> {
        let reported = steps_reported.min(self.ready.next_step);
        let Some(messages) = self.told.since(reported) else {
            let message = format!(
                "of the steps from {reported} on the server has not heard, and no rank is left that knows of all of them"
            );
            return Err(Failure::new(FailureCode::HealFailed, message));
        };
        messages.for_each(|message| self.link.send(message.clone()));
        Ok(())
    }

    /// Everything that training changes, from `source` to all.
    fn copy_state(&mut self, source: usize) -> Result<(), Failure> {
        let is_source = self.ready.reducer.rank() == source;
        let scale = self.ready.loss_scale.as_ref().map(|scale| scale.state());
        let is_stopped = self.follow_up.unwrap_or(false);
        let mut numbers = [
            self.ready.next_step as f64,
            self.ready.optimizer_state.step as f64,
            f64::from(self.skipped_in_row),
            f64::from(u8::from(is_stopped)),
            f64::from(u8::from(self.is_comparison_due)),
            scale.map_or(0.0, |it| it.scale),
            scale.map_or(0.0, |it| f64::from(it.good_steps)),
        ];
        if !is_source {
            numbers.fill(0.0);
        }
        self.sum(&mut numbers)?;
        let [next_step, optimizer_step, skipped, stopped, comparison, scale, good_steps] = numbers;
        let ready = &mut self.ready;
        let average = ready.average.as_mut().map(|(_, average)| average);
        let moments = ready.optimizer_state.moments.iter_mut().map(|(_, moment)| moment);
        let parts = [&mut ready.engine.weights, &mut ready.engine.buffers];
        for part in parts.into_iter().chain(average).chain(moments) {
            let copied = ready.reducer.broadcast(source, part);
            copied.map_err(|error| Failure::of_group(&error))?;
        }
        // Exact: these are counts far below 2^53.
        ready.next_step = next_step as u64;
        ready.optimizer_state.step = optimizer_step as u64;
        self.skipped_in_row = skipped as u32;
        self.is_comparison_due = comparison != 0.0;
        self.follow_up = (0.0 < next_step).then_some(stopped != 0.0);
        if self.ready.loss_scale.is_some() {
            let state = LossScaleState { scale, good_steps: good_steps as u32 };
            let resumed = update::resumed_loss_scale(&self.spec.train, Some(state));
            self.ready.loss_scale =
                resumed.map_err(|error| Failure::new(FailureCode::HealFailed, error.message))?;
        }
        Ok(())
    }

    fn sum(&mut self, numbers: &mut [f64]) -> Result<(), Failure> {
        self.ready.reducer.all_reduce_f64(numbers).map_err(|error| Failure::of_group(&error))
    }
}

/// A sentence for the job's log.
fn formed_again(source: usize, done: &[f64], next_step: u64) -> String {
    let of = |it: usize| format!("rank {it}");
    let healed: Vec<String> = (0..done.len()).filter(|it| done[*it] == 0.0).map(of).collect();
    let took_over = match healed.is_empty() {
        true => String::new(),
        false => format!("{} took over the state of rank {source}; ", healed.join(", ")),
    };
    let ranks = if done.len() == 1 { "1 rank".to_owned() } else { format!("{} ranks", done.len()) };
    format!("the group formed again with {ranks}: {took_over}it goes on with step {next_step}")
}

impl Joining {
    /// In the group of `seat`.
    pub(crate) fn new(seat: &Seat) -> Self {
        let steps_reported = seat.steps_reported.0.max(0).cast_unsigned();
        Self { generation: seat.generation, is_anew: seat.is_anew, steps_reported }
    }
}
