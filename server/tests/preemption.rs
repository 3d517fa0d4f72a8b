//! Jobs of different priority: who goes first, and whose slots are taken for whom.

use std::time::Duration;

use axum::http::StatusCode;
use serde_json::{Value, json};
use sqlx::PgPool;

use crate::agent::{Agent, exited, formed, reconciled, steps};
use crate::common::Server;

async fn view(server: &Server, job: &str) -> Value {
    server.get(&format!("/v1/jobs/{job}"), &server.first.token).await.json()
}

/// A job of one rank, queued.
async fn queued(server: &Server, agent: &Agent, name: &str, priority: u32) -> String {
    agent.submit_with(server, json!({"name": name, "priority": priority})).await
}

/// A job of this priority on alpha's one slot that has done two steps and is not nearly done.
async fn at_work(server: &Server, priority: u32) -> (Agent, String, Value) {
    let alpha = Agent::join(server, "alpha", 1).await;
    alpha.poll(server, 0).await;
    let job = queued(server, &alpha, "patient", priority).await;
    reconciled(server).await;
    let fence = alpha.assignment(server).await.fence();
    alpha.report(server, &[(1, &fence, formed(0)), (2, &fence, steps(0, &[2.0, 1.0]))]).await;
    some_time(server, &alpha, &fence).await;
    (alpha, job, fence)
}

/// Five seconds, in which nobody is silent for longer than a lease.
async fn some_time(server: &Server, agent: &Agent, fence: &Value) {
    for _ in 0..2 {
        server.clock.advance(Duration::from_millis(2500));
        agent.heartbeat(server, &[fence]).await;
    }
}

/// What the server itself has written into a job's log.
async fn log(server: &Server, job: &str) -> Vec<String> {
    let lines = server.get(&format!("/v1/jobs/{job}/log"), &server.first.token).await.json();
    let lines = lines["lines"].as_array().unwrap().iter().filter(|line| line["source"] == "server");
    lines.map(|line| line["text"].as_str().unwrap().to_owned()).collect()
}

#[sqlx::test(migrations = "../migrations")]
async fn a_gang_gives_way_to_a_job_of_higher_priority_and_goes_on_later_for_nothing(pool: PgPool) {
    let server = Server::new(pool).await;
    let (alpha, low, fence) = at_work(&server, 40).await;
    let high = queued(&server, &alpha, "urgent", 60).await;
    reconciled(&server).await;
    assert_eq!(alpha.assignment(&server).await.json["is_stopping"], true);
    let leaving = view(&server, &low).await;
    let waiting = "gives its slots to a job of higher priority: its ranks leave after a checkpoint";
    assert_eq!((&leaving["state"], &leaving["waiting"]), (&json!("active"), &json!(waiting)));
    reconciled(&server).await;
    let waits = view(&server, &high).await;
    let waiting = "waits for 1 free slot of 1 cpu core and 512 MiB: 0 are free; \
                   1 slot is being given up by preempted jobs";
    assert_eq!((&waits["waiting"], &waits["priority"]), (&json!(waiting), &json!(60)));

    alpha.report(&server, &[(3, &fence, exited(0, Some(0), None))]).await;
    alpha.checkpoint(&server, &fence, 2, b"after two steps").await;
    alpha.report(&server, &[(4, &fence, json!({"kind": "stopped"}))]).await;
    reconciled(&server).await;
    assert_eq!(view(&server, &high).await["state"], "active");
    reconciled(&server).await;
    let again = view(&server, &low).await;
    let waiting = "waits for 1 free slot of 1 cpu core and 512 MiB: 0 are free";
    assert_eq!((&again["state"], &again["waiting"]), (&json!("queued"), &json!(waiting)));
    let because = "preempted: gives its slots to job urgent of priority 60 (1 of 3 preemptions)";
    assert_eq!(again["attempts"][0]["stopped_because"], because);
    let goes_on = "stopped: goes on from its checkpoint of step 2 when slots are free";
    assert_eq!(log(&server, &low).await, [because, goes_on]);
    assert_eq!(again["failures"], json!([]));

    let next = alpha.assignment(&server).await.fence();
    let end = json!({"kind": "finished"});
    alpha.report(&server, &[(5, &next, exited(0, Some(0), None)), (6, &next, end)]).await;
    reconciled(&server).await;
    assert_eq!(view(&server, &high).await["state"], "succeeded");
    assert_eq!(alpha.assignment(&server).await.json["resume"]["step"], 2);
    let left = "SELECT infrastructure_retries FROM job WHERE name = 'patient'";
    assert_eq!(sqlx::query_scalar::<_, i32>(left).fetch_one(&server.pool).await.unwrap(), 3);
}

#[sqlx::test(migrations = "../migrations")]
async fn a_gang_of_the_same_priority_or_without_budget_is_left_alone(pool: PgPool) {
    let server = Server::new(pool).await;
    let (alpha, low, fence) = at_work(&server, 50).await;
    let is_stopping = async || {
        alpha.heartbeat(&server, &[&fence]).await;
        reconciled(&server).await;
        alpha.assignment(&server).await.json["is_stopping"] == true
    };
    queued(&server, &alpha, "equal", 50).await;
    assert!(!is_stopping().await);
    let spent = "UPDATE job SET preemptions = $1 WHERE name = 'patient'";
    sqlx::query(spent).bind(3).execute(&server.pool).await.unwrap();
    queued(&server, &alpha, "urgent", 60).await;
    assert!(!is_stopping().await, "its budget is spent");
    sqlx::query(spent).bind(2).execute(&server.pool).await.unwrap();
    assert!(is_stopping().await);
    assert!(log(&server, &low).await[0].ends_with("(3 of 3 preemptions)"));
}

#[sqlx::test(migrations = "../migrations")]
async fn a_job_of_another_project_is_not_named(pool: PgPool) {
    let server = Server::new(pool).await;
    let (alpha, low, _) = at_work(&server, 40).await;
    queued(&server, &alpha, "secret", 60).await;
    for sql in [
        "INSERT INTO project (project_id, organisation_id, name, created_at)
         SELECT gen_random_uuid(), organisation_id, 'neighbours', created_at FROM project",
        "UPDATE job SET project_id = (SELECT project_id FROM project WHERE name = 'neighbours')
         WHERE name = 'secret'",
    ] {
        sqlx::query(sql).execute(&server.pool).await.unwrap();
    }
    reconciled(&server).await;
    let told = "preempted: gives its slots to a job of another project, of priority 60 (1 of 3 preemptions)";
    assert_eq!(log(&server, &low).await, [told]);
}

#[sqlx::test(migrations = "../migrations")]
async fn of_jobs_that_wait_the_highest_priority_goes_first_and_then_the_oldest(pool: PgPool) {
    let server = Server::new(pool).await;
    let alpha = Agent::join(&server, "alpha", 1).await;
    let mut jobs = Vec::new();
    for (name, priority) in [("a", 10), ("b", 50), ("c", 50), ("d", 20)] {
        server.clock.advance(Duration::from_millis(1));
        jobs.push(queued(&server, &alpha, name, priority).await);
    }
    alpha.poll(&server, 0).await;
    let mut begun = Vec::new();
    for seq in 1..=4 {
        reconciled(&server).await;
        let next = alpha.assignment(&server).await;
        begun.push(next.json["job_id"].as_str().unwrap().to_owned());
        let fence = next.fence();
        let (left, end) = (exited(0, Some(0), None), json!({"kind": "finished"}));
        alpha.report(&server, &[(2 * seq - 1, &fence, left), (2 * seq, &fence, end)]).await;
    }
    assert_eq!(begun, [1, 2, 3, 0].map(|place: usize| jobs[place].clone()));
}

#[sqlx::test(migrations = "../migrations")]
async fn a_priority_above_the_default_is_for_admins(pool: PgPool) {
    let server = Server::new(pool).await;
    let member = server.token(&server.first.token, "m", "maintainer").await;
    let mut job = server.job(&member).await;
    job["priority"] = json!(51);
    let refused = server.submit(&member, &job, None).await.problem(403, "forbidden");
    let detail = "a priority above 50, here 51, needs the role admin, the token has maintainer";
    assert_eq!(refused["detail"], detail);
    assert_eq!(server.submit(&server.first.token, &job, None).await.status, StatusCode::CREATED);
    job["priority"] = json!(100);
    let refused = server.submit(&server.first.token, &job, None).await;
    refused.problem(422, "job_refused");
    assert_eq!(refused.fields(), ["priority"]);
    job["priority"] = json!(-1);
    server.submit(&member, &job, None).await.problem(400, "invalid_request");
    job["priority"] = json!(50);
    let accepted = server.submit(&member, &job, None).await;
    assert_eq!(accepted.status, StatusCode::CREATED);
    assert_eq!(accepted.json()["priority"], 50);
}

#[sqlx::test(migrations = "../migrations")]
async fn what_people_ask_of_a_job_is_in_its_log_once(pool: PgPool) {
    let server = Server::new(pool).await;
    let (_alpha, job, _) = at_work(&server, 50).await;
    for what in ["pause", "pause", "resume", "cancel", "cancel"] {
        let path = format!("/v1/jobs/{job}/{what}");
        let answer = server.call("POST", &path, &server.first.token, Value::Null).await;
        assert_eq!(answer.status, StatusCode::OK);
    }
    let told =
        ["pause requested by admin", "resume requested by admin", "cancel requested by admin"];
    assert_eq!(log(&server, &job).await, told);
    let attempt = &view(&server, &job).await["attempts"][0];
    assert_eq!(attempt["stopped_because"], "cancel requested by admin");
}
