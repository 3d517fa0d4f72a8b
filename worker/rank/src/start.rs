//! Weights and all that training changes besides, before the first step.

use camino::Utf8Path;
use lockstep_api::{FailureCode, FieldError, LogLevel, LogSource, RankConfig};
use lockstep_checkpoint::{Meta, StateMut, curve_settings};
use lockstep_ddp::hook::HookState;
use lockstep_models::{Model, Report};
use lockstep_service::chain;
use lockstep_tensor::{Ema, LossScale, OptimizerState, UpdatePlan};

use crate::failure::Failure;
use crate::link::AgentLink;
use crate::schedule::Schedule;
use crate::update;

pub(crate) fn refused(error: FieldError) -> Failure {
    Failure::new(FailureCode::RankError, format!("{}: {}", error.field, error.message))
}

/// All that training changes, before the first step.
pub(crate) struct Start {
    pub(crate) weights: Vec<f32>,
    pub(crate) buffers: Vec<f32>,
    pub(crate) optimizer_state: OptimizerState,
    pub(crate) average: Option<(Ema, Vec<f32>)>,
    pub(crate) loss_scale: Option<LossScale>,
    /// Of the communication hook, in a checkpoint.
    pub(crate) hook: Option<HookState>,
    pub(crate) next_step: u64,
}

impl Start {
    /// From a checkpoint, from a file of weights, or drawn.
    pub(crate) fn new(
        config: &RankConfig,
        model: &Model,
        update: &UpdatePlan,
        schedule: &Schedule,
        link: &AgentLink,
    ) -> Result<Self, Failure> {
        let train = &config.spec.train;
        // What comes from other ranks is not read here.
        let resume_path = config.resume_path.as_ref().filter(|_| !config.heals);
        let is_first = resume_path.is_none() && !config.heals;
        let mut weights = model.initial_weights(train.seed);
        let mut buffers = model.initial_buffers();
        if let Some(path) = config.init_path.as_deref().filter(|_| is_first) {
            let strict = config.spec.model.init_strict;
            let report = begin_from(model, path.as_ref(), (&mut weights, &mut buffers), strict)
                .map_err(refused)?;
            if config.rank.0 == 0 {
                link.log(LogSource::Rank, LogLevel::Info, &report.to_string());
            }
        }
        let average = update::average(train, &weights).map_err(refused)?;
        let loss_scale = update::loss_scale(train).map_err(refused)?;
        let optimizer_state = update.state();
        let (hook, next_step) = (None, 0);
        let mut start =
            Self { weights, buffers, optimizer_state, average, loss_scale, hook, next_step };
        if let Some(path) = resume_path {
            start.resume(config, path.as_ref(), model, schedule)?;
        }
        Ok(start)
    }

    /// Goes on where the checkpoint ends.
    fn resume(
        &mut self,
        config: &RankConfig,
        path: &Utf8Path,
        model: &Model,
        schedule: &Schedule,
    ) -> Result<(), Failure> {
        let has_hook = config.spec.ddp.hook.has_state();
        let mut hook = [Vec::new(), Vec::new()];
        let mut state = StateMut {
            layout: model.layout(),
            weights: &mut self.weights,
            buffer_layout: model.buffers(),
            buffers: &mut self.buffers,
            average: self.average.as_mut().map(|(_, average)| average.as_mut_slice()),
            hook: has_hook.then_some(&mut hook),
            optimizer: &mut self.optimizer_state,
        };
        let settings = curve_settings(&config.spec);
        let meta = lockstep_checkpoint::load(path, &settings, &mut state)
            .map_err(|error| Failure::of_checkpoint(&error))?;
        let Meta { step, data_epoch, next_position, samples_per_epoch, .. } = meta;
        self.loss_scale = update::resumed_loss_scale(&config.spec.train, meta.loss_scale)
            .map_err(|error| Failure::new(FailureCode::CheckpointFailed, error.message))?;
        let steps = schedule.steps_total();
        self.next_step =
            u64::try_from(step.0).ok().filter(|step| *step <= steps).ok_or_else(|| {
                let message = format!("the checkpoint is of step {step}, the job has 0 to {steps}");
                Failure::new(FailureCode::CheckpointFailed, message)
            })?;
        let [shared, leftovers] = hook;
        self.hook = has_hook.then_some(HookState { steps: self.next_step, shared, leftovers });
        let place = schedule.place(self.next_step);
        let expected = (
            place.data_epoch.cast_signed(),
            place.first_position.cast_signed(),
            schedule.samples().cast_signed(),
        );
        if expected != (data_epoch, next_position, samples_per_epoch) {
            let message = format!(
                "the checkpoint goes on at position {next_position} of epoch {data_epoch} over \
                 {samples_per_epoch} samples, but step {step} of this job is at position {} of epoch {} over {}",
                expected.1, expected.0, expected.2,
            );
            return Err(Failure::new(FailureCode::CheckpointFailed, message));
        }
        Ok(())
    }
}

/// Fills weights and running statistics from a file that the job begins with.
///
/// # Errors
/// Names the file's fault.
pub(crate) fn begin_from(
    model: &Model,
    path: &Utf8Path,
    (weights, buffers): (&mut [f32], &mut [f32]),
    strict: bool,
) -> Result<Report, FieldError> {
    let refuse = |message| FieldError::new("model.init_from", message);
    let bytes = std::fs::read(path).map_err(|error| refuse(format!("cannot be read: {error}")))?;
    let report = model.load_weights(weights, buffers, &bytes, strict);
    let report = report.map_err(|error| refuse(chain(&error)))?;
    if report.loaded == 0 {
        let message = format!("expected at least one tensor of the model's, found none: {report}");
        return Err(refuse(message));
    }
    Ok(report)
}
