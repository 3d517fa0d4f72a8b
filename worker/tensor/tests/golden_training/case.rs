//! The recorded trainings.

use lockstep_tensor::{
    Clip, GroupUpdate, Layout, LrCurve, LrSchedule, Optimizer, ParamGroup, Real, UpdatePlan, WarmUp,
};

use super::{
    nets::Net,
    tolerance::{check, no_floor},
};

/// A recorded case: how it was trained, and what came out of it besides the weights.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) record: serde_json::Value,
}

impl Case {
    pub(crate) fn read<N: Net>(name: &'static str) -> Self {
        let all: serde_json::Value = serde_json::from_str(N::FILES.cases).unwrap();
        Self { name, record: all["cases"][name].clone() }
    }

    pub(crate) fn arg(&self, name: &str, default: f64) -> f64 {
        self.record["args"][name].as_f64().unwrap_or(default)
    }

    /// How far about a gradient of that size moves a weight in five updates: the adaptive ones divide by a
    /// root that may be 0, plus eps.
    pub(crate) fn reach(&self, gradient: f64) -> f64 {
        let eps = match self.optimizer() {
            Optimizer::Adam { eps, .. }
            | Optimizer::AdamW { eps, .. }
            | Optimizer::RmsProp { eps, .. }
            | Optimizer::Adagrad { eps, .. } => eps,
            _ => 1.0,
        };
        5.0 * self.arg("lr", f64::NAN) * gradient / eps
    }

    /// PyTorch's defaults where the recording has no argument.
    fn optimizer(&self) -> Optimizer {
        let is_set = |name: &str| self.record["args"][name].as_bool() == Some(true);
        let beta = |i: usize, default| self.record["args"]["betas"][i].as_f64().unwrap_or(default);
        let betas = (beta(0, 0.9), beta(1, 0.999));
        let (lr, eps) = (self.arg("lr", f64::NAN), self.arg("eps", 1e-8));
        let (momentum, weight_decay) = (self.arg("momentum", 0.0), self.arg("weight_decay", 0.0));
        match self.record["opt"].as_str().unwrap() {
            "SGD" => {
                let (dampening, nesterov) = (self.arg("dampening", 0.0), is_set("nesterov"));
                Optimizer::Sgd { lr, momentum, dampening, nesterov, weight_decay }
            }
            "Adam" => Optimizer::Adam { lr, betas, eps, weight_decay, amsgrad: is_set("amsgrad") },
            "AdamW" => Optimizer::AdamW { lr, betas, eps, weight_decay },
            "RMSprop" => Optimizer::RmsProp { lr, alpha: 0.99, eps, momentum, weight_decay },
            "Adagrad" => Optimizer::Adagrad { lr, eps: 1e-10, weight_decay },
            other => panic!("{other}"),
        }
    }

    /// PyTorch decays biases too.
    pub(crate) fn plan(&self, layout: &Layout) -> UpdatePlan {
        let number = |name: &str| self.record[name].as_f64();
        let clip = match (number("clip_norm"), number("clip_value")) {
            (Some(max), None) => Clip::GlobalNorm { max },
            (None, Some(bound)) => Clip::Value { bound },
            (None, None) => Clip::None,
            (Some(_), Some(_)) => panic!("two ways to clip"),
        };
        let weight_decay = Some(self.arg("weight_decay", 0.0));
        let update = GroupUpdate::Train { lr_scale: 1.0, weight_decay };
        let all = ParamGroup { pattern: "*".to_owned(), update };
        UpdatePlan::new(self.optimizer(), clip, &[all], layout).unwrap()
    }

    pub(crate) fn schedule(&self) -> LrSchedule {
        let Some(steps) = self.record["sched"]["warm"].as_u64() else {
            return LrSchedule::constant();
        };
        let rest = self.record["sched"]["total"].as_u64().unwrap() - steps;
        let cosine = LrCurve::Cosine { steps: rest, min_factor: 1e-5 / self.arg("lr", f64::NAN) };
        LrSchedule::new(Some(WarmUp { steps, start_factor: 0.25 }), cosine).unwrap()
    }

    /// One figure per step, within the tolerance of one that is a tensor.
    pub(crate) fn check<T: Real>(&self, figure: &str, ours: &[f64]) {
        let figures = |precision: &str| -> Vec<f64> {
            let list = self.record[precision][figure].as_array().unwrap();
            list.iter().map(|x| x.as_f64().unwrap()).collect()
        };
        let name = format!("{} {figure}", self.name);
        check::<T>(&name, &figures("f64"), &figures("f32"), ours, no_floor);
    }
}

pub(crate) const CASES_OF_FIVE_STEPS: [&str; 16] = [
    "sgd",
    "sgd_momentum",
    "sgd_momentum_dampening",
    "sgd_nesterov_wd",
    "sgd_clip_value",
    "sgd_accumulate2",
    "adam",
    "adam_l2",
    "adam_amsgrad",
    "adamw",
    "adamw_betas",
    "adamw_clip_norm",
    "adamw_warm_cosine",
    "rmsprop",
    "adagrad",
    "sgd_label_smoothing",
];
