//! No secret gets into a log line.

use std::io::Write;
use std::sync::{Arc, Mutex};

use serde_json::json;
use sqlx::PgPool;
use tracing_subscriber::fmt::MakeWriter;

use crate::common::Server;

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

#[sqlx::test(migrations = "../migrations")]
async fn no_secret_gets_into_a_log_line(pool: PgPool) {
    let lines = Lines::default();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_writer(lines.clone())
        .finish();
    let guard = tracing::subscriber::set_default(subscriber);
    let server = Server::new(pool).await;
    let admin = server.first.token.clone();
    let made = server.token(&admin, "ann", "member").await;
    let join =
        server.call("POST", "/v1/join-tokens", &admin, json!({"ttl_seconds": 60})).await.json();
    let wrong = made.replace(&made[4..12], "00000000");
    server.get("/v1/me", &wrong).await.problem(401, "unauthenticated");
    server.get("/v1/jobs/broken", &made).await.problem(400, "invalid_request");
    drop(guard);
    let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
    assert!(
        text.contains("http.request") && text.contains("tokens.create"),
        "something was logged: {text}"
    );
    let secrets = [&admin, &made, join["token"].as_str().unwrap(), &server.first.join_token]
        .map(str::to_owned);
    for secret in secrets {
        let secret = secret.rsplit('_').next().unwrap();
        assert!(!text.contains(secret), "{text}");
    }
    assert!(
        !format!("{:?} {:?}", server.first, server.app).contains(admin.rsplit('_').next().unwrap())
    );
}
