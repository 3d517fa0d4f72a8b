//! The live stream of a job: complete, resumable, ending.

use axum::body::Body;
use axum::http::{Request, header};
use futures::StreamExt as _;
use serde_json::{Value, json};
use sqlx::PgPool;
use std::time::Duration;
use tokio::time::timeout;

use crate::common::Server;

/// Longest wait for an event that must come.
const DEADLINE: Duration = Duration::from_secs(10);

async fn submitted(server: &Server) -> String {
    let job = server.job(&server.first.token).await;
    server.submit(&server.first.token, &job, None).await.json()["id"].as_str().unwrap().to_owned()
}

/// Writes an event, as those who change a job do, and ends the job if told to.
async fn write_event(server: &Server, id: &str, kind: &str, end: bool) {
    let mut tx = server.pool.begin().await.unwrap();
    let seq: i64 = sqlx::query_scalar(
        "UPDATE job SET event_seq = event_seq + 1 WHERE job_id = $1::uuid RETURNING event_seq",
    )
    .bind(id)
    .fetch_one(&mut *tx)
    .await
    .unwrap();
    sqlx::query(
        "INSERT INTO job_event (project_id, job_id, seq, kind, at)
         SELECT project_id, job_id, $2, $3::job_event_kind, created_at FROM job WHERE job_id = $1::uuid",
    )
    .bind(id)
    .bind(seq)
    .bind(kind)
    .execute(&mut *tx)
    .await
    .unwrap();
    if end {
        sqlx::query(
            "UPDATE job SET state = 'succeeded', ended_at = created_at WHERE job_id = $1::uuid",
        )
        .bind(id)
        .execute(&mut *tx)
        .await
        .unwrap();
    }
    tx.commit().await.unwrap();
}

fn request(server: &Server, id: &str, last: Option<&str>) -> Request<Body> {
    let request = Request::get(format!("/v1/jobs/{id}/events"))
        .header(header::AUTHORIZATION, format!("Bearer {}", server.first.token));
    match last {
        Some(last) => request.header("last-event-id", last),
        None => request,
    }
    .body(Body::empty())
    .unwrap()
}

/// `(id, event, data)` of each message.
fn messages(text: &str) -> Vec<(String, String, Value)> {
    let field = |block: &str, name: &str| {
        block
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .map(|value| value.trim().to_owned())
            .unwrap()
    };
    let blocks = text.split("\n\n").filter(|block| block.contains("data:"));
    blocks
        .map(|block| {
            let data = serde_json::from_str(&field(block, "data:")).unwrap();
            (field(block, "id:"), field(block, "event:"), data)
        })
        .collect()
}

#[sqlx::test(migrations = "../migrations")]
async fn a_stream_tells_everything_and_ends_with_the_job(pool: PgPool) {
    let server = Server::new(pool).await;
    let id = submitted(&server).await;
    write_event(&server, &id, "metrics", false).await;
    write_event(&server, &id, "state", true).await;
    let answer = timeout(DEADLINE, server.send(request(&server, &id, None))).await.unwrap();
    assert_eq!(answer.headers[header::CONTENT_TYPE], "text/event-stream");
    let told = messages(&String::from_utf8(answer.body).unwrap());
    let kinds: Vec<&str> = told.iter().map(|(_, _, data)| data["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["state", "metrics", "state"]);
    for (index, (id, event, data)) in told.iter().enumerate() {
        assert_eq!((id.as_str(), event.as_str()), ((index + 1).to_string().as_str(), "job"));
        assert_eq!(data["seq"], json!(index + 1));
    }
    let answer = timeout(DEADLINE, server.send(request(&server, &id, Some("2")))).await.unwrap();
    let told = messages(&String::from_utf8(answer.body).unwrap());
    assert_eq!(told.len(), 1);
    assert_eq!(told[0].0, "3");
    let answer = server.send(request(&server, &id, Some("two"))).await;
    answer.problem(400, "invalid_request");
    assert_eq!(answer.fields(), ["Last-Event-ID"]);
}

async fn next_message(body: &mut axum::body::BodyDataStream) -> Option<(String, String, Value)> {
    let mut text = String::new();
    loop {
        let bytes =
            timeout(DEADLINE, body.next()).await.expect("an event within the deadline")?.unwrap();
        text.push_str(std::str::from_utf8(&bytes).unwrap());
        if text.ends_with("\n\n") {
            return messages(&text).pop();
        }
    }
}

#[sqlx::test(migrations = "../migrations")]
async fn an_open_stream_hears_of_new_events_with_a_hint_and_without(pool: PgPool) {
    let server = Server::new(pool).await;
    let id = submitted(&server).await;
    let response = server.open(request(&server, &id, None)).await;
    let mut body = response.into_body().into_data_stream();
    assert_eq!(next_message(&mut body).await.unwrap().0, "1");
    write_event(&server, &id, "log", false).await;
    server.app.wakeup.job_event(id.parse().unwrap());
    assert_eq!(next_message(&mut body).await.unwrap().2["kind"], "log");
    // Another replica's event comes without a hint.
    write_event(&server, &id, "failure", false).await;
    assert_eq!(next_message(&mut body).await.unwrap().2["kind"], "failure");
}

#[sqlx::test(migrations = "../migrations")]
async fn a_stream_ends_when_the_server_stops(pool: PgPool) {
    let server = Server::new(pool).await;
    let id = submitted(&server).await;
    let response = server.open(request(&server, &id, Some("1"))).await;
    let mut body = response.into_body().into_data_stream();
    server.app.shutdown.request();
    assert!(timeout(DEADLINE, body.next()).await.expect("the end within the deadline").is_none());
}
