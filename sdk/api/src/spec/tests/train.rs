use serde_json::json;

use super::{MLP, SGD, errors, job, written};
use crate::{OPTIMIZERS, SCHEDULES, TrainSpec};

fn train(text: &str) -> TrainSpec {
    let job = job(MLP, text, "").unwrap();
    assert_eq!(job.check(), vec![]);
    written(&job);
    job.train
}

fn train_errors(text: &str) -> Vec<String> {
    errors(job(MLP, text, ""))
}

fn optimizer_errors(name: &str, settings: &str) -> Vec<String> {
    train_errors(&format!("optimizer = {{ name = \"{name}\", lr = 0.1, {settings} }}"))
}

fn schedule_errors(settings: &str) -> Vec<String> {
    train_errors(&format!("{SGD}\nmax_steps = 100\nschedule = {{ {settings} }}"))
}

#[test]
fn optimizers_have_their_authors_defaults() {
    let expected = [
        json!({ "name": "sgd", "lr": 0.1, "momentum": 0.0, "dampening": 0.0, "nesterov": false, "weight_decay": 0.0 }),
        json!({ "name": "adam", "lr": 0.1, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.0, "amsgrad": false }),
        json!({ "name": "adamw", "lr": 0.1, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.01 }),
        json!({ "name": "lamb", "lr": 0.1, "betas": [0.9, 0.999], "eps": 1e-6, "weight_decay": 0.01 }),
        json!({ "name": "lion", "lr": 0.1, "betas": [0.9, 0.99], "weight_decay": 0.0 }),
        json!({ "name": "rmsprop", "lr": 0.1, "alpha": 0.99, "eps": 1e-8, "weight_decay": 0.0, "momentum": 0.0 }),
        json!({ "name": "adagrad", "lr": 0.1, "weight_decay": 0.0, "eps": 1e-10 }),
    ];
    for (name, expected) in OPTIMIZERS.iter().zip(expected) {
        let spec = train(&format!("optimizer = {{ name = \"{name}\", lr = 0.1 }}"));
        assert_eq!(serde_json::to_value(&spec.optimizer).unwrap(), expected);
        assert_eq!(
            (spec.optimizer.lr(), expected["weight_decay"].as_f64()),
            (0.1, Some(spec.optimizer.weight_decay()))
        );
    }
}

#[test]
fn the_rest_of_training_has_documented_defaults() {
    let spec = train(SGD);
    assert_eq!(spec, TrainSpec::new(8, 4, 1, spec.optimizer.clone()));
    let value = serde_json::to_value(train(&format!(
        "{SGD}\nema = {{}}\nprecision = \"f16\"\nloss_scale = {{}}\ngroups = [{{ match = \"*\" }}]"
    )))
    .unwrap();
    assert_eq!(value["ema"], json!({ "decay": 0.999 }));
    assert_eq!(
        value["schedule"],
        json!({ "name": "constant", "warmup_steps": 0, "warmup_start_factor": 0.0 })
    );
    assert_eq!(
        value["loss_scale"],
        json!({ "initial": 65536.0, "growth_interval": 2000, "growth_factor": 2.0, "backoff_factor": 0.5 })
    );
    assert_eq!(
        value["groups"],
        json!([{ "match": "*", "lr_scale": 1.0, "weight_decay": null, "frozen": false }])
    );
    assert_eq!((&value["threads"], &value["clip_norm"]), (&json!(1), &json!(null)));
}

#[test]
fn schedules_have_documented_defaults() {
    let expected = [
        json!({ "name": "constant", "warmup_steps": 0, "warmup_start_factor": 0.0 }),
        json!({ "name": "linear", "warmup_steps": 0, "warmup_start_factor": 0.0, "total_steps": null, "end_factor": 0.0 }),
        json!({ "name": "cosine", "warmup_steps": 0, "warmup_start_factor": 0.0, "total_steps": null, "eta_min": 0.0 }),
        json!({ "name": "step", "warmup_steps": 0, "warmup_start_factor": 0.0, "step_size": 7, "gamma": 0.1 }),
        json!({ "name": "one_cycle", "total_steps": null, "pct_start": 0.3, "div_factor": 25.0, "final_div_factor": 1e4 }),
    ];
    for (name, expected) in SCHEDULES.iter().zip(expected) {
        let step_size = if *name == "step" { ", step_size = 7" } else { "" };
        let spec = train(&format!("{SGD}\nschedule = {{ name = \"{name}\"{step_size} }}"));
        assert_eq!(serde_json::to_value(&spec.schedule).unwrap(), expected);
    }
}

#[test]
fn settings_of_optimizers_have_ranges() {
    let share = "expected 0 or more and less than 1";
    assert_eq!(
        optimizer_errors("adam", "betas = [1.0, -0.1], eps = 0"),
        [
            format!("train.optimizer.betas[0]: {share}, got 1"),
            format!("train.optimizer.betas[1]: {share}, got -0.1"),
            "train.optimizer.eps: expected above 0 to 1, got 0".to_owned(),
        ]
    );
    for name in ["adamw", "lamb", "lion"] {
        let errors = optimizer_errors(name, "betas = [0.9, 1]");
        assert_eq!(errors, [format!("train.optimizer.betas[1]: {share}, got 1")]);
    }
    for name in OPTIMIZERS {
        let errors = optimizer_errors(name, "weight_decay = -1");
        assert_eq!(errors, ["train.optimizer.weight_decay: expected 0 to 1000, got -1"]);
    }
    assert_eq!(
        optimizer_errors("sgd", "momentum = 1, dampening = 2"),
        [
            format!("train.optimizer.momentum: {share}, got 1"),
            "train.optimizer.dampening: expected 0 to 1, got 2".to_owned(),
        ]
    );
    assert_eq!(
        optimizer_errors("sgd", "nesterov = true"),
        [
            "train.optimizer.nesterov: expected a momentum above 0 and no dampening with it, got 0 and 0"
        ]
    );
    assert_eq!(optimizer_errors("sgd", "nesterov = true, momentum = 0.9"), Vec::<String>::new());
    assert_eq!(
        optimizer_errors("rmsprop", "alpha = 1, momentum = -1"),
        [
            format!("train.optimizer.alpha: {share}, got 1"),
            format!("train.optimizer.momentum: {share}, got -1"),
        ]
    );
    assert_eq!(
        optimizer_errors("adagrad", "eps = 2"),
        ["train.optimizer.eps: expected above 0 to 1, got 2"]
    );
    let errors = optimizer_errors("adagrad", "eps = 1e-40");
    assert!(errors[0].contains("expected 1.18e-38 (the least f32) to 1, got 0.000"), "{errors:?}");
    let errors = train_errors("optimizer = { name = \"adamw\", lr = 0 }");
    assert_eq!(errors, ["train.optimizer.lr: expected above 0 to 1000000, got 0"]);
}

#[test]
fn an_optimizer_that_is_misspelt_or_misfed_is_refused_with_its_path() {
    let errors = train_errors("optimizer = { name = \"adagrd\", lr = 1 }");
    assert!(errors[0].starts_with("train.optimizer: unknown variant `adagrd`"), "{errors:?}");
    assert!(errors[0].ends_with("did you mean `adagrad`?"), "{errors:?}");
    let errors = optimizer_errors("sgd", "moment = 1");
    assert!(errors[0].starts_with("train.optimizer: unknown field `moment`"), "{errors:?}");
    assert!(errors[0].ends_with("did you mean `momentum`?"), "{errors:?}");
    assert_eq!(
        train_errors("optimizer = { name = \"sgd\", lr = \"high\" }"),
        ["train.optimizer.lr: invalid type: string \"high\", expected a number"]
    );
    assert_eq!(
        train_errors("optimizer = { name = \"sgd\" }"),
        ["train.optimizer: missing field `lr`"]
    );
    assert_eq!(
        train_errors("optimizer = { name = \"adam\", lr = 1, betas = [0.9] }"),
        ["train.optimizer.betas: invalid length 1, expected an array of length 2"]
    );
    assert_eq!(
        train_errors("optimizer = 3"),
        ["train.optimizer: invalid type: integer `3`, expected a table"]
    );
}

#[test]
fn settings_of_schedules_have_ranges() {
    assert_eq!(
        schedule_errors(
            "name = \"cosine\", warmup_steps = 100, eta_min = 0.2, warmup_start_factor = 2"
        ),
        [
            "train.schedule.warmup_start_factor: expected 0 to 1, got 2",
            "train.schedule.warmup_steps: expected less than train.max_steps = 100, got 100",
            "train.schedule.eta_min: expected 0 to train.optimizer.lr = 0.1, got 0.2",
        ]
    );
    assert_eq!(
        schedule_errors("name = \"linear\", warmup_steps = 9, total_steps = 9, end_factor = -1"),
        [
            "train.schedule.warmup_steps: expected less than train.schedule.total_steps = 9, got 9",
            "train.schedule.end_factor: expected 0 to 1, got -1",
        ]
    );
    assert_eq!(
        schedule_errors("name = \"step\", step_size = 0, gamma = 0"),
        [
            "train.schedule.step_size: expected 1 to 1099511627776, got 0",
            "train.schedule.gamma: expected above 0 to 1, got 0",
        ]
    );
    assert_eq!(
        schedule_errors(
            "name = \"one_cycle\", total_steps = 0, pct_start = 1.5, div_factor = 0.5, final_div_factor = 0"
        ),
        [
            "train.schedule.total_steps: expected 1 to 1099511627776, got 0",
            "train.schedule.pct_start: expected 0 to 1, got 1.5",
            "train.schedule.div_factor: expected 1 to 1000000000000, got 0.5",
            "train.schedule.final_div_factor: expected 1 to 1000000000000, got 0",
        ]
    );
    assert_eq!(
        schedule_errors("name = \"constant\", warmup_steps = -1"),
        [
            "train.schedule.warmup_steps: invalid value: integer `-1`, expected a whole number, 0 or more"
        ]
    );
    let errors = schedule_errors("name = \"one_cycle\", warmup_steps = 3");
    assert!(errors[0].starts_with("train.schedule: unknown field `warmup_steps`"), "{errors:?}");
    let errors = schedule_errors("name = \"cosin\"");
    assert!(errors[0].ends_with("did you mean `cosine`?"), "{errors:?}");
}

#[test]
fn gradient_mean_and_scale_have_ranges() {
    assert_eq!(
        train_errors(&format!("{SGD}\nclip_norm = 1.0\nclip_value = 0.5")),
        ["train.clip_value: expected none beside train.clip_norm = 1, got 0.5"]
    );
    let errors = train_errors(&format!("{SGD}\nclip_norm = 0"));
    assert_eq!(errors, ["train.clip_norm: expected above 0 to 1000000000000, got 0"]);
    let errors = train_errors(&format!("{SGD}\nclip_value = -1"));
    assert_eq!(errors, ["train.clip_value: expected above 0 to 1000000000000, got -1"]);
    let errors = train_errors(&format!("{SGD}\nema = {{ decay = 1 }}"));
    assert_eq!(errors, ["train.ema.decay: expected 0 or more and less than 1, got 1"]);
    let errors = train_errors(&format!("{SGD}\nloss_scale = {{}}"));
    assert_eq!(errors, ["train.loss_scale: expected train.precision = \"f16\" with it"]);
    let scale = "loss_scale = { initial = 0, growth_interval = 0, growth_factor = 0.5, backoff_factor = 1 }";
    assert_eq!(
        train_errors(&format!("{SGD}\nprecision = \"f16\"\n{scale}")),
        [
            "train.loss_scale.initial: expected 1 to 1099511627776, got 0",
            "train.loss_scale.growth_interval: expected 1 to 4294967295, got 0",
            "train.loss_scale.growth_factor: expected above 1 and at most 1024, got 0.5",
            "train.loss_scale.backoff_factor: expected above 0 and less than 1, got 1",
        ]
    );
    let errors = train_errors(&format!("{SGD}\nprecision = \"fp16\""));
    assert!(errors[0].ends_with("did you mean `f16`?"), "{errors:?}");
}

#[test]
fn a_rank_has_no_more_threads_than_its_slot_has_cores() {
    let errors_of = |cores| {
        let rest = format!("[gang]\nslot = {{ cores = {cores} }}");
        errors(job(MLP, &format!("{SGD}\nthreads = 2"), &rest))
    };
    assert_eq!(errors_of(1), ["train.threads: expected at most gang.slot.cores = 1, got 2"]);
    assert_eq!(errors_of(2), Vec::<String>::new());
    let errors = train_errors(&format!("{SGD}\nthreads = 0"));
    assert_eq!(errors, ["train.threads: expected 1 to 256, got 0"]);
}

#[test]
fn groups_have_ranges() {
    assert_eq!(
        train_errors(&format!(
            "{SGD}\ngroups = [{{ match = \"*\" }}, {{ match = \"\", lr_scale = -1, weight_decay = -1 }}]"
        )),
        [
            "train.groups[1].match: expected 1 to 256 bytes, got 0",
            "train.groups[1].lr_scale: expected 0 to 1000000, got -1",
            "train.groups[1].weight_decay: expected 0 to 1000, got -1",
        ]
    );
    let many = "{ match = \"*\" }, ".repeat(65);
    let errors = train_errors(&format!("{SGD}\ngroups = [{many}]"));
    assert_eq!(errors, ["train.groups: expected at most 64 groups, got 65"]);
}

#[test]
fn evaluation_has_defaults_and_asks_for_what_it_needs() {
    let of = |rest: &str| job(MLP, SGD, rest);
    assert_eq!(
        written(&of("").unwrap())["eval"],
        json!({ "every_epochs": 1, "metrics": [], "labels": "y", "ignore_index": -100, "use_ema": false })
    );
    let all = of("[eval]\nmetrics = [\"accuracy\", \"top5\", \"perplexity\"]").unwrap();
    assert_eq!(all.check(), vec![]);
    let names: Vec<&str> = all.eval.metrics.iter().map(|metric| metric.name()).collect();
    assert_eq!(written(&all)["eval"]["metrics"], json!(names));
    let mut spec = all.clone();
    spec.data.eval = None;
    assert_eq!(errors(Ok(spec)), ["eval.metrics: expected data.eval with it"]);
    assert_eq!(
        errors(of(
            "[eval]\nmetrics = [\"top5\", \"top5\"]\nevery_epochs = 0\nuse_ema = true\nlabels = \"\""
        )),
        [
            "eval.every_epochs: expected 1 to 1048576, got 0",
            "eval.metrics[1]: expected each metric once, got \"top5\" again",
            "eval.labels: expected 1 to 64 bytes, got 0",
            "eval.use_ema: expected train.ema with it",
        ]
    );
    let errors = errors(of("[eval]\nmetrics = [\"acuracy\"]"));
    assert!(errors[0].starts_with("eval.metrics[0]"), "{errors:?}");
    assert!(errors[0].ends_with("did you mean `accuracy`?"), "{errors:?}");
}
