//! Looks after leases of nodes, without input.

use lockstep_core::NodeLoss;

use crate::app::App;
use crate::attempts::drive::{concerned, lease_terms, lose_node};
use crate::attempts::store as attempts;
use crate::nodes::{drain, store};
use crate::problem::Problem;

/// Nobody could renew a lease while no server was there: gives all of them one more, before anything is concluded.
pub(crate) async fn extend_leases(app: &App) -> Result<(), Problem> {
    let expires_at = lease_terms(&app.settings)?.expiry(app.clock.now());
    let mut tx = app.db.system().await?;
    attempts::extend_leases(&mut tx, expires_at).await?;
    store::extend_leases(&mut tx, expires_at).await?;
    tx.commit().await?;
    Ok(())
}

/// Stops what runs on nodes that are to become free.
pub(crate) async fn drain(app: &App) -> Result<(), Problem> {
    let mut tx = app.db.system().await?;
    let draining = store::draining(&mut tx).await?;
    tx.rollback().await?;
    for node in draining {
        drain::clear(app, node).await?;
    }
    Ok(())
}

/// Takes attempts from nodes whose lease has run out; much later, their slots too.
pub(crate) async fn expire(app: &App) -> Result<(), Problem> {
    let now = app.clock.now();
    let mut tx = app.db.system().await?;
    let expired = store::expired(&mut tx, now).await?;
    let holding = if expired.is_empty() {
        Default::default()
    } else {
        attempts::holding_nodes(&mut tx).await?
    };
    tx.rollback().await?;
    let terms = lease_terms(&app.settings)?;
    for (node, lease_expires_at) in expired.into_iter().filter(|(node, _)| holding.contains(node)) {
        let is_gone = terms.gone_at(lease_expires_at) <= now;
        let loss = if is_gone { NodeLoss::OrphanGracePassed } else { NodeLoss::LeaseExpired };
        let concerned = concerned(app, node).await?;
        lose_node(app, node, loss, concerned).await?;
    }
    Ok(())
}
