//! `sample`: goes on with a text, by a language model's checkpoint. `lockstep-rank sample`, a child process, computes:
//! the command line knows nothing of models.

mod text;

use std::os::unix::process::ExitStatusExt as _;
use std::process::Stdio;

use anyhow::Context as _;
use camino::{Utf8Path, Utf8PathBuf};
use lockstep_api::{
    ArchSpec, CheckpointView, FieldError, JobId, JobView, SampleEvent, SampleRequest, SampleWeights,
};
use lockstep_client::Client;
use rustix::process::Signal;
use serde::Serialize;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, Command};

use crate::args::Global;
use crate::args::sample::SampleArgs;
use crate::failure::Failure;
use crate::out::{Out, bytes};
use crate::programs;
use crate::settings::client;
use crate::verbs::{checkpoints, find};

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct Sampled {
    job: JobId,
    checkpoint: CheckpointView,
    prompt: String,
    seed: u64,
    /// The tokens made, without the prompt's.
    ids: Vec<u32>,
    /// As people read them.
    text: String,
}

/// Prints a text as it is made.
pub(crate) async fn sample(global: &Global, args: SampleArgs, out: Out) -> anyhow::Result<()> {
    let client = client(global)?;
    let job = find::job(&client, &args.job).await?;
    let request = request(&job, &args)?;
    let (job, checkpoint) = checkpoints::of_job(job, args.step.0)?;
    let program = programs::beside_us("lockstep-rank")?;
    let made = async {
        let folder = tempfile::Builder::new().prefix("lockstep-sample-").tempdir();
        let folder = folder.context("making a folder for the checkpoint")?;
        let path = Utf8Path::from_path(folder.path()).context("the folder's path is no text")?;
        let path = fetch(&client, &checkpoint, path, out).await?;
        let request = SampleRequest { checkpoint_path: path.into_string(), ..request };
        show(&program, &request, &args.prompt, out).await
    };
    let ids = tokio::select! {
        // At the terminal, Ctrl-C ends the child as well: that is no fault of its own.
        biased;
        signal = tokio::signal::ctrl_c() => {
            signal?;
            return Err(interrupted());
        }
        made = made => made?,
    };
    if out.is_json() {
        let text = text_of(&ids);
        let (job, prompt, seed) = (job.summary.id, args.prompt, args.seed);
        out.json(&Sampled { job, checkpoint, prompt, seed, ids, text })?;
    }
    Ok(())
}

fn interrupted() -> anyhow::Error {
    Failure::Interrupted("interrupted; the text is not complete".to_owned()).into()
}

fn text_of(ids: &[u32]) -> String {
    let mut text = String::new();
    for id in ids {
        text::show(*id, &mut text);
    }
    text
}

/// What to ask for, once there is a checkpoint's file.
fn request(job: &JobView, args: &SampleArgs) -> Result<SampleRequest, Failure> {
    let (name, spec) = (&job.summary.name, &job.spec);
    let ArchSpec::Gpt2(model) = &spec.model.arch else {
        let arch = spec.model.arch.name();
        return Err(Failure::Usage(format!(
            "{name} has model.arch {arch}, expected gpt2: only a language model goes on with a text"
        )));
    };
    if args.ema && spec.train.ema.is_none() {
        return Err(Failure::Usage(format!(
            "--ema: {name} keeps no running mean of its weights, expected a job with train.ema"
        )));
    }
    text::check_vocabulary(model.vocab_size)?;
    let prompt_ids = text::ids(&args.prompt, model.vocab_size, model.n_positions)?;
    let request = SampleRequest {
        model: spec.model.clone(),
        checkpoint_path: String::new(),
        weights: if args.ema { SampleWeights::Ema } else { SampleWeights::Last },
        prompt_ids,
        tokens: args.tokens,
        temperature: args.temperature,
        top_k: args.top_k,
        seed: args.seed,
    };
    match &request.check()[..] {
        [] => Ok(request),
        errors => Err(refused(errors)),
    }
}

fn refused(errors: &[FieldError]) -> Failure {
    let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
    Failure::Usage(errors.join("; "))
}

/// The checkpoint as a file in `folder`, verified.
async fn fetch(
    client: &Client,
    checkpoint: &CheckpointView,
    folder: &Utf8Path,
    out: Out,
) -> anyhow::Result<Utf8PathBuf> {
    let (step, size) = (checkpoint.step, bytes(checkpoint.size_bytes));
    let spinner = out.spinner(format!("fetching the checkpoint after step {step} ({size})"));
    let path = folder.join("checkpoint.safetensors");
    let fetched = client.download_checkpoint(checkpoint, &path).await;
    spinner.finish_and_clear();
    Ok(fetched?.path)
}

/// Asks the program and shows what it makes, unless JSON is wanted. The tokens made.
async fn show(
    program: &Utf8Path,
    request: &SampleRequest,
    prompt: &str,
    out: Out,
) -> anyhow::Result<Vec<u32>> {
    let mut child = start(program, request).await?;
    let stdout = child.stdout.take().context("the child's standard output is a pipe")?;
    let mut lines = BufReader::new(stdout).lines();
    let mut ids = Vec::new();
    let mut shown = Shown { out, is_open: true };
    if !prompt.is_empty() {
        shown.piece(&text_of(&request.prompt_ids));
    }
    while let Some(line) = lines.next_line().await.context("reading what lockstep-rank says")? {
        match serde_json::from_str(&line).context("reading what lockstep-rank says")? {
            SampleEvent::Token { id } => ids.push(id),
            SampleEvent::Refused { errors } => return Err(refused(&errors).into()),
            SampleEvent::Failed { message } => anyhow::bail!(message),
        }
        if !shown.piece(&text_of(&ids[ids.len() - 1..])) {
            // Nobody reads any more; dropping the child ends it.
            return Ok(ids);
        }
    }
    let status = child.wait().await?;
    if status.signal() == Some(Signal::INT.as_raw()) {
        return Err(interrupted());
    }
    anyhow::ensure!(
        status.success() && ids.len() == request.tokens as usize,
        "lockstep-rank ended with {status} after {} of {} tokens",
        ids.len(),
        request.tokens
    );
    Ok(ids)
}

/// Text on its way to whoever reads; its last line ends whatever happens.
struct Shown {
    out: Out,
    is_open: bool,
}

impl Shown {
    /// Whether anybody still reads.
    fn piece(&mut self, text: &str) -> bool {
        if !self.out.is_json() && self.is_open {
            self.is_open = self.out.piece(text);
        }
        self.is_open
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        self.piece("\n");
    }
}

async fn start(program: &Utf8Path, request: &SampleRequest) -> anyhow::Result<Child> {
    let mut command = Command::new(program);
    // It needs nothing of ours, the token least of all. What it complains of, people see.
    command.arg("sample").env_clear().stdin(Stdio::piped()).stdout(Stdio::piped());
    let child = command.kill_on_drop(true).spawn();
    let mut child = child.with_context(|| format!("starting {program}"))?;
    let mut stdin = child.stdin.take().context("the child's standard input is a pipe")?;
    let asked = stdin.write_all(&serde_json::to_vec(request)?).await;
    // One that ends without reading says why by its status.
    match asked {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(error).context("asking lockstep-rank")
        }
        _ => Ok(child),
    }
}

#[cfg(test)]
mod tests {
    use lockstep_api::SampleEvent;
    use serde_json::json;

    use super::*;
    use crate::args::sample::SampleStep;

    fn args() -> SampleArgs {
        SampleArgs {
            job: "text-gpt".to_owned(),
            prompt: "In the".to_owned(),
            tokens: 4,
            temperature: 1.0,
            top_k: None,
            seed: 0,
            step: SampleStep(None),
            ema: false,
        }
    }

    fn job(model: serde_json::Value) -> JobView {
        let id = "018f0000-0000-7000-8000-000000000000";
        let job = json!({
            "id": id, "name": "text-gpt", "state": "succeeded", "waiting": null, "ranks": 1, "steps_done": 1,
            "steps_total": 1, "loss": null, "created_at": "2026-01-01T00:00:00Z", "ended_at": null,
            "spec": {
                "name": "text-gpt",
                "model": model,
                "data": { "train": "text" },
                "loader": { "component": "sha256:00" },
                "loss": { "component": "sha256:00" },
                "train": {
                    "global_batch": 1, "micro_batch": 1, "epochs": 1, "seed": 1,
                    "optimizer": { "name": "sgd", "lr": 0.1 }
                },
                "gang": { "ranks": 1 }
            },
            "timeouts": {
                "collective_ms": 60000, "soft_ms": 6000, "snapshot_ms": 600, "abort_ms": 10000,
                "formation_ms": 60000, "stop_grace_ms": 15000, "pause_ms": 300000
            },
            "generation": 1, "attempts": [], "failures": [], "checkpoints": [], "metrics": {}
        });
        serde_json::from_value(job).unwrap()
    }

    fn gpt2() -> serde_json::Value {
        json!({ "arch": "gpt2", "vocab_size": 128, "n_positions": 8, "n_embd": 8, "n_layer": 1, "n_head": 2 })
    }

    #[test]
    fn the_job_s_model_and_the_flags_become_the_request() {
        let args = SampleArgs { top_k: Some(5), seed: 9, ..args() };
        let request = request(&job(gpt2()), &args).unwrap();
        assert_eq!(request.prompt_ids, [73, 110, 32, 116, 104, 101]);
        assert_eq!((request.tokens, request.top_k, request.seed), (4, Some(5), 9));
        assert_eq!((request.temperature, request.weights), (1.0, SampleWeights::Last));
        assert_eq!(request.model, job(gpt2()).spec.model);
    }

    #[test]
    fn a_job_or_a_flag_that_does_not_do_is_refused_by_name() {
        let refusal =
            |model, args: SampleArgs| request(&job(model), &args).unwrap_err().to_string();
        let mlp = json!({ "arch": "mlp", "inputs": 64, "classes": 10 });
        assert_eq!(
            refusal(mlp, args()),
            "text-gpt has model.arch mlp, expected gpt2: only a language model goes on with a text"
        );
        assert_eq!(
            refusal(gpt2(), SampleArgs { ema: true, ..args() }),
            "--ema: text-gpt keeps no running mean of its weights, expected a job with train.ema"
        );
        let found = refusal(gpt2(), SampleArgs { prompt: "123456789".to_owned(), ..args() });
        assert_eq!(found, "--prompt has 9 characters, expected at most 8 (model.n_positions)");
    }

    /// A child that answers the request with those lines and ends with that status.
    fn child(folder: &tempfile::TempDir, lines: &[SampleEvent], status: u8) -> Utf8PathBuf {
        use std::os::unix::fs::PermissionsExt as _;
        let path = Utf8PathBuf::try_from(folder.path().join("child")).unwrap();
        let lines: Vec<String> =
            lines.iter().map(|line| format!("echo '{}'\n", json!(line))).collect();
        let script = format!("#!/bin/sh\n{}exit {status}\n", lines.concat());
        std::fs::write(&path, script).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).unwrap();
        path
    }

    #[tokio::test]
    async fn what_the_child_says_is_the_text_or_the_error() {
        let folder = tempfile::tempdir().unwrap();
        let request = request(&job(gpt2()), &SampleArgs { tokens: 2, ..args() }).unwrap();
        let tokens = [72, 105].map(|id| SampleEvent::Token { id });
        let program = child(&folder, &tokens, 0);
        let out = Out::new(true);
        assert_eq!(show(&program, &request, "", out).await.unwrap(), [72, 105]);
        let error = async |lines: &[SampleEvent], status| {
            show(&child(&folder, lines, status), &request, "", out).await.unwrap_err()
        };
        let failed = SampleEvent::Failed { message: "the model has diverged".to_owned() };
        assert_eq!(error(&[failed], 0).await.to_string(), "the model has diverged");
        let errors = vec![FieldError::new("tokens", "0, expected 1 to 100000")];
        let refused = error(&[SampleEvent::Refused { errors }], 0).await;
        assert!(matches!(refused.downcast_ref(), Some(Failure::Usage(_))), "{refused}");
        let early = error(&tokens[..1], 0).await.to_string();
        assert_eq!(early, "lockstep-rank ended with exit status: 0 after 1 of 2 tokens");
        let broken = error(&tokens, 3).await.to_string();
        assert_eq!(broken, "lockstep-rank ended with exit status: 3 after 2 of 2 tokens");
    }
}
