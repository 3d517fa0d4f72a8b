//! Looks after attempts and the queue, without input: lets time pass over attempts, and places what can be placed.

use std::collections::{BTreeMap, BTreeSet};

use chrono::TimeDelta;
use lockstep_api::{AttemptId, AttemptState, JobEventKind, NodeId, OrganisationId};
use lockstep_core::{
    Coming, Decision, Event, JobEffect, JobEvent, Pass, Placed, Request, expect_preempted,
    is_nearly_done, schedule_beside,
};

use crate::app::App;
use crate::attempts::drive::{Drive, lease_terms};
use crate::attempts::offers::{Offers, offers};
use crate::attempts::preempt::preempt_gangs;
use crate::attempts::slots::{grow_gangs, reclaim_ranks, refill_ranks, step};
use crate::attempts::store::{self, AtWork, ElasticAttempt, NewAttempt};
use crate::checkpoints;
use crate::jobs::store::lifecycle::{self, QueuedJob};
use crate::nodes::store as nodes;
use crate::problem::Problem;
use crate::progress;
use crate::reconcile::{INTERVAL, Soon};

/// Lets time pass over attempts: leases, the grace of a stop, symptoms without a cause.
pub(crate) async fn tick(app: &App) -> Result<Soon, Problem> {
    let mut tx = app.db.system().await?;
    let unfinished = store::unfinished(&mut tx).await?;
    let ids: Vec<AttemptId> = unfinished.iter().map(|attempt| attempt.id).collect();
    let suspects = progress::store::suspects(&mut tx, &ids).await?;
    tx.rollback().await?;
    let now = app.clock.now();
    for attempt in unfinished {
        let is_due = matches!(attempt.state, AttemptState::Stopping | AttemptState::Recovering)
            || attempt.lease_expires_at <= now
            || attempt.rendezvous_by.is_some_and(|by| by <= now)
            || suspects.contains_key(&attempt.id);
        if is_due {
            let done = step(app, (attempt.id, attempt.job_id), vec![], Event::Tick).await;
            tell_of_trouble(attempt.id, done);
        }
    }
    Ok(if suspects.is_empty() { Soon::No } else { Soon::Yes })
}

/// One attempt that cannot be looked after must not keep the others from it.
fn tell_of_trouble(attempt: AttemptId, done: Result<(), Problem>) {
    if let Err(problem) = done {
        tracing::error!(attempt.id = %attempt, %problem, "an attempt cannot be looked after");
    }
}

/// Who wants slots of one organisation's nodes.
#[derive(Debug, Default)]
struct Wants {
    /// That wait, the highest priority first, of equals the oldest.
    jobs: Vec<QueuedJob>,
    /// At work and may change their size, the oldest first.
    gangs: Vec<ElasticAttempt>,
    /// All that are at work, if any job waits.
    at_work: Vec<AtWork>,
}

/// Finds places: first for ranks whose processes were lost, then for queued jobs in their order, then for gangs that can
/// grow. Says of the jobs that wait why they do, and has ranks reclaimed, or gangs give way, for the first of them that it helps.
pub(crate) async fn place(app: &App) -> Result<Soon, Problem> {
    let now = app.clock.now();
    let mut tx = app.db.system().await?;
    let vacant = store::with_vacancies(&mut tx).await?;
    let queue = lifecycle::queue(&mut tx, now).await?;
    let soon = match lifecycle::is_due_by(&mut tx, now, now + INTERVAL).await? {
        true => Soon::Yes,
        false => Soon::No,
    };
    tx.rollback().await?;
    for attempt in vacant {
        tell_of_trouble(attempt.id, refill_ranks(app, &attempt).await);
    }
    let mut tx = app.db.system().await?;
    let mut elastic = store::elastic(&mut tx).await?;
    elastic.retain(|gang| !is_nearly_done(gang.course, now - gang.began_at));
    if queue.is_empty() && elastic.is_empty() {
        return Ok(soon);
    }
    // Read before the slots: one that ends meanwhile is among those that come, not among those that nobody has.
    let at_work = match queue.is_empty() {
        true => Vec::new(),
        false => store::all_at_work(&mut tx).await?,
    };
    let mut offers = offers(app, &mut tx).await?;
    let coming = store::coming_slots(&mut tx).await?;
    tx.rollback().await?;
    let mut organisations: BTreeMap<OrganisationId, Wants> = BTreeMap::new();
    for job in queue {
        organisations.entry(job.organisation_id).or_default().jobs.push(job);
    }
    for gang in elastic {
        organisations.entry(gang.organisation_id).or_default().gangs.push(gang);
    }
    for gang in at_work {
        organisations.entry(gang.organisation_id).or_default().at_work.push(gang);
    }
    for (organisation, wants) in organisations {
        let nodes = offers.remove(&organisation).unwrap_or_default();
        if let Err(problem) = serve(app, &wants, &nodes, &coming).await {
            tracing::error!(organisation.id = %organisation, %problem, "the queue of an organisation cannot be served");
        }
    }
    Ok(soon)
}

/// One pass over the queue of one organisation.
async fn serve(app: &App, wants: &Wants, nodes: &Offers, coming: &Coming) -> Result<(), Problem> {
    let Wants { jobs, gangs, at_work } = wants;
    let requests: Vec<Request> = jobs.iter().map(|job| job.request.clone()).collect();
    let Pass { mut decisions, mut spare } = schedule_beside(&requests, &nodes.open, &nodes.closed);
    expect_preempted(&requests, &nodes.open, coming, &mut decisions);
    let is_placing = decisions.iter().any(|it| matches!(it, Decision::Placed(_)));
    let mut waiting = Vec::new();
    for ((place, job), decision) in jobs.iter().enumerate().zip(decisions) {
        match decision {
            Decision::Placed(places) => begin(app, job, &places).await?,
            Decision::Waits(reason) => {
                explain(app, job, &reason.to_string()).await?;
                waiting.extend(reason.is_for_free_slots().then_some(place));
            }
        }
    }
    grow_gangs(app, gangs, &mut spare).await?;
    if is_placing {
        // What this pass places is not in these offers: the next one asks.
        return Ok(());
    }
    for place in waiting {
        let queue = &requests[..=place];
        if reclaim_ranks(app, queue, &nodes.open, &coming.slots, gangs).await?
            || preempt_gangs(app, (queue, &jobs[place]), &nodes.open, coming, at_work).await?
        {
            break;
        }
    }
    Ok(())
}

/// Begins an attempt, unless the job or a slot was taken meanwhile: then the next pass decides anew.
async fn begin(app: &App, job: &QueuedJob, places: &[Placed]) -> Result<(), Problem> {
    let mut tx = app.db.system().await?;
    let mut drive = Drive::lock(app, &mut tx, &[job.id], &[], &[]).await?;
    let effects = match drive.step_job(job.id, JobEvent::Placed) {
        Ok(effects) => effects,
        Err(problem) => {
            tracing::debug!(job.id = %job.id, %problem, "a job left the queue while it was being placed");
            return Ok(());
        }
    };
    let Some(locked) = drive.job(job.id).filter(|_| effects.contains(&JobEffect::BeginAttempt))
    else {
        return Ok(());
    };
    let nodes: BTreeSet<NodeId> = places.iter().map(|place| place.node).collect();
    let resume = checkpoints::store::newest(&mut tx, job.id).await?;
    let key = app.random.bytes::<32>().map(|byte| format!("{byte:02x}")).concat();
    let id = app.new_id(AttemptId::new);
    let now = drive.now();
    let spans_memories = places.iter().any(|place| 0 < place.memory_index);
    let formation =
        TimeDelta::from_std(locked.timeouts().formation()).map_err(Problem::internal)?;
    let attempt = NewAttempt {
        id,
        project_id: locked.project_id,
        job_id: job.id,
        generation: locked.core.generation,
        attempt_key: &key,
        resume,
        lease_expires_at: lease_terms(&app.settings)?.expiry(now),
        rendezvous_by: spans_memories.then_some(now + formation),
        places,
    };
    let generation = attempt.generation;
    match store::insert(&mut tx, attempt, now).await {
        Ok(()) => {}
        Err(error) if store::is_slot_taken(&error) => {
            tracing::debug!(job.id = %job.id, "a slot was taken while the job was being placed");
            return Ok(());
        }
        Err(error) => return Err(error.into()),
    }
    nodes::lock(&mut tx, &nodes.iter().copied().collect::<Vec<_>>()).await?;
    drive.reassign(nodes);
    let announcement = drive.finish(&mut tx).await?;
    tx.commit().await?;
    announcement.send(&app.wakeup);
    tracing::info!(job.id = %job.id, attempt.id = %id, attempt.generation = %generation, "job placed");
    Ok(())
}

async fn explain(app: &App, job: &QueuedJob, reason: &str) -> Result<(), Problem> {
    if job.waiting.as_deref() == Some(reason) {
        return Ok(());
    }
    let mut tx = app.db.system().await?;
    if let Some(project) = lifecycle::set_waiting(&mut tx, job.id, reason).await? {
        let kinds = [JobEventKind::State];
        progress::store::append_events(&mut tx, project, job.id, &kinds, app.clock.now()).await?;
        tx.commit().await?;
        app.wakeup.job_event(job.id);
    }
    Ok(())
}
