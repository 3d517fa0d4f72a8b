//! How the learning rate runs. Steps are optimizer steps from 0; the factor of step i holds during step i.
//!
//! With warm-up, steps 0 to `warmup_steps` − 1 have lr·(s + (1 − s)·i / warmup_steps), s = `warmup_start_factor`; the
//! rest of a schedule counts from the end of warm-up, as PyTorch's `SequentialLR` has it. Past `total_steps` the
//! last value stays. A parameter group's `lr_scale` multiplies the result.

use serde::{Deserialize, Deserializer, Serialize, de::Error};

use super::tagged::Table;

/// The course of the learning rate.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
#[serde(tag = "name", rename_all = "snake_case")]
pub enum ScheduleSpec {
    /// `optimizer.lr` throughout, after warm-up.
    Constant(ConstantSchedule),
    /// Straight down to lr·`end_factor` at `total_steps`.
    Linear(LinearSchedule),
    /// Half a cosine down to `eta_min` at `total_steps`.
    Cosine(CosineSchedule),
    /// lr·gammaᵏ after k·`step_size` steps.
    Step(StepSchedule),
    /// Up and down by cosine; `optimizer.lr` is the peak. Momentum stays as it is.
    OneCycle(OneCycleSchedule),
}

/// Names of schedules, in the order of [`ScheduleSpec`].
pub const SCHEDULES: [&str; 5] = ["constant", "linear", "cosine", "step", "one_cycle"];

impl<'de> Deserialize<'de> for ScheduleSpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut table = Table::read(deserializer)?;
        let name: String = table.tag("name")?;
        match name.as_str() {
            "constant" => Ok(Self::Constant(table.rest()?)),
            "linear" => Ok(Self::Linear(table.rest()?)),
            "cosine" => Ok(Self::Cosine(table.rest()?)),
            "step" => Ok(Self::Step(table.rest()?)),
            "one_cycle" => Ok(Self::OneCycle(table.rest()?)),
            other => Err(D::Error::unknown_variant(other, &SCHEDULES)),
        }
    }
}

impl Default for ScheduleSpec {
    fn default() -> Self {
        Self::Constant(ConstantSchedule { warmup_steps: 0, warmup_start_factor: 0.0 })
    }
}

/// A constant learning rate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ConstantSchedule {
    /// Steps of warm-up.
    #[serde(default)]
    pub warmup_steps: u64,
    /// Share of lr that warm-up begins with.
    #[serde(default)]
    pub warmup_start_factor: f64,
}

/// A straight line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct LinearSchedule {
    /// Steps of warm-up.
    #[serde(default)]
    pub warmup_steps: u64,
    /// Share of lr that warm-up begins with.
    #[serde(default)]
    pub warmup_start_factor: f64,
    /// Warm-up included. Absent: the job's length.
    #[serde(default)]
    pub total_steps: Option<u64>,
    /// Share of lr at the end.
    #[serde(default)]
    pub end_factor: f64,
}

/// Half a cosine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct CosineSchedule {
    /// Steps of warm-up.
    #[serde(default)]
    pub warmup_steps: u64,
    /// Share of lr that warm-up begins with.
    #[serde(default)]
    pub warmup_start_factor: f64,
    /// Warm-up included. Absent: the job's length.
    #[serde(default)]
    pub total_steps: Option<u64>,
    /// Learning rate at the end; at most `optimizer.lr`.
    #[serde(default)]
    pub eta_min: f64,
}

/// Steps down.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct StepSchedule {
    /// Steps of warm-up.
    #[serde(default)]
    pub warmup_steps: u64,
    /// Share of lr that warm-up begins with.
    #[serde(default)]
    pub warmup_start_factor: f64,
    /// Steps from one fall to the next.
    pub step_size: u64,
    /// What is left after a fall.
    #[serde(default = "default_gamma")]
    pub gamma: f64,
}

/// One cycle, as PyTorch's `OneCycleLR` with cosine annealing in two phases.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct OneCycleSchedule {
    /// Absent: the job's length.
    #[serde(default)]
    pub total_steps: Option<u64>,
    /// Share of the steps on the way up.
    #[serde(default = "default_pct_start")]
    pub pct_start: f64,
    /// The start is lr / div_factor.
    #[serde(default = "default_div_factor")]
    pub div_factor: f64,
    /// The end is the start / final_div_factor.
    #[serde(default = "default_final_div_factor")]
    pub final_div_factor: f64,
}

fn default_gamma() -> f64 {
    0.1
}
fn default_pct_start() -> f64 {
    0.3
}
fn default_div_factor() -> f64 {
    25.0
}
fn default_final_div_factor() -> f64 {
    1e4
}
