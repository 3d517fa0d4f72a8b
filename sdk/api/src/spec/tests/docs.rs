//! `docs/job-file.md` names every field, and its examples are jobs.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{DIGEST, MLP, SGD, job};
use crate::{ARCHES, EvalMetric, JobSpec, OPTIMIZERS, SCHEDULES};

const TEXT: &str = include_str!("../../../../../docs/job-file.md");

fn names(value: &Value, into: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                into.insert(name.clone());
                names(value, into);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| names(item, into)),
        // Bare layers.
        Value::String(text) if !text.contains(':') => drop(into.insert(text.clone())),
        Value::String(_) | Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[test]
fn the_reference_names_every_field() {
    let sequence = "arch = \"layers\"\ninput = [1, 8, 8]\nlayers = [{ conv2d = { out = 2, kernel = 1 } }, \
         { max_pool2d = { kernel = 1 } }, { avg_pool2d = { kernel = 1 } }, { adaptive_avg_pool2d = { size = 1 } }, \
         \"batch_norm\", \"layer_norm\", \"rms_norm\", \"dropout\", \"flatten\", \"relu\", \"gelu\", \"gelu_new\", \
         \"silu\", \"tanh\", \"sigmoid\", { linear = { out = 1 } }]";
    let models = [
        MLP,
        sequence,
        "arch = \"resnet50\"\ninput = [3, 32, 32]\nclasses = 2\nstem = \"small\"",
        "arch = \"gpt2\"\nvocab_size = 2\nn_positions = 2\nn_embd = 2\nn_layer = 1\nn_head = 1",
        "arch = \"bert\"\nvocab_size = 2\nhidden_size = 2\nnum_hidden_layers = 1\nnum_attention_heads = 1\n\
         intermediate_size = 2\nclasses = 2",
        "arch = \"vit\"\nimage_size = 4\npatch_size = 2\nhidden_dim = 2\nnum_layers = 1\nnum_heads = 1\n\
         mlp_dim = 2\nclasses = 2",
    ];
    let mut jobs: Vec<JobSpec> = models.iter().map(|text| job(text, SGD, "").unwrap()).collect();
    for name in OPTIMIZERS {
        let text = format!("optimizer = {{ name = \"{name}\", lr = 1 }}");
        jobs.push(job(MLP, &text, "").unwrap());
    }
    for name in SCHEDULES {
        let text = format!(
            "{SGD}\nschedule = {{ name = \"{name}\"{} }}\nema = {{}}\nprecision = \"f16\"\nloss_scale = {{}}\n\
             groups = [{{ match = \"a:\" }}]",
            if name == "step" { ", step_size = 1" } else { "" }
        );
        jobs.push(job(MLP, &text, "").unwrap());
    }
    jobs.push(job(MLP, SGD, "[gang]\nranks = { min = 1, max = 2 }").unwrap());
    let mut wanted = BTreeSet::new();
    for mut job in jobs {
        // Free text, not names of the format.
        job.name = DIGEST.to_owned();
        job.data.train = DIGEST.to_owned();
        job.data.eval = Some(DIGEST.to_owned());
        job.timeouts.collective = DIGEST.to_owned();
        job.checkpoint.best.metric = DIGEST.to_owned();
        names(&serde_json::to_value(job).unwrap(), &mut wanted);
    }
    let metrics = [EvalMetric::Accuracy, EvalMetric::Top5, EvalMetric::Perplexity];
    wanted.extend(metrics.map(|metric| metric.name().to_owned()));
    wanted.extend(ARCHES.map(str::to_owned));
    let known: BTreeSet<&str> =
        TEXT.split(|c: char| !(c.is_alphanumeric() || "_-".contains(c))).collect();
    let missing: Vec<&String> =
        wanted.iter().filter(|name| !known.contains(name.as_str())).collect();
    assert!(missing.is_empty(), "docs/job-file.md lacks {missing:?}");
}

#[test]
fn the_examples_of_the_reference_are_jobs() {
    let mut blocks = TEXT.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next());
    let whole: Value = toml::from_str(blocks.next().unwrap()).unwrap();
    let mut spec: JobSpec = crate::parse(whole).unwrap();
    spec.loader.component = DIGEST.to_owned();
    spec.loss.component = DIGEST.to_owned();
    assert_eq!(spec.check(), vec![]);
    let model = blocks.next().unwrap().strip_prefix("[model]\n").unwrap();
    assert_eq!(job(model, SGD, "").unwrap().check(), vec![]);
    assert_eq!(blocks.next(), None);
}
