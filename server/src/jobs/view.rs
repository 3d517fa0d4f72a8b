//! What is shown of jobs, put together from the nouns that know.

use chrono::{DateTime, Utc};
use lockstep_api::{
    AttemptId, AttemptOutcome, AttemptView, FaultView, Generation, JobId, JobSpec, JobSummary,
    JobView, ProjectId, Step,
};
use sqlx::PgConnection;

use super::store;
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
        faults: faults(db, id, &spec, &attempts).await?,
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

/// The faults that the job asked for, and what became of them.
async fn faults(
    db: &mut PgConnection,
    id: JobId,
    spec: &JobSpec,
    attempts: &[AttemptView],
) -> sqlx::Result<Vec<FaultView>> {
    if spec.chaos.is_empty() {
        return Ok(vec![]);
    }
    let injected = progress::store::faults(db, id).await?;
    let views = (0..).zip(&spec.chaos).map(|(index, fault)| {
        let found = injected.iter().find(|it| it.index == index);
        let after = |at: DateTime<Utc>| found.map(|it| (at - it.injected_at).as_seconds_f64());
        let course = found.map(|it| course(attempts, it.attempt_id, it.generation));
        let Course { named_at, repaired_at, steps_lost } = course.unwrap_or_default();
        FaultView {
            fault: *fault,
            injected_at: found.map(|it| it.injected_at),
            verdict: found.and_then(|it| it.verdict),
            named_rank: found.and_then(|it| it.rank),
            detected_after: found.and_then(|it| it.detected_at).and_then(after),
            named_after: named_at.and_then(after),
            repaired_after: repaired_at.and_then(after),
            steps_lost,
        }
    });
    Ok(views.collect())
}

/// What came after a group in which something happened.
#[derive(Default)]
struct Course {
    named_at: Option<DateTime<Utc>>,
    repaired_at: Option<DateTime<Utc>>,
    steps_lost: Option<i64>,
}

/// `attempts`: newest first.
fn course(attempts: &[AttemptView], id: AttemptId, generation: Generation) -> Course {
    let Some(place) = attempts.iter().position(|it| it.id == id) else { return Course::default() };
    let attempt = &attempts[place];
    if let Some(next) = attempt.groups.iter().find(|it| generation < it.generation) {
        let (named_at, repaired_at) = (Some(next.began_at), next.first_step_at);
        return Course { named_at, repaired_at, steps_lost: repaired_at.map(|_| 0) };
    }
    let next = place.checked_sub(1).map(|newer| &attempts[newer]);
    let repaired_at = next.and_then(|next| next.first_step_at);
    let lost = next.map(|next| (attempt.steps_done.0 - next.first_step.0).max(0));
    Course {
        named_at: attempt.ended_at.filter(|_| attempt.outcome != Some(AttemptOutcome::Succeeded)),
        repaired_at,
        steps_lost: lost.filter(|_| repaired_at.is_some()),
    }
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
