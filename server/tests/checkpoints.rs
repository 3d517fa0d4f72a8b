//! Bytes of attempts under their fence, and the checkpoints made of them.

use axum::http::StatusCode;
use lockstep_api::{Digest, FileManifest};
use serde_json::{Value, json};
use sqlx::PgPool;

use crate::agent::{Agent, exited, reconciled};
use crate::common::Server;

async fn placed(server: &Server) -> (Agent, String, Value) {
    let agent = Agent::join(server, "alpha", 1).await;
    agent.poll(server, 0).await;
    let job = agent.place_job(server, 1).await;
    let fence = agent.assignment(server).await.fence();
    (agent, job, fence)
}

async fn count(server: &Server, table: &'static str) -> i64 {
    let text = match table {
        "chunk" => "SELECT count(*) FROM chunk",
        "file" => "SELECT count(*) FROM file",
        _ => "SELECT count(*) FROM checkpoint",
    };
    sqlx::query_scalar(text).fetch_one(&server.pool).await.unwrap()
}

fn file(bytes: &[u8]) -> FileManifest {
    let digest = Digest::of(bytes);
    let size_bytes = i64::try_from(bytes.len()).unwrap();
    FileManifest { digest: digest.clone(), size_bytes, chunks: vec![digest] }
}

#[sqlx::test(migrations = "../migrations")]
async fn a_checkpoint_is_published_read_back_shown_and_downloaded(pool: PgPool) {
    let server = Server::new(pool).await;
    let (agent, job, fence) = placed(&server).await;
    let bytes = b"weights".as_slice();
    let digests = json!({"fence": fence, "digests": [file(bytes).digest]});
    let missing = agent.call(&server, "chunks/missing", digests.clone()).await.json();
    assert_eq!(missing["missing"], digests["digests"]);
    let published = agent.checkpoint(&server, &fence, 3, bytes).await;
    assert_eq!(agent.call(&server, "chunks/missing", digests).await.json()["missing"], json!([]));
    assert_eq!(agent.checkpoint(&server, &fence, 3, bytes).await, published, "again: the same one");
    let view = server.get(&format!("/v1/jobs/{job}"), &server.first.token).await.json();
    assert_eq!(view["checkpoints"], json!([published]));
    let path = format!("/v1/checkpoints/{}/file", published["id"].as_str().unwrap());
    let got = server.get(&path, &server.first.token).await;
    assert_eq!((got.status, got.body.as_slice()), (StatusCode::OK, bytes));
    assert_eq!(got.headers["content-length"], "7");
    let other = server.other_project().await;
    server.get(&path, &other.token).await.problem(404, "not_found");
    let other_bytes = Agent::publish_body(&fence, 3, &file(b"other"));
    agent.chunk(&server, "PUT", &fence, file(b"other").digest.as_str(), b"other").await;
    agent.call(&server, "checkpoints", other_bytes).await.problem(409, "conflict");
}

#[sqlx::test(migrations = "../migrations")]
async fn bytes_that_are_missing_or_differ_are_not_published(pool: PgPool) {
    let server = Server::new(pool).await;
    let (agent, job, fence) = placed(&server).await;
    let whole = file(b"weights");
    let publish = async |file: &FileManifest| {
        agent.call(&server, "checkpoints", Agent::publish_body(&fence, 3, file)).await
    };
    let answer = publish(&whole).await.problem(409, "conflict");
    assert!(answer["detail"].as_str().unwrap().contains(whole.digest.as_str()));
    let wrong = agent.chunk(&server, "PUT", &fence, whole.digest.as_str(), b"other").await;
    assert_eq!(wrong.fields(), ["digest"]);
    agent.chunk(&server, "PUT", &fence, whole.digest.as_str(), b"weights").await;
    let claim = FileManifest { digest: Digest::of(b"other"), ..whole.clone() };
    assert_eq!(publish(&claim).await.fields(), ["file.digest"]);
    let longer = FileManifest { size_bytes: 8, ..whole.clone() };
    assert_eq!(publish(&longer).await.fields(), ["file.chunks"]);
    let view = server.get(&format!("/v1/jobs/{job}"), &server.first.token).await.json();
    assert_eq!(view["checkpoints"], json!([]));
    // A byte that rots in the database is found before anyone is told that the file is there.
    sqlx::query("UPDATE chunk SET data = 'weighty' WHERE digest = $1")
        .bind(whole.digest.as_str())
        .execute(&server.pool)
        .await
        .unwrap();
    publish(&whole).await.problem(500, "internal");
}

#[sqlx::test(migrations = "../migrations")]
async fn the_last_ones_are_kept_and_what_nobody_refers_to_is_let_go(pool: PgPool) {
    let server = Server::new(pool).await;
    let (agent, job, fence) = placed(&server).await;
    let (chunks, files) = (count(&server, "chunk").await, count(&server, "file").await);
    for step in 1..=5 {
        // Steps 1 and 5 have the same bytes.
        agent.checkpoint(&server, &fence, step, format!("weights {}", step % 4).as_bytes()).await;
    }
    let view = server.get(&format!("/v1/jobs/{job}"), &server.first.token).await.json();
    let kept = view["checkpoints"].as_array().unwrap();
    assert_eq!(kept.iter().map(|c| c["step"].as_i64().unwrap()).collect::<Vec<_>>(), [5, 4]);
    assert_eq!(count(&server, "checkpoint").await, 2);
    assert_eq!(count(&server, "file").await - files, 2);
    assert_eq!(count(&server, "chunk").await - chunks, 2);
}

#[sqlx::test(migrations = "../migrations")]
async fn chunks_that_another_job_shares_survive_this_ones_retention(pool: PgPool) {
    let server = Server::new(pool).await;
    let agent = Agent::join(&server, "alpha", 2).await;
    agent.poll(&server, 0).await;
    agent.place_job(&server, 1).await;
    agent.place_job(&server, 1).await;
    let assignments = agent.poll(&server, 0).await["assignments"].clone();
    let fence = |i: usize| json!({"attempt_id": assignments[i]["attempt_id"], "generation": assignments[i]["generation"]});
    for i in [0, 1] {
        agent.checkpoint(&server, &fence(i), 1, b"the same").await;
    }
    for step in 2..5 {
        agent.checkpoint(&server, &fence(0), step, format!("{step}").as_bytes()).await;
    }
    let query = json!({"fence": fence(1), "digests": [Digest::of(b"the same")]});
    assert_eq!(agent.call(&server, "chunks/missing", query).await.json()["missing"], json!([]));
}

#[sqlx::test(migrations = "../migrations")]
async fn an_attempt_that_lost_its_lease_can_neither_read_nor_write(pool: PgPool) {
    let server = Server::new(pool).await;
    let (agent, _, fence) = placed(&server).await;
    let bytes = file(b"weights");
    agent.chunk(&server, "PUT", &fence, bytes.digest.as_str(), b"weights").await;
    let got = agent.chunk(&server, "GET", &fence, bytes.digest.as_str(), b"").await;
    assert_eq!((got.status, got.body.as_slice()), (StatusCode::OK, b"weights".as_slice()));
    let refused = async |fence: &Value| {
        let digest = bytes.digest.as_str();
        agent.chunk(&server, "PUT", fence, digest, b"weights").await.problem(409, "fenced");
        agent.chunk(&server, "GET", fence, digest, b"").await.problem(409, "fenced");
        let body = Agent::publish_body(fence, 3, &bytes);
        agent.call(&server, "checkpoints", body).await.problem(409, "fenced");
        let body = json!({"fence": fence, "digests": []});
        agent.call(&server, "chunks/missing", body).await.problem(409, "fenced");
    };
    refused(&json!({"attempt_id": fence["attempt_id"], "generation": 2})).await;
    let other = Agent::join(&server, "beta", 1).await;
    let stranger = other.chunk(&server, "GET", &fence, bytes.digest.as_str(), b"").await;
    stranger.problem(409, "fenced");
    agent.report(&server, &[(1, &fence, exited(0, None, Some(9)))]).await;
    reconciled(&server).await;
    refused(&fence).await;
}
