//! Who may call, and what a token lets them do.

use std::time::Duration;

use crate::common::Server;
use axum::http::StatusCode;
use serde_json::{Value, json};
use sqlx::PgPool;

#[sqlx::test(migrations = "../migrations")]
async fn a_token_says_who_it_speaks_for(pool: PgPool) {
    let server = Server::new(pool).await;
    let me = server.get("/v1/me", &server.first.token).await.json();
    assert_eq!(me["principal_name"], "admin");
    assert_eq!(me["project_name"], "default");
    assert_eq!(me["role"], "admin");
    assert_eq!(me["project_id"], server.first.project_id.to_string());
    assert_eq!(me["organisation_id"], server.first.organisation_id.to_string());
}

#[sqlx::test(migrations = "../migrations")]
async fn without_a_good_token_nothing_is_answered(pool: PgPool) {
    let server = Server::new(pool).await;
    let good = &server.first.token;
    let last = if good.ends_with('0') { "1" } else { "0" };
    let other_secret = format!("{}{last}", &good[..good.len() - 1]);
    let unknown = good.replace(&good[4..12], "00000000");
    for token in ["", "lsk_", "nonsense", &other_secret, &unknown, &server.first.join_token] {
        let answer = server.get("/v1/me", token).await;
        answer.problem(401, "unauthenticated");
        assert_eq!(answer.headers["www-authenticate"], "Bearer");
        assert!(!String::from_utf8_lossy(&answer.body).contains(token) || token.is_empty());
    }
}

#[sqlx::test(migrations = "../migrations")]
async fn an_expired_and_a_revoked_token_are_unknown(pool: PgPool) {
    let server = Server::new(pool).await;
    let admin = &server.first.token;
    let request = json!({"name": "short", "role": "member", "ttl_seconds": 60});
    let short = server.call("POST", "/v1/tokens", admin, request).await.json();
    let token = short["token"].as_str().unwrap();
    server.clock.advance(Duration::from_secs(59));
    assert_eq!(server.get("/v1/me", token).await.status, StatusCode::OK);
    server.clock.advance(Duration::from_secs(1));
    server.get("/v1/me", token).await.problem(401, "unauthenticated");

    let request = json!({"name": "long", "role": "member"});
    let long = server.call("POST", "/v1/tokens", admin, request).await.json();
    let token = long["token"].as_str().unwrap();
    assert_eq!(server.get("/v1/me", token).await.json()["principal_name"], "long");
    let path = format!("/v1/tokens/{}", long["id"].as_str().unwrap());
    for _ in 0..2 {
        let answer = server.call("DELETE", &path, admin, Value::Null).await;
        assert_eq!(answer.status, StatusCode::NO_CONTENT);
        server.get("/v1/me", token).await.problem(401, "unauthenticated");
    }
}

#[sqlx::test(migrations = "../migrations")]
async fn a_demoted_member_is_demoted_with_every_token(pool: PgPool) {
    let server = Server::new(pool).await;
    let token = server.token(&server.first.token, "ann", "maintainer").await;
    sqlx::query("UPDATE member SET role = 'viewer' WHERE role = 'maintainer'")
        .execute(&server.pool)
        .await
        .unwrap();
    assert_eq!(server.get("/v1/me", &token).await.json()["role"], "viewer");
    sqlx::query("DELETE FROM member WHERE role = 'viewer'").execute(&server.pool).await.unwrap();
    server.get("/v1/me", &token).await.problem(401, "unauthenticated");
}

#[sqlx::test(migrations = "../migrations")]
async fn only_admins_handle_tokens(pool: PgPool) {
    let server = Server::new(pool).await;
    let admin = &server.first.token;
    for role in ["viewer", "member", "maintainer"] {
        let token = server.token(admin, role, role).await;
        let request = json!({"name": "x", "role": "viewer"});
        let answer = server.call("POST", "/v1/tokens", &token, request).await;
        let body = answer.problem(403, "forbidden");
        assert!(body["detail"].as_str().unwrap().contains("admin"), "{body}");
        server.get("/v1/tokens", &token).await.problem(403, "forbidden");
        let request = json!({"ttl_seconds": 60});
        server.call("POST", "/v1/join-tokens", &token, request).await.problem(403, "forbidden");
    }
    let answer = server.call("POST", "/v1/join-tokens", admin, json!({"ttl_seconds": 60})).await;
    assert_eq!(answer.status, StatusCode::CREATED);
    assert!(answer.json()["token"].as_str().unwrap().starts_with("lsj_"));
    for seconds in [0, 86_401] {
        let answer =
            server.call("POST", "/v1/join-tokens", admin, json!({"ttl_seconds": seconds})).await;
        answer.problem(400, "invalid_request");
        assert_eq!(answer.fields(), ["ttl_seconds"]);
    }
}

#[sqlx::test(migrations = "../migrations")]
async fn the_list_shows_no_secrets_and_only_the_own_project(pool: PgPool) {
    let server = Server::new(pool).await;
    let other = server.other_project().await;
    let token = server.token(&server.first.token, "ann", "member").await;
    let answer = server.get("/v1/tokens", &server.first.token).await;
    let list = answer.json();
    let names: Vec<&str> =
        list["tokens"].as_array().unwrap().iter().map(|t| t["name"].as_str().unwrap()).collect();
    assert_eq!(names.len(), 2);
    assert!(names.contains(&"ann") && names.contains(&"init"));
    for secret in [&token, &server.first.token] {
        let secret = secret.rsplit('_').next().unwrap();
        assert!(!String::from_utf8_lossy(&answer.body).contains(secret));
    }
    let id = list["tokens"][0]["id"].as_str().unwrap();
    let path = format!("/v1/tokens/{id}");
    server.call("DELETE", &path, &other.token, Value::Null).await.problem(404, "not_found");
    assert_eq!(server.get("/v1/me", &token).await.status, StatusCode::OK);
}

#[sqlx::test(migrations = "../migrations")]
async fn what_changes_is_in_the_audit_trail_with_who_and_which_request(pool: PgPool) {
    let server = Server::new(pool).await;
    let answer = server
        .call("POST", "/v1/tokens", &server.first.token, json!({"name": "ann", "role": "member"}))
        .await;
    let row: (String, String, String) =
        sqlx::query_as("SELECT action, object, request_id FROM audit_event")
            .fetch_one(&server.pool)
            .await
            .unwrap();
    assert_eq!(row.0, "token.create");
    assert_eq!(row.1, answer.json()["id"]);
    assert_eq!(row.2, answer.headers["x-request-id"]);
}
