//! What rank 0 tells of a step, and what every rank tells of one that failed.

use std::collections::VecDeque;
use std::time::Duration;

use lockstep_api::{FailureCode, NamedValue, Rank, RankMessage, ScheduleSpec, Step, StepReport};
use lockstep_ddp::StepOutcome;
use serde_json::json;

use crate::failure::Failure;
use crate::schedule::Place;
use crate::train::Trainer;

/// What the engine itself reports of training: no metric of a loss may be called so.
pub(crate) const ENGINE_METRICS: [&str; 5] =
    ["loss", "lr", "grad_norm", "loss_scale", "checkpoint_stall_ms"];

/// Messages that are kept to be told again.
const TOLD_CAP: usize = 4096;

/// What was told of steps, the newest last: every rank keeps it, rank 0 has sent it.
#[derive(Debug, Default)]
pub(crate) struct Told {
    messages: VecDeque<RankMessage>,
    /// Steps below this are not among them.
    begins_at: u64,
}

impl Told {
    fn keep(&mut self, message: RankMessage) {
        if self.messages.len() == TOLD_CAP
            && let Some(RankMessage::Step(oldest)) = self.messages.pop_front()
        {
            self.begins_at = oldest.ledger.step.0.cast_unsigned() + 1;
        }
        self.messages.push_back(message);
    }

    /// This rank knows nothing of the steps before `step`.
    pub(crate) fn begin_at(&mut self, step: u64) {
        self.messages.clear();
        self.begins_at = step;
    }

    /// Everything from `step` on; `None` if that is not all.
    pub(crate) fn since(&self, step: u64) -> Option<impl Iterator<Item = &RankMessage>> {
        let is_new = move |message: &&RankMessage| match message {
            RankMessage::Step(report) => step <= report.ledger.step.0.cast_unsigned(),
            RankMessage::Evaluated { step: done, .. } => step <= done.0.cast_unsigned(),
            _ => false,
        };
        (self.begins_at <= step).then(|| self.messages.iter().filter(is_new))
    }
}

impl Trainer {
    /// Tells something of a step, or keeps it for the case that the one that tells it is lost.
    pub(crate) fn tell(&mut self, message: RankMessage) {
        if self.is_reporter() {
            self.link.send(message.clone());
        }
        self.told.keep(message);
    }

    pub(crate) fn announce(&self) {
        if self.is_reporter() {
            self.link.send(RankMessage::Formed {
                step: signed(self.ready.next_step),
                samples_per_epoch: self.ready.schedule.positions().cast_signed(),
                steps_total: signed(self.ready.schedule.steps_total()),
            });
        }
    }

    /// A step, to the agent: of the gradient how long it was, if that is known, and of the step how long it took.
    pub(crate) fn report(
        &mut self,
        step: u64,
        place: Place,
        outcome: &StepOutcome,
        (grad_norm, took): (Option<f64>, Duration),
    ) {
        let mut metrics = self.named("train", &outcome.metrics);
        metrics.extend(self.engine_metrics(step, grad_norm));
        self.tell(RankMessage::Step(StepReport {
            ledger: place.ledger_entry(signed(step)),
            loss: finite(outcome.loss_sum / outcome.weight),
            metrics,
            duration_us: i64::try_from(took.as_micros()).unwrap_or(i64::MAX),
        }));
    }

    /// The means of the loss's metrics under `prefix/`.
    pub(crate) fn named(&self, prefix: &str, sums: &[(f64, f64)]) -> Vec<NamedValue> {
        let names = self.ready.engine.loss.metric_names();
        let named = names.iter().zip(sums).map(|(name, (sum, weight))| NamedValue {
            name: format!("{prefix}/{name}"),
            value: finite(sum / weight),
        });
        named.collect()
    }

    /// What the job has made variable: the learning rate, the norm of the gradient, the scale of the loss; and how long
    /// a checkpoint held the ranks before this step.
    fn engine_metrics(&self, step: u64, grad_norm: Option<f64>) -> Vec<NamedValue> {
        let [_, lr, norm, scale, stall] = ENGINE_METRICS.map(|name| format!("train/{name}"));
        let train = &self.spec.train;
        let is_scheduled = train.schedule != ScheduleSpec::default();
        let rate = || finite(train.optimizer.lr() * self.ready.learning_rate.factor(step));
        let loss_scale = self.ready.loss_scale.as_ref();
        [
            is_scheduled.then(|| NamedValue { name: lr, value: rate() }),
            grad_norm.map(|value| NamedValue { name: norm, value: finite(value) }),
            loss_scale.map(|it| NamedValue { name: scale, value: finite(it.scale()) }),
            self.checkpoints
                .take_stall()
                .map(|it| NamedValue { name: stall, value: finite(it.as_secs_f64() * 1e3) }),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

/// The same words on every rank, whichever is heard first: all of it is known to all.
pub(crate) fn non_finite(step: u64, outcome: &StepOutcome, parameter: Option<&str>) -> Failure {
    let ranks = &outcome.non_finite_ranks;
    let what = match (outcome.loss_sum.is_finite(), parameter) {
        (true, Some(parameter)) => format!("the gradient of `{parameter}` is not finite"),
        (true, None) => "a gradient is not finite".to_owned(),
        (false, _) => format!("the loss is {}", outcome.loss_sum),
    };
    let whose = match ranks.as_slice() {
        [] => String::new(),
        [rank] => format!(" on rank {rank}"),
        ranks => format!(" on ranks {ranks:?}"),
    };
    let message = format!("step {step}: {what}{whose}");
    let evidence = json!({ "ranks": ranks, "parameter": parameter, "step": step });
    let failure = Failure::new(FailureCode::NonFinite, message).with_evidence(evidence);
    match ranks.first().map(|rank| i32::try_from(*rank)) {
        Some(Ok(rank)) => failure.of_rank(Rank(rank)),
        Some(Err(_)) | None => failure,
    }
}

/// JSON has no NaN.
pub(crate) fn finite(value: f64) -> Option<f64> {
    Some(value).filter(|value| value.is_finite())
}

pub(crate) fn signed(step: u64) -> Step {
    Step(step.cast_signed())
}
