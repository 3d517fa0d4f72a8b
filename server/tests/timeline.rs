//! The timelines of ranks: reported under a fence, kept once, read by pages.

use axum::http::StatusCode;
use serde_json::{Value, json};
use sqlx::PgPool;

use crate::agent::{Agent, formed};
use crate::common::Server;

const CLOCK_AT: &str = "2026-11-30T08:00:00Z";

fn of_rank(rank: i32, step: i64) -> Value {
    json!({
        "rank": rank, "step": step, "began_ns": 1000 * step, "dropped": rank,
        "spans": [
            {"kind": "step", "start_ns": 0, "end_ns": 500},
            {"kind": "bucket_reduce", "index": 3, "start_ns": 100, "end_ns": 200},
        ],
    })
}

fn timeline(steps: &[Value]) -> Value {
    json!({"kind": "timeline", "clock": {"at": CLOCK_AT, "monotonic_ns": 77}, "steps": steps})
}

/// An agent whose two ranks have formed their group, its job and its fence.
async fn at_work(server: &Server) -> (Agent, String, Value) {
    let agent = Agent::join(server, "alpha", 2).await;
    agent.poll(server, 0).await;
    let job = agent.place_job(server, 2).await;
    let fence = agent.assignment(server).await.fence();
    agent.report(server, &[(1, &fence, formed(0))]).await;
    (agent, job, fence)
}

async fn page(server: &Server, job: &str, query: &str) -> Value {
    let path = format!("/v1/jobs/{job}/timeline?{query}");
    let answer = server.get(&path, &server.first.token).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.json());
    answer.json()
}

/// `(step, rank)` of each row.
fn rows(page: &Value) -> Vec<(i64, i64)> {
    let items = page["items"].as_array().unwrap();
    items.iter().map(|row| (row["step"].as_i64().unwrap(), row["rank"].as_i64().unwrap())).collect()
}

#[sqlx::test(migrations = "../migrations")]
async fn what_ranks_did_is_kept_once_and_read_by_pages_in_order(pool: PgPool) {
    let server = Server::new(pool).await;
    let (agent, job, fence) = at_work(&server).await;
    let steps: Vec<Value> =
        (0..4).rev().flat_map(|step| [of_rank(1, step), of_rank(0, step)]).collect();
    let twice = [(2, &fence, timeline(&steps)), (3, &fence, timeline(&steps[..2]))];
    let answer = agent.report(&server, &twice).await;
    assert_eq!(answer, json!({"acked_seq": 3, "lost": []}));

    let all = page(&server, &job, "").await;
    assert_eq!(rows(&all), [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1), (3, 0), (3, 1)]);
    assert_eq!(all["next_cursor"], Value::Null);
    let row = &all["items"][7];
    assert_eq!((&row["attempt_number"], &row["generation"]), (&json!(1), &json!(1)));
    assert_eq!((&row["began_ns"], &row["dropped"]), (&json!(3000), &json!(1)));
    assert_eq!(row["node_id"], agent.node_id.as_str());
    assert_eq!(row["clock"], json!({"at": CLOCK_AT, "monotonic_ns": 77}));
    assert_eq!(row["spans"], of_rank(1, 3)["spans"]);

    let mut query = "limit=3".to_owned();
    let mut seen = Vec::new();
    loop {
        let part = page(&server, &job, &query).await;
        seen.push(rows(&part));
        match part["next_cursor"].as_str() {
            Some(cursor) => query = format!("limit=3&cursor={cursor}"),
            None => break,
        }
    }
    let lengths: Vec<usize> = seen.iter().map(Vec::len).collect();
    assert_eq!((lengths, seen.concat()), (vec![3, 3, 2], rows(&all)));

    let some = page(&server, &job, "from_step=1&to_step=2&rank=1").await;
    assert_eq!(rows(&some), [(1, 1), (2, 1)]);
    for (query, field) in [("limit=0", "limit"), ("limit=1001", "limit"), ("cursor=x", "cursor")] {
        let path = format!("/v1/jobs/{job}/timeline?{query}");
        let refused = server.get(&path, &server.first.token).await;
        assert_eq!(refused.fields(), [field], "{query}");
    }
}

#[sqlx::test(migrations = "../migrations")]
async fn a_node_speaks_for_its_own_ranks_under_its_own_fence_and_other_projects_see_nothing(
    pool: PgPool,
) {
    let server = Server::new(pool).await;
    let (agent, job, fence) = at_work(&server).await;
    let mut impossible = of_rank(0, 1);
    impossible["began_ns"] = json!(-1);
    let steps = [of_rank(2, 0), of_rank(0, -1), impossible, of_rank(1, 5)];
    agent.report(&server, &[(2, &fence, timeline(&steps))]).await;
    assert_eq!(rows(&page(&server, &job, "").await), [(5, 1)]);

    let unheard = json!({"attempt_id": fence["attempt_id"], "generation": 7});
    agent.report(&server, &[(3, &unheard, timeline(&[of_rank(0, 6)]))]).await;
    let stranger = Agent::join(&server, "beta", 1).await;
    let refused = stranger.report(&server, &[(1, &fence, timeline(&[of_rank(0, 7)]))]).await;
    assert_eq!(refused["lost"], json!([fence]));
    assert_eq!(rows(&page(&server, &job, "").await), [(5, 1)]);

    let other = server.other_project().await;
    server.get(&format!("/v1/jobs/{job}/timeline"), &other.token).await.problem(404, "not_found");
}

#[sqlx::test(migrations = "../migrations")]
async fn the_timeline_of_an_attempt_that_failed_stays_beside_that_of_the_next(pool: PgPool) {
    let server = Server::new(pool).await;
    let (agent, job, fence) = at_work(&server).await;
    let f = &fence;
    let failed = crate::agent::failed("peer_gone", Some(1), json!({}));
    agent.report(&server, &[(2, f, failed), (3, f, timeline(&[of_rank(0, 0)]))]).await;
    agent.report(&server, &[(4, f, json!({"kind": "stopped"}))]).await;
    server.clock.advance(std::time::Duration::from_secs(1));
    crate::agent::reconciled(&server).await;
    let second = agent.assignment(&server).await.fence();
    assert_ne!(second, fence);
    agent.report(&server, &[(5, &second, formed(0))]).await;
    agent.report(&server, &[(6, &second, timeline(&[of_rank(0, 0)]))]).await;
    let all = page(&server, &job, "").await;
    let numbers: Vec<&Value> =
        all["items"].as_array().unwrap().iter().map(|row| &row["attempt_number"]).collect();
    assert_eq!(numbers, [1, 2]);
    let first = page(&server, &job, "limit=1").await;
    let cursor = first["next_cursor"].as_str().unwrap();
    let rest = page(&server, &job, &format!("cursor={cursor}")).await;
    assert_eq!(rest["items"][0]["attempt_number"], 2, "the same step of another attempt");
}
