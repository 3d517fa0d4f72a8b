//! From the job's `train` to what turns a gradient into new weights.

use lockstep_api::{
    AdagradSpec, AdamSpec, AdamwSpec, FieldError, GroupSpec, LambSpec, LionSpec, OptimizerSpec,
    Precision, RmspropSpec, ScheduleSpec, SgdSpec, TrainSpec,
};
use lockstep_tensor::{
    Clip, Ema, EmaWarmUp, GroupUpdate, Layout, LossScale, LossScaleSettings, LossScaleState,
    LrCurve, LrSchedule, Optimizer, ParamGroup, PlanError, SettingError, UpdatePlan, WarmUp,
};

/// The plan of a model's updates.
///
/// # Errors
/// Names the setting that does not make sense for this model.
pub(crate) fn plan(train: &TrainSpec, layout: &Layout) -> Result<UpdatePlan, FieldError> {
    let groups: Vec<_> = train.groups.iter().map(group).collect();
    let clip = match (train.clip_norm, train.clip_value) {
        (Some(max), _) => Clip::GlobalNorm { max },
        (None, Some(bound)) => Clip::Value { bound },
        (None, None) => Clip::None,
    };
    UpdatePlan::new(optimizer(&train.optimizer), clip, &groups, layout).map_err(|error| {
        let field = match &error {
            PlanError::NoMatch { group, .. } | PlanError::Shadowed { group, .. } => {
                format!("train.groups[{group}].match")
            }
            PlanError::Setting(_) => "train".to_owned(),
        };
        FieldError::new(field, lockstep_service::chain(&error))
    })
}

fn group(spec: &GroupSpec) -> ParamGroup {
    let GroupSpec { r#match, lr_scale, weight_decay, frozen } = spec;
    let update = if *frozen {
        GroupUpdate::Frozen
    } else {
        GroupUpdate::Train { lr_scale: *lr_scale, weight_decay: *weight_decay }
    };
    ParamGroup { pattern: r#match.clone(), update }
}

/// The job's optimizer in the engine's terms.
pub(crate) fn optimizer(spec: &OptimizerSpec) -> Optimizer {
    let pair = |betas: [f64; 2]| (betas[0], betas[1]);
    match *spec {
        OptimizerSpec::Sgd(SgdSpec { lr, momentum, dampening, nesterov, weight_decay }) => {
            Optimizer::Sgd { lr, momentum, dampening, nesterov, weight_decay }
        }
        OptimizerSpec::Adam(AdamSpec { lr, betas, eps, weight_decay, amsgrad }) => {
            Optimizer::Adam { lr, betas: pair(betas), eps, weight_decay, amsgrad }
        }
        OptimizerSpec::Adamw(AdamwSpec { lr, betas, eps, weight_decay }) => {
            Optimizer::AdamW { lr, betas: pair(betas), eps, weight_decay }
        }
        OptimizerSpec::Lamb(LambSpec { lr, betas, eps, weight_decay }) => {
            Optimizer::Lamb { lr, betas: pair(betas), eps, weight_decay }
        }
        OptimizerSpec::Lion(LionSpec { lr, betas, weight_decay }) => {
            Optimizer::Lion { lr, betas: pair(betas), weight_decay }
        }
        OptimizerSpec::Rmsprop(RmspropSpec { lr, alpha, eps, weight_decay, momentum }) => {
            Optimizer::RmsProp { lr, alpha, eps, momentum, weight_decay }
        }
        OptimizerSpec::Adagrad(AdagradSpec { lr, weight_decay, eps }) => {
            Optimizer::Adagrad { lr, eps, weight_decay }
        }
    }
}

/// The course of the learning rate. `steps_total`: the job's length, for schedules that end with it.
///
/// # Errors
/// Names the setting that does not make sense.
pub(crate) fn schedule(train: &TrainSpec, steps_total: u64) -> Result<LrSchedule, FieldError> {
    let lr = train.optimizer.lr();
    let after = |total: Option<u64>, warmup: u64| {
        total.unwrap_or(steps_total).saturating_sub(warmup).max(1)
    };
    let (warmup, start_factor, curve) = match &train.schedule {
        ScheduleSpec::Constant(it) => (it.warmup_steps, it.warmup_start_factor, LrCurve::Constant),
        ScheduleSpec::Linear(it) => {
            let steps = after(it.total_steps, it.warmup_steps);
            let curve = LrCurve::Linear { start_factor: 1.0, end_factor: it.end_factor, steps };
            (it.warmup_steps, it.warmup_start_factor, curve)
        }
        ScheduleSpec::Cosine(it) => {
            let steps = after(it.total_steps, it.warmup_steps);
            let min_factor = if lr == 0.0 { 0.0 } else { it.eta_min / lr };
            let curve = LrCurve::Cosine { steps, min_factor };
            (it.warmup_steps, it.warmup_start_factor, curve)
        }
        ScheduleSpec::Step(it) => {
            let curve = LrCurve::Step { every: it.step_size, gamma: it.gamma };
            (it.warmup_steps, it.warmup_start_factor, curve)
        }
        ScheduleSpec::OneCycle(it) => {
            let curve = LrCurve::OneCycle {
                steps: after(it.total_steps, 0),
                rise: it.pct_start,
                start_divisor: it.div_factor,
                end_divisor: it.final_div_factor,
            };
            (0, 0.0, curve)
        }
    };
    if 0 < warmup && steps_total <= warmup {
        let message = format!("expected less than the job's {steps_total} steps, got {warmup}");
        return Err(FieldError::new("train.schedule.warmup_steps", message));
    }
    let warm_up = (0 < warmup).then_some(WarmUp { steps: warmup, start_factor });
    LrSchedule::new(warm_up, curve)
        .map_err(|error| FieldError::new("train.schedule", lockstep_service::chain(&error)))
}

/// The running mean of the weights, beginning with them, if the job wants one.
///
/// # Errors
/// Names the setting that does not make sense.
pub(crate) fn average(
    train: &TrainSpec,
    weights: &[f32],
) -> Result<Option<(Ema, Vec<f32>)>, FieldError> {
    let Some(spec) = &train.ema else { return Ok(None) };
    let ema = Ema::new(spec.decay, EmaWarmUp::None).map_err(refuse("train.ema"))?;
    Ok(Some((ema, weights.to_vec())))
}

/// The scale of the loss, with f16.
///
/// # Errors
/// Names the setting that does not make sense.
pub(crate) fn loss_scale(train: &TrainSpec) -> Result<Option<LossScale>, FieldError> {
    let Some(settings) = loss_scale_settings(train) else { return Ok(None) };
    LossScale::new(settings).map(Some).map_err(refuse("train.loss_scale"))
}

/// The scale as a checkpoint left it.
///
/// # Errors
/// A state that the settings do not allow, or none where there must be one.
pub(crate) fn resumed_loss_scale(
    train: &TrainSpec,
    state: Option<LossScaleState>,
) -> Result<Option<LossScale>, FieldError> {
    match (loss_scale_settings(train), state) {
        (None, _) => Ok(None),
        (Some(settings), Some(state)) => {
            LossScale::resume(settings, state).map(Some).map_err(refuse("train.loss_scale"))
        }
        (Some(_), None) => {
            Err(FieldError::new("train.loss_scale", "the checkpoint has no scale of the loss"))
        }
    }
}

fn loss_scale_settings(train: &TrainSpec) -> Option<LossScaleSettings> {
    let spec = train.loss_scale.clone().unwrap_or_default();
    (train.precision == Precision::F16).then(|| LossScaleSettings {
        initial: spec.initial,
        growth_factor: spec.growth_factor,
        backoff_factor: spec.backoff_factor,
        growth_interval: u32::try_from(spec.growth_interval).unwrap_or(u32::MAX),
    })
}

fn refuse(field: &'static str) -> impl Fn(SettingError) -> FieldError {
    move |error| FieldError::new(field, lockstep_service::chain(&error))
}
