//! Slots for attempts at work: in the place of those that were lost, for gangs that can grow, and from gangs for jobs
//! that wait.

use std::collections::BTreeSet;

use lockstep_api::{AttemptId, JobId, NodeId};
use lockstep_core::{
    Event, Growing, NodeOffer, Reclaimable, Refill, Request, SlotKey, grow, reclaim, refill,
};

use crate::app::App;
use crate::attempts::drive::Drive;
use crate::attempts::offers::offers;
use crate::attempts::store::{self, ElasticAttempt, Vacancies};
use crate::problem::Problem;

/// Gives slots to the ranks of an attempt whose processes were lost, if there are enough for it to go on.
pub(crate) async fn refill_ranks(app: &App, attempt: &Vacancies) -> Result<(), Problem> {
    let mut tx = app.db.system().await?;
    let offers = offers(app, &mut tx).await?.remove(&attempt.organisation_id);
    tx.rollback().await?;
    let slot = (&attempt.slot, attempt.transport);
    let nodes = offers.unwrap_or_default().open;
    let places = refill(&attempt.vacant, slot, &nodes);
    // Whether an elastic gang can go on with fewer ranks is for the core to say.
    if places.len() == attempt.vacant.len() || attempt.rank_count.is_elastic() {
        step(app, (attempt.id, attempt.job_id), nodes_of(&places), Event::Refilled(places)).await?;
    }
    Ok(())
}

/// Gives slots that the queue has no use for to gangs that can grow, the oldest first.
pub(crate) async fn grow_gangs(
    app: &App,
    gangs: &[ElasticAttempt],
    spare: &mut [NodeOffer],
) -> Result<(), Problem> {
    for gang in gangs {
        let ElasticAttempt { id, job_id, rank_count, slot, transport, .. } = gang;
        let nodes = gang.slots.iter().map(|it| it.node).collect();
        let growing =
            Growing { nodes, ranks: *rank_count, slot: slot.clone(), transport: *transport };
        let places = grow(&growing, spare);
        if !places.is_empty() {
            step(app, (*id, *job_id), nodes_of(&places), Event::Grown(places)).await?;
        }
    }
    Ok(())
}

/// Takes from gangs what the last job of a queue needs, which waits for slots. Says whether that helps it.
pub(crate) async fn reclaim_ranks(
    app: &App,
    queue: &[Request],
    nodes: &[NodeOffer],
    coming: &BTreeSet<SlotKey>,
    gangs: &[ElasticAttempt],
) -> Result<bool, Problem> {
    let candidate = |it: &ElasticAttempt| Reclaimable {
        attempt: it.id,
        ranks: it.rank_count,
        slots: it.slots.clone(),
    };
    let candidates: Vec<Reclaimable> = gangs.iter().map(candidate).collect();
    let mut asked = reclaim(queue, nodes, coming, &candidates);
    let helps = !asked.is_empty();
    for gang in gangs {
        if let Some(ranks) = asked.remove(&gang.id) {
            step(app, (gang.id, gang.job_id), vec![], Event::Reclaimed(ranks)).await?;
        }
    }
    Ok(helps)
}

fn nodes_of(places: &[Refill]) -> Vec<NodeId> {
    places.iter().map(|place| place.node).collect()
}

/// One step with an attempt, unless a slot that it needs was taken meanwhile: then the next pass decides anew.
pub(crate) async fn step(
    app: &App,
    (attempt, job): (AttemptId, JobId),
    also: Vec<NodeId>,
    event: Event,
) -> Result<(), Problem> {
    let mut tx = app.db.system().await?;
    let mut drive = Drive::lock(app, &mut tx, &[job], &[attempt], &also).await?;
    match drive.step(&mut tx, attempt, event).await {
        Ok(_refused) => {}
        Err(Problem::Database(error)) if store::is_slot_taken(&error) => {
            tracing::debug!(attempt.id = %attempt, "a slot was taken while an attempt was being seated");
            return Ok(());
        }
        Err(problem) => return Err(problem),
    }
    let announcement = drive.finish(&mut tx).await?;
    tx.commit().await?;
    announcement.send(&app.wakeup);
    Ok(())
}
