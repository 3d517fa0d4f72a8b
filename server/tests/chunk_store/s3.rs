//! The same over S3, spoken by a server that checks signatures.

use std::net::SocketAddr;

use axum::http::StatusCode;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use lockstep_api::Digest;
use s3s::auth::SimpleAuth;
use s3s::service::S3ServiceBuilder;

use super::{LET_GO, count, files, placed};
use camino::Utf8Path;
use lockstep_server::chunk_store::{ChunkStore, StoreError};
use lockstep_server::reconcile;
use lockstep_service::Shutdown;
use sqlx::PgPool;

const KEY: &str = "access-key";
const SECRET: &str = "very-secret-key";

/// A bucket called `bucket` in a folder, served for as long as the test lives.
async fn bucket() -> (tempfile::TempDir, SocketAddr) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("bucket")).unwrap();
    let mut builder = S3ServiceBuilder::new(s3s_fs::FileSystem::new(folder.path()).unwrap());
    builder.set_auth(SimpleAuth::from_single(KEY, SECRET));
    let service = builder.build();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let tasks = Shutdown::new();
    let serve = async move {
        while let Ok((stream, _)) = listener.accept().await {
            let service = service.clone();
            let serve = async move {
                // A client that goes away is no error of this server's.
                let http = Builder::new(TokioExecutor::new());
                drop(http.serve_connection(TokioIo::new(stream), service).await);
            };
            tasks.spawn(serve);
        }
    };
    Shutdown::new().spawn(serve);
    (folder, address)
}

fn store(address: SocketAddr, secret: &str) -> ChunkStore {
    let environment = [
        ("AWS_ACCESS_KEY_ID", KEY.to_owned()),
        ("AWS_SECRET_ACCESS_KEY", secret.to_owned()),
        ("AWS_REGION", "eu-central-1".to_owned()),
        ("AWS_ENDPOINT_URL", format!("http://{address}")),
        ("AWS_ALLOW_HTTP", "true".to_owned()),
        ("PATH", "/nowhere".to_owned()),
    ];
    let environment = environment.map(|(name, value)| (name.to_owned(), value));
    ChunkStore::open(&"s3://bucket/team/a".parse().unwrap(), environment).unwrap()
}

#[sqlx::test(migrations = "../migrations")]
async fn a_checkpoint_s_bytes_are_objects_until_nobody_refers_to_them(pool: PgPool) {
    let (folder, address) = bucket().await;
    let folder = Utf8Path::from_path(folder.path()).unwrap();
    let objects = || {
        let found = files(&folder.join("bucket"));
        found.into_iter().filter(|path| path.as_str().contains("/bucket/team/a/")).count()
    };
    let store = store(address, SECRET);
    store.probe([7; 8]).await.unwrap();
    let (server, agent, _, fence) = placed(pool, store).await;
    let others = objects();
    // More than one part of TCP, less than a chunk may be.
    let whole: Vec<u8> = (0..3_000_000u32).map(|it| (it % 251) as u8).collect();
    let published = agent.checkpoint(&server, &fence, 1, &whole).await;
    assert_eq!((objects() - others, count(&server, "rows with bytes").await), (1, 0));
    let path = format!("/v1/checkpoints/{}/file", published["id"].as_str().unwrap());
    let got = server.get(&path, &server.first.token).await;
    assert_eq!(got.status, StatusCode::OK);
    assert!(got.body == whole, "{} bytes came back", got.body.len());

    agent.checkpoint(&server, &fence, 2, b"newer").await;
    let digest = Digest::of(&whole);
    let gone = agent.chunk(&server, "GET", &fence, digest.as_str(), b"").await;
    gone.problem(404, "not_found");
    server.clock.advance(LET_GO.to_std().unwrap());
    reconcile::sweep(&server.app).await.unwrap();
    assert_eq!((objects() - others, count(&server, "loose").await), (1, 0));
}

#[sqlx::test(migrations = "../migrations")]
async fn a_store_that_refuses_is_told_of_without_a_word_of_credentials(pool: PgPool) {
    let (_folder, address) = bucket().await;
    let wrong = store(address, "another-secret-key");
    let refused = wrong.probe([7; 8]).await.unwrap_err();
    assert!(matches!(refused, StoreError::Refused { .. }), "{refused:?}");
    let words = format!("{refused} {refused:?}");
    assert!(words.contains("s3://bucket/team/a/probe-"), "{words}");
    assert!(words.contains("SignatureDoesNotMatch"), "{words}");
    for secret in [KEY, SECRET, "another-secret-key"] {
        assert!(!words.contains(secret), "{words}");
    }
    let right = store(address, SECRET);
    let (mut server, agent, _, fence) = placed(pool, right).await;
    server.set_chunks(wrong);
    let put = agent.chunk(&server, "PUT", &fence, Digest::of(b"x").as_str(), b"x").await;
    let body = put.problem(500, "internal").to_string();
    assert!(!body.contains("bucket") && !body.contains("key"), "{body}");
    assert_eq!(count(&server, "loose").await, 1, "what may lie there is not forgotten");
}

#[sqlx::test(migrations = "../migrations")]
async fn a_store_that_is_away_is_asked_again_and_then_the_caller_is_told_to_come_back(
    pool: PgPool,
) {
    let (_folder, address) = bucket().await;
    let (mut server, agent, _, fence) = placed(pool, store(address, SECRET)).await;
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    server.set_chunks(store(nobody, SECRET));
    let put = agent.chunk(&server, "PUT", &fence, Digest::of(b"x").as_str(), b"x").await;
    let body = put.problem(503, "unavailable");
    assert_eq!(body["detail"], "the chunk store does not answer just now");
    assert_eq!(put.headers["retry-after"], "1");
}
