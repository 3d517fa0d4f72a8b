//! `nodes`.

use serde::Serialize;

use lockstep_api::NodeView;

use crate::args::Global;
use crate::out::{Out, table};
use crate::settings::client;
use crate::verbs::jobs::time;

/// As the server wraps it.
#[derive(Debug, Serialize)]
struct Nodes {
    nodes: Vec<NodeView>,
}

/// Lists nodes.
pub(crate) async fn nodes(global: &Global, out: Out) -> anyhow::Result<()> {
    let nodes = Nodes { nodes: client(global)?.nodes().await? };
    out.data(&nodes, |nodes| {
        let mut rows = table(&["NAME", "LIVE", "SLOTS", "BUSY", "LAST SEEN", "ID"]);
        for node in &nodes.nodes {
            let busy = node.slots.iter().filter(|slot| slot.is_busy).count();
            rows.add_row([
                node.name.clone(),
                if node.is_live { "yes" } else { "no" }.to_owned(),
                node.slots.len().to_string(),
                busy.to_string(),
                time(node.last_seen_at),
                node.id.to_string(),
            ]);
        }
        rows.trim_fmt()
    })
}
