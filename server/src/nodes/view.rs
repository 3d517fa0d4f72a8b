//! What is shown of nodes.

use lockstep_api::{DrainState, NodeSlot, NodeView, OrganisationId};

use crate::app::App;
use crate::attempts::drive::lease_terms;
use crate::attempts::store as attempts;
use crate::nodes::{quarantine, store};
use crate::problem::Problem;

/// The nodes of an organisation, by name.
pub(crate) async fn nodes(
    app: &App,
    organisation: OrganisationId,
) -> Result<Vec<NodeView>, Problem> {
    let terms = lease_terms(&app.settings)?;
    let now = app.clock.now();
    let mut tx = app.db.system().await?;
    let nodes = store::list(&mut tx, Some(organisation)).await?;
    let held = attempts::held_slots(&mut tx).await?;
    let mut standings = quarantine::standings(&mut tx, None, now).await?;
    tx.rollback().await?;
    let view = |node: store::Node| {
        let quarantine::Standing { blames, quarantine } =
            standings.remove(&node.id).unwrap_or_default();
        let slots: Vec<NodeSlot> = node
            .slots
            .iter()
            .map(|slot| NodeSlot {
                is_busy: held.contains(&(node.id, slot.device, slot.index)),
                device: slot.device,
                index: slot.index,
            })
            .collect();
        let drain = node.drain_requested_at.map(|_| match slots.iter().any(|slot| slot.is_busy) {
            true => DrainState::Draining,
            false => DrainState::Drained,
        });
        NodeView {
            is_live: node.is_live(terms, now),
            id: node.id,
            name: node.name,
            last_seen_at: node.last_seen_at,
            blames,
            quarantine,
            drain,
            slots,
        }
    };
    Ok(nodes.into_iter().map(view).collect())
}
