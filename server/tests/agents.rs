//! Agents: joining, polling, heartbeats, leases.

use std::time::Duration;

use axum::http::StatusCode;
use lockstep_server::reconcile;
use serde_json::{Value, json};
use sqlx::PgPool;

use crate::agent::{Agent, reconciled};
use crate::common::Server;

#[sqlx::test(migrations = "../migrations")]
async fn a_node_joins_with_a_token_and_shows_its_slots(pool: PgPool) {
    let server = Server::new(pool).await;
    let agent = Agent::join(&server, "alpha", 2).await;
    let nodes = server.get("/v1/nodes", &server.first.token).await.json();
    assert_eq!(
        nodes["nodes"][0]["is_live"], false,
        "nothing is placed on a node that has not polled"
    );
    let answer = agent.poll(&server, 0).await;
    assert_eq!(answer["assignments"], json!([]));
    let nodes = server.get("/v1/nodes", &server.first.token).await.json();
    let node = &nodes["nodes"][0];
    assert_eq!((&node["name"], &node["is_live"]), (&json!("alpha"), &json!(true)));
    let slots = json!([
        {"device": "cpu", "index": 0, "is_busy": false},
        {"device": "cpu", "index": 1, "is_busy": false},
    ]);
    assert_eq!(node["slots"], slots);
    let other = server.other_project().await;
    let nodes = server.get("/v1/nodes", &other.token).await.json();
    assert_eq!(nodes["nodes"], json!([]), "nodes of another organisation are not shown");
}

#[sqlx::test(migrations = "../migrations")]
async fn a_join_token_that_is_wrong_or_expired_is_refused(pool: PgPool) {
    let server = Server::new(pool).await;
    let join = async |token: &str, name: &str| {
        let inventory = json!({"cpu_slots": [], "cuda_devices": [], "memory_mib": 1});
        let body = json!({"join_token": token, "name": name, "inventory": inventory});
        server.call("POST", "/v1/agent/join", "", body).await
    };
    let good = server.first.join_token.clone();
    assert_eq!(join(&good, "alpha").await.status, StatusCode::OK);
    let forged =
        format!("{}{}", &good[..good.len() - 1], if good.ends_with('a') { 'b' } else { 'a' });
    join(&forged, "alpha").await.problem(401, "unauthenticated");
    join(&server.first.token, "alpha").await.problem(401, "unauthenticated");
    assert_eq!(join(&good, "").await.fields(), ["name"]);
    assert_eq!(join(&good, "a\u{0}b").await.fields(), ["name"]);
    server.clock.advance(Duration::from_secs(10 * 366 * 86_400));
    join(&good, "alpha").await.problem(401, "unauthenticated");
}

#[sqlx::test(migrations = "../migrations")]
async fn joining_under_a_taken_name_takes_its_place_and_its_token_dies(pool: PgPool) {
    let server = Server::new(pool).await;
    let old = Agent::join(&server, "alpha", 1).await;
    old.poll(&server, 0).await;
    let job = old.place_job(&server, 1).await;
    server.clock.advance(Duration::from_secs(4));
    let new = Agent::join(&server, "alpha", 1).await;
    assert_eq!(old.node_id, new.node_id);
    old.call(&server, "poll", old.poll_body(0)).await.problem(401, "unauthenticated");
    new.poll(&server, 0).await;
    server.clock.advance(Duration::from_secs(1));
    reconciled(&server).await;
    let view = server.get(&format!("/v1/jobs/{job}"), &server.first.token).await.json();
    assert_eq!(view["attempts"][1]["outcome"], "lease_lost");
    let message = view["failures"][0]["message"].as_str().unwrap();
    assert!(message.contains("another agent joined as node alpha"), "{message}");
    assert_eq!(view["attempts"][0]["state"], "placing", "it was placed again, on the new machine");
}

#[sqlx::test(migrations = "../migrations")]
async fn a_node_that_lives_keeps_its_name_until_it_leaves_or_its_lease_is_over(pool: PgPool) {
    let server = Server::new(pool).await;
    let inventory = json!({
        "cpu_slots": [{"index": 0, "cores": 1, "memory_mib": 1024}], "cuda_devices": [], "memory_mib": 1,
    });
    let join = async |boot: Value| {
        let token = &server.first.join_token;
        let body =
            json!({"join_token": token, "name": "alpha", "boot_id": boot, "inventory": inventory});
        server.call("POST", "/v1/agent/join", "", body).await
    };
    assert_eq!(join(json!("one")).await.status, StatusCode::OK);
    assert_eq!(join(json!("other")).await.status, StatusCode::OK, "the first has not polled");
    let mut old = Agent::join(&server, "alpha", 1).await;
    old.boot_id = "first".to_owned();
    old.poll(&server, 0).await;
    for boot in [json!("other"), Value::Null] {
        let refused = join(boot).await.problem(409, "conflict");
        assert_eq!(
            refused["detail"],
            "a node named alpha is live; stop it or choose another --name"
        );
    }
    old.poll(&server, 0).await;
    assert_eq!(join(json!("first")).await.status, StatusCode::OK, "it is the same agent");

    let mut old = Agent::join(&server, "alpha", 1).await;
    old.poll(&server, 0).await;
    join(json!("other")).await.problem(409, "conflict");
    old.withdraws();
    old.poll(&server, 0).await;
    assert_eq!(join(json!("other")).await.status, StatusCode::OK, "it has left");

    let old = Agent::join(&server, "alpha", 1).await;
    old.poll(&server, 0).await;
    server.clock.advance(Duration::from_secs(3));
    assert_eq!(join(json!("other")).await.status, StatusCode::OK, "its lease is over");
}

#[sqlx::test(migrations = "../migrations")]
async fn a_parked_poll_is_answered_as_soon_as_its_set_changes(pool: PgPool) {
    let server = Server::new(pool).await;
    let agent = Agent::join(&server, "alpha", 1).await;
    let version = agent.poll(&server, 0).await["version"].as_i64().unwrap();
    let submit = async {
        agent.submit(&server, 1).await;
        reconcile::pass(&server.app).await.unwrap();
    };
    let both = async { tokio::join!(agent.poll(&server, version), submit) };
    let (answer, ()) = tokio::time::timeout(Duration::from_secs(10), both).await.unwrap();
    assert!(version < answer["version"].as_i64().unwrap());
    assert_eq!(answer["assignments"][0]["ranks"][0]["rank"], 0);
}

#[sqlx::test(migrations = "../migrations")]
async fn a_parked_poll_is_let_go_when_the_server_ends(pool: PgPool) {
    let server = Server::new(pool).await;
    let agent = Agent::join(&server, "alpha", 1).await;
    let version = agent.poll(&server, 0).await["version"].as_i64().unwrap();
    let both = async {
        tokio::join!(agent.poll(&server, version), async { server.app.shutdown.request() })
    };
    let (answer, ()) = tokio::time::timeout(Duration::from_secs(10), both).await.unwrap();
    assert_eq!(answer["version"], version);
}

#[sqlx::test(migrations = "../migrations")]
async fn a_node_whose_lease_runs_out_loses_its_attempt_and_gets_it_again_when_it_is_back(
    pool: PgPool,
) {
    let server = Server::new(pool).await;
    let agent = Agent::join(&server, "alpha", 1).await;
    agent.poll(&server, 0).await;
    let job = agent.place_job(&server, 1).await;
    let fence = agent.assignment(&server).await.fence();
    for _ in 0..5 {
        server.clock.advance(Duration::from_secs(2));
        assert_eq!(agent.heartbeat(&server, &[&fence]).await, json!([]));
        reconciled(&server).await;
    }
    server.clock.advance(Duration::from_secs(4));
    reconciled(&server).await;
    server.clock.advance(Duration::from_secs(1));
    reconciled(&server).await;
    let path = format!("/v1/jobs/{job}");
    let view = server.get(&path, &server.first.token).await.json();
    assert_eq!(
        (&view["state"], &view["waiting"]),
        (&json!("queued"), &json!("no node is connected"))
    );
    assert_eq!(view["attempts"][0]["outcome"], "lease_lost");
    assert_eq!(view["failures"][0]["code"], "node_lost");
    let message = view["failures"][0]["message"].as_str().unwrap();
    assert!(message.contains("node alpha stopped answering"), "{message}");

    // It was only cut off. Its ranks may live, so its slot is not given out before they are gone.
    assert_eq!(agent.heartbeat(&server, &[&fence]).await, json!([fence]), "it must kill them");
    reconciled(&server).await;
    let view = server.get(&path, &server.first.token).await.json();
    let waiting = view["waiting"].as_str().unwrap();
    assert!(waiting.ends_with("0 are free"), "{waiting}");
    agent.report(&server, &[(1, &fence, json!({"kind": "stopped"}))]).await;
    reconciled(&server).await;
    let next = agent.assignment(&server).await;
    assert_eq!(next.json["job_id"], view["id"]);
    assert_eq!(next.json["generation"], 2);
}

#[sqlx::test(migrations = "../migrations")]
async fn a_restarted_agent_has_lost_its_ranks_and_is_used_again(pool: PgPool) {
    let server = Server::new(pool).await;
    let mut agent = Agent::join(&server, "alpha", 1).await;
    agent.poll(&server, 0).await;
    let job = agent.place_job(&server, 1).await;
    agent.boot_id = "another".to_owned();
    agent.poll(&server, 0).await;
    server.clock.advance(Duration::from_secs(1));
    reconciled(&server).await;
    let view = server.get(&format!("/v1/jobs/{job}"), &server.first.token).await.json();
    assert_eq!(view["attempts"][1]["outcome"], "lease_lost");
    let message = view["failures"][0]["message"].as_str().unwrap();
    assert!(message.contains("agent of node alpha was started anew"), "{message}");
    assert_eq!(agent.assignment(&server).await.json["generation"], 2);
    assert_eq!(view["spec"]["retry"]["infrastructure"], 3);
}

#[sqlx::test(migrations = "../migrations")]
async fn a_server_that_was_away_takes_nothing_from_nodes_that_could_not_reach_it(pool: PgPool) {
    let server = Server::new(pool).await;
    let agent = Agent::join(&server, "alpha", 1).await;
    agent.poll(&server, 0).await;
    let job = agent.place_job(&server, 1).await;
    let fence = agent.assignment(&server).await.fence();
    server.clock.advance(Duration::from_secs(3600));
    let (app, shutdown) = (server.app.clone(), server.app.shutdown.clone());
    reconcile::spawn(&app);
    let seen = async {
        let extended = "SELECT EXISTS (SELECT FROM node WHERE $1 < lease_expires_at)";
        let now = server.clock.now();
        while !sqlx::query_scalar::<_, bool>(extended)
            .bind(now)
            .fetch_one(&server.pool)
            .await
            .unwrap()
        {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), seen).await.unwrap();
    shutdown.request();
    server.clock.advance(Duration::from_secs(2));
    reconciled(&server).await;
    let view = server.get(&format!("/v1/jobs/{job}"), &server.first.token).await.json();
    assert_eq!((&view["state"], &view["failures"]), (&json!("active"), &json!([])));
    assert_eq!(agent.heartbeat(&server, &[&fence]).await, json!([]));
}

#[sqlx::test(migrations = "../migrations")]
async fn a_gang_that_shares_memory_and_would_span_nodes_waits_and_says_so(pool: PgPool) {
    let server = Server::new(pool).await;
    for name in ["alpha", "beta"] {
        Agent::join(&server, name, 1).await.poll(&server, 0).await;
    }
    let agent = Agent::join(&server, "gamma", 0).await;
    agent.poll(&server, 0).await;
    let fields = json!({"gang": {"ranks": 2}, "ddp": {"transport": "shm"}});
    let job = agent.submit_with(&server, fields).await;
    let small = agent.submit(&server, 1).await;
    reconciled(&server).await;
    let of =
        async |job: &str| server.get(&format!("/v1/jobs/{job}"), &server.first.token).await.json();
    let view = of(&job).await;
    assert_eq!(view["state"], "queued");
    let waiting = view["waiting"].as_str().unwrap();
    assert!(waiting.contains("would span nodes (alpha has 1, beta has 1)"), "{waiting}");
    assert_eq!(of(&small).await["state"], "active", "one that fits passes one that never does");
}

#[sqlx::test(migrations = "../migrations")]
async fn an_attempt_that_ended_before_its_node_heard_of_it_frees_its_slot(pool: PgPool) {
    let server = Server::new(pool).await;
    let agent = Agent::join(&server, "alpha", 1).await;
    agent.poll(&server, 0).await;
    let job = agent.place_job(&server, 1).await;
    let path = format!("/v1/jobs/{job}/cancel");
    assert_eq!(
        server.call("POST", &path, &server.first.token, Value::Null).await.status,
        StatusCode::OK
    );
    let is_busy = async || {
        let nodes = server.get("/v1/nodes", &server.first.token).await.json();
        nodes["nodes"][0]["slots"][0]["is_busy"] == json!(true)
    };
    for _ in 0..8 {
        server.clock.advance(Duration::from_secs(2));
        assert_eq!(agent.heartbeat(&server, &[]).await, json!([]));
        reconciled(&server).await;
        assert!(is_busy().await, "the grace of the stop is not over");
    }
    for _ in 0..4 {
        server.clock.advance(Duration::from_secs(2));
        agent.heartbeat(&server, &[]).await;
        reconciled(&server).await;
    }
    let view = server.get(&format!("/v1/jobs/{job}"), &server.first.token).await.json();
    assert_eq!(view["state"], "cancelled");
    assert!(!is_busy().await);
}
