//! The course of attempts as their nodes report it: progress, verdicts, retries, cancels.

use std::time::Duration;

use axum::http::StatusCode;
use serde_json::{Value, json};
use sqlx::PgPool;

use crate::agent::{Agent, exited, failed, formed, reconciled, started, steps};
use crate::common::Server;

async fn view(server: &Server, job: &str) -> Value {
    server.get(&format!("/v1/jobs/{job}"), &server.first.token).await.json()
}

async fn part(server: &Server, job: &str, what: &str) -> Value {
    let answer = server.get(&format!("/v1/jobs/{job}/{what}"), &server.first.token).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.json());
    answer.json()
}

/// `(step, value)` of a series.
fn points(metrics: &Value, name: &str) -> Vec<(i64, Option<f64>)> {
    let series = metrics["series"].as_array().unwrap();
    let Some(one) = series.iter().find(|series| series["name"] == name) else { return vec![] };
    let points = one["points"].as_array().unwrap();
    points.iter().map(|p| (p["step"].as_i64().unwrap(), p["value"].as_f64())).collect()
}

/// Ranks that are no copies of each other: whatever is lost ends the attempt.
async fn placed_in_parts(server: &Server, ranks: u32) -> (Agent, String, Value) {
    let agent = Agent::join(server, "alpha", 2).await;
    agent.poll(server, 0).await;
    let job = agent.submit_with(server, in_parts(ranks)).await;
    reconciled(server).await;
    let fence = agent.assignment(server).await.fence();
    (agent, job, fence)
}

fn in_parts(ranks: u32) -> Value {
    json!({"gang": {"ranks": ranks}, "ddp": {"shard": "zero1"}})
}

async fn placed(server: &Server, ranks: u32) -> (Agent, String, Value) {
    let agent = Agent::join(server, "alpha", 2).await;
    agent.poll(server, 0).await;
    let job = agent.place_job(server, ranks).await;
    let fence = agent.assignment(server).await.fence();
    (agent, job, fence)
}

#[sqlx::test(migrations = "../migrations")]
async fn a_job_goes_from_placing_to_succeeded_as_its_node_reports(pool: PgPool) {
    let server = Server::new(pool).await;
    let agent = Agent::join(&server, "alpha", 2).await;
    agent.poll(&server, 0).await;
    let job = agent.place_job(&server, 2).await;
    let assignment = agent.assignment(&server).await;
    let fence = assignment.fence();
    let rank =
        |number| json!({"rank": number, "slot_index": number, "process": number, "heals": false});
    assert_eq!(assignment.json["ranks"], json!([rank(0), rank(1)]));
    assert_eq!(
        (&assignment.json["world_size"], &assignment.json["resume"]),
        (&json!(2), &Value::Null)
    );
    assert_eq!(assignment.json["train_files"][0]["path"], "digits.csv");
    assert_eq!(view(&server, &job).await["attempts"][0]["state"], "placing");

    let f = &fence;
    agent.report(&server, &[(1, f, started(0, 100)), (2, f, started(1, 101))]).await;
    let now = view(&server, &job).await;
    assert_eq!(
        (&now["state"], &now["attempts"][0]["state"]),
        (&json!("active"), &json!("starting"))
    );
    assert_eq!(now["attempts"][0]["ranks"][1]["pid"], 101);
    let losses = [9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0];
    let eval = json!({"kind": "evaluated", "step": 9, "metrics": [{"name": "eval/accuracy", "value": 0.97}]});
    let line = json!({"rank": 0, "source": "guest", "level": "info", "at": "2026-11-30T08:00:00Z", "text": "a\u{0}b"});
    let log = json!({"kind": "log", "lines": [line, line]});
    let answer = agent
        .report(&server, &[(3, f, formed(0)), (4, f, steps(0, &losses)), (5, f, eval), (6, f, log)])
        .await;
    assert_eq!(answer, json!({"acked_seq": 6, "lost": []}));
    let now = view(&server, &job).await;
    assert_eq!(now["attempts"][0]["state"], "running");
    assert_eq!((&now["steps_done"], &now["loss"]), (&json!(9), &json!(1.0)));
    assert_eq!(now["metrics"]["eval/accuracy"], 0.97);
    let ends = [(7, f, exited(0, Some(0), None)), (8, f, exited(1, Some(0), None))];
    agent.report(&server, &ends).await;
    agent.report(&server, &[(9, f, json!({"kind": "finished"}))]).await;

    let now = view(&server, &job).await;
    assert_eq!((&now["state"], &now["failures"]), (&json!("succeeded"), &json!([])));
    assert_eq!(now["attempts"][0]["outcome"], "succeeded");
    assert_eq!(now["attempts"][0]["ranks"][0]["phase"], "done");
    let ledger = part(&server, &job, "ledger").await;
    assert_eq!(ledger["complete_epochs"], json!([0, 1, 2]));
    assert_eq!(points(&part(&server, &job, "metrics").await, "train/loss").len(), 9);
    let some = part(&server, &job, "metrics?name=train/loss&after_step=7").await;
    assert_eq!(points(&some, "train/loss"), [(8, Some(1.0))]);
    let lines = part(&server, &job, "log").await;
    assert_eq!(lines["lines"][1]["seq"], 2);
    assert_eq!(lines["lines"][0]["text"], "a\u{fffd}b");
    assert_eq!(part(&server, &job, "log?limit=1&tail=true").await["lines"][0]["seq"], 2);
    assert_eq!(part(&server, &job, "log?after=2").await["lines"], json!([]));
    assert_eq!(agent.poll(&server, 0).await["assignments"], json!([]));
    let nodes = server.get("/v1/nodes", &server.first.token).await.json();
    assert_eq!(nodes["nodes"][0]["slots"][0]["is_busy"], false);
}

#[sqlx::test(migrations = "../migrations")]
async fn reports_that_come_twice_have_one_effect(pool: PgPool) {
    let server = Server::new(pool).await;
    let (agent, job, fence) = placed(&server, 1).await;
    let f = &fence;
    let line = json!({"rank": 0, "source": "rank", "level": "info", "at": "2026-11-30T08:00:00Z", "text": "once"});
    let log = json!({"kind": "log", "lines": [line]});
    let batch =
        [(1, f, started(0, 7)), (2, f, formed(0)), (3, f, steps(0, &[3.0, 2.0])), (5, f, log)];
    for _ in 0..3 {
        assert_eq!(agent.report(&server, &batch).await["acked_seq"], 5);
    }
    assert_eq!(part(&server, &job, "log").await["lines"].as_array().unwrap().len(), 1);
    assert_eq!(points(&part(&server, &job, "metrics").await, "train/loss").len(), 2);
    let descending = json!({"reports": [
        {"seq": 7, "fence": f, "report": {"kind": "finished"}},
        {"seq": 7, "fence": f, "report": {"kind": "finished"}},
    ]});
    let refused = agent.call(&server, "reports", descending).await;
    assert_eq!(refused.fields(), ["reports[1].seq"]);
}

#[sqlx::test(migrations = "../migrations")]
async fn an_attempt_whose_ranks_have_left_is_its_nodes_own_until_the_node_says_finished(
    pool: PgPool,
) {
    let server = Server::new(pool).await;
    let (agent, job, fence) = placed(&server, 1).await;
    let f = &fence;
    agent.report(&server, &[(1, f, formed(0)), (2, f, exited(0, Some(0), None))]).await;
    // Its slot is free: another job takes it, while the node still publishes the first one's last checkpoint. A node's
    // attempts are listed oldest first, so this one must be younger.
    server.clock.advance(Duration::from_millis(1));
    let next = agent.place_job(&server, 1).await;
    let listed = agent.poll(&server, 0).await;
    let jobs: Vec<&str> = listed["assignments"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|a| a["job_id"].as_str())
        .collect();
    assert_eq!(jobs, [job.as_str(), next.as_str()]);
    agent.checkpoint(&server, f, 9, b"the last weights").await;
    agent.report(&server, &[(3, f, json!({"kind": "finished"}))]).await;
    assert_eq!(view(&server, &job).await["state"], "succeeded");
    assert_eq!(agent.assignment(&server).await.json["job_id"], next.as_str());
}

#[sqlx::test(migrations = "../migrations")]
async fn a_killed_rank_is_replaced_in_its_slot_under_the_next_generation_of_the_attempt(
    pool: PgPool,
) {
    let server = Server::new(pool).await;
    let (agent, job, fence) = placed(&server, 2).await;
    let f = &fence;
    agent.report(&server, &[(1, f, formed(0)), (2, f, steps(0, &[9.0, 8.0]))]).await;
    let complaint = failed("not_entered", Some(1), json!({"missing": [1]}));
    let broken = [(3, f, exited(1, None, Some(9))), (4, f, complaint), (5, f, steps(2, &[7.0]))];
    let answer = agent.report(&server, &broken).await;
    assert_eq!(answer["lost"], json!([]), "its node goes on, under the old fence until it hears");
    let now = view(&server, &job).await;
    assert_eq!((&now["state"], &now["generation"]), (&json!("active"), &json!(2)));
    assert_eq!(now["attempts"][0]["state"], "recovering");
    assert_eq!(now["failures"].as_array().unwrap().len(), 1);
    let next = agent.assignment(&server).await;
    let rank = |rank, process, heals| json!({"rank": rank, "slot_index": rank, "process": process, "heals": heals});
    assert_eq!(next.json["ranks"], json!([rank(0, 0, false), rank(1, 2, true)]));
    assert_eq!((&next.json["generation"], &next.json["steps_reported"]), (&json!(2), &json!(3)));
    assert_eq!(agent.heartbeat(&server, &[&fence]).await, json!([]), "it has yet to hear");
    let f = &next.fence();
    let again = [(6, f, formed(3)), (7, f, steps(2, &[7.0, 6.0]))];
    agent.report(&server, &again).await;
    let now = view(&server, &job).await;
    assert_eq!((&now["attempts"][0]["state"], &now["steps_done"]), (&json!("running"), &json!(4)));
    assert_eq!(now["attempts"][0]["groups"].as_array().unwrap().len(), 2);
    assert_eq!(points(&part(&server, &job, "metrics").await, "train/loss").len(), 4);
    let nodes = server.get("/v1/nodes", &server.first.token).await.json();
    assert!(
        nodes["nodes"][0]["slots"].as_array().unwrap().iter().all(|slot| slot["is_busy"] == true)
    );
}

#[sqlx::test(migrations = "../migrations")]
async fn a_killed_rank_is_the_verdict_and_the_job_goes_on_from_its_checkpoint(pool: PgPool) {
    let server = Server::new(pool).await;
    let (agent, job, fence) = placed_in_parts(&server, 2).await;
    let f = &fence;
    agent.report(&server, &[(1, f, formed(0)), (2, f, steps(0, &[9.0, 8.0, 7.0, 6.0]))]).await;
    agent.checkpoint(&server, f, 3, b"weights after three steps").await;
    let eval =
        json!({"kind": "evaluated", "step": 3, "metrics": [{"name": "eval/loss", "value": 7.5}]});
    agent.report(&server, &[(3, f, eval), (4, f, steps(4, &[5.5]))]).await;
    agent
        .report(
            &server,
            &[
                (5, f, exited(1, None, Some(9))),
                (6, f, failed("not_entered", Some(1), json!({"missing": [1]}))),
                (7, f, exited(0, Some(1), None)),
                (8, f, json!({"kind": "stopped"})),
            ],
        )
        .await;
    let now = view(&server, &job).await;
    assert_eq!(now["state"], "queued");
    assert!(now["waiting"].is_string());
    let verdicts = now["failures"].as_array().unwrap();
    assert_eq!(verdicts.len(), 1, "effects are not verdicts: {verdicts:#?}");
    let verdict = &verdicts[0];
    assert_eq!((&verdict["code"], &verdict["rank"]), (&json!("peer_gone"), &json!(1)));
    assert_eq!((&verdict["signal"], &verdict["step"]), (&json!(9), &json!(5)));
    assert_eq!(
        verdict["message"],
        "rank 1 on node alpha was ended by SIGKILL (9) in step 5, phase backward"
    );
    assert_eq!(verdict["node_id"], agent.node_id.as_str());

    server.clock.advance(Duration::from_secs(1));
    reconciled(&server).await;
    let second = agent.assignment(&server).await;
    assert_eq!(
        (&second.json["generation"], &second.json["resume"]["step"]),
        (&json!(2), &json!(3))
    );
    let refused = agent.report(&server, &[(9, f, steps(5, &[0.0]))]).await;
    assert_eq!(refused, json!({"acked_seq": 9, "lost": [fence]}));
    let metrics = part(&server, &job, "metrics").await;
    let kept = [(0, Some(9.0)), (1, Some(8.0)), (2, Some(7.0))];
    assert_eq!(points(&metrics, "train/loss"), kept, "the abandoned branch is hidden");
    assert_eq!(
        points(&metrics, "eval/loss"),
        [(3, Some(7.5))],
        "what belongs to the saved state stays"
    );
    let f = &second.fence();
    let rest = [6.25, 5.25, 4.25, 3.25, 2.25, 1.25];
    agent.report(&server, &[(10, f, formed(3)), (11, f, steps(3, &rest))]).await;
    let metrics = part(&server, &job, "metrics").await;
    assert_eq!(points(&metrics, "train/loss")[2..4], [(2, Some(7.0)), (3, Some(6.25))]);
    let ledger = part(&server, &job, "ledger").await;
    assert_eq!(ledger["entries"].as_array().unwrap().len(), 9);
    assert_eq!(ledger["complete_epochs"], json!([0, 1, 2]));
    assert_eq!(view(&server, &job).await["attempts"][0]["first_step"], 3);
}

#[sqlx::test(migrations = "../migrations")]
async fn a_symptom_waits_for_its_cause_and_is_the_verdict_if_none_comes(pool: PgPool) {
    let server = Server::new(pool).await;
    let (agent, job, fence) = placed_in_parts(&server, 2).await;
    let stuck = failed("not_entered", Some(1), json!({"missing": [1], "nul\u{0}": "\u{0}"}));
    agent.report(&server, &[(1, &fence, formed(0)), (2, &fence, stuck)]).await;
    reconciled(&server).await;
    let now = view(&server, &job).await;
    assert_eq!((&now["state"], &now["failures"]), (&json!("active"), &json!([])));
    server.clock.advance(Duration::from_millis(700));
    reconciled(&server).await;
    let now = view(&server, &job).await;
    assert_eq!(now["failures"][0]["code"], "not_entered");
    assert_eq!(now["attempts"][0]["outcome"], "failed");
    let events =
        sqlx::query_scalar::<_, i64>("SELECT count(*) FROM job_event WHERE kind = 'failure'");
    assert_eq!(events.fetch_one(&server.pool).await.unwrap(), 1);
}

#[sqlx::test(migrations = "../migrations")]
async fn of_failures_filed_at_one_time_the_first_is_the_verdict(pool: PgPool) {
    let server = Server::new(pool).await;
    let agent = Agent::join(&server, "alpha", 2).await;
    agent.poll(&server, 0).await;
    // Ids are drawn: once could be luck.
    for round in 0..8 {
        // What its node is blamed for is long ago.
        server.clock.advance(Duration::from_secs(600));
        agent.poll(&server, 0).await;
        let job = agent.submit_with(&server, in_parts(2)).await;
        reconciled(&server).await;
        let fence = agent.assignment(&server).await.fence();
        let (f, seq) = (&fence, 10 * round);
        let complaint = failed("not_entered", Some(1), json!({"missing": [1]}));
        let batch = [
            (seq + 1, f, formed(0)),
            (seq + 2, f, complaint),
            (seq + 3, f, exited(0, Some(1), None)),
            (seq + 4, f, exited(1, Some(1), None)),
            (seq + 5, f, json!({"kind": "stopped"})),
        ];
        agent.report(&server, &batch).await;
        let now = view(&server, &job).await;
        assert_eq!(now["failures"].as_array().unwrap().len(), 1, "{now:#}");
        assert_eq!(now["failures"][0]["code"], "not_entered", "{now:#}");
        let path = format!("/v1/jobs/{job}/cancel");
        server.call("POST", &path, &server.first.token, Value::Null).await;
    }
}

#[sqlx::test(migrations = "../migrations")]
async fn a_budget_that_is_spent_fails_the_job(pool: PgPool) {
    let server = Server::new(pool).await;
    let (agent, job, fence) = placed(&server, 1).await;
    let trap = failed("guest_trap", Some(0), json!({}));
    agent.report(&server, &[(1, &fence, trap), (2, &fence, json!({"kind": "stopped"}))]).await;
    let now = view(&server, &job).await;
    assert_eq!(now["state"], "failed", "the job's own faults are not retried by default");
    assert_eq!(now["failures"][0]["blame"], "user");

    let retry = json!({"gang": {"ranks": 1}, "retry": {"user": 0, "infrastructure": 2}});
    let job = agent.submit_with(&server, retry).await;
    for attempt in 0..3 {
        server.clock.advance(Duration::from_secs(2));
        agent.poll(&server, 0).await;
        reconciled(&server).await;
        let fence = agent.assignment(&server).await.fence();
        let seq = 10 + 2 * attempt;
        agent.report(&server, &[(seq, &fence, exited(0, None, Some(11)))]).await;
    }
    let now = view(&server, &job).await;
    assert_eq!((&now["state"], now["attempts"].as_array().unwrap().len()), (&json!("failed"), 3));
    assert!(now["ended_at"].is_string());
}

#[sqlx::test(migrations = "../migrations")]
async fn a_cancel_lets_ranks_leave_and_ends_when_they_are_gone(pool: PgPool) {
    let server = Server::new(pool).await;
    let (agent, job, fence) = placed(&server, 1).await;
    agent.report(&server, &[(1, &fence, started(0, 7)), (2, &fence, formed(0))]).await;
    let cancel = async || {
        let path = format!("/v1/jobs/{job}/cancel");
        server.call("POST", &path, &server.first.token, Value::Null).await.json()
    };
    assert_eq!(cancel().await["state"], "cancelling");
    assert_eq!(cancel().await["state"], "cancelling", "repeating changes nothing");
    assert_eq!(agent.assignment(&server).await.json["is_stopping"], true);
    let last = [(3, &fence, steps(0, &[1.0])), (4, &fence, exited(0, Some(0), None))];
    agent.report(&server, &last).await;
    assert_eq!(view(&server, &job).await["state"], "cancelling", "its node may be publishing");
    agent.report(&server, &[(5, &fence, json!({"kind": "stopped"}))]).await;
    let now = view(&server, &job).await;
    assert_eq!((&now["state"], &now["steps_done"]), (&json!("cancelled"), &json!(1)));
    assert_eq!(now["attempts"][0]["outcome"], "cancelled");
    assert_eq!(now["failures"], json!([]));
    assert_eq!(cancel().await["state"], "cancelled");
    let queued = agent.submit(&server, 2).await;
    let path = format!("/v1/jobs/{queued}/cancel");
    let answer = server.call("POST", &path, &server.first.token, Value::Null).await.json();
    assert_eq!(answer["state"], "cancelled", "a queued job has nothing to stop");
}

#[sqlx::test(migrations = "../migrations")]
async fn ranks_that_do_not_heed_a_cancel_are_killed_after_the_grace(pool: PgPool) {
    let server = Server::new(pool).await;
    let (agent, job, fence) = placed(&server, 1).await;
    let path = format!("/v1/jobs/{job}/cancel");
    server.call("POST", &path, &server.first.token, Value::Null).await;
    for _ in 0..8 {
        server.clock.advance(Duration::from_secs(2));
        agent.heartbeat(&server, &[&fence]).await;
        reconciled(&server).await;
    }
    let now = view(&server, &job).await;
    assert_eq!(now["state"], "cancelled");
    assert_eq!(agent.poll(&server, 0).await["assignments"], json!([]), "out of the set: kill them");
    assert_eq!(agent.heartbeat(&server, &[&fence]).await, json!([fence]));
}

#[sqlx::test(migrations = "../migrations")]
async fn the_last_words_of_a_failed_attempt_are_kept(pool: PgPool) {
    let server = Server::new(pool).await;
    let (agent, job, fence) = placed(&server, 1).await;
    agent.report(&server, &[(1, &fence, exited(0, None, Some(6)))]).await;
    let line = json!({"rank": 0, "source": "stderr", "level": "error", "at": "-9999-01-01T00:00:00Z", "text": "abort"});
    let answer =
        agent.report(&server, &[(2, &fence, json!({"kind": "log", "lines": [line]}))]).await;
    assert_eq!(answer["lost"], json!([]));
    assert_eq!(part(&server, &job, "log?tail=true&limit=1").await["lines"][0]["text"], "abort");
    let wrong = json!({"attempt_id": fence["attempt_id"], "generation": 9});
    let line = json!({"kind": "log", "lines": []});
    assert_eq!(agent.report(&server, &[(3, &wrong, line)]).await["lost"], json!([wrong]));
}

#[sqlx::test(migrations = "../migrations")]
async fn impossible_numbers_are_left_out_and_the_rest_is_taken(pool: PgPool) {
    let server = Server::new(pool).await;
    let (agent, job, fence) = placed(&server, 1).await;
    let mut odd = steps(0, &[3.0, 2.0]);
    odd["steps"][0]["ledger"]["sample_count"] = json!(0);
    odd["steps"][1]["metrics"] =
        json!([{"name": "Bad Name", "value": 1.0}, {"name": "ok", "value": null}]);
    agent.report(&server, &[(1, &fence, odd)]).await;
    let metrics = part(&server, &job, "metrics").await;
    assert_eq!(points(&metrics, "train/loss"), [(1, Some(2.0))]);
    assert_eq!(points(&metrics, "ok"), [(1, None)], "what is not finite is null");
    assert_eq!(points(&metrics, "Bad Name"), []);
    let now = view(&server, &job).await;
    assert_eq!(now["metrics"], json!({"train/loss": 2.0}));
    let other = server.other_project().await;
    for what in ["metrics", "log", "ledger"] {
        let answer = server.get(&format!("/v1/jobs/{job}/{what}"), &other.token).await;
        answer.problem(404, "not_found");
    }
}
