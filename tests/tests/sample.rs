//! A small language model learns a few steps of a text; `lockstep sample` goes on with it.

use std::process::Output;
use std::time::Duration;

use lockstep_api::{JobState, JobView};
use lockstep_e2e::{Service, wait_for_job};
use serde::Deserialize;

const JOB: &str = "examples/text/job.toml";
const DIGITS: &str = "examples/digits/job.toml";
const WHOLE_JOB: Duration = Duration::from_secs(60);

/// A job of seconds: one block, 16 numbers wide, over texts of 16 characters.
const SMALL: &[&str] = &[
    "model.n_embd=16",
    "model.n_layer=1",
    "model.n_head=2",
    "model.n_positions=16",
    "loader.config={ length = 16 }",
    "train.global_batch=8",
    "train.micro_batch=8",
    "train.max_steps=4",
    "train.schedule={ name = \"constant\" }",
    "train.ema={ decay = 0.5 }",
    "checkpoint.every_steps=2",
    "gang.ranks=1",
];

#[derive(Debug, Deserialize)]
struct Sampled {
    ids: Vec<u32>,
    text: String,
    checkpoint: lockstep_api::CheckpointView,
}

fn sample(service: &Service, job: &str, flags: &[&str]) -> anyhow::Result<Output> {
    Ok(service.lockstep().args(["sample", job]).args(flags).output()?)
}

fn text(service: &Service, job: &str, flags: &[&str]) -> anyhow::Result<String> {
    let output = sample(service, job, flags)?;
    let words = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(output.status.success(), "{flags:?}: {words}");
    Ok(String::from_utf8(output.stdout)?)
}

fn json(service: &Service, job: &str, flags: &[&str]) -> anyhow::Result<Sampled> {
    let flags = [flags, &["--json"]].concat();
    Ok(serde_json::from_str(&text(service, job, &flags)?)?)
}

#[tokio::test]
async fn a_trained_model_goes_on_with_a_text_the_same_for_the_same_seed() -> anyhow::Result<()> {
    let service = Service::start(1).await?;
    let data = service.folder().join("text");
    std::fs::create_dir(&data)?;
    std::fs::write(data.join("text.txt"), "In the beginning was the word.\n".repeat(100))?;
    let (train, eval) = (format!("data.train={data}"), format!("data.eval={data}"));
    let settings = [SMALL, &[&train, &eval]].concat();
    let id = service.submit(JOB, &settings)?.summary.id;
    let over = |job: &JobView| job.summary.state == JobState::Succeeded;
    wait_for_job(&service.client, id, "the job succeeds", WHOLE_JOB, over).await?;
    let job = id.to_string();

    let made = json(&service, &job, &["--tokens", "40", "--seed", "3"])?;
    assert_eq!((made.ids.len(), made.checkpoint.step.0), (40, 4));
    let printed = text(&service, &job, &["--tokens", "40", "--seed", "3"])?;
    assert_eq!(printed, format!("{}\n", made.text), "the same seed, the same text");
    let begun = text(&service, &job, &["--prompt", "In the", "--tokens", "5"])?;
    assert!(begun.starts_with("In the"), "{begun:?}");

    let other = |flags: &[&str]| json(&service, &job, &[&["--tokens", "40"], flags].concat());
    assert_ne!(other(&["--seed", "4"])?.ids, made.ids);
    let earlier = other(&["--step", "2"])?;
    assert_eq!((earlier.ids.len(), earlier.checkpoint.step.0), (40, 2));
    assert_eq!(other(&["--ema"])?.ids.len(), 40);
    let greedy = other(&["--temperature", "0"])?.ids;
    assert_eq!(other(&["--top-k", "1"])?.ids, greedy);
    refusals(&service, &job).await
}

async fn refusals(service: &Service, job: &str) -> anyhow::Result<()> {
    let cases: &[(&[&str], i32, &[&str])] = &[
        (&["--prompt", "é"], 2, &["--prompt", "'é'", "ASCII"]),
        (&["--prompt", "seventeen letters"], 2, &["--prompt", "17", "16", "model.n_positions"]),
        (&["--tokens", "0"], 2, &["--tokens", "1..=100000"]),
        (&["--temperature", "-1"], 2, &["--temperature", "-1", "from 0 up"]),
        (&["--step", "3"], 3, &["no checkpoint after step 3", "only after 4, 2"]),
    ];
    for (flags, code, words) in cases {
        let output = sample(service, job, flags)?;
        let said = String::from_utf8(output.stderr)?;
        assert_eq!(output.status.code(), Some(*code), "{flags:?}: {said}");
        assert!(output.stdout.is_empty(), "{flags:?}");
        for word in *words {
            assert!(said.contains(word), "{flags:?}: {word:?} is missing in: {said}");
        }
    }
    let digits = service.submit(DIGITS, &["gang.ranks=1", "train.epochs=1"])?.summary.id;
    let output = sample(service, &digits.to_string(), &[])?;
    let said = String::from_utf8(output.stderr)?;
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("model.arch mlp, expected gpt2"), "{said}");
    Ok(())
}
