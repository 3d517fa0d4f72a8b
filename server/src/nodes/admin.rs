//! What administrators do with nodes: HTTP in, HTTP out.

use axum::extract::State;
use chrono::{DateTime, Utc};
use lockstep_api::{NodeId, NodeView, Role};
use sqlx::PgConnection;

use crate::app::App;
use crate::audit;
use crate::extract::{Caller, Json, Path};
use crate::nodes::{quarantine, store, view};
use crate::problem::Problem;

/// Ends a node's quarantine and forgets what it is blamed for. Safe to repeat.
#[utoipa::path(
    post, path = "/v1/nodes/{name}/release", operation_id = "release_node", tag = "nodes",
    params(("name" = String, Path)), responses((status = 200, body = NodeView)),
)]
#[tracing::instrument(name = "nodes.release", skip_all)]
pub(crate) async fn release(
    State(app): State<App>,
    caller: Caller,
    Path(name): Path<String>,
) -> Result<Json<NodeView>, Problem> {
    caller.require(Role::Admin)?;
    let mut tx = app.db.system().await?;
    let node = find(&mut tx, &caller, &name).await?;
    store::lock(&mut tx, &[node]).await?;
    quarantine::release(&mut tx, node).await?;
    audit::record(&mut tx, &caller, "node.release", node, app.clock.now()).await?;
    tx.commit().await?;
    app.wakeup.jobs_changed();
    read(&app, &caller, node).await
}

/// Makes a node free: it takes no new work, and what runs there goes on elsewhere from a checkpoint. Safe to repeat.
#[utoipa::path(
    post, path = "/v1/nodes/{name}/drain", operation_id = "drain_node", tag = "nodes",
    params(("name" = String, Path)), responses((status = 200, body = NodeView)),
)]
#[tracing::instrument(name = "nodes.drain", skip_all)]
pub(crate) async fn drain(
    State(app): State<App>,
    caller: Caller,
    Path(name): Path<String>,
) -> Result<Json<NodeView>, Problem> {
    let since = Some(app.clock.now());
    set_drain(&app, &caller, &name, (since, "node.drain")).await
}

/// Lets a drained node take work again. Safe to repeat.
#[utoipa::path(
    post, path = "/v1/nodes/{name}/undrain", operation_id = "undrain_node", tag = "nodes",
    params(("name" = String, Path)), responses((status = 200, body = NodeView)),
)]
#[tracing::instrument(name = "nodes.undrain", skip_all)]
pub(crate) async fn undrain(
    State(app): State<App>,
    caller: Caller,
    Path(name): Path<String>,
) -> Result<Json<NodeView>, Problem> {
    set_drain(&app, &caller, &name, (None, "node.undrain")).await
}

async fn set_drain(
    app: &App,
    caller: &Caller,
    name: &str,
    (since, action): (Option<DateTime<Utc>>, &'static str),
) -> Result<Json<NodeView>, Problem> {
    caller.require(Role::Admin)?;
    let mut tx = app.db.system().await?;
    let node = find(&mut tx, caller, name).await?;
    store::set_drain(&mut tx, node, since).await?;
    audit::record(&mut tx, caller, action, node, app.clock.now()).await?;
    tx.commit().await?;
    app.wakeup.jobs_changed();
    read(app, caller, node).await
}

async fn find(db: &mut PgConnection, caller: &Caller, name: &str) -> Result<NodeId, Problem> {
    let found = store::find_by_name(db, caller.organisation_id, name).await?;
    found.ok_or_else(|| Problem::not_found("node", name))
}

async fn read(app: &App, caller: &Caller, id: NodeId) -> Result<Json<NodeView>, Problem> {
    let nodes = view::nodes(app, caller.organisation_id).await?;
    let found = nodes.into_iter().find(|node| node.id == id);
    found.map(Json).ok_or_else(|| Problem::not_found("node", id))
}
