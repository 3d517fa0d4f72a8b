//! `submit` and `run`.

use lockstep_api::JobView;
use lockstep_client::Client;
use rand::TryRngCore as _;
use rand::rngs::OsRng;

use crate::args::{Global, SubmitArgs};
use crate::failure::Failure;
use crate::follow::{Followed, follow};
use crate::job_file;
use crate::out::{Out, number};
use crate::settings::{client, job_page};
use crate::upload::upload;

/// Uploads and queues a job; prints its id.
pub(crate) async fn submit(global: &Global, args: SubmitArgs, out: Out) -> anyhow::Result<()> {
    let client = client(global)?;
    let job = send(&client, &args, out).await?;
    out.data(&job, |job| job.summary.id.to_string())
}

/// Submits a job, follows it, prints its final metrics. The job's failure is ours.
pub(crate) async fn run(global: &Global, args: SubmitArgs, out: Out) -> anyhow::Result<()> {
    let client = client(global)?;
    let job = send(&client, &args, out).await?;
    let id = job.summary.id;
    let job = match follow(&client, id, out).await? {
        Followed::Ended(job) => job,
        Followed::Interrupted => {
            return Err(Failure::Interrupted(format!(
                "detached; the job goes on. `lockstep logs -f {id}` shows it, `lockstep cancel {id}` ends it"
            ))
            .into());
        }
    };
    out.data(job.as_ref(), final_metrics)?;
    verdict(&job)
}

fn final_metrics(job: &JobView) -> String {
    let lines = job.metrics.iter().map(|(name, value)| format!("{name} {}\n", number(*value)));
    lines.collect()
}

/// An error unless the job succeeded.
fn verdict(job: &JobView) -> anyhow::Result<()> {
    use lockstep_api::JobState as S;
    let name = &job.summary.name;
    match job.summary.state {
        S::Succeeded => Ok(()),
        S::Cancelled => Err(Failure::JobFailed(format!("{name} was cancelled")).into()),
        S::Queued | S::Active | S::Paused | S::Cancelling | S::Failed => {
            let reason = job.failures.first().map_or("no verdict was stored", |it| &it.message);
            let because = job.summary.ended_because.iter().map(|it| format!(" ({it})"));
            let because: String = because.collect();
            Err(Failure::JobFailed(format!("{name} failed: {reason}{because}")).into())
        }
    }
}

/// Reads, uploads, submits.
async fn send(client: &Client, args: &SubmitArgs, out: Out) -> anyhow::Result<JobView> {
    let file = job_file::read(args)?;
    let spec = upload(client, file, out).await?;
    let key = match &args.idempotency_key {
        Some(key) => key.clone(),
        None => random_key()?,
    };
    let job = client.submit(&spec, &key).await?;
    out.note(&format!("submitted {} {}", job.summary.name, job_page(client, job.summary.id)));
    Ok(job)
}

/// So that a request that is sent again after a broken connection does not make a second job.
fn random_key() -> anyhow::Result<String> {
    let mut bytes = [0; 16];
    OsRng.try_fill_bytes(&mut bytes)?;
    Ok(format!("cli-{:032x}", u128::from_be_bytes(bytes)))
}
