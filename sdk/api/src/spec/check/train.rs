//! Ranges of `train` and `eval`.

use super::{ABOVE_ZERO, Check, MAX_STEPS};
use crate::{EvalMetric, JobSpec, OptimizerSpec, Precision, ScheduleSpec, TrainSpec};

/// Most parameter groups.
const MAX_GROUPS: usize = 64;
/// Longest pattern of names, bytes.
const MAX_PATTERN_BYTES: usize = 256;
/// Most compute threads of a rank.
const MAX_THREADS: u64 = 256;

impl Check {
    pub(super) fn train(&mut self, spec: &JobSpec) {
        let train = &spec.train;
        self.range("train.global_batch", train.global_batch, 1, 1 << 24);
        self.range("train.micro_batch", train.micro_batch, 1, 1 << 24);
        self.that(train.micro_batch <= train.global_batch, "train.micro_batch", || {
            format!(
                "expected at most train.global_batch = {}, got {}",
                train.global_batch, train.micro_batch
            )
        });
        if 0 < train.micro_batch {
            let grains = train.global_batch.div_ceil(train.micro_batch);
            self.that(grains <= 4096, "train.micro_batch", || {
                format!("expected at most 4096 grains in a global batch, got {grains}")
            });
        }
        self.range("train.epochs", train.epochs, 1, 1 << 20);
        if let Some(steps) = train.max_steps {
            self.range("train.max_steps", steps, 1, MAX_STEPS);
        }
        self.that(train.seed <= i64::MAX.unsigned_abs(), "train.seed", || {
            format!("expected at most {}, got {}", i64::MAX, train.seed)
        });
        self.optimizer(&train.optimizer);
        self.groups(train);
        self.schedule(train);
        self.gradient(train);
        let cores = spec.gang.slot.cores;
        if self.range("train.threads", train.threads, 1, MAX_THREADS) {
            self.that(train.threads <= cores, "train.threads", || {
                format!("expected at most gang.slot.cores = {cores}, got {}", train.threads)
            });
        }
    }

    fn optimizer(&mut self, optimizer: &OptimizerSpec) {
        self.number("train.optimizer.lr", optimizer.lr(), ABOVE_ZERO, 1e6);
        self.number("train.optimizer.weight_decay", optimizer.weight_decay(), 0.0, 1e3);
        match optimizer {
            OptimizerSpec::Sgd(it) => {
                self.momentum(it.momentum);
                self.number("train.optimizer.dampening", it.dampening, 0.0, 1.0);
                let fits = !it.nesterov || (0.0 < it.momentum && it.dampening == 0.0);
                self.that(fits, "train.optimizer.nesterov", || {
                    format!(
                        "expected a momentum above 0 and no dampening with it, got {} and {}",
                        it.momentum, it.dampening
                    )
                });
            }
            OptimizerSpec::Adam(it) => self.betas_and_eps(it.betas, it.eps),
            OptimizerSpec::Adamw(it) => self.betas_and_eps(it.betas, it.eps),
            OptimizerSpec::Lamb(it) => self.betas_and_eps(it.betas, it.eps),
            OptimizerSpec::Lion(it) => self.betas(it.betas),
            OptimizerSpec::Rmsprop(it) => {
                self.share("train.optimizer.alpha", it.alpha);
                self.eps(it.eps);
                self.momentum(it.momentum);
            }
            OptimizerSpec::Adagrad(it) => self.eps(it.eps),
        }
    }

    fn momentum(&mut self, momentum: f64) {
        self.share("train.optimizer.momentum", momentum);
    }

    fn eps(&mut self, eps: f64) {
        self.number("train.optimizer.eps", eps, ABOVE_ZERO, 1.0);
    }

    fn betas(&mut self, betas: [f64; 2]) {
        self.share("train.optimizer.betas[0]", betas[0]);
        self.share("train.optimizer.betas[1]", betas[1]);
    }

    fn betas_and_eps(&mut self, betas: [f64; 2], eps: f64) {
        self.betas(betas);
        self.eps(eps);
    }

    fn groups(&mut self, train: &TrainSpec) {
        let groups = &train.groups;
        self.that(groups.len() <= MAX_GROUPS, "train.groups", || {
            format!("expected at most {MAX_GROUPS} groups, got {}", groups.len())
        });
        for (index, group) in groups.iter().enumerate() {
            let field = |name: &str| format!("train.groups[{index}].{name}");
            let length = group.r#match.len();
            self.that((1..=MAX_PATTERN_BYTES).contains(&length), &field("match"), || {
                format!("expected 1 to {MAX_PATTERN_BYTES} bytes, got {length}")
            });
            self.number(&field("lr_scale"), group.lr_scale, 0.0, 1e6);
            if let Some(decay) = group.weight_decay {
                self.number(&field("weight_decay"), decay, 0.0, 1e3);
            }
        }
    }

    fn schedule(&mut self, train: &TrainSpec) {
        match &train.schedule {
            ScheduleSpec::Constant(it) => {
                self.warmup(it.warmup_steps, it.warmup_start_factor, None, train);
            }
            ScheduleSpec::Linear(it) => {
                self.warmup(it.warmup_steps, it.warmup_start_factor, it.total_steps, train);
                self.number("train.schedule.end_factor", it.end_factor, 0.0, 1.0);
            }
            ScheduleSpec::Cosine(it) => {
                self.warmup(it.warmup_steps, it.warmup_start_factor, it.total_steps, train);
                let lr = train.optimizer.lr();
                self.that((0.0..=lr).contains(&it.eta_min), "train.schedule.eta_min", || {
                    format!("expected 0 to train.optimizer.lr = {lr}, got {}", it.eta_min)
                });
            }
            ScheduleSpec::Step(it) => {
                self.warmup(it.warmup_steps, it.warmup_start_factor, None, train);
                self.range("train.schedule.step_size", it.step_size, 1, MAX_STEPS);
                self.number("train.schedule.gamma", it.gamma, ABOVE_ZERO, 1.0);
            }
            ScheduleSpec::OneCycle(it) => {
                self.warmup(0, 0.0, it.total_steps, train);
                self.number("train.schedule.pct_start", it.pct_start, 0.0, 1.0);
                self.number("train.schedule.div_factor", it.div_factor, 1.0, 1e12);
                self.number("train.schedule.final_div_factor", it.final_div_factor, 1.0, 1e12);
            }
        }
    }

    /// `total`: of the schedule, if it says so.
    fn warmup(&mut self, steps: u64, start: f64, total: Option<u64>, train: &TrainSpec) {
        self.number("train.schedule.warmup_start_factor", start, 0.0, 1.0);
        if let Some(total) = total {
            self.range("train.schedule.total_steps", total, 1, MAX_STEPS);
        }
        let (end, of) = match (total, train.max_steps) {
            (Some(total), _) => (total, "train.schedule.total_steps"),
            (None, Some(steps)) => (steps, "train.max_steps"),
            (None, None) => (MAX_STEPS, "the limit"),
        };
        self.that(steps == 0 || steps < end, "train.schedule.warmup_steps", || {
            format!("expected less than {of} = {end}, got {steps}")
        });
    }

    fn gradient(&mut self, train: &TrainSpec) {
        for (field, limit) in
            [("train.clip_norm", train.clip_norm), ("train.clip_value", train.clip_value)]
        {
            if let Some(limit) = limit {
                self.number(field, limit, ABOVE_ZERO, 1e12);
            }
        }
        if let (Some(norm), Some(value)) = (train.clip_norm, train.clip_value) {
            self.add(
                "train.clip_value",
                format!("expected none beside train.clip_norm = {norm}, got {value}"),
            );
        }
        if let Some(ema) = &train.ema {
            self.share("train.ema.decay", ema.decay);
        }
        if let Some(scale) = &train.loss_scale {
            self.that(train.precision == Precision::F16, "train.loss_scale", || {
                "expected train.precision = \"f16\" with it".to_owned()
            });
            self.number("train.loss_scale.initial", scale.initial, 1.0, 2f64.powi(40));
            let interval = scale.growth_interval;
            self.range("train.loss_scale.growth_interval", interval, 1, u32::MAX.into());
            let growth = scale.growth_factor;
            self.that(1.0 < growth && growth <= 1024.0, "train.loss_scale.growth_factor", || {
                format!("expected above 1 and at most 1024, got {growth}")
            });
            let backoff = scale.backoff_factor;
            self.that(0.0 < backoff && backoff < 1.0, "train.loss_scale.backoff_factor", || {
                format!("expected above 0 and less than 1, got {backoff}")
            });
        }
    }

    pub(super) fn eval(&mut self, spec: &JobSpec) {
        let eval = &spec.eval;
        self.range("eval.every_epochs", eval.every_epochs, 1, 1 << 20);
        for (index, metric) in eval.metrics.iter().enumerate() {
            let field = format!("eval.metrics[{index}]");
            self.that(!eval.metrics[..index].contains(metric), &field, || {
                format!("expected each metric once, got {:?} again", metric.name())
            });
        }
        self.that(eval.metrics.is_empty() || spec.data.eval.is_some(), "eval.metrics", || {
            "expected data.eval with it".to_owned()
        });
        let length = eval.labels.len();
        self.that((1..=64).contains(&length), "eval.labels", || {
            format!("expected 1 to 64 bytes, got {length}")
        });
        self.that(!eval.use_ema || spec.train.ema.is_some(), "eval.use_ema", || {
            "expected train.ema with it".to_owned()
        });
    }
}

impl EvalMetric {
    /// As in the job file and behind `eval/`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Accuracy => "accuracy",
            Self::Top5 => "top5",
            Self::Perplexity => "perplexity",
        }
    }
}
