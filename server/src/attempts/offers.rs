//! What the nodes of each organisation offer, and which of them take work.

use std::collections::{BTreeMap, BTreeSet};

use lockstep_api::{DeviceKind, NodeId, NodeQuarantine, OrganisationId};
use lockstep_core::{Closed, ClosedNode, NodeOffer, SlotOffer};
use sqlx::PgConnection;

use crate::app::App;
use crate::attempts::drive::lease_terms;
use crate::attempts::store;
use crate::nodes::inventory::Slot;
use crate::nodes::quarantine;
use crate::nodes::store::{self as nodes, Node};
use crate::problem::Problem;

/// What nodes offer that live.
#[derive(Debug, Default)]
pub(crate) struct Offers {
    /// Those that take work.
    pub(crate) open: Vec<NodeOffer>,
    /// Those that take none.
    pub(crate) closed: Vec<ClosedNode>,
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
