//! Where ranks that were lost go: not back to a node that keeps losing them, if others have room.

use std::collections::BTreeSet;

use lockstep_api::NodeId;
use lockstep_core::{NodeOffer, refill};
use sqlx::PgConnection;

use crate::app::App;
use crate::attempts::offers::offers;
use crate::attempts::store::LockedAttempt;
use crate::jobs::store::lifecycle::{self, LockedJob};
use crate::nodes::quarantine::standings;
use crate::problem::Problem;

/// Nodes of the attempt whose lost ranks had better go elsewhere and can.
pub(crate) async fn shunned(
    app: &App,
    db: &mut PgConnection,
    attempt: &LockedAttempt,
    job: &LockedJob,
) -> Result<BTreeSet<NodeId>, Problem> {
    let nodes = attempt.nodes();
    let standings = standings(db, Some(&nodes), app.clock.now()).await?;
    let mut shunned: BTreeSet<NodeId> = nodes
        .into_iter()
        .filter(|id| standings.get(id).is_some_and(|it| it.is_shunned()))
        .collect();
    if shunned.is_empty() {
        return Ok(BTreeSet::new());
    }
    let organisation = lifecycle::organisation(db, job.id).await?;
    let offers = offers(app, db).await?.remove(&organisation).unwrap_or_default();
    let others: Vec<NodeOffer> =
        offers.open.into_iter().filter(|offer| !shunned.contains(&offer.node)).collect();
    let members = &attempt.core.gang.members;
    shunned.retain(|node| {
        let ranks = members.iter().filter(|(_, it)| it.node == *node).map(|(rank, _)| *rank);
        let slot = (&job.spec.gang.slot, job.spec.ddp.transport);
        let ranks = ranks.collect();
        refill(&ranks, slot, &others).len() == ranks.len()
    });
    Ok(shunned)
}
