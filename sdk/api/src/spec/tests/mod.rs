//! What a job file may say, what its defaults are, and how each refusal reads.

mod checkpoint;
mod docs;
mod gang;
mod layers;
mod model;
mod stored;
mod timeouts;
mod train;

use serde_json::Value;

use crate::{FieldError, JobSpec, ModelSpec, parse};

const DIGEST: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

/// A job with this model and these lines in `[train]`; `rest` stands behind.
fn job(model: &str, train: &str, rest: &str) -> Result<JobSpec, FieldError> {
    let text = format!(
        "name = \"n\"\n[model]\n{model}\n[data]\ntrain = \"t\"\neval = \"e\"\n\
         [loader]\ncomponent = \"{DIGEST}\"\n[loss]\ncomponent = \"{DIGEST}\"\n\
         [train]\nglobal_batch = 8\nmicro_batch = 4\nepochs = 1\n{train}\n{rest}\n"
    );
    let read = parse::<JobSpec, _>(toml::Deserializer::parse(&text).unwrap());
    // The command line goes by way of JSON; both have to say the same.
    let table: toml::Table = toml::from_str(&text).unwrap();
    let json = parse::<JobSpec, _>(serde_json::to_value(table).unwrap());
    match (&read, &json) {
        (Ok(read), Ok(json)) => assert_eq!(read, json),
        (Err(read), Err(json)) => assert_eq!(read, json),
        (read, json) => panic!("TOML gives {read:?}, JSON {json:?}"),
    }
    read
}

const MLP: &str = "arch = \"mlp\"\ninputs = 4\nclasses = 2";
const SGD: &str = "optimizer = { name = \"sgd\", lr = 0.1 }";

/// A job with this model, checked: what is wrong with it, one line each.
fn model_errors(model: &str) -> Vec<String> {
    errors(job(model, SGD, ""))
}

fn errors(job: Result<JobSpec, FieldError>) -> Vec<String> {
    let errors = match job {
        Ok(job) => job.check(),
        Err(error) => vec![error],
    };
    errors.iter().map(ToString::to_string).collect()
}

fn model(text: &str) -> ModelSpec {
    let job = job(text, SGD, "").unwrap();
    assert_eq!(job.check(), vec![]);
    job.model
}

/// Text to value to text: nothing is lost, and the second writing equals the first.
fn written(job: &JobSpec) -> Value {
    let value = serde_json::to_value(job).unwrap();
    let again: JobSpec = parse(&value).unwrap();
    assert_eq!(&again, job);
    let text = serde_json::to_string(job).unwrap();
    assert_eq!(&serde_json::from_str::<JobSpec>(&text).unwrap(), job);
    value
}
