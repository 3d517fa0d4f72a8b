//! Jobs that are paused and moved: stopped at a checkpoint, and gone on with for nothing.

use std::time::Duration;

use axum::http::StatusCode;
use serde_json::{Value, json};
use sqlx::PgPool;

use crate::agent::{Agent, exited, formed, reconciled, steps};
use crate::common::Server;

async fn view(server: &Server, job: &str) -> Value {
    server.get(&format!("/v1/jobs/{job}"), &server.first.token).await.json()
}

/// Pauses, resumes or cancels.
async fn ask(server: &Server, job: &str, what: &str) -> Value {
    let path = format!("/v1/jobs/{job}/{what}");
    let answer = server.call("POST", &path, &server.first.token, Value::Null).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.json());
    answer.json()
}

async fn node(server: &Server, name: &str, what: &str) -> Value {
    let path = format!("/v1/nodes/{name}/{what}");
    let answer = server.call("POST", &path, &server.first.token, Value::Null).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.json());
    answer.json()
}

/// A job of one rank that has done two steps on alpha.
async fn at_work(server: &Server) -> (Agent, String, Value) {
    let agent = Agent::join(server, "alpha", 1).await;
    agent.poll(server, 0).await;
    let job = agent.place_job(server, 1).await;
    let fence = agent.assignment(server).await.fence();
    agent.report(server, &[(1, &fence, formed(0)), (2, &fence, steps(0, &[2.0, 1.0]))]).await;
    (agent, job, fence)
}

/// Its rank leaves as it was asked to; the node publishes what it wrote before it says so.
async fn leaves(server: &Server, agent: &Agent, job: &str, fence: &Value) {
    agent.report(server, &[(3, fence, exited(0, Some(0), None))]).await;
    assert_eq!(view(server, job).await["attempts"][0]["state"], "stopping", "it publishes");
    agent.checkpoint(server, fence, 2, b"after two steps").await;
    agent.report(server, &[(4, fence, json!({"kind": "stopped"}))]).await;
}

#[sqlx::test(migrations = "../migrations")]
async fn a_paused_job_keeps_its_last_checkpoint_and_goes_on_from_it_for_nothing(pool: PgPool) {
    let server = Server::new(pool).await;
    let (agent, job, fence) = at_work(&server).await;
    for _ in 0..2 {
        let pausing = ask(&server, &job, "pause").await;
        assert_eq!(pausing["state"], "active");
        let waiting = "is being paused: its ranks leave after a checkpoint";
        assert_eq!(pausing["waiting"], waiting);
    }
    assert_eq!(agent.assignment(&server).await.json["is_stopping"], true);
    leaves(&server, &agent, &job, &fence).await;
    server.clock.advance(Duration::from_secs(1));
    reconciled(&server).await;
    let now = view(&server, &job).await;
    assert_eq!((&now["state"], &now["waiting"]), (&json!("paused"), &Value::Null));
    assert_eq!((&now["ended_at"], &now["failures"]), (&Value::Null, &json!([])));
    assert_eq!(ask(&server, &job, "pause").await["state"], "paused");

    assert_eq!(ask(&server, &job, "resume").await["state"], "queued");
    reconciled(&server).await;
    let next = agent.assignment(&server).await;
    assert_eq!((&next.json["resume"]["step"], &next.json["generation"]), (&json!(2), &json!(2)));
    let left = "SELECT infrastructure_retries FROM job";
    assert_eq!(sqlx::query_scalar::<_, i32>(left).fetch_one(&server.pool).await.unwrap(), 3);
    let trail =
        "SELECT array_agg(action ORDER BY at, action) FROM audit_event WHERE action LIKE 'job.%e'";
    let trail: Vec<String> = sqlx::query_scalar(trail).fetch_one(&server.pool).await.unwrap();
    assert_eq!(trail, ["job.pause", "job.pause", "job.pause", "job.resume"]);
}

#[sqlx::test(migrations = "../migrations")]
async fn a_queued_job_is_paused_at_once_and_takes_no_slot(pool: PgPool) {
    let server = Server::new(pool).await;
    let agent = Agent::join(&server, "alpha", 1).await;
    let job = agent.submit(&server, 1).await;
    assert_eq!(ask(&server, &job, "pause").await["state"], "paused");
    agent.poll(&server, 0).await;
    reconciled(&server).await;
    assert_eq!(view(&server, &job).await["state"], "paused");
    assert_eq!(ask(&server, &job, "cancel").await["state"], "cancelled");
    for what in ["pause", "resume"] {
        let path = format!("/v1/jobs/{job}/{what}");
        let refused = server.call("POST", &path, &server.first.token, Value::Null).await;
        refused.problem(409, "conflict");
    }
}

#[sqlx::test(migrations = "../migrations")]
async fn a_cancel_while_pausing_wins_and_strangers_pause_nothing(pool: PgPool) {
    let server = Server::new(pool).await;
    let (agent, job, fence) = at_work(&server).await;
    let path = format!("/v1/jobs/{job}/pause");
    let member = server.token(&server.first.token, "m", "member").await;
    server.call("POST", &path, &member, Value::Null).await.problem(403, "forbidden");
    let other = server.other_project().await;
    server.call("POST", &path, &other.token, Value::Null).await.problem(404, "not_found");
    ask(&server, &job, "pause").await;
    assert_eq!(ask(&server, &job, "cancel").await["state"], "cancelling");
    assert_eq!(ask(&server, &job, "pause").await["state"], "cancelling");
    leaves(&server, &agent, &job, &fence).await;
    assert_eq!(view(&server, &job).await["state"], "cancelled");
}

#[sqlx::test(migrations = "../migrations")]
async fn a_drained_node_gives_its_job_to_another_for_nothing(pool: PgPool) {
    let server = Server::new(pool).await;
    let (alpha, job, fence) = at_work(&server).await;
    let maintainer = server.token(&server.first.token, "m", "maintainer").await;
    let path = "/v1/nodes/alpha/drain";
    server.call("POST", path, &maintainer, Value::Null).await.problem(403, "forbidden");
    assert_eq!(node(&server, "alpha", "drain").await["drain"], "draining");
    reconciled(&server).await;
    let moving = view(&server, &job).await;
    let waiting = moving["waiting"].as_str().unwrap();
    assert_eq!(moving["state"], "active");
    assert!(waiting.starts_with("leaves a node that is to be free"), "{waiting}");
    leaves(&server, &alpha, &job, &fence).await;
    reconciled(&server).await;
    let waiting = view(&server, &job).await["waiting"].as_str().unwrap().to_owned();
    assert!(waiting.ends_with("1 slot is on a node that is drained: alpha"), "{waiting}");
    assert_eq!(node(&server, "alpha", "drain").await["drain"], "drained");

    let beta = Agent::join(&server, "beta", 1).await;
    beta.poll(&server, 0).await;
    reconciled(&server).await;
    assert_eq!(beta.assignment(&server).await.json["resume"]["step"], 2);
    assert_eq!(view(&server, &job).await["failures"], json!([]));
    let left = "SELECT infrastructure_retries FROM job";
    assert_eq!(sqlx::query_scalar::<_, i32>(left).fetch_one(&server.pool).await.unwrap(), 3);
    assert_eq!(node(&server, "alpha", "undrain").await["drain"], Value::Null);
    let next = alpha.place_job(&server, 1).await;
    assert_eq!(view(&server, &next).await["state"], "active");
}

#[sqlx::test(migrations = "../migrations")]
async fn an_agent_that_is_told_to_stop_costs_no_retry(pool: PgPool) {
    let server = Server::new(pool).await;
    let (mut alpha, job, fence) = at_work(&server).await;
    alpha.withdraws();
    let told = alpha.assignment(&server).await;
    assert_eq!(told.json["is_stopping"], true, "with the answer to its farewell");
    leaves(&server, &alpha, &job, &fence).await;
    reconciled(&server).await;
    let now = view(&server, &job).await;
    assert_eq!((&now["state"], &now["failures"]), (&json!("queued"), &json!([])));
    let left = "SELECT infrastructure_retries FROM job";
    assert_eq!(sqlx::query_scalar::<_, i32>(left).fetch_one(&server.pool).await.unwrap(), 3);
}

#[sqlx::test(migrations = "../migrations")]
async fn a_pause_whose_ranks_heed_nothing_ends_after_the_grace(pool: PgPool) {
    let server = Server::new(pool).await;
    let (agent, job, fence) = at_work(&server).await;
    ask(&server, &job, "pause").await;
    for _ in 0..8 {
        server.clock.advance(Duration::from_secs(2));
        agent.heartbeat(&server, &[&fence]).await;
        reconciled(&server).await;
    }
    assert_eq!(view(&server, &job).await["state"], "paused");
    assert_eq!(agent.heartbeat(&server, &[&fence]).await, json!([fence]), "kill them");
}
