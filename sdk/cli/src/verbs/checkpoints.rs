//! `checkpoint …`

use anyhow::Context as _;
use camino::Utf8PathBuf;
use lockstep_api::{CheckpointId, CheckpointView, JobView, ListJobs, ProblemCode};
use lockstep_client::{Client, ClientError};
use serde::Serialize;

use crate::args::{CheckpointVerb, DownloadArgs, Global, JobArgs, PinArgs};
use crate::failure::{Failure, there_already};
use crate::out::{Out, bytes, table};
use crate::settings::client;
use crate::verbs::find;
use crate::verbs::jobs::time;
use crate::verbs::model_file::{Weights, keep_model};

/// How many of the newest jobs are searched for a checkpoint's id.
const SEARCH_CAP: usize = 50;

/// What `checkpoint download --json` prints.
#[derive(Debug, Serialize)]
struct Fetched {
    path: Utf8PathBuf,
    checkpoint: CheckpointView,
}

/// Runs one of them.
pub(crate) async fn run(global: &Global, verb: CheckpointVerb, out: Out) -> anyhow::Result<()> {
    let client = client(global)?;
    match verb {
        CheckpointVerb::List(args) => list(&client, &args, out).await,
        CheckpointVerb::Download(args) => download(&client, &args, out).await,
        CheckpointVerb::Pin(args) => pin(&client, &args, out).await,
        CheckpointVerb::Unpin(args) => unpin(&client, &args, out).await,
    }
}

async fn list(client: &Client, args: &JobArgs, out: Out) -> anyhow::Result<()> {
    let job = find::job(client, &args.job).await?;
    out.data(&job.checkpoints, |checkpoints| {
        let mut rows = table(&["ID", "STEP", "SIZE", "WRITTEN", "PINNED"]);
        for checkpoint in checkpoints {
            rows.add_row([
                checkpoint.id.to_string(),
                checkpoint.step.to_string(),
                bytes(checkpoint.size_bytes),
                time(checkpoint.created_at),
                if checkpoint.is_pinned { "yes" } else { "" }.to_owned(),
            ]);
        }
        rows.trim_fmt()
    })
}

async fn download(client: &Client, args: &DownloadArgs, out: Out) -> anyhow::Result<()> {
    let (job, checkpoint) = find_checkpoint(client, &args.of, args.step).await?;
    let path = match &args.output {
        Some(path) => path.clone(),
        None => format!("{}-{}.safetensors", file_name(&job.summary.name), checkpoint.step).into(),
    };
    if !args.force && path.exists() {
        return Err(there_already(&path).into());
    }
    let size = bytes(checkpoint.size_bytes);
    let whole = if args.model { format!("{path}.whole").into() } else { path.clone() };
    let spinner = out.spinner(format!("fetching {path} ({size})"));
    let fetched = client.download_checkpoint(&checkpoint, &whole).await;
    spinner.finish_and_clear();
    fetched?;
    if args.model {
        let weights = if args.ema { Weights::Ema } else { Weights::Last };
        let kept = keep_model(&whole, &path, weights);
        std::fs::remove_file(&whole).with_context(|| format!("removing {whole}"))?;
        kept?;
    }
    out.note(&format!("step {} of {}, {size}, verified", checkpoint.step, job.summary.name));
    out.data(&Fetched { path, checkpoint }, |fetched| fetched.path.to_string())
}

async fn pin(client: &Client, args: &PinArgs, out: Out) -> anyhow::Result<()> {
    let (job, checkpoint) = find_checkpoint(client, &args.of, args.step).await?;
    let pinned = client.pin_checkpoint(checkpoint.id).await?;
    out.note(&format!("step {} of {} is pinned", pinned.step, job.summary.name));
    out.data(&pinned, |pinned| pinned.id.to_string())
}

/// What `checkpoint unpin --json` prints.
#[derive(Debug, Serialize)]
struct Unpinned {
    id: CheckpointId,
    /// Whether the job keeps it by itself.
    is_kept: bool,
}

async fn unpin(client: &Client, args: &PinArgs, out: Out) -> anyhow::Result<()> {
    let (job, checkpoint) = find_checkpoint(client, &args.of, args.step).await?;
    let CheckpointView { id, step, .. } = checkpoint;
    client.unpin_checkpoint(id).await?;
    let is_kept = client.job(job.summary.id).await?.checkpoints.iter().any(|it| it.id == id);
    let then = if is_kept { "the job keeps it by itself" } else { "nothing keeps it: it is gone" };
    out.note(&format!("step {step} of {} is not pinned; {then}", job.summary.name));
    out.data(&Unpinned { id, is_kept }, |it| it.id.to_string())
}

/// By job (its newest, or that of `--step`), else by the checkpoint's own id among the newest jobs.
async fn find_checkpoint(
    client: &Client,
    of: &str,
    step: Option<i64>,
) -> anyhow::Result<(JobView, CheckpointView)> {
    match find::job(client, of).await {
        Ok(job) => of_job(job, step),
        Err(error) if is_not_found(&error) => match of.parse::<CheckpointId>() {
            Ok(id) => by_id(client, id).await,
            Err(_) => Err(error),
        },
        Err(error) => Err(error),
    }
}

fn is_not_found(error: &anyhow::Error) -> bool {
    let by_server = error.downcast_ref::<ClientError>().and_then(ClientError::code);
    by_server == Some(ProblemCode::NotFound)
        || matches!(error.downcast_ref(), Some(Failure::NotFound(_)))
}

/// The job's newest checkpoint, or that of a step.
pub(crate) fn of_job(job: JobView, step: Option<i64>) -> anyhow::Result<(JobView, CheckpointView)> {
    let found =
        job.checkpoints.iter().find(|it| step.is_none_or(|step| it.step.0 == step)).cloned();
    match found {
        Some(checkpoint) => Ok((job, checkpoint)),
        None => {
            let which = step.map_or_else(String::new, |step| format!(" after step {step}"));
            let kept: Vec<String> = job.checkpoints.iter().map(|it| it.step.to_string()).collect();
            let kept = match kept.is_empty() {
                true => String::new(),
                false => format!(", only after {}", kept.join(", ")),
            };
            let text = format!("{} has no checkpoint{which}{kept}", job.summary.name);
            Err(Failure::NotFound(text).into())
        }
    }
}

async fn by_id(client: &Client, id: CheckpointId) -> anyhow::Result<(JobView, CheckpointView)> {
    for summary in client.list_jobs_up_to(&ListJobs::default(), SEARCH_CAP).await? {
        let job = client.job(summary.id).await?;
        if let Some(checkpoint) = job.checkpoints.iter().find(|it| it.id == id).cloned() {
            return Ok((job, checkpoint));
        }
    }
    let text =
        format!("no job and none of the newest {SEARCH_CAP} jobs' checkpoints has the id {id}");
    Err(Failure::NotFound(text).into())
}

/// A job's name may hold anything; a file's may not.
fn file_name(name: &str) -> String {
    let plain = |c: char| if c.is_alphanumeric() || matches!(c, '-' | '_' | '.') { c } else { '-' };
    name.trim_start_matches('.').chars().map(plain).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_s_name_never_leads_out_of_the_folder() {
        assert_eq!(file_name("digits-mlp"), "digits-mlp");
        assert_eq!(file_name("../../etc/passwd"), "-..-etc-passwd");
        assert_eq!(file_name(".hidden job"), "hidden-job");
    }
}
