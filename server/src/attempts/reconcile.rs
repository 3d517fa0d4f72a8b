//! Looks after attempts and the queue, without input: lets time pass over attempts, and places what can be placed.

use std::collections::{BTreeMap, BTreeSet};

use chrono::TimeDelta;
use lockstep_api::{
    AttemptId, AttemptState, DeviceKind, JobEventKind, NodeId, NodeQuarantine, OrganisationId,
};
use lockstep_core::{
    Closed, ClosedNode, Decision, Event, JobEffect, JobEvent, NodeOffer, Pass, Placed, Request,
    SlotOffer, schedule_beside,
};
use sqlx::PgConnection;

use crate::app::App;
use crate::attempts::drive::{Drive, lease_terms};
use crate::attempts::resize::{lend, refill_ranks, take_back};
use crate::attempts::store::{self, Elastic, NewAttempt};
use crate::checkpoints;
use crate::jobs::store::lifecycle::{self, QueuedJob};
use crate::nodes::inventory::Slot;
use crate::nodes::quarantine;
use crate::nodes::store::{self as nodes, Node};
use crate::problem::Problem;
use crate::progress;
use crate::reconcile::{INTERVAL, Soon};

/// The index that refuses a slot to a second rank.
pub(crate) const SLOT_IS_TAKEN: &str = "group_member_holds_its_slot_alone";

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
            let mut tx = app.db.system().await?;
            let mut drive =
                Drive::lock(app, &mut tx, &[attempt.job_id], &[attempt.id], &[]).await?;
            let _refused = drive.step(&mut tx, attempt.id, Event::Tick).await?;
            let announcement = drive.finish(&mut tx).await?;
            tx.commit().await?;
            announcement.send(&app.wakeup);
        }
    }
    Ok(if suspects.is_empty() { Soon::No } else { Soon::Yes })
}

/// Finds places: first for ranks whose processes were lost, then for queued jobs, first come first served, then for gangs that can
/// grow. Says of the jobs that wait why they do, and takes back for the first of them what is lent.
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
        refill_ranks(app, attempt).await?;
    }
    let mut tx = app.db.system().await?;
    let elastic = store::elastic(&mut tx).await?;
    if queue.is_empty() && elastic.is_empty() {
        return Ok(soon);
    }
    let mut offers = offers(app, &mut tx).await?;
    let coming = store::coming_slots(&mut tx).await?;
    tx.rollback().await?;
    let mut sides: BTreeMap<OrganisationId, (Vec<QueuedJob>, Vec<Elastic>)> = BTreeMap::new();
    for job in queue {
        sides.entry(job.organisation_id).or_default().0.push(job);
    }
    for gang in elastic {
        sides.entry(gang.organisation_id).or_default().1.push(gang);
    }
    for (organisation, (jobs, gangs)) in sides {
        let requests: Vec<Request> = jobs.iter().map(|job| job.request.clone()).collect();
        let nodes = offers.remove(&organisation).unwrap_or_default();
        let Pass { decisions, mut spare } = schedule_beside(&requests, &nodes.open, &nodes.closed);
        let is_placing = decisions.iter().any(|it| matches!(it, Decision::Placed(_)));
        let mut waiting = None;
        for (job, decision) in jobs.iter().zip(decisions) {
            match decision {
                Decision::Placed(places) => begin(app, job, &places).await?,
                Decision::Waits(reason) => {
                    explain(app, job, &reason.to_string()).await?;
                    waiting = waiting.or(reason.is_for_free_slots().then_some(&job.request));
                }
            }
        }
        lend(app, &gangs, &mut spare).await?;
        if let (Some(request), false) = (waiting, is_placing) {
            take_back(app, request, &nodes.open, &coming, &gangs).await?;
        }
    }
    Ok(soon)
}

/// What nodes offer that live.
#[derive(Debug, Default)]
pub(crate) struct Offers {
    /// Those that take work.
    pub(crate) open: Vec<NodeOffer>,
    /// Those that take none.
    closed: Vec<ClosedNode>,
}

/// What nodes offer, by their organisation.
pub(crate) async fn offers(
    app: &App,
    db: &mut PgConnection,
) -> Result<BTreeMap<OrganisationId, Offers>, Problem> {
    let terms = lease_terms(&app.settings)?;
    let now = app.clock.now();
    let nodes = nodes::list(&mut *db, None).await?;
    let held = store::held_slots(&mut *db).await?;
    let mut standings = quarantine::standings(db, None, now).await?;
    let mut offers: BTreeMap<OrganisationId, Offers> = BTreeMap::new();
    for node in nodes.into_iter().filter(|node| node.is_live(terms, now)) {
        let standing = standings.remove(&node.id).unwrap_or_default();
        let all = offers.entry(node.organisation_id).or_default();
        let is_draining = node.drain_requested_at.is_some();
        let offer = offer(node, &held, standing.is_avoided());
        let why = match (is_draining, standing.quarantine) {
            (true, _) => Closed::Draining,
            (false, Some(NodeQuarantine { until, reason, count: _ })) => {
                Closed::Quarantined { until, reason }
            }
            (false, None) => {
                all.open.push(offer);
                continue;
            }
        };
        all.closed.push(ClosedNode { offer, why });
    }
    Ok(offers)
}

fn offer(node: Node, held: &BTreeSet<(NodeId, DeviceKind, i32)>, is_avoided: bool) -> NodeOffer {
    let count = |stored: i32| u32::try_from(stored).unwrap_or(0);
    let slot = |slot: Slot| SlotOffer {
        device: slot.device,
        index: slot.index,
        cores: count(slot.cores),
        memory_mib: count(slot.memory_mib),
        is_held: held.contains(&(node.id, slot.device, slot.index)),
    };
    let slots = node.slots.into_iter().map(slot).collect();
    NodeOffer { node: node.id, name: node.name, is_avoided, slots }
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
        Err(sqlx::Error::Database(error)) if error.constraint() == Some(SLOT_IS_TAKEN) => {
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
