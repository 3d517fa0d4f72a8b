//! Which checkpoints of a job stay: the newest, the best, what is pinned, what is resumed from.

use axum::http::StatusCode;
use lockstep_api::Digest;
use serde_json::{Value, json};
use sqlx::PgPool;

use crate::agent::{Agent, exited, reconciled};
use crate::common::{Answer, Server};

/// A placed job that keeps checkpoints like this, and its attempt's fence.
async fn placed(server: &Server, agent: &Agent, checkpoint: Value) -> (String, Value) {
    agent.poll(server, 0).await;
    let data = json!({"train": "digits/train", "eval": "digits/train"});
    let job = agent.submit_with(server, json!({"data": data, "checkpoint": checkpoint})).await;
    reconciled(server).await;
    (job, agent.assignment(server).await.fence())
}

async fn checkpoints(server: &Server, job: &str) -> Vec<Value> {
    let view = server.get(&format!("/v1/jobs/{job}"), &server.first.token).await.json();
    view["checkpoints"].as_array().unwrap().clone()
}

/// The steps of a job's checkpoints, newest first.
async fn steps(server: &Server, job: &str) -> Vec<i64> {
    let checkpoints = checkpoints(server, job).await;
    checkpoints.iter().map(|it| it["step"].as_i64().unwrap()).collect()
}

async fn publish(server: &Server, agent: &Agent, fence: &Value, step: i64) -> String {
    let bytes = format!("weights of {step}");
    let published = agent.checkpoint(server, fence, step, bytes.as_bytes()).await;
    published["id"].as_str().unwrap().to_owned()
}

fn evaluated(step: i64, value: f64) -> Value {
    json!({"kind": "evaluated", "step": step, "metrics": [{"name": "eval/accuracy", "value": value}]})
}

async fn pin(server: &Server, method: &str, id: &str, token: &str) -> Answer {
    server.call(method, &format!("/v1/checkpoints/{id}/pin"), token, Value::Null).await
}

#[sqlx::test(migrations = "../migrations")]
async fn the_best_is_kept_by_an_evaluation_that_came_after_its_checkpoint(pool: PgPool) {
    let server = Server::new(pool).await;
    let agent = Agent::join(&server, "alpha", 1).await;
    let best = json!({"metric": "eval/accuracy", "mode": "max"});
    let keep = json!({"keep_last": 2, "keep_best": 1, "best": best});
    let (job, fence) = placed(&server, &agent, keep).await;
    let f = &fence;
    agent.report(&server, &[(1, f, evaluated(1, 0.5))]).await;
    for step in 1..=3 {
        publish(&server, &agent, f, step).await;
    }
    assert_eq!(steps(&server, &job).await, [3, 2, 1], "1 is the only one that was measured");
    agent.report(&server, &[(2, f, evaluated(2, 0.9)), (3, f, evaluated(3, 0.1))]).await;
    publish(&server, &agent, f, 4).await;
    assert_eq!(steps(&server, &job).await, [4, 3, 2]);
    for step in 5..=7 {
        publish(&server, &agent, f, step).await;
    }
    assert_eq!(steps(&server, &job).await, [7, 6, 2]);
}

#[sqlx::test(migrations = "../migrations")]
async fn a_pinned_checkpoint_stays_until_it_is_unpinned_and_both_are_on_the_trail(pool: PgPool) {
    let server = Server::new(pool).await;
    let agent = Agent::join(&server, "alpha", 1).await;
    let (job, fence) = placed(&server, &agent, json!({"keep_last": 2})).await;
    let first = publish(&server, &agent, &fence, 1).await;
    let admin = &server.first.token;
    let viewer = server.token(admin, "reader", "viewer").await;
    let member = server.token(admin, "writer", "member").await;
    let stranger = server.other_project().await;
    for method in ["PUT", "DELETE"] {
        pin(&server, method, &first, &viewer).await.problem(403, "forbidden");
        pin(&server, method, &first, &stranger.token).await.problem(404, "not_found");
    }
    for _ in 0..2 {
        let pinned = pin(&server, "PUT", &first, &member).await;
        assert_eq!((pinned.status, &pinned.json()["is_pinned"]), (StatusCode::OK, &json!(true)));
    }
    for step in 2..=5 {
        publish(&server, &agent, &fence, step).await;
    }
    assert_eq!(steps(&server, &job).await, [5, 4, 1]);
    let shown = checkpoints(&server, &job).await;
    let pinned: Vec<&Value> = shown.iter().map(|it| &it["is_pinned"]).collect();
    assert_eq!(pinned, [false, false, true]);
    let file = server.get(&format!("/v1/checkpoints/{first}/file"), admin).await;
    assert_eq!(file.body, b"weights of 1");

    // One that the job keeps by itself stays.
    let newest = shown[0]["id"].as_str().unwrap();
    pin(&server, "PUT", newest, &member).await.json();
    assert_eq!(pin(&server, "DELETE", newest, &member).await.status, StatusCode::NO_CONTENT);
    assert_eq!(steps(&server, &job).await, [5, 4, 1]);
    assert_eq!(pin(&server, "DELETE", &first, &member).await.status, StatusCode::NO_CONTENT);
    assert_eq!(steps(&server, &job).await, [5, 4]);
    server.get(&format!("/v1/checkpoints/{first}/file"), admin).await.problem(404, "not_found");
    pin(&server, "PUT", &first, &member).await.problem(404, "not_found");
    let trail: Vec<(String, String)> = sqlx::query_as(
        "SELECT action, object FROM audit_event WHERE action LIKE 'checkpoint.%' ORDER BY audit_event_id",
    )
    .fetch_all(&server.pool)
    .await
    .unwrap();
    let line = |action: &str, id: &str| (format!("checkpoint.{action}"), id.to_owned());
    let expected =
        [line("pin", &first), line("pin", newest), line("unpin", newest), line("unpin", &first)];
    assert_eq!(trail, expected, "repeating changed nothing");
}

#[sqlx::test(migrations = "../migrations")]
async fn a_job_has_so_many_pinned_checkpoints_and_no_more(pool: PgPool) {
    let server = Server::new(pool).await;
    let agent = Agent::join(&server, "alpha", 1).await;
    let (job, fence) = placed(&server, &agent, json!({"keep_last": 1})).await;
    for step in 1..=64 {
        let id = publish(&server, &agent, &fence, step).await;
        assert_eq!(pin(&server, "PUT", &id, &server.first.token).await.status, StatusCode::OK);
    }
    let id = publish(&server, &agent, &fence, 65).await;
    pin(&server, "PUT", &id, &server.first.token).await.problem(409, "conflict");
    assert_eq!(steps(&server, &job).await.len(), 65);
}

#[sqlx::test(migrations = "../migrations")]
async fn what_an_attempt_resumes_from_stays_while_it_lives_and_no_longer(pool: PgPool) {
    let server = Server::new(pool).await;
    let agent = Agent::join(&server, "alpha", 1).await;
    let (job, fence) = placed(&server, &agent, json!({"keep_last": 1})).await;
    publish(&server, &agent, &fence, 3).await;
    agent.report(&server, &[(1, &fence, exited(0, None, Some(9)))]).await;
    server.clock.advance(std::time::Duration::from_secs(2));
    agent.poll(&server, 0).await;
    reconciled(&server).await;

    let resumed = agent.assignment(&server).await;
    assert_eq!(resumed.json["resume"]["step"], 3);
    let f = resumed.fence();
    for step in 4..=6 {
        publish(&server, &agent, &f, step).await;
    }
    reconciled(&server).await;
    assert_eq!(steps(&server, &job).await, [6, 3]);
    assert_eq!(
        agent.assignment(&server).await.json["resume"]["step"],
        3,
        "a late rank reads the same file"
    );
    let chunk = Digest::of(b"weights of 3");
    let got = agent.chunk(&server, "GET", &f, chunk.as_str(), b"").await;
    assert_eq!((got.status, got.body.as_slice()), (StatusCode::OK, b"weights of 3".as_slice()));

    agent.report(&server, &[(2, &f, exited(0, None, Some(9)))]).await;
    server.clock.advance(std::time::Duration::from_secs(2));
    agent.poll(&server, 0).await;
    reconciled(&server).await;
    assert_eq!(steps(&server, &job).await, [6]);
    assert_eq!(agent.assignment(&server).await.json["resume"]["step"], 6);
}

#[sqlx::test(migrations = "../migrations")]
async fn a_checkpoint_that_cannot_be_published_costs_no_older_one(pool: PgPool) {
    let server = Server::new(pool).await;
    let agent = Agent::join(&server, "alpha", 1).await;
    let (job, fence) = placed(&server, &agent, json!({"keep_last": 1})).await;
    publish(&server, &agent, &fence, 1).await;
    let digest = Digest::of(b"never put");
    let file = json!({"digest": digest, "size_bytes": 9, "chunks": [digest]});
    let body =
        json!({"fence": fence, "step": 2, "data_epoch": 0, "next_position": 8, "file": file});
    agent.call(&server, "checkpoints", body).await.problem(409, "conflict");
    assert_eq!(steps(&server, &job).await, [1]);
}
