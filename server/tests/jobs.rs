//! Submitting, listing, reading and cancelling jobs.

use std::time::Duration;

use axum::http::StatusCode;
use serde_json::{Value, json};
use sqlx::PgPool;

use crate::common::{ACCEPTED, Server};

async fn job_count(server: &Server) -> i64 {
    sqlx::query_scalar("SELECT count(*) FROM job").fetch_one(&server.pool).await.unwrap()
}

#[sqlx::test(migrations = "../migrations")]
async fn a_job_is_checked_and_queued_with_its_first_event_and_audit_line(pool: PgPool) {
    let server = Server::new(pool).await;
    let token = &server.first.token;
    let job = server.job(token).await;
    let answer = server.submit(token, &job, None).await;
    assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.json());
    let view = answer.json();
    assert_eq!((&view["state"], &view["name"]), (&json!("queued"), &json!("digits-mlp")));
    assert_eq!((&view["steps_total"], &view["ranks"]), (&json!(240), &json!(1)));
    let train = view["spec"]["data"]["train"].as_str().unwrap();
    assert!(train.starts_with("sha256:"), "a name that moves changes no job: {train}");
    assert_eq!(
        answer.headers["location"],
        format!("/v1/jobs/{}", view["id"].as_str().unwrap()).as_str()
    );

    let asked = server.asked();
    assert_eq!(asked["spec"]["data"]["train"], train);
    let folder = asked["train_dir"].as_str().unwrap();
    assert_eq!(std::fs::read_to_string(format!("{folder}/digits.csv")).unwrap(), "1,2,3\n");
    assert_eq!(std::fs::read_to_string(asked["loader_path"].as_str().unwrap()).unwrap(), "loader");
    assert_eq!(std::fs::read_to_string(asked["loss_path"].as_str().unwrap()).unwrap(), "loss");

    let events: i64 =
        sqlx::query_scalar("SELECT count(*) FROM job_event").fetch_one(&server.pool).await.unwrap();
    assert_eq!(events, 1);
    let audit: Vec<String> =
        sqlx::query_scalar("SELECT object FROM audit_event WHERE action = 'job.submit'")
            .fetch_all(&server.pool)
            .await
            .unwrap();
    assert_eq!(audit, [view["id"].as_str().unwrap()]);
    let read =
        server.get(&format!("/v1/jobs/{}", view["id"].as_str().unwrap()), token).await.json();
    assert_eq!(read, view);
}

#[sqlx::test(migrations = "../migrations")]
async fn the_same_key_and_job_give_the_first_job_and_another_job_is_refused(pool: PgPool) {
    let server = Server::new(pool).await;
    let token = &server.first.token;
    let mut job = server.job(token).await;
    let first = server.submit(token, &job, Some("monday")).await;
    assert_eq!(first.status, StatusCode::CREATED);
    // The first answer stands, whatever a check would say by now.
    server.check_answers(r#"{"verdict":"refused","errors":[{"field":"loss","message":"no"}]}"#);
    let again = server.submit(token, &job, Some("monday")).await;
    assert_eq!((again.status, &again.json()["id"]), (StatusCode::OK, &first.json()["id"]));
    server.check_answers(ACCEPTED);
    job["name"] = json!("other");
    server.submit(token, &job, Some("monday")).await.problem(422, "idempotency_mismatch");
    assert_eq!(job_count(&server).await, 1);
    assert_eq!(server.submit(token, &job, Some("tuesday")).await.status, StatusCode::CREATED);
    // After a day a key is free again.
    server.clock.advance(Duration::from_secs(24 * 3600 + 1));
    let later = server.submit(token, &job, Some("monday")).await;
    assert_eq!(later.status, StatusCode::CREATED);
    let keys: i64 = sqlx::query_scalar("SELECT count(*) FROM idempotency_key")
        .fetch_one(&server.pool)
        .await
        .unwrap();
    assert_eq!(keys, 1, "old keys are forgotten");
}

#[sqlx::test(migrations = "../migrations")]
async fn two_submits_at_once_with_one_key_make_one_job(pool: PgPool) {
    let server = Server::new(pool).await;
    let token = &server.first.token;
    let job = server.job(token).await;
    let (one, two) =
        tokio::join!(server.submit(token, &job, Some("k")), server.submit(token, &job, Some("k")));
    let mut statuses = [one.status.as_u16(), two.status.as_u16()];
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 201]);
    assert_eq!(one.json()["id"], two.json()["id"]);
    assert_eq!(job_count(&server).await, 1);
}

#[sqlx::test(migrations = "../migrations")]
async fn a_key_of_another_project_is_another_key(pool: PgPool) {
    let server = Server::new(pool).await;
    let other = server.other_project().await.token;
    let mine = server.job(&server.first.token).await;
    let theirs = server.job(&other).await;
    assert_eq!(
        server.submit(&server.first.token, &mine, Some("k")).await.status,
        StatusCode::CREATED
    );
    assert_eq!(server.submit(&other, &theirs, Some("k")).await.status, StatusCode::CREATED);
    let long = "x".repeat(256);
    for bad in ["", "with space", &long] {
        let answer = server.submit(&other, &theirs, Some(bad)).await;
        answer.problem(400, "invalid_request");
        assert_eq!(answer.fields(), ["Idempotency-Key"]);
    }
}

#[sqlx::test(migrations = "../migrations")]
async fn what_cannot_be_read_as_a_job_names_the_field(pool: PgPool) {
    let server = Server::new(pool).await;
    let token = &server.first.token;
    let job = server.job(token).await;
    let mut wrong = job.clone();
    wrong["train"]["epochs"] = json!("many");
    let answer = server.submit(token, &wrong, None).await;
    answer.problem(400, "invalid_request");
    assert_eq!(answer.fields(), ["train.epochs"]);
    let mut unknown = job.clone();
    unknown["train"]["globl_batch"] = json!(3);
    let body = server.submit(token, &unknown, None).await.problem(400, "invalid_request");
    assert!(body["detail"].as_str().unwrap().contains("did you mean `global_batch`"), "{body}");
    assert_eq!(job_count(&server).await, 0);
}

#[sqlx::test(migrations = "../migrations")]
async fn what_does_not_fit_is_refused_with_every_field(pool: PgPool) {
    let server = Server::new(pool).await;
    let token = &server.first.token;
    let job = server.job(token).await;
    let mut out_of_range = job.clone();
    out_of_range["train"]["micro_batch"] = json!(1000);
    out_of_range["gang"] = json!({"ranks": 0});
    let answer = server.submit(token, &out_of_range, None).await;
    answer.problem(422, "job_refused");
    assert_eq!(answer.fields(), ["train.micro_batch", "gang.ranks"]);

    let mut nowhere = job.clone();
    nowhere["loader"]["component"] = json!(lockstep_api::Digest::of(b"never put"));
    nowhere["data"] = json!({"train": "no-such-dataset", "eval": "none-either"});
    let answer = server.submit(token, &nowhere, None).await;
    let body = answer.problem(422, "job_refused");
    assert_eq!(answer.fields(), ["loader.component", "data.train", "data.eval"], "{body}");
    assert!(body["errors"][1]["message"].as_str().unwrap().contains("no-such-dataset"));

    server.check_answers(
        r#"{"verdict":"refused","errors":[{"field":"model.inputs","message":"expected 64, got 63"}]}"#,
    );
    let answer = server.submit(token, &job, None).await;
    let body = answer.problem(422, "job_refused");
    assert_eq!(
        body["errors"],
        json!([{"field": "model.inputs", "message": "expected 64, got 63"}])
    );
    assert_eq!(job_count(&server).await, 0);
}

#[sqlx::test(migrations = "../migrations")]
async fn weights_to_begin_with_are_found_by_digest_and_laid_out_for_the_check(pool: PgPool) {
    let server = Server::new(pool).await;
    let token = &server.first.token;
    let mut job = server.job(token).await;
    job["model"]["init_from"] = json!(lockstep_api::Digest::of(b"never put"));
    let answer = server.submit(token, &job, None).await;
    answer.problem(422, "job_refused");
    assert_eq!(answer.fields(), ["model.init_from"]);
    job["model"]["init_from"] = json!(server.put_file(token, b"weights").await.digest);
    let answer = server.submit(token, &job, None).await;
    assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.json());
    let asked = server.asked();
    assert_eq!(std::fs::read_to_string(asked["init_path"].as_str().unwrap()).unwrap(), "weights");
    let other = server.other_project().await.token;
    let answer = server.submit(&other, &job, None).await;
    answer.problem(422, "job_refused");
    assert!(answer.fields().contains(&"model.init_from".to_owned()), "{:?}", answer.fields());
}

#[sqlx::test(migrations = "../migrations")]
async fn components_and_data_of_another_project_are_not_there(pool: PgPool) {
    let server = Server::new(pool).await;
    let other = server.other_project().await.token;
    let job = server.job(&server.first.token).await;
    assert_eq!(server.submit(&server.first.token, &job, None).await.status, StatusCode::CREATED);
    // The bytes lie in the server's cache by now; that is no way around.
    let answer = server.submit(&other, &job, None).await;
    answer.problem(422, "job_refused");
    assert_eq!(answer.fields(), ["loader.component", "loss.component", "data.train"]);
}

#[sqlx::test(migrations = "../migrations")]
async fn a_check_that_breaks_or_hangs_refuses_the_job_and_the_server_goes_on(pool: PgPool) {
    let mut server = Server::new(pool).await;
    let token = server.first.token.clone();
    let job = server.job(&token).await;
    server.check_does("kill -SEGV $$");
    let body = server.submit(&token, &job, None).await.problem(422, "job_refused");
    assert!(body["detail"].as_str().unwrap().contains("signal 11"), "{body}");
    // It may write without end: what is too long is not kept, and the pipe never blocks it.
    server.check_does(
        "cat > /dev/null; head -c 3000000 /dev/zero >&2; head -c 3000000 /dev/zero; exit 3",
    );
    server.submit(&token, &job, None).await.problem(500, "internal");
    server.check_does(
        "env > \"$(dirname \"$0\")/env\"; ulimit -t > \"$(dirname \"$0\")/limit\"; exit 3",
    );
    server.submit(&token, &job, None).await.problem(500, "internal");
    let folder = server.app.settings.rank_binary.parent().unwrap();
    let environment = std::fs::read_to_string(folder.join("env")).unwrap();
    assert!(
        !environment.contains("DATABASE_URL") && !environment.contains("HOME="),
        "{environment}"
    );
    // Long enough for the script to say who it is.
    server.set_check_time(Duration::from_secs(3));
    server.check_does("echo $$ > \"$(dirname \"$0\")/pid\"; exec sleep 600");
    let body = server.submit(&token, &job, None).await.problem(422, "job_refused");
    assert!(body["detail"].as_str().unwrap().contains("3s"), "{body}");
    let pid =
        std::fs::read_to_string(server.app.settings.rank_binary.parent().unwrap().join("pid"))
            .unwrap();
    assert!(
        !std::path::Path::new(&format!("/proc/{}", pid.trim())).exists(),
        "it was killed and waited for"
    );
    server.set_check_time(Duration::from_secs(10));
    server.check_answers(ACCEPTED);
    assert_eq!(server.submit(&token, &job, None).await.status, StatusCode::CREATED);
}

#[sqlx::test(migrations = "../migrations")]
async fn the_list_is_newest_first_and_pages_meet_without_gap_or_overlap(pool: PgPool) {
    let server = Server::new(pool).await;
    let token = &server.first.token;
    let job = server.job(token).await;
    let mut ids = Vec::new();
    for _ in 0..5 {
        ids.push(server.submit(token, &job, None).await.json()["id"].as_str().unwrap().to_owned());
        // Two in the same microsecond, on both sides of a page's end, so that the id decides.
        if ids.len() != 3 {
            server.clock.advance(Duration::from_millis(1));
        }
    }
    let mut seen = Vec::new();
    let mut path = "/v1/jobs?limit=2".to_owned();
    loop {
        let page = server.get(&path, token).await.json();
        let items = page["items"].as_array().unwrap();
        assert!(items.len() <= 2);
        seen.extend(items.iter().map(|item| item["id"].as_str().unwrap().to_owned()));
        match page["next_cursor"].as_str() {
            Some(cursor) => path = format!("/v1/jobs?limit=2&cursor={cursor}"),
            None => break,
        }
    }
    let all = server.get("/v1/jobs", token).await.json();
    let listed: Vec<&str> =
        all["items"].as_array().unwrap().iter().map(|it| it["id"].as_str().unwrap()).collect();
    assert_eq!(seen, listed);
    assert_eq!(seen.first(), ids.last());
    ids.sort();
    seen.sort();
    assert_eq!(seen, ids);
    let cursor = server.get("/v1/jobs?limit=2", token).await.json()["next_cursor"]
        .as_str()
        .unwrap()
        .to_owned();
    let answer = server.get(&format!("/v1/jobs?state=queued&cursor={cursor}"), token).await;
    assert_eq!(answer.fields(), ["cursor"], "a cursor belongs to its filter");
    assert_eq!(server.get("/v1/jobs?state=failed", token).await.json()["items"], json!([]));
}

#[sqlx::test(migrations = "../migrations")]
async fn roles_reach_as_far_as_they_say(pool: PgPool) {
    let server = Server::new(pool).await;
    let admin = &server.first.token;
    let job = server.job(admin).await;
    let viewer = server.token(admin, "vera", "viewer").await;
    let [ann, bob] =
        [server.token(admin, "ann", "member").await, server.token(admin, "bob", "member").await];
    let maintainer = server.token(admin, "mia", "maintainer").await;
    server.submit(&viewer, &job, None).await.problem(403, "forbidden");
    let id = server.submit(&ann, &job, None).await.json()["id"].as_str().unwrap().to_owned();
    let path = format!("/v1/jobs/{id}");
    for token in [&viewer, &ann, &bob, &maintainer, admin] {
        assert_eq!(server.get(&path, token).await.status, StatusCode::OK);
    }
    let cancel = format!("{path}/cancel");
    server.call("POST", &cancel, &viewer, Value::Null).await.problem(403, "forbidden");
    server.call("POST", &cancel, &bob, Value::Null).await.problem(403, "forbidden");
    assert_eq!(server.get(&path, admin).await.json()["state"], "queued");
    let first = server.call("POST", &cancel, &ann, Value::Null).await;
    assert_eq!((first.status, &first.json()["state"]), (StatusCode::OK, &json!("cancelled")));
    let second = server.call("POST", &cancel, &maintainer, Value::Null).await;
    assert_eq!(
        (second.status, second.json()),
        (StatusCode::OK, first.json()),
        "a repetition changes nothing"
    );
    let by_maintainer =
        server.submit(&ann, &job, None).await.json()["id"].as_str().unwrap().to_owned();
    let answer = server
        .call("POST", &format!("/v1/jobs/{by_maintainer}/cancel"), &maintainer, Value::Null)
        .await;
    assert_eq!(answer.json()["state"], "cancelled");
    let audit: Vec<String> =
        sqlx::query_scalar("SELECT object FROM audit_event WHERE action = 'job.cancel' ORDER BY 1")
            .fetch_all(&server.pool)
            .await
            .unwrap();
    let mut cancelled = [id, by_maintainer];
    cancelled.sort();
    assert_eq!(audit, cancelled);
}

#[sqlx::test(migrations = "../migrations")]
async fn jobs_of_another_project_are_not_there(pool: PgPool) {
    let server = Server::new(pool).await;
    let other = server.other_project().await.token;
    let job = server.job(&server.first.token).await;
    let id = server.submit(&server.first.token, &job, None).await.json()["id"]
        .as_str()
        .unwrap()
        .to_owned();
    for (method, what) in [("GET", ""), ("POST", "/cancel"), ("GET", "/events")] {
        let path = format!("/v1/jobs/{id}{what}");
        server.call(method, &path, &other, Value::Null).await.problem(404, "not_found");
    }
    assert_eq!(server.get("/v1/jobs", &other).await.json()["items"], json!([]));
    assert_eq!(
        server.get(&format!("/v1/jobs/{id}"), &server.first.token).await.json()["state"],
        "queued"
    );
}
