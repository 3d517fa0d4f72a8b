//! The arrival map, and what the server says in a job's log.

use std::time::Duration;

use axum::http::StatusCode;
use serde_json::{Value, json};
use sqlx::PgPool;

use crate::agent::{Agent, exited, failed, formed, reconciled, started, steps};
use crate::common::Server;

/// A rank of a heartbeat that entered collective `entered` so long ago, and has left `left`.
fn position(rank: i32, phase: &str, (entered, left): (i64, i64), entered_ms: i64) -> Value {
    json!({
        "rank": rank, "pid": 100 + rank, "phase": phase, "step": 12, "phase_ms": 5100, "is_stopped": rank == 1,
        "collective": {"entered": entered, "left": left, "what": "bucket 3 of 9", "entered_ms": entered_ms},
        "pause_left_ms": if rank == 1 { json!(250) } else { Value::Null },
    })
}

async fn beat(agent: &Agent, server: &Server, fence: &Value, ranks: Vec<Value>) {
    let running = json!([{"fence": fence, "ranks": ranks}]);
    let body = json!({"boot_id": agent.boot_id, "running": running});
    let answer = agent.call(server, "heartbeat", body).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.json());
}

async fn placed(server: &Server) -> (Agent, String, Value) {
    let agent = Agent::join(server, "alpha", 2).await;
    agent.poll(server, 0).await;
    let job = agent.place_job(server, 2).await;
    let fence = agent.assignment(server).await.fence();
    (agent, job, fence)
}

async fn view(server: &Server, job: &str) -> Value {
    server.get(&format!("/v1/jobs/{job}"), &server.first.token).await.json()
}

async fn part(server: &Server, job: &str, what: &str) -> Value {
    let answer = server.get(&format!("/v1/jobs/{job}/{what}"), &server.first.token).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.json());
    answer.json()
}

/// The server's own lines: `(level, rank, text)`.
async fn said(server: &Server, job: &str) -> Vec<(String, Value, String)> {
    let log = part(server, job, "log").await;
    let lines = log["lines"].as_array().unwrap().iter().filter(|line| line["source"] == "server");
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    lines.map(|line| (text(&line["level"]), line["rank"].clone(), text(&line["text"]))).collect()
}

#[sqlx::test(migrations = "../migrations")]
async fn the_map_says_who_has_entered_who_is_missing_and_how_old_the_news_is(pool: PgPool) {
    let server = Server::new(pool).await;
    let agent = Agent::join(&server, "alpha", 2).await;
    agent.poll(&server, 0).await;
    let job = agent.submit(&server, 2).await;
    let before = part(&server, &job, "ranks").await;
    assert_eq!(
        (&before["ranks"], &before["summary"]),
        (&json!([]), &json!("the job has no attempt yet"))
    );
    reconciled(&server).await;
    let fence = agent.assignment(&server).await.fence();
    let unknown = part(&server, &job, "ranks").await;
    assert_eq!(unknown["ranks"][1]["standing"], "unknown");
    assert_eq!(unknown["ranks"][1]["seen_ms"], Value::Null);

    let ranks = vec![position(0, "reduce", (41, 40), 2000), position(1, "data", (40, 40), 9000)];
    beat(&agent, &server, &fence, ranks).await;
    server.clock.advance(Duration::from_millis(100));
    let map = part(&server, &job, "ranks").await;
    assert_eq!(
        map["collective"],
        json!({"lane": 0, "sequence": 41, "what": "bucket 3 of 9", "waited_ms": 2000}),
        "as of the news, which is 100 ms old"
    );
    assert_eq!(
        (&map["attempt_id"], &map["generation"]),
        (&fence["attempt_id"], &fence["generation"])
    );
    let [first, second] = &map["ranks"].as_array().unwrap()[..] else { panic!("{map:#}") };
    assert_eq!((&first["standing"], &first["waited_ms"]), (&json!("entered"), &json!(2000)));
    let expected = json!({
        "rank": 1, "node_id": agent.node_id, "node_name": "alpha", "pid": 101, "phase": "data", "phase_ms": 5100,
        "step": 12, "standing": "missing", "entered": 40, "left": 40, "what": "bucket 3 of 9", "waited_ms": null,
        "pause_left_ms": 150, "is_stopped": true, "seen_ms": 100,
    });
    assert_eq!(*second, expected);
    assert_eq!(
        map["summary"],
        "rank 1 on node alpha has not entered bucket 3 of 9 (collective 41) for 2.0 s: phase data of step 12 since \
         5.1 s, its process is stopped, it has announced to be busy for 0.2 s more at most; rank 0 waits"
    );
    let other = server.other_project().await;
    server.get(&format!("/v1/jobs/{job}/ranks"), &other.token).await.problem(404, "not_found");
    // An agent that knows nothing of this still says where its ranks are.
    let plain = json!({"rank": 0, "pid": 100, "phase": "forward", "step": 13});
    beat(&agent, &server, &fence, vec![plain]).await;
    let map = part(&server, &job, "ranks").await;
    assert_eq!((&map["collective"], &map["ranks"][0]["phase"]), (&Value::Null, &json!("forward")));
}

#[sqlx::test(migrations = "../migrations")]
async fn a_rank_that_is_late_in_another_lane_is_missing_there(pool: PgPool) {
    let server = Server::new(pool).await;
    let (agent, job, fence) = placed(&server).await;
    let with_lanes = |rank: i32, lanes: [(i64, i64); 2]| {
        let mut position = position(rank, "reduce", (41, 41), 100);
        let lane = |(entered, left)| json!({"entered": entered, "left": left, "what": "bucket 2 of 9", "entered_ms": 7000});
        position["further_lanes"] = json!(lanes.map(lane));
        position
    };
    let ranks = vec![with_lanes(0, [(0, 0), (7, 6)]), with_lanes(1, [(0, 0), (6, 6)])];
    beat(&agent, &server, &fence, ranks).await;
    let map = part(&server, &job, "ranks").await;
    let collective = json!({"lane": 2, "sequence": 7, "what": "bucket 2 of 9", "waited_ms": 7000});
    assert_eq!(map["collective"], collective);
    let of = |rank: usize| {
        let it = &map["ranks"][rank];
        [&it["standing"], &it["entered"], &it["left"], &it["waited_ms"]].map(Clone::clone)
    };
    assert_eq!(of(0), [json!("entered"), json!(7), json!(6), json!(7000)]);
    assert_eq!(of(1), [json!("missing"), json!(6), json!(6), Value::Null]);
    let lines = said(&server, &job).await;
    let begins = "straggler: rank 1 on node alpha has not entered bucket 2 of 9 (collective 7 of lane 2) for 7.0 s";
    assert!(lines.len() == 1 && lines[0].2.starts_with(begins), "{lines:?}");
    // All are there: with what is heard of lane 0 next, nothing is left of the others.
    beat(&agent, &server, &fence, vec![position(0, "forward", (42, 42), 10)]).await;
    let map = part(&server, &job, "ranks").await;
    assert_eq!((&map["collective"], &map["ranks"][0]["entered"]), (&Value::Null, &json!(42)));
}

/// A gang over two nodes that does steps.
async fn over_two_nodes(server: &Server) -> ([Agent; 2], String, Value) {
    let alpha = Agent::join(server, "alpha", 1).await;
    let mut beta = Agent::join(server, "beta", 1).await;
    beta.host = "two".to_owned();
    for agent in [&alpha, &beta] {
        agent.poll(server, 0).await;
    }
    let job = alpha.place_job(server, 2).await;
    let fence = alpha.assignment(server).await.fence();
    for (agent, rank) in [(&alpha, 0), (&beta, 1)] {
        let listens = json!({"kind": "rank_listens", "rank": rank, "endpoints": [format!("10.0.0.{rank}:9")]});
        let up = [
            (1, &fence, listens),
            (2, &fence, json!({"kind": "prepared"})),
            (3, &fence, started(rank, 100 + rank)),
        ];
        agent.report(server, &up).await;
    }
    alpha.report(server, &[(4, &fence, formed(0)), (5, &fence, steps(0, &[2.0, 1.0]))]).await;
    ([alpha, beta], job, fence)
}

#[sqlx::test(migrations = "../migrations")]
async fn a_rank_that_is_inside_in_the_lane_in_which_it_is_missed_has_a_link_at_fault(pool: PgPool) {
    let server = Server::new(pool).await;
    let ([alpha, beta], job, fence) = over_two_nodes(&server).await;
    let missed = json!({
        "missing": [1], "by": 0, "lane": 1, "collective": 7, "waited_ms": 60_000, "what": "bucket 2 of 9",
    });
    alpha.report(&server, &[(6, &fence, failed("not_entered", Some(1), missed))]).await;
    reconciled(&server).await;
    assert_eq!(view(&server, &job).await["failures"], json!([]), "beta may know more");
    let in_lane_1 = |phase: &str, (entered, left): (i64, i64)| {
        let mut position = position(1, phase, (41, 41), 100);
        position["is_stopped"] = json!(false);
        let lane =
            json!({"entered": entered, "left": left, "what": "bucket 2 of 9", "entered_ms": 100});
        position["further_lanes"] = json!([lane]);
        position
    };
    beat(&beta, &server, &fence, vec![in_lane_1("reduce", (7, 6))]).await;
    reconciled(&server).await;
    let now = view(&server, &job).await;
    let verdict = &now["failures"][0];
    assert_eq!(
        (&verdict["code"], &verdict["evidence"]["lane"]),
        (&json!("link_or_device_stall"), &json!(1))
    );
    let message = verdict["message"].as_str().unwrap();
    assert!(message.contains("bucket 2 of 9 (collective 7 of lane 1)"), "{message}");
    assert_eq!((&now["generation"], &now["state"]), (&json!(2), &json!("active")));
    assert_eq!(part(&server, &job, "ranks").await["collective"], Value::Null, "{now:#}");
    // What its record still says of the group that is no more accuses nobody.
    let next = beta.assignment(&server).await.fence();
    for fence in [&fence, &next] {
        beat(&beta, &server, fence, vec![in_lane_1("recovering", (7, 6))]).await;
        let map = part(&server, &job, "ranks").await;
        assert_eq!(map["collective"], Value::Null, "{map:#}");
    }
}

#[sqlx::test(migrations = "../migrations")]
async fn lengths_of_time_that_make_no_sense_are_cut_and_harm_nobody(pool: PgPool) {
    let server = Server::new(pool).await;
    let (agent, job, fence) = placed(&server).await;
    for ms in [i64::MIN, -1, i64::MAX] {
        let mut odd = position(0, "reduce", (i64::MAX, 0), ms);
        odd["phase_ms"] = json!(ms);
        odd["pause_left_ms"] = json!(ms);
        odd["further_lanes"] =
            json!([{"entered": i64::MAX, "left": i64::MIN, "what": "", "entered_ms": ms}]);
        beat(&agent, &server, &fence, vec![odd, position(1, "data", (40, 40), 9000)]).await;
        let map = part(&server, &job, "ranks").await;
        assert!(0 <= map["ranks"][0]["waited_ms"].as_i64().unwrap(), "{map:#}");
    }
}

#[sqlx::test(migrations = "../migrations")]
async fn a_straggler_is_told_of_once_for_each_collective_from_the_soft_limit_on(pool: PgPool) {
    let server = Server::new(pool).await;
    let (agent, job, fence) = placed(&server).await;
    let late = |collective: i64, waited: i64| {
        let before = collective - 1;
        vec![
            position(0, "reduce", (collective, before), waited),
            position(1, "data", (before, before), waited + 3000),
        ]
    };
    // A tenth of the default of 60 s.
    beat(&agent, &server, &fence, late(41, 5999)).await;
    assert_eq!(said(&server, &job).await, []);
    for waited in [6000, 6500, 7000] {
        beat(&agent, &server, &fence, late(41, waited)).await;
    }
    let lines = said(&server, &job).await;
    let [(level, rank, text)] = &lines[..] else { panic!("{lines:?}") };
    assert_eq!((level.as_str(), rank), ("warn", &json!(1)));
    let begins = "straggler: rank 1 on node alpha has not entered bucket 3 of 9 (collective 41) for 6.0 s: phase data \
                  of step 12 since 5.1 s";
    assert!(text.starts_with(begins), "{text}");
    beat(&agent, &server, &fence, late(42, 6100)).await;
    assert_eq!(said(&server, &job).await.len(), 2);
    // Another lane has a collective of the same number.
    let mut in_lane_1 = late(41, 6000);
    for (position, entered) in in_lane_1.iter_mut().zip([42, 41]) {
        position["further_lanes"] =
            json!([{"entered": entered, "left": 41, "what": "bucket 4 of 9", "entered_ms": 6200}]);
        position["collective"]["left"] = position["collective"]["entered"].clone();
    }
    for _ in 0..2 {
        beat(&agent, &server, &fence, in_lane_1.clone()).await;
    }
    let lines = said(&server, &job).await;
    assert!(lines.len() == 3 && lines[2].2.contains("(collective 42 of lane 1)"), "{lines:?}");
    // All have entered: somebody is slow, but nobody is late.
    let slow = [0, 1].map(|rank| position(rank, "reduce", (43, 42), 9000));
    beat(&agent, &server, &fence, slow.to_vec()).await;
    assert_eq!(said(&server, &job).await.len(), 3);
}

#[sqlx::test(migrations = "../migrations")]
async fn a_verdict_stands_in_the_log_behind_what_its_ranks_said(pool: PgPool) {
    let server = Server::new(pool).await;
    let (agent, job, fence) = placed(&server).await;
    let f = &fence;
    let line = json!({"rank": 1, "source": "stderr", "level": "error", "at": "2026-11-30T08:00:00Z", "text": "ouch"});
    let log = json!({"kind": "log", "lines": [line]});
    let batch = [(1, f, started(0, 7)), (2, f, exited(1, None, Some(9))), (3, f, log)];
    agent.report(&server, &batch).await;
    let lines = part(&server, &job, "log").await;
    let texts: Vec<&str> = lines["lines"]
        .as_array()
        .unwrap()
        .iter()
        .map(|line| line["text"].as_str().unwrap())
        .collect();
    let verdict = "verdict peer_gone (blamed on infrastructure): rank 1 on node alpha was ended by SIGKILL (9) in step 5, \
                   phase backward";
    let repair = "repaired in place, generation 2: a new process for rank 1, the others go on";
    assert_eq!(texts, ["ouch", verdict, repair]);
    assert_eq!(said(&server, &job).await[0].0, "error");
}

#[sqlx::test(migrations = "../migrations")]
async fn a_symptom_that_becomes_the_verdict_is_said_then_and_its_evidence_is_shown(pool: PgPool) {
    let server = Server::new(pool).await;
    let (agent, job, fence) = placed(&server).await;
    let evidence = json!({"missing": [1], "flight_record": {"rank": 1, "collectives": []}});
    let symptom = failed("not_entered", Some(1), evidence.clone());
    agent.report(&server, &[(1, &fence, symptom)]).await;
    assert_eq!(said(&server, &job).await, [], "it waits for its cause");
    server.clock.advance(Duration::from_secs(1));
    reconciled(&server).await;
    let lines = said(&server, &job).await;
    assert_eq!(lines[0].2, "verdict not_entered (blamed on infrastructure): as the rank said");
    let view = server.get(&format!("/v1/jobs/{job}"), &server.first.token).await.json();
    assert_eq!(view["failures"][0]["evidence"], evidence);
}

#[sqlx::test(migrations = "../migrations")]
async fn a_job_shows_its_effective_time_limits_and_limits_out_of_order_are_refused(pool: PgPool) {
    let server = Server::new(pool).await;
    let agent = Agent::join(&server, "alpha", 2).await;
    let timeouts = json!({"collective": "2s", "soft": "150ms"});
    let job = agent.submit_with(&server, json!({"timeouts": timeouts})).await;
    let view = server.get(&format!("/v1/jobs/{job}"), &server.first.token).await.json();
    assert_eq!(
        view["timeouts"],
        json!({
            "collective_ms": 2000, "soft_ms": 150, "snapshot_ms": 100, "abort_ms": 333, "formation_ms": 2000,
            "stop_grace_ms": 2000, "pause_ms": 10000,
        })
    );
    let mut job = server.job(&server.first.token).await;
    job["timeouts"] = json!({"collective": "2s", "soft": "2s", "formation": "1s"});
    let refused = server.submit(&server.first.token, &job, None).await;
    assert_eq!(refused.fields(), ["timeouts.soft", "timeouts.formation"]);
    let message = refused.json()["errors"][0]["message"].as_str().unwrap().to_owned();
    assert!(message.ends_with("less than timeouts.abort (333ms), got \"2s\""), "{message}");
}
