//! What is shown of jobs, put together from the nouns that know.

use std::collections::HashMap;

use lockstep_api::{JobId, JobSummary, JobView, ProjectId, Step};
use sqlx::PgConnection;

use super::store;
use crate::{attempts, checkpoints, progress};

/// One job of the project in full.
pub(crate) async fn view(
    db: &mut PgConnection,
    project: ProjectId,
    id: JobId,
) -> sqlx::Result<Option<JobView>> {
    let Some(job) = store::find(db, project, id).await? else { return Ok(None) };
    let (spec, generation) = (job.spec.0.clone(), job.generation);
    let mut summaries = summaries(db, vec![job]).await?;
    let Some(summary) = summaries.pop() else { return Ok(None) };
    Ok(Some(JobView {
        summary,
        timeouts: spec.timeouts.effective().into(),
        spec,
        generation,
        attempts: attempts::store::views(db, id).await?,
        failures: progress::store::verdicts(db, id).await?,
        checkpoints: checkpoints::store::views(db, id).await?,
        metrics: progress::store::latest_values(db, id).await?,
    }))
}

/// What a list shows, in the order given.
pub(crate) async fn summaries(
    db: &mut PgConnection,
    jobs: Vec<store::Job>,
) -> sqlx::Result<Vec<JobSummary>> {
    let ids: Vec<JobId> = jobs.iter().map(|job| job.id).collect();
    let steps_done = attempts::store::steps_done(db, &ids).await?;
    let losses = progress::store::latest_losses(db, &ids).await?;
    Ok(jobs.into_iter().map(|job| summary(job, &steps_done, &losses)).collect())
}

fn summary(
    job: store::Job,
    steps_done: &HashMap<JobId, Step>,
    losses: &HashMap<JobId, f64>,
) -> JobSummary {
    let store::Job {
        id,
        principal_id: _,
        name,
        state,
        spec: _,
        generation: _,
        waiting,
        ranks,
        steps_total,
        created_at,
        ended_at,
    } = job;
    JobSummary {
        id,
        name,
        state,
        waiting,
        ranks: ranks.unsigned_abs(),
        steps_done: steps_done.get(&id).copied().unwrap_or_default(),
        steps_total: Some(Step(steps_total)),
        loss: losses.get(&id).copied(),
        created_at,
        ended_at,
    }
}
