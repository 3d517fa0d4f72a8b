//! What is shown of jobs, put together from the nouns that know.

use lockstep_api::{JobId, JobSummary, JobView, ProjectId, Step};
use sqlx::PgConnection;

use super::{faults, store};
use crate::attempts::store::Newest;
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
    let attempts = attempts::store::views(db, id).await?;
    let failures = progress::store::verdicts(db, id).await?;
    Ok(Some(JobView {
        faults: faults::views(db, id, &spec, (&attempts, &failures)).await?,
        summary,
        timeouts: spec.timeouts.effective().into(),
        spec,
        generation,
        attempts,
        failures,
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
    let newest = attempts::store::newest(db, &ids).await?;
    let attempts = newest.iter().map(|(job, newest)| (*job, newest.attempt_id));
    let losses = progress::store::latest_losses(db, attempts).await?;
    let summary = |job: store::Job| {
        let (newest, loss) = (newest.get(&job.id), losses.get(&job.id));
        summary(job, newest, loss.copied())
    };
    Ok(jobs.into_iter().map(summary).collect())
}

fn summary(job: store::Job, newest: Option<&Newest>, loss: Option<f64>) -> JobSummary {
    let store::Job {
        id,
        principal_id: _,
        name,
        state,
        spec,
        generation: _,
        waiting,
        ended_because,
        steps_total,
        created_at,
        ended_at,
    } = job;
    JobSummary {
        id,
        name,
        state,
        waiting,
        ended_because,
        priority: spec.0.priority,
        ranks: spec.0.gang.ranks,
        world_size: newest.and_then(|it| it.world_size),
        steps_done: newest.map_or_else(Step::default, |it| it.steps_done),
        steps_total: Some(Step(steps_total)),
        loss,
        created_at,
        ended_at,
    }
}
