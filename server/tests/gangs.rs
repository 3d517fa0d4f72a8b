//! Gangs over several nodes: how their ranks learn of each other, and how they end.

use std::time::Duration;

use lockstep_server::reconcile;
use serde_json::{Value, json};
use sqlx::PgPool;

use crate::agent::{Agent, exited, failed, reconciled};
use crate::common::Server;

/// Two nodes of one slot, on different hosts.
async fn two_nodes(server: &Server) -> [Agent; 2] {
    let alpha = Agent::join(server, "alpha", 1).await;
    let mut beta = Agent::join(server, "beta", 1).await;
    beta.host = "two".to_owned();
    for agent in [&alpha, &beta] {
        agent.poll(server, 0).await;
    }
    [alpha, beta]
}

/// A job over both.
async fn placed(server: &Server, agent: &Agent) -> (String, Value) {
    let fields = json!({
        "gang": {"ranks": 2}, "timeouts": {"collective": "2s"}, "retry": {"infrastructure": 0},
    });
    let job = agent.submit_with(server, fields).await;
    reconciled(server).await;
    (job, agent.assignment(server).await.fence())
}

fn listens(rank: i32, endpoints: &[&str]) -> Value {
    json!({"kind": "rank_listens", "rank": rank, "endpoints": endpoints})
}

fn prepared() -> Value {
    json!({"kind": "prepared"})
}

async fn view(server: &Server, job: &str) -> Value {
    server.get(&format!("/v1/jobs/{job}"), &server.first.token).await.json()
}

/// Whether the slots of alpha and beta are held.
async fn are_busy(server: &Server) -> [bool; 2] {
    let nodes = server.get("/v1/nodes", &server.first.token).await.json();
    [0, 1].map(|node| nodes["nodes"][node]["slots"][0]["is_busy"] == json!(true))
}

#[sqlx::test(migrations = "../migrations")]
async fn both_nodes_hear_all_endpoints_once_every_rank_listens_and_is_prepared(pool: PgPool) {
    let server = Server::new(pool).await;
    let [alpha, beta] = two_nodes(&server).await;
    let (_, fence) = placed(&server, &alpha).await;
    let network = json!({"nodes": [[0], [1]], "spans_hosts": true, "endpoints": null});
    for (agent, rank) in [(&alpha, json!(0)), (&beta, json!(1))] {
        let assignment = agent.assignment(&server).await.json;
        let ranks = assignment["ranks"].as_array().unwrap();
        assert_eq!((ranks.len(), &ranks[0]["rank"]), (1, &rank));
        assert_eq!(assignment["network"], network);
        assert_eq!(assignment["world_size"], 2);
    }
    let version = async |agent: &Agent| agent.poll(&server, 0).await["version"].as_i64().unwrap();
    let before = [version(&alpha).await, version(&beta).await];
    let odd = ["10.0.0.1:7", "somewhere:7", "10.0.0.1:0", "[fd00::1]:7"];
    alpha.report(&server, &[(1, &fence, listens(0, &odd)), (2, &fence, prepared())]).await;
    beta.report(&server, &[(1, &fence, listens(1, &["10.0.0.2:9"]))]).await;
    assert_eq!([version(&alpha).await, version(&beta).await], before);
    assert_eq!(alpha.assignment(&server).await.json["network"], network);

    beta.report(&server, &[(2, &fence, prepared())]).await;
    for (agent, before) in [(&alpha, before[0]), (&beta, before[1])] {
        assert!(before < version(agent).await, "a parked poll is answered");
        let endpoints = &agent.assignment(&server).await.json["network"]["endpoints"];
        assert_eq!(*endpoints, json!([["10.0.0.1:7", "[fd00::1]:7"], ["10.0.0.2:9"]]));
    }
}

#[sqlx::test(migrations = "../migrations")]
async fn with_tcp_ranks_of_one_node_have_a_network_too(pool: PgPool) {
    let server = Server::new(pool).await;
    let agent = Agent::join(&server, "alpha", 2).await;
    agent.poll(&server, 0).await;
    let fields = json!({"gang": {"ranks": 2}, "ddp": {"transport": "tcp"}});
    agent.submit_with(&server, fields).await;
    reconciled(&server).await;
    let wanted = json!({"nodes": [[0], [1]], "spans_hosts": false, "endpoints": null});
    assert_eq!(agent.assignment(&server).await.json["network"], wanted);
}

#[sqlx::test(migrations = "../migrations")]
async fn endpoints_of_a_strangers_rank_or_an_old_generation_are_not_taken(pool: PgPool) {
    let server = Server::new(pool).await;
    let [alpha, beta] = two_nodes(&server).await;
    let (_, fence) = placed(&server, &alpha).await;
    let old = json!({"attempt_id": fence["attempt_id"], "generation": 0});
    let answer = beta.report(&server, &[(1, &old, listens(1, &["10.0.0.2:9"]))]).await;
    assert_eq!(answer["lost"], json!([]), "it has yet to hear of the present one");
    beta.report(&server, &[(2, &fence, listens(0, &["10.0.0.2:9"])), (3, &fence, prepared())])
        .await;
    alpha
        .report(&server, &[(1, &fence, listens(0, &["10.0.0.1:7"])), (2, &fence, prepared())])
        .await;
    let network = &alpha.assignment(&server).await.json["network"];
    assert_eq!(network["endpoints"], Value::Null, "rank 1 has not said where it listens");
    let stored: Vec<Option<Vec<String>>> =
        sqlx::query_scalar("SELECT endpoints FROM group_member ORDER BY rank")
            .fetch_all(&server.pool)
            .await
            .unwrap();
    assert_eq!(stored, [Some(vec!["10.0.0.1:7".to_owned()]), None]);
}

#[sqlx::test(migrations = "../migrations")]
async fn a_gang_whose_endpoints_do_not_come_fails_and_names_the_ranks(pool: PgPool) {
    let server = Server::new(pool).await;
    let [alpha, beta] = two_nodes(&server).await;
    let (job, fence) = placed(&server, &alpha).await;
    let at_once = listens(0, &["10.0.0.1:7"]);
    alpha.report(&server, &[(1, &fence, at_once), (2, &fence, prepared())]).await;
    for _ in 0..2 {
        assert_eq!(view(&server, &job).await["state"], "active");
        server.clock.advance(Duration::from_secs(1));
        alpha.heartbeat(&server, &[&fence]).await;
        beta.heartbeat(&server, &[&fence]).await;
        reconciled(&server).await;
    }
    let now = view(&server, &job).await;
    let verdict = &now["failures"][0];
    assert_eq!((&verdict["code"], &verdict["rank"]), (&json!("rendezvous_timeout"), &json!(1)));
    let message = verdict["message"].as_str().unwrap();
    assert!(message.contains("rank 1 on node beta did not say in time"), "{message}");
    assert_eq!(beta.heartbeat(&server, &[&fence]).await, json!([fence]), "it must stop");
    assert_eq!(are_busy(&server).await, [true, true], "until both have");
}

#[sqlx::test(migrations = "../migrations")]
async fn a_server_that_was_away_waits_for_endpoints_once_more(pool: PgPool) {
    let server = Server::new(pool).await;
    let [alpha, beta] = two_nodes(&server).await;
    let (job, fence) = placed(&server, &alpha).await;
    server.clock.advance(Duration::from_secs(3600));
    let shutdown = server.app.shutdown.clone();
    reconcile::spawn(&server.app);
    let extended = "SELECT EXISTS (SELECT FROM attempt WHERE $1 < rendezvous_by)";
    let now = server.clock.now();
    let extending = async {
        let look = || sqlx::query_scalar::<_, bool>(extended).bind(now).fetch_one(&server.pool);
        while !look().await.unwrap() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), extending).await.unwrap();
    shutdown.request();
    for (agent, rank) in [(&alpha, 0), (&beta, 1)] {
        agent.poll(&server, 0).await;
        let said = [(1, &fence, listens(rank, &["10.0.0.1:7"])), (2, &fence, prepared())];
        assert_eq!(agent.report(&server, &said).await["lost"], json!([]));
    }
    server.clock.advance(Duration::from_secs(2));
    reconciled(&server).await;
    let now = view(&server, &job).await;
    assert_eq!((&now["state"], &now["failures"]), (&json!("active"), &json!([])));
    let network = &beta.assignment(&server).await.json["network"];
    assert_ne!(network["endpoints"], Value::Null);
}

#[sqlx::test(migrations = "../migrations")]
async fn a_killed_rank_is_the_verdict_whichever_node_is_heard_first(pool: PgPool) {
    let server = Server::new(pool).await;
    let [alpha, beta] = two_nodes(&server).await;
    for (round, is_death_first) in [true, false].into_iter().enumerate() {
        let (job, fence) = placed(&server, &alpha).await;
        let seq = 10 * i64::try_from(round).unwrap();
        let mut death = failed("peer_gone", Some(1), Value::Null);
        death["exit"] = json!({"code": null, "signal": 9, "phase": "backward", "step": 5});
        let stopped = json!({"kind": "stopped"});
        let death = [
            (seq + 1, &fence, death),
            (seq + 2, &fence, exited(1, None, Some(9))),
            (seq + 3, &fence, stopped.clone()),
        ];
        let complaint = [
            (seq + 1, &fence, failed("peer_gone", Some(1), json!({"missing": [1]}))),
            (seq + 2, &fence, exited(0, Some(1), None)),
            (seq + 3, &fence, stopped),
        ];
        if is_death_first {
            beta.report(&server, &death).await;
            alpha.report(&server, &complaint).await;
        } else {
            alpha.report(&server, &complaint).await;
            reconciled(&server).await;
            assert_eq!(view(&server, &job).await["state"], "active", "beta may know more");
            beta.report(&server, &death).await;
        }
        let now = view(&server, &job).await;
        assert_eq!(now["state"], "failed");
        let [verdict] = &now["failures"].as_array().unwrap()[..] else { panic!("{now:#}") };
        assert_eq!((&verdict["rank"], &verdict["signal"]), (&json!(1), &json!(9)), "{verdict:#}");
        let message = verdict["message"].as_str().unwrap();
        assert!(message.starts_with("rank 1 on node beta was ended by SIGKILL"), "{message}");
        assert_eq!(are_busy(&server).await, [false, false]);
    }
}

#[sqlx::test(migrations = "../migrations")]
async fn a_lost_node_takes_the_gang_along_and_keeps_its_slot_until_its_ranks_are_gone(
    pool: PgPool,
) {
    let server = Server::new(pool).await;
    let [alpha, beta] = two_nodes(&server).await;
    let (job, fence) = placed(&server, &alpha).await;
    let up = listens(1, &["10.0.0.2:9"]);
    beta.report(&server, &[(1, &fence, up), (2, &fence, prepared())]).await;
    alpha
        .report(&server, &[(1, &fence, listens(0, &["10.0.0.1:7"])), (2, &fence, prepared())])
        .await;
    for _ in 0..2 {
        server.clock.advance(Duration::from_secs(2));
        alpha.heartbeat(&server, &[&fence]).await;
        reconciled(&server).await;
    }
    let now = view(&server, &job).await;
    assert_eq!(now["attempts"][0]["outcome"], "lease_lost");
    let message = now["failures"][0]["message"].as_str().unwrap();
    assert!(message.contains("node beta stopped answering"), "{message}");
    assert_eq!(alpha.poll(&server, 0).await["assignments"], json!([]), "its rank must die as well");
    assert_eq!(are_busy(&server).await, [true, true]);
    alpha.report(&server, &[(3, &fence, json!({"kind": "stopped"}))]).await;
    assert_eq!(are_busy(&server).await, [false, true]);
    assert_eq!(beta.heartbeat(&server, &[&fence]).await, json!([fence]));
    beta.report(&server, &[(3, &fence, json!({"kind": "stopped"}))]).await;
    assert_eq!(are_busy(&server).await, [false, false]);
}
