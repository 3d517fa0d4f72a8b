//! Nodes that break what runs on them: blamed, avoided, quarantined, let go.

use std::time::Duration;

use axum::http::StatusCode;
use serde_json::{Value, json};
use sqlx::PgPool;

use crate::agent::{Agent, exited, formed, process_exited, reconciled, steps};
use crate::common::Server;

/// An agent that reports under ascending numbers.
struct Worker {
    agent: Agent,
    seq: i64,
}

impl Worker {
    async fn join(server: &Server, name: &str, slots: usize) -> Self {
        let agent = Agent::join(server, name, slots).await;
        agent.poll(server, 0).await;
        Self { agent, seq: 0 }
    }

    async fn fence(&self, server: &Server) -> Value {
        self.agent.assignment(server).await.fence()
    }

    async fn say(&mut self, server: &Server, fence: &Value, reports: &[Value]) {
        for report in reports {
            self.seq += 1;
            self.agent.report(server, &[(self.seq, fence, report.clone())]).await;
        }
    }

    /// Its one rank dies.
    async fn loses_its_rank(&mut self, server: &Server) {
        let fence = self.fence(server).await;
        let end = [exited(0, None, Some(9)), json!({"kind": "stopped"})];
        self.say(server, &fence, &end).await;
    }
}

async fn view(server: &Server, job: &str) -> Value {
    server.get(&format!("/v1/jobs/{job}"), &server.first.token).await.json()
}

/// The node of that name.
async fn node(server: &Server, name: &str) -> Value {
    let nodes = server.get("/v1/nodes", &server.first.token).await.json();
    let nodes = nodes["nodes"].as_array().unwrap().clone();
    nodes.into_iter().find(|node| node["name"] == name).unwrap()
}

async fn post(server: &Server, path: &str, token: &str) -> crate::common::Answer {
    server.call("POST", path, token, Value::Null).await
}

/// After so long, during which these are heard.
async fn after(server: &Server, seconds: u64, workers: &[&Worker]) {
    for _ in 0..seconds {
        server.clock.advance(Duration::from_secs(1));
        for worker in workers {
            worker.agent.poll(server, 0).await;
        }
        reconciled(server).await;
    }
}

fn many_retries() -> Value {
    json!({"gang": {"ranks": 1}, "retry": {"infrastructure": 50}})
}

/// A node that has broken its job five times, and that job, which waits.
async fn quarantined(server: &Server) -> (Worker, String) {
    let mut alpha = Worker::join(server, "alpha", 1).await;
    let job = alpha.agent.submit_with(server, many_retries()).await;
    reconciled(server).await;
    for round in 0..5 {
        alpha.loses_its_rank(server).await;
        if round < 4 {
            after(server, 1 << round, &[&alpha]).await;
        }
    }
    (alpha, job)
}

#[sqlx::test(migrations = "../migrations")]
async fn a_node_that_keeps_breaking_jobs_gets_none_for_a_while_and_the_job_says_so(pool: PgPool) {
    let server = Server::new(pool).await;
    let (alpha, job) = quarantined(&server).await;
    let now = node(&server, "alpha").await;
    assert_eq!((&now["blames"], &now["is_live"]), (&json!(5), &json!(true)));
    let quarantine = &now["quarantine"];
    assert_eq!(quarantine["count"], 1);
    assert_eq!(quarantine["until"], "2026-11-30T08:00:45Z", "8:00:15 and half a minute");
    let reason = "5 failures in 10 min are its doing, the last peer_gone";
    assert_eq!(quarantine["reason"], reason);
    after(&server, 20, &[&alpha]).await;
    let waiting = view(&server, &job).await["waiting"].clone();
    assert_eq!(
        waiting,
        format!(
            "waits for 1 free slot of 1 cpu core and 512 MiB: 0 are free; \
             1 slot is quarantined: node alpha until 08:00:45 UTC, because {reason}"
        )
    );
    after(&server, 10, &[&alpha]).await;
    assert_eq!(view(&server, &job).await["state"], "active", "it is over by itself");
    assert_eq!(node(&server, "alpha").await["quarantine"], Value::Null);
}

#[sqlx::test(migrations = "../migrations")]
async fn the_next_quarantine_is_longer_and_a_success_makes_up_for_it(pool: PgPool) {
    let server = Server::new(pool).await;
    let (mut alpha, job) = quarantined(&server).await;
    after(&server, 30, &[&alpha]).await;
    alpha.loses_its_rank(&server).await;
    let second = node(&server, "alpha").await["quarantine"].clone();
    assert_eq!((&second["count"], &second["until"]), (&json!(2), &json!("2026-11-30T08:01:45Z")));
    after(&server, 60, &[&alpha]).await;
    let fence = alpha.fence(&server).await;
    let done = [formed(0), steps(0, &[1.0]), json!({"kind": "finished"})];
    alpha.say(&server, &fence, &done).await;
    assert_eq!(view(&server, &job).await["state"], "succeeded");
    let count = "SELECT count FROM node_quarantine";
    assert_eq!(sqlx::query_scalar::<_, i32>(count).fetch_one(&server.pool).await.unwrap(), 1);
}

#[sqlx::test(migrations = "../migrations")]
async fn an_administrator_lets_a_node_go_and_nobody_else_does(pool: PgPool) {
    let server = Server::new(pool).await;
    let (alpha, job) = quarantined(&server).await;
    let admin = server.first.token.clone();
    let maintainer = server.token(&admin, "m", "maintainer").await;
    let path = "/v1/nodes/alpha/release";
    post(&server, path, &maintainer).await.problem(403, "forbidden");
    let other = server.other_project().await;
    post(&server, path, &other.token).await.problem(404, "not_found");
    post(&server, "/v1/nodes/beta/release", &admin).await.problem(404, "not_found");
    for _ in 0..2 {
        let released = post(&server, path, &admin).await;
        assert_eq!(released.status, StatusCode::OK);
        let released = released.json();
        assert_eq!((&released["blames"], &released["quarantine"]), (&json!(0), &Value::Null));
    }
    after(&server, 16, &[&alpha]).await;
    assert_eq!(view(&server, &job).await["state"], "active");
    let trail = "SELECT count(*) FROM audit_event WHERE action = 'node.release'";
    assert_eq!(sqlx::query_scalar::<_, i64>(trail).fetch_one(&server.pool).await.unwrap(), 2);
}

#[sqlx::test(migrations = "../migrations")]
async fn placement_prefers_a_node_that_is_not_blamed(pool: PgPool) {
    let server = Server::new(pool).await;
    let mut alpha = Worker::join(&server, "alpha", 1).await;
    let job = alpha.agent.submit_with(&server, many_retries()).await;
    reconciled(&server).await;
    alpha.loses_its_rank(&server).await;
    after(&server, 1, &[&alpha]).await;
    alpha.loses_its_rank(&server).await;
    let beta = Worker::join(&server, "beta", 2).await;
    after(&server, 2, &[&alpha, &beta]).await;
    let ranks = &view(&server, &job).await["attempts"][0]["ranks"];
    assert_eq!(ranks[0]["node_name"], "beta", "although alpha is the tighter fit: {ranks}");
}

#[sqlx::test(migrations = "../migrations")]
async fn nobody_is_blamed_for_the_jobs_own_fault_or_for_one_that_it_asked_for(pool: PgPool) {
    let server = Server::new(pool).await;
    let mut alpha = Worker::join(&server, "alpha", 1).await;
    let fault =
        json!([{"kind": "kill", "target": "rank", "rank": 0, "step": 1, "phase": "forward"}]);
    let asked = json!({"gang": {"ranks": 1}, "retry": {"infrastructure": 1}, "chaos": fault});
    alpha.agent.submit_with(&server, asked).await;
    reconciled(&server).await;
    alpha.loses_its_rank(&server).await;
    assert_eq!(node(&server, "alpha").await["blames"], 0);
    after(&server, 1, &[&alpha]).await;
    let fence = alpha.fence(&server).await;
    let trap = crate::agent::failed("guest_trap", Some(0), json!({}));
    alpha.say(&server, &fence, &[trap]).await;
    assert_eq!(node(&server, "alpha").await["blames"], 0);
}

#[sqlx::test(migrations = "../migrations")]
async fn a_rank_that_was_lost_on_a_bad_node_is_replaced_on_another_that_has_room(pool: PgPool) {
    let server = Server::new(pool).await;
    let mut alpha = Worker::join(&server, "alpha", 1).await;
    let mut beta = Worker::join(&server, "beta", 1).await;
    let ask = json!({"gang": {"ranks": 2}, "retry": {"infrastructure": 50}});
    let job = alpha.agent.submit_with(&server, ask).await;
    reconciled(&server).await;
    let mut fences = vec![alpha.fence(&server).await];
    for round in 0..4 {
        let fence = fences.last().unwrap().clone();
        let at_work = [formed(round), steps(round, &[1.0])];
        alpha.say(&server, &fence, &at_work).await;
        // Another process each time: 1, 2, 3, 4.
        let process = i32::try_from(round).unwrap() + 1;
        beta.say(&server, &fence, &[process_exited((process, 1), None, Some(9))]).await;
        fences.push(alpha.fence(&server).await);
    }
    let now = view(&server, &job).await;
    assert_eq!((&now["state"], &now["generation"]), (&json!("active"), &json!(5)), "{now:#}");
    assert_eq!(now["attempts"][0]["ranks"][1]["node_name"], "beta", "there is nobody else");
    let gamma = Worker::join(&server, "gamma", 1).await;
    let fence = fences.last().unwrap().clone();
    alpha.say(&server, &fence, &[formed(4), steps(4, &[1.0])]).await;
    beta.say(&server, &fence, &[process_exited((5, 1), None, Some(9))]).await;
    reconciled(&server).await;
    let now = view(&server, &job).await;
    assert_eq!(now["attempts"].as_array().unwrap().len(), 1);
    assert_eq!(now["attempts"][0]["ranks"][1]["node_name"], "gamma");
    assert_eq!(gamma.fence(&server).await["generation"], 6);
}
