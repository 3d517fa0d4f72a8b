//! Every error is a Problem, also those that no handler made.

use crate::common::Server;
use axum::body::Body;
use axum::http::{Request, StatusCode, header};
use serde_json::{Value, json};
use sqlx::PgPool;

#[sqlx::test(migrations = "../migrations")]
async fn paths_and_methods_that_do_not_exist_are_problems(pool: PgPool) {
    let server = Server::new(pool).await;
    let token = &server.first.token;
    for path in ["/v1", "/v1/nothing", "/v1/jobs/", "/v1/agent/nothing", "/no-such-file.js"] {
        server.get(path, token).await.problem(404, "not_found");
    }
    for (method, path) in
        [("PATCH", "/v1/jobs"), ("GET", "/v1/join-tokens"), ("POST", "/"), ("DELETE", "/healthz")]
    {
        server.call(method, path, token, Value::Null).await.problem(405, "method_not_allowed");
    }
}

#[sqlx::test(migrations = "../migrations")]
async fn what_cannot_be_understood_names_the_field(pool: PgPool) {
    let server = Server::new(pool).await;
    let token = &server.first.token;
    let answer = server.get("/v1/jobs/not-an-id", token).await;
    let body = answer.problem(400, "invalid_request");
    assert!(body["detail"].as_str().unwrap().contains("not-an-id"), "{body}");
    for (path, field) in [
        ("/v1/jobs?limit=0", "limit"),
        ("/v1/jobs?limit=201", "limit"),
        ("/v1/jobs?limit=many", "limit"),
        ("/v1/jobs?state=asleep", "state"),
        ("/v1/jobs?cursor=xyz", "cursor"),
    ] {
        let answer = server.get(path, token).await;
        answer.problem(400, "invalid_request");
        assert_eq!(answer.fields(), [field], "{path}: {}", answer.json());
    }
    let answer = server.get("/v1/jobs?limt=3", token).await;
    let body = answer.problem(400, "invalid_request");
    assert!(body["detail"].as_str().unwrap().contains("did you mean `limit`"), "{body}");
}

#[sqlx::test(migrations = "../migrations")]
async fn a_body_that_is_no_json_or_too_long_is_a_problem(pool: PgPool) {
    let server = Server::new(pool).await;
    let send = |kind: &'static str, body: Vec<u8>| {
        Request::post("/v1/tokens")
            .header(header::AUTHORIZATION, format!("Bearer {}", server.first.token))
            .header(header::CONTENT_TYPE, kind)
            .body(Body::from(body))
            .unwrap()
    };
    let json = "application/json";
    for body in ["", "{", "{} {}", "[]", "\"x\"", "{\"name\": \"a\", \"role\": \"member\"} x"] {
        let answer = server.send(send(json, body.into())).await;
        answer.problem(400, "invalid_request");
    }
    server.send(send("text/plain", b"{}".to_vec())).await.problem(415, "unsupported_media_type");
    server.send(send(json, vec![b' '; (1 << 20) + 1])).await.problem(413, "too_large");
    let body = br#"{"name": "a", "role": "member"}"#.to_vec();
    let answer = server.send(send("Application/JSON; charset=utf-8", body)).await;
    assert_eq!(answer.status, StatusCode::CREATED);
}

#[sqlx::test(migrations = "../migrations")]
async fn a_request_keeps_a_fitting_id_and_gets_one_otherwise(pool: PgPool) {
    let server = Server::new(pool).await;
    let send =
        |id: &str| Request::get("/v1/me").header("x-request-id", id).body(Body::empty()).unwrap();
    let body = server.send(send("abc-1.2_3")).await.problem(401, "unauthenticated");
    assert_eq!(body["request_id"], "abc-1.2_3");
    for bad in ["", "with space", &"x".repeat(65), "<b>"] {
        let body = server.send(send(bad)).await.problem(401, "unauthenticated");
        assert_eq!(body["request_id"].as_str().unwrap().len(), 16, "{bad:?}");
    }
}

#[sqlx::test(migrations = "../migrations")]
async fn a_database_that_is_gone_is_unavailable_and_says_so(pool: PgPool) {
    let server = Server::new(pool).await;
    let answer = server.get("/healthz", "").await;
    assert_eq!((answer.status, answer.body.as_slice()), (StatusCode::OK, b"ok\n".as_slice()));
    server.app.db.close().await;
    let answer = server.get("/v1/me", &server.first.token).await;
    let body = answer.problem(503, "unavailable");
    assert_eq!(body["retryable"], true);
    assert_eq!(answer.headers["retry-after"], "1");
    server.get("/healthz", "").await.problem(503, "unavailable");
}

#[sqlx::test(migrations = "../migrations")]
async fn faults_of_the_servers_own_tell_nothing(pool: PgPool) {
    let server = Server::new(pool).await;
    sqlx::query("DROP TABLE dataset_name CASCADE").execute(&server.pool).await.unwrap();
    let answer = server.get("/v1/datasets/x", &server.first.token).await;
    let body = answer.problem(500, "internal");
    assert_eq!(body["detail"], json!("internal error"));
}

#[sqlx::test(migrations = "../migrations")]
async fn the_page_answers_every_path_that_it_draws_itself(pool: PgPool) {
    let server = Server::new(pool).await;
    let root = server.get("/", "").await;
    assert_eq!(root.status, StatusCode::OK);
    assert_eq!(root.headers[header::CONTENT_TYPE], "text/html");
    assert_eq!(root.headers[header::CACHE_CONTROL], "no-cache");
    let policy = root.headers["content-security-policy"].to_str().unwrap();
    assert!(
        policy.contains("default-src 'self'") && policy.contains("frame-ancestors 'none'"),
        "{policy}"
    );
    let deep = server.get("/jobs/0198c0de", "").await;
    assert_eq!((deep.status, deep.body), (StatusCode::OK, root.body));
}

#[sqlx::test(migrations = "../migrations")]
async fn text_that_cannot_be_stored_is_the_requests_fault(pool: PgPool) {
    let server = Server::new(pool).await;
    let token = &server.first.token;
    let request = json!({"name": "a\u{0}b", "role": "member"});
    server.call("POST", "/v1/tokens", token, request).await.problem(400, "invalid_request");
    server.get("/v1/datasets/a%00b", token).await.problem(400, "invalid_request");
    let mut job = server.job(token).await;
    job["loader"]["config"] = json!({"text": "a\u{0}b"});
    server.submit(token, &job, None).await.problem(400, "invalid_request");
    let mut job = server.job(token).await;
    job["name"] = json!("a\u{0}b");
    server.submit(token, &job, None).await.problem(422, "job_refused");
}
