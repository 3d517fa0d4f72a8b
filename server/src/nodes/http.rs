//! `/v1/nodes` and the agents' join, poll and heartbeat: HTTP in, HTTP out.

use std::collections::BTreeSet;
use std::time::Duration;

use axum::extract::State;
use chrono::TimeDelta;
use lockstep_api::{
    AttemptId, Fence, HeartbeatRequest, HeartbeatResponse, JoinRequest, JoinResponse, NodeId,
    NodeView, POLL_PARK_SECONDS, PollRequest, PollResponse, ProblemBody, RunningAttempt,
};
use lockstep_core::{Event, NodeLoss, Word};
use serde::Serialize;
use tokio::time::Instant;

use crate::app::App;
use crate::attempts::drive::{Drive, concerned, lease_terms, lose_node};
use crate::attempts::{arrival, assignment, store as attempts};
use crate::extract::{Caller, Json};
use crate::nodes::caller::NodeCaller;
use crate::nodes::inventory::Offer;
use crate::nodes::store::{self, Boot, NewNode};
use crate::nodes::{drain, view};
use crate::problem::Problem;
use crate::tokens::secret::{Minted, Presented, TokenKind};
use crate::tokens::store::find_join_bearer;

/// A parked poll looks at the row at least so often: another replica may have changed it.
const POLL_LOOK: Duration = Duration::from_millis(500);
/// Length of a node's name, bytes.
const NAME_BYTES: usize = 100;
/// Length of a boot id, bytes.
const BOOT_ID_BYTES: usize = 100;
/// Length of a host's name for itself, bytes.
const HOST_BYTES: usize = 200;
/// Attempts of one heartbeat.
const RUNNING_ATTEMPTS: usize = 1024;

/// Makes a machine a node.
///
/// Joining under the name of a dead node takes its place: its token is worthless from then on. One that lives, under another
/// boot, keeps its name.
#[utoipa::path(
    post, path = "/v1/agent/join", operation_id = "agent_join", tag = "agent", request_body = JoinRequest, security(()),
    responses((status = 200, body = JoinResponse), (status = 401, body = ProblemBody)),
)]
#[tracing::instrument(skip_all)]
pub(crate) async fn join(
    State(app): State<App>,
    Json(request): Json<JoinRequest>,
) -> Result<Json<JoinResponse>, Problem> {
    let JoinRequest { join_token, name, boot_id, inventory } = request;
    let presented =
        Presented::parse(TokenKind::Join, &join_token).ok_or(Problem::Unauthenticated)?;
    plain("name", &name, NAME_BYTES)?;
    let offer = Offer::new(&inventory)?;
    let now = app.clock.now();
    let mut tx = app.db.system().await?;
    let bearer = find_join_bearer(&mut tx, &presented.public_id, now)
        .await?
        .filter(|bearer| presented.proves(&bearer.secret_hash))
        .ok_or(Problem::Unauthenticated)?;
    let predecessor = store::find_predecessor(&mut tx, bearer.organisation_id, &name).await?;
    tx.rollback().await?;
    if let Some(predecessor) = predecessor {
        if predecessor.keeps_its_name(boot_id.as_deref(), lease_terms(&app.settings)?, now) {
            return Err(Problem::Conflict(format!(
                "a node named {name} is live; stop it or choose another --name"
            )));
        }
        let node = predecessor.id;
        let concerned = concerned(&app, node).await?;
        lose_node(&app, node, NodeLoss::Replaced, concerned).await?;
    }
    let terms = lease_terms(&app.settings)?;
    let token = Minted::new(TokenKind::Node, &app.random);
    let node = NewNode {
        id: app.new_id(NodeId::new),
        organisation_id: bearer.organisation_id,
        name: &name,
        token_public_id: &token.public_id,
        token_hash: &token.hash,
        memory_mib: offer.memory_mib,
        lease_expires_at: terms.expiry(now),
    };
    let mut tx = app.db.system().await?;
    let node_id = store::join(&mut tx, node, now).await?;
    store::replace_slots(&mut tx, node_id, &offer).await?;
    tx.commit().await?;
    tracing::info!(node.id = %node_id, node.name = name, "node joined");
    Ok(Json(JoinResponse {
        node_id,
        node_token: token.text,
        heartbeat_ms: milliseconds(app.settings.heartbeat),
        lease_ms: milliseconds(app.settings.lease),
        orphan_grace_ms: milliseconds(app.settings.orphan_grace),
    }))
}

/// Answers all that should run on the node, as soon as it differs from what the agent has seen.
#[utoipa::path(
    post, path = "/v1/agent/poll", operation_id = "agent_poll", tag = "agent", request_body = PollRequest,
    responses((status = 200, body = PollResponse), (status = 401, body = ProblemBody)),
)]
#[tracing::instrument(skip_all, fields(node.id = %node.node_id))]
pub(crate) async fn poll(
    State(app): State<App>,
    node: NodeCaller,
    Json(request): Json<PollRequest>,
) -> Result<Json<PollResponse>, Problem> {
    let PollRequest { seen_version, inventory, boot_id, host } = request;
    plain("boot_id", &boot_id, BOOT_ID_BYTES)?;
    plain("host", &host, HOST_BYTES)?;
    let offer = Offer::new(&inventory)?;
    // Subscribed before the first look, so that no change falls between.
    let mut changed = app.wakeup.assignments();
    check_in(&app, node, (&boot_id, &host), &offer).await?;
    let deadline = Instant::now() + Duration::from_secs(POLL_PARK_SECONDS);
    loop {
        let mut tx = app.db.system().await?;
        let version = store::assignment_version(&mut tx, node.node_id).await?;
        tx.rollback().await?;
        let is_over = deadline <= Instant::now() || app.shutdown.soft().is_cancelled();
        if version != seen_version || is_over {
            return assignment::of_node(&app, node.node_id).await.map(Json);
        }
        tokio::select! {
            // The sender lives as long as the app.
            _ = changed.changed() => {}
            () = tokio::time::sleep(POLL_LOOK) => {}
            () = app.shutdown.soft().cancelled() => {}
        }
    }
}

/// Takes note of a node that polls: of its boot, its slots and its life.
async fn check_in(
    app: &App,
    node: NodeCaller,
    (boot_id, host): (&str, &str),
    offer: &Offer,
) -> Result<(), Problem> {
    let NodeCaller { node_id } = node;
    // Before the new boot is known: what is placed from then on is not lost with the old one.
    let of_old_boot = concerned(app, node_id).await?;
    let now = app.clock.now();
    let expires_at = lease_terms(&app.settings)?.expiry(now);
    let mut tx = app.db.system().await?;
    let boot = store::set_boot_id(&mut tx, node_id, boot_id, host).await?;
    // Known by now, unless an agent with yet another boot came between; the next poll settles that.
    let (Boot::Known | Boot::Other) =
        store::renew(&mut tx, node_id, boot_id, now, expires_at).await?;
    let has_new_slots = store::slots(&mut tx, node_id).await? != offer.slots;
    if has_new_slots {
        store::replace_slots(&mut tx, node_id, offer).await?;
    }
    tx.commit().await?;
    if boot == Boot::Other {
        lose_node(app, node_id, NodeLoss::Restarted, of_old_boot).await?;
    }
    if boot == Boot::Other || has_new_slots {
        app.wakeup.jobs_changed();
    }
    if has_new_slots && offer.slots.is_empty() {
        // Its agent was told to stop: it leaves as soon as its ranks have.
        drain::clear(app, node_id).await?;
    }
    Ok(())
}

/// Renews the lease of the node and of the attempts it runs; names those that it has lost.
#[utoipa::path(
    post, path = "/v1/agent/heartbeat", operation_id = "agent_heartbeat", tag = "agent", request_body = HeartbeatRequest,
    responses((status = 200, body = HeartbeatResponse), (status = 401, body = ProblemBody)),
)]
#[tracing::instrument(skip_all, fields(node.id = %node.node_id))]
pub(crate) async fn heartbeat(
    State(app): State<App>,
    node: NodeCaller,
    Json(request): Json<HeartbeatRequest>,
) -> Result<Json<HeartbeatResponse>, Problem> {
    let HeartbeatRequest { boot_id, running } = request;
    plain("boot_id", &boot_id, BOOT_ID_BYTES)?;
    if RUNNING_ATTEMPTS < running.len() {
        let message = format!("expected at most {RUNNING_ATTEMPTS}, got {}", running.len());
        return Err(Problem::field("running", message));
    }
    let fences: Vec<Fence> = running.iter().map(|attempt| attempt.fence).collect();
    let now = app.clock.now();
    let expires_at = lease_terms(&app.settings)?.expiry(now);
    let mut tx = app.db.system().await?;
    let held = attempts::renew(&mut tx, node.node_id, &fences, expires_at).await?;
    for RunningAttempt { fence, ranks } in &running {
        if held.contains(&fence.attempt_id) {
            let (attempt, node) = (fence.attempt_id, node.node_id);
            attempts::record_positions(&mut tx, *fence, node, ranks).await?;
            attempts::arrival::record_arrivals(&mut tx, attempt, node, ranks, now).await?;
        }
    }
    if store::renew(&mut tx, node.node_id, &boot_id, now, expires_at).await? == Boot::Other {
        // An agent that was replaced by a later one, or that has not polled yet: its word renews nothing.
        tx.rollback().await?;
        return Ok(Json(HeartbeatResponse { lost: fences }));
    }
    tx.commit().await?;
    for attempt in arrival::waiting(&running).into_iter().filter(|it| held.contains(it)) {
        // A node's lease does not hang on a line in a log.
        if let Err(problem) = arrival::tell_of_stragglers(&app, attempt).await {
            tracing::warn!(attempt.id = %attempt, %problem, "could not tell of stragglers");
        }
    }
    forget_absent(&app, node.node_id, &fences).await?;
    let lost = fences.into_iter().filter(|fence| !held.contains(&fence.attempt_id)).collect();
    Ok(Json(HeartbeatResponse { lost }))
}

/// Frees the slots of attempts that ended before the node heard of them. After a lease no answer to a poll that
/// names them can still be on its way.
async fn forget_absent(app: &App, node: NodeId, running: &[Fence]) -> Result<(), Problem> {
    let margin = TimeDelta::from_std(app.settings.lease).map_err(Problem::internal)?;
    let mut tx = app.db.system().await?;
    let (now, running): (_, BTreeSet<AttemptId>) =
        (app.clock.now(), running.iter().map(|fence| fence.attempt_id).collect());
    let held = attempts::held_after_end(&mut tx, node, now - margin).await?;
    let mut has_released = false;
    for attempt in attempts::held_after_eviction(&mut tx, node, now - margin).await? {
        if !running.contains(&attempt) {
            has_released |=
                attempts::release_evicted(&mut tx, node, Some((attempt, attempts::ANY)), now)
                    .await?;
        }
    }
    tx.commit().await?;
    if has_released {
        app.wakeup.jobs_changed();
    }
    for (attempt, job) in held.into_iter().filter(|(attempt, _)| !running.contains(attempt)) {
        let mut tx = app.db.system().await?;
        let mut drive = Drive::lock(app, &mut tx, &[job], &[attempt], &[node]).await?;
        if let Some(generation) = drive.attempt(attempt).map(|a| a.core.gang.generation) {
            let event = Event::Said { node, generation, word: Word::Absent };
            let _refused = drive.step(&mut tx, attempt, event).await?;
        }
        let announcement = drive.finish(&mut tx).await?;
        tx.commit().await?;
        announcement.send(&app.wakeup);
    }
    Ok(())
}

/// The nodes of an organisation.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct NodesView {
    /// By name.
    nodes: Vec<NodeView>,
}

/// The nodes of the caller's organisation and their slots.
#[utoipa::path(
    get, path = "/v1/nodes", operation_id = "list_nodes", tag = "nodes",
    responses((status = 200, body = NodesView), (status = 401, body = ProblemBody)),
)]
#[tracing::instrument(skip_all)]
pub(crate) async fn list(
    State(app): State<App>,
    caller: Caller,
) -> Result<Json<NodesView>, Problem> {
    Ok(Json(NodesView { nodes: view::nodes(&app, caller.organisation_id).await? }))
}

/// A short text without control characters.
fn plain(field: &'static str, text: &str, limit_bytes: usize) -> Result<(), Problem> {
    if (1..=limit_bytes).contains(&text.len()) && !text.chars().any(char::is_control) {
        return Ok(());
    }
    let message = format!(
        "expected 1 to {limit_bytes} bytes without control characters, got {} bytes",
        text.len()
    );
    Err(Problem::field(field, message))
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
