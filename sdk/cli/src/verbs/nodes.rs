//! `nodes`, `node …`.

use serde::Serialize;

use lockstep_api::{NodeQuarantine, NodeView};

use crate::args::{Global, NodeVerb};
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
        let mut rows = table(&["NAME", "LIVE", "SLOTS", "BUSY", "LAST SEEN", "ID", "NOTE"]);
        for node in &nodes.nodes {
            let busy = node.slots.iter().filter(|slot| slot.is_busy).count();
            rows.add_row([
                node.name.clone(),
                if node.is_live { "yes" } else { "no" }.to_owned(),
                node.slots.len().to_string(),
                busy.to_string(),
                time(node.last_seen_at),
                node.id.to_string(),
                note(node),
            ]);
        }
        rows.trim_fmt()
    })
}

/// What keeps work from it.
fn note(node: &NodeView) -> String {
    if let Some(drain) = node.drain {
        return drain.to_string();
    }
    match (&node.quarantine, node.blames) {
        (Some(NodeQuarantine { until, reason, .. }), _) => {
            format!("quarantined until {}: {reason}", time(*until))
        }
        (None, 0) => String::new(),
        (None, 1) => "1 failure lately".to_owned(),
        (None, blames) => format!("avoided: {blames} failures lately"),
    }
}

/// Changes a node.
pub(crate) async fn node(global: &Global, verb: NodeVerb, out: Out) -> anyhow::Result<()> {
    let client = client(global)?;
    let node = match verb {
        NodeVerb::Drain(args) => client.drain_node(&args.name).await?,
        NodeVerb::Undrain(args) => client.undrain_node(&args.name).await?,
        NodeVerb::Release(args) => client.release_node(&args.name).await?,
    };
    out.data(&node, |node| format!("{}: {}", node.name, or_in_use(node)))
}

fn or_in_use(node: &NodeView) -> String {
    match (note(node), node.is_live) {
        (note, _) if !note.is_empty() => note,
        (_, true) => "takes work".to_owned(),
        (_, false) => "takes work once its agent is back".to_owned(),
    }
}
