//! From the job's `train` to what turns a gradient into new weights.

use lockstep_api::{
    AdagradSpec, AdamSpec, AdamwSpec, FieldError, GroupSpec, LambSpec, LionSpec, OptimizerSpec,
    RmspropSpec, ScheduleSpec, SgdSpec, TrainSpec,
};
use lockstep_tensor::{
    Clip, GroupUpdate, Layout, LrCurve, LrSchedule, Optimizer, ParamGroup, UpdatePlan, WarmUp,
};

/// The plan of a model's updates.
///
/// # Errors
/// Names the setting that does not make sense for this model, or that the engine does not have.
pub(crate) fn plan(train: &TrainSpec, layout: &Layout) -> Result<UpdatePlan, FieldError> {
    let groups: Vec<_> = train.groups.iter().map(group).collect();
    let clip = match (train.clip_norm, train.clip_value) {
        (Some(max), _) => Clip::GlobalNorm { max },
        (None, Some(bound)) => Clip::Value { bound },
        (None, None) => Clip::None,
    };
    UpdatePlan::new(optimizer(&train.optimizer)?, clip, &groups, layout)
        .map_err(|error| FieldError::new("train", lockstep_service::chain(&error)))
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
pub(crate) fn optimizer(spec: &OptimizerSpec) -> Result<Optimizer, FieldError> {
    let pair = |betas: [f64; 2]| (betas[0], betas[1]);
    Ok(match *spec {
        OptimizerSpec::Sgd(SgdSpec { lr, momentum, dampening, nesterov, weight_decay }) => {
            Optimizer::Sgd { lr, momentum, dampening, nesterov, weight_decay }
        }
        OptimizerSpec::Adam(AdamSpec { lr, betas, eps, weight_decay, amsgrad }) => {
            Optimizer::Adam { lr, betas: pair(betas), eps, weight_decay, amsgrad }
        }
        OptimizerSpec::Adamw(AdamwSpec { lr, betas, eps, weight_decay, amsgrad: false }) => {
            Optimizer::AdamW { lr, betas: pair(betas), eps, weight_decay }
        }
        OptimizerSpec::Adamw(_) => return Err(lacks("amsgrad", "false with adamw")),
        OptimizerSpec::Lamb(LambSpec { lr, betas, eps, weight_decay }) => {
            Optimizer::Lamb { lr, betas: pair(betas), eps, weight_decay }
        }
        OptimizerSpec::Lion(LionSpec { lr, betas, weight_decay }) => {
            Optimizer::Lion { lr, betas: pair(betas), weight_decay }
        }
        OptimizerSpec::Rmsprop(RmspropSpec {
            lr,
            alpha,
            eps,
            weight_decay,
            momentum,
            centered: false,
        }) => Optimizer::RmsProp { lr, alpha, eps, momentum, weight_decay },
        OptimizerSpec::Rmsprop(_) => return Err(lacks("centered", "false")),
        OptimizerSpec::Adagrad(AdagradSpec {
            lr,
            lr_decay,
            weight_decay,
            initial_accumulator_value,
            eps,
        }) => match () {
            () if lr_decay != 0.0 => return Err(lacks("lr_decay", "0")),
            () if initial_accumulator_value != 0.0 => {
                return Err(lacks("initial_accumulator_value", "0"));
            }
            () => Optimizer::Adagrad { lr, eps, weight_decay },
        },
    })
}

fn lacks(field: &str, expected: &str) -> FieldError {
    FieldError::new(
        format!("train.optimizer.{field}"),
        format!("expected {expected}: the engine has nothing else"),
    )
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
    let warm_up = (0 < warmup).then_some(WarmUp { steps: warmup, start_factor });
    LrSchedule::new(warm_up, curve)
        .map_err(|error| FieldError::new("train.schedule", lockstep_service::chain(&error)))
}
