//! Slots for attempts at work: in the place of those that were lost, for gangs that can grow, and back from gangs whose ranks
//! are lent.

use std::collections::BTreeSet;

use lockstep_api::{AttemptId, JobId, NodeId};
use lockstep_core::{
    Event, Growing, Lender, NodeOffer, Refill, Request, SlotKey, grow, reclaim, refill,
};

use crate::app::App;
use crate::attempts::drive::Drive;
use crate::attempts::reconcile::{SLOT_IS_TAKEN, offers};
use crate::attempts::store::{Elastic, Vacancies};
use crate::problem::Problem;

/// Gives slots to the ranks of an attempt whose processes were lost, if there are enough for it to go on.
pub(crate) async fn refill_ranks(app: &App, attempt: Vacancies) -> Result<(), Problem> {
    let mut tx = app.db.system().await?;
    let offers = offers(app, &mut tx).await?.remove(&attempt.organisation_id);
    tx.rollback().await?;
    let slot = (&attempt.slot, attempt.transport);
    let nodes = offers.unwrap_or_default().open;
    let places = refill(&attempt.vacant, slot, &nodes);
    let missing = attempt.vacant.len() - places.len();
    let may_shrink = attempt.ranks.is_elastic()
        && attempt.ranks.min() as usize + missing <= attempt.world_size as usize;
    if missing == 0 || may_shrink {
        step(app, (attempt.id, attempt.job_id), nodes_of(&places), Event::Refilled(places)).await?;
    }
    Ok(())
}

/// Lends slots that the queue has no use for to gangs that can grow, the oldest first.
pub(crate) async fn lend(
    app: &App,
    gangs: &[Elastic],
    spare: &mut [NodeOffer],
) -> Result<(), Problem> {
    for gang in gangs {
        let Elastic { id, job_id, ranks, slot, transport, .. } = gang;
        let nodes = gang.slots.iter().map(|it| it.node).collect();
        let growing = Growing { nodes, ranks: *ranks, slot: slot.clone(), transport: *transport };
        let places = grow(&growing, spare);
        if !places.is_empty() {
            step(app, (*id, *job_id), nodes_of(&places), Event::Grown(places)).await?;
        }
    }
    Ok(())
}

/// Takes back what a job needs that waits for slots.
pub(crate) async fn take_back(
    app: &App,
    request: &Request,
    nodes: &[NodeOffer],
    coming: &BTreeSet<SlotKey>,
    gangs: &[Elastic],
) -> Result<(), Problem> {
    let lender = |it: &Elastic| Lender { attempt: it.id, ranks: it.ranks, slots: it.slots.clone() };
    let lenders: Vec<Lender> = gangs.iter().map(lender).collect();
    let mut asked = reclaim(request, nodes, coming, &lenders);
    for gang in gangs {
        if let Some(ranks) = asked.remove(&gang.id) {
            step(app, (gang.id, gang.job_id), vec![], Event::Reclaimed(ranks)).await?;
        }
    }
    Ok(())
}

fn nodes_of(places: &[Refill]) -> Vec<NodeId> {
    places.iter().map(|place| place.node).collect()
}

/// One step with an attempt, unless a slot that it needs was taken meanwhile: then the next pass decides anew.
async fn step(
    app: &App,
    (attempt, job): (AttemptId, JobId),
    also: Vec<NodeId>,
    event: Event,
) -> Result<(), Problem> {
    let mut tx = app.db.system().await?;
    let mut drive = Drive::lock(app, &mut tx, &[job], &[attempt], &also).await?;
    match drive.step(&mut tx, attempt, event).await {
        Ok(_refused) => {}
        Err(Problem::Database(sqlx::Error::Database(error)))
            if error.constraint() == Some(SLOT_IS_TAKEN) =>
        {
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
