//! From what people type to a job.

use lockstep_api::{JobId, JobView, ListJobs};
use lockstep_client::Client;

use crate::failure::Failure;

/// How many of the newest jobs are searched for a name.
pub(crate) const SEARCH_CAP: usize = 200;

/// The id of the job that `text` means: an id, or the name of a job (the newest of that name).
pub(crate) async fn job_id(client: &Client, text: &str) -> anyhow::Result<JobId> {
    if let Ok(id) = text.parse() {
        return Ok(id);
    }
    let jobs = client.list_jobs_up_to(&ListJobs::default(), SEARCH_CAP).await?;
    jobs.into_iter().find(|job| job.name == text).map(|job| job.id).ok_or_else(|| {
        let text = format!(
            "no job has the id or name {text:?} (names are looked up among the newest {SEARCH_CAP})"
        );
        Failure::NotFound(text).into()
    })
}

/// The job that `text` means.
pub(crate) async fn job(client: &Client, text: &str) -> anyhow::Result<JobView> {
    Ok(client.job(job_id(client, text).await?).await?)
}
