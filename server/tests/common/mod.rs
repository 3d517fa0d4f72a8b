//! A real router over a real, empty, migrated database, with a clock that is moved by hand.

use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Request, StatusCode, header};
use axum::response::Response;
use camino::Utf8PathBuf;
use chrono::{DateTime, Utc};
use lockstep_api::{Digest, FileManifest};
use lockstep_server::app::{App, Random};
use lockstep_server::chunk_store::ChunkStore;
use lockstep_server::config::Settings;
use lockstep_server::db::Db;
use lockstep_server::init::{Credentials, first_project};
use lockstep_server::router::router;
use lockstep_service::{Clock, Shutdown};
use serde_json::{Value, json};
use sqlx::PgPool;
use tower::ServiceExt as _;

/// Longest answer that a test reads, bytes.
const MAX_ANSWER: usize = 64 << 20;

/// What a check answers that finds nothing wrong.
pub(crate) const ACCEPTED: &str = r#"{"verdict":"accepted","train_samples":1437,"eval_samples":360,
    "parameter_count":9610,"steps_total":240,"rank_memory_bytes":1000000}"#;

/// A server without a listener.
pub(crate) struct Server {
    pub(crate) app: App,
    pub(crate) clock: Clock,
    pub(crate) pool: PgPool,
    /// The first project's tokens.
    pub(crate) first: Credentials,
    router: Router,
    folder: tempfile::TempDir,
}

/// An answer.
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {:?}", String::from_utf8_lossy(&self.body)))
    }

    /// The fields at fault.
    pub(crate) fn fields(&self) -> Vec<String> {
        let body = self.json();
        let errors = body["errors"].as_array().cloned().unwrap_or_default();
        errors.iter().map(|error| error["field"].as_str().unwrap().to_owned()).collect()
    }

    /// Asserts a problem and gives its body.
    pub(crate) fn problem(&self, status: u16, code: &str) -> Value {
        let body = self.json();
        assert_eq!((self.status.as_u16(), body["code"].as_str()), (status, Some(code)), "{body}");
        assert_eq!(self.headers[header::CONTENT_TYPE], "application/problem+json");
        assert_eq!(body["type"], format!("/problems/{code}"));
        assert_eq!(body["status"], status);
        assert_eq!(body["request_id"].as_str(), self.headers["x-request-id"].to_str().ok());
        body
    }
}

impl Server {
    /// A server whose checks accept everything.
    pub(crate) async fn new(pool: PgPool) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let root = Utf8PathBuf::from_path_buf(folder.path().to_owned()).unwrap();
        let settings = Settings {
            rank_binary: root.join("lockstep-rank"),
            data_dir: root.join("data"),
            heartbeat: Duration::from_secs(1),
            lease: Duration::from_secs(3),
            orphan_grace: Duration::from_secs(600),
            check_time: Duration::from_secs(10),
        };
        let start = DateTime::parse_from_rfc3339("2026-11-30T08:00:00Z").unwrap();
        let clock = Clock::manual(start.with_timezone(&Utc));
        let (db, random) = (Db::from_pool(pool.clone()), Random::system());
        let first = first_project(&db, &clock, &random, "default").await.unwrap();
        let app = App::new(db, clock.clone(), random, Shutdown::new(), settings);
        let server = Self { router: router(app.clone()), app, clock, pool, first, folder };
        server.check_answers(ACCEPTED);
        server
    }

    /// Another project, in another organisation.
    pub(crate) async fn other_project(&self) -> Credentials {
        first_project(&self.app.db, &self.clock, &self.app.random, "other").await.unwrap()
    }

    /// From now on the check is this shell script. What the real one says is tested with the real one, in `tests/`.
    pub(crate) fn check_does(&self, script: &str) {
        let new = self.folder.path().join("new");
        std::fs::write(&new, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o755)).unwrap();
        std::fs::rename(new, &self.app.settings.rank_binary).unwrap();
    }

    /// From now on the check reads its request and answers this.
    pub(crate) fn check_answers(&self, answer: &str) {
        self.check_does(&format!("cat > \"$(dirname \"$0\")/asked\"\ncat <<'END'\n{answer}\nEND"));
    }

    /// What the last check was asked.
    pub(crate) fn asked(&self) -> Value {
        serde_json::from_slice(&std::fs::read(self.folder.path().join("asked")).unwrap()).unwrap()
    }

    /// The longest check from now on.
    pub(crate) fn set_check_time(&mut self, check_time: Duration) {
        let mut settings = Settings::clone(&self.app.settings);
        settings.check_time = check_time;
        self.app.settings = Arc::new(settings);
        self.router = router(self.app.clone());
    }

    /// Where chunks go from now on.
    pub(crate) fn set_chunks(&mut self, chunks: ChunkStore) {
        self.app = self.app.clone().with_chunks(chunks);
        self.router = router(self.app.clone());
    }

    /// The response as it begins.
    pub(crate) async fn open(&self, request: Request<Body>) -> Response {
        self.router.clone().oneshot(request).await.unwrap()
    }

    pub(crate) async fn send(&self, request: Request<Body>) -> Answer {
        let (parts, body) = self.open(request).await.into_parts();
        let body = axum::body::to_bytes(body, MAX_ANSWER).await.unwrap().to_vec();
        Answer { status: parts.status, headers: parts.headers, body }
    }

    /// A call with a JSON body, or none for `Null`.
    pub(crate) async fn call(&self, method: &str, path: &str, token: &str, body: Value) -> Answer {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::AUTHORIZATION, format!("Bearer {token}"));
        let request = match body {
            Value::Null => request.body(Body::empty()),
            body => request
                .header(header::CONTENT_TYPE, "application/json")
                .body(Body::from(body.to_string())),
        };
        self.send(request.unwrap()).await
    }

    /// A call without a body.
    pub(crate) async fn get(&self, path: &str, token: &str) -> Answer {
        self.call("GET", path, token, Value::Null).await
    }

    /// A token of that role in the project of `admin`.
    pub(crate) async fn token(&self, admin: &str, name: &str, role: &str) -> String {
        let answer =
            self.call("POST", "/v1/tokens", admin, json!({"name": name, "role": role})).await;
        assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.json());
        answer.json()["token"].as_str().unwrap().to_owned()
    }

    pub(crate) async fn put_chunk(&self, token: &str, digest: &str, bytes: &[u8]) -> Answer {
        let request = Request::builder()
            .method("PUT")
            .uri(format!("/v1/chunks/{digest}"))
            .header(header::AUTHORIZATION, format!("Bearer {token}"))
            .header(header::CONTENT_TYPE, "application/octet-stream")
            .body(Body::from(bytes.to_vec()));
        self.send(request.unwrap()).await
    }

    /// Puts a file of at most one chunk.
    pub(crate) async fn put_file(&self, token: &str, bytes: &[u8]) -> FileManifest {
        let digest = Digest::of(bytes);
        let chunks = if bytes.is_empty() { vec![] } else { vec![digest.clone()] };
        if !bytes.is_empty() {
            let answer = self.put_chunk(token, digest.as_str(), bytes).await;
            assert_eq!(answer.status, StatusCode::NO_CONTENT);
        }
        let file = FileManifest { digest, size_bytes: i64::try_from(bytes.len()).unwrap(), chunks };
        let path = format!("/v1/files/{}", file.digest);
        let answer = self.call("PUT", &path, token, serde_json::to_value(&file).unwrap()).await;
        assert_eq!(
            answer.status,
            StatusCode::NO_CONTENT,
            "{}",
            String::from_utf8_lossy(&answer.body)
        );
        file
    }

    /// Registers a dataset of one file.
    pub(crate) async fn put_dataset(&self, token: &str, name: &str, bytes: &[u8]) -> Value {
        let file = self.put_file(token, bytes).await;
        let files =
            json!([{"path": "digits.csv", "file": file.digest, "size_bytes": file.size_bytes}]);
        let answer =
            self.call("POST", "/v1/datasets", token, json!({"name": name, "files": files})).await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.json());
        answer.json()
    }

    /// A job of which everything is there.
    pub(crate) async fn job(&self, token: &str) -> Value {
        let loader = self.put_file(token, b"loader").await.digest;
        let loss = self.put_file(token, b"loss").await.digest;
        self.put_dataset(token, "digits/train", b"1,2,3\n").await;
        json!({
            "name": "digits-mlp",
            "model": {"arch": "mlp", "inputs": 64, "hidden": [128], "classes": 10},
            "data": {"train": "digits/train"},
            "loader": {"component": loader},
            "loss": {"component": loss},
            "train": {
                "global_batch": 128, "micro_batch": 32, "epochs": 20,
                "optimizer": {"name": "adamw", "lr": 0.001},
            },
        })
    }

    pub(crate) async fn submit(&self, token: &str, job: &Value, key: Option<&str>) -> Answer {
        let mut request = Request::builder()
            .method("POST")
            .uri("/v1/jobs")
            .header(header::AUTHORIZATION, format!("Bearer {token}"))
            .header(header::CONTENT_TYPE, "application/json");
        if let Some(key) = key {
            request = request.header("idempotency-key", key);
        }
        self.send(request.body(Body::from(job.to_string())).unwrap()).await
    }
}
