//! Chunks outside of the database: put, read back, published, got, let go of and removed, in a folder and over S3.

mod s3;

use std::collections::BTreeSet;

use axum::http::StatusCode;
use camino::{Utf8Path, Utf8PathBuf};
use chrono::TimeDelta;
use lockstep_api::{Digest, FileManifest};
use lockstep_server::chunk_store::{ChunkStore, ChunkStoreUrl};
use lockstep_server::reconcile;
use serde_json::{Value, json};
use sqlx::PgPool;

use crate::agent::{Agent, reconciled};
use crate::common::Server;

/// Longer than a read that had begun may take.
const LET_GO: TimeDelta = TimeDelta::minutes(6);

/// A server whose chunks are files, and the folder they lie in.
struct InFolder {
    server: Server,
    agent: Agent,
    job: String,
    fence: Value,
    folder: tempfile::TempDir,
}

impl InFolder {
    async fn new(pool: PgPool) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = Utf8Path::from_path(folder.path()).unwrap().join("chunks");
        let store = ChunkStore::open(&ChunkStoreUrl::File(path), []).unwrap();
        store.probe([0; 8]).await.unwrap();
        let (server, agent, job, fence) = placed(pool, store).await;
        Self { server, agent, job, fence, folder }
    }

    /// Every file in the store.
    fn files(&self) -> BTreeSet<Utf8PathBuf> {
        files(Utf8Path::from_path(self.folder.path()).unwrap())
    }

    /// The file with these bytes.
    fn file_of(&self, bytes: &[u8]) -> Utf8PathBuf {
        let hex = Digest::of(bytes).hex().to_owned();
        let found = self.files().into_iter().find(|path| path.as_str().contains(&hex));
        found.unwrap_or_else(|| panic!("no file of {bytes:?} in {:?}", self.files()))
    }

    async fn put(&self, bytes: &[u8]) {
        let digest = Digest::of(bytes);
        let put = self.agent.chunk(&self.server, "PUT", &self.fence, digest.as_str(), bytes).await;
        assert_eq!(put.status, StatusCode::NO_CONTENT);
    }

    async fn got(&self, bytes: &[u8]) -> StatusCode {
        let digest = Digest::of(bytes);
        let got = self.agent.chunk(&self.server, "GET", &self.fence, digest.as_str(), b"").await;
        assert!(got.status != StatusCode::OK || got.body == bytes, "{:?}", got.body);
        got.status
    }
}

/// A server with that store, and a placed job that keeps one checkpoint.
async fn placed(pool: PgPool, store: ChunkStore) -> (Server, Agent, String, Value) {
    let mut server = Server::new(pool).await;
    server.set_chunks(store);
    let agent = Agent::join(&server, "alpha", 1).await;
    agent.poll(&server, 0).await;
    let job = agent.submit_with(&server, json!({"checkpoint": {"keep_last": 1}})).await;
    reconciled(&server).await;
    let fence = agent.assignment(&server).await.fence();
    (server, agent, job, fence)
}

fn files(folder: &Utf8Path) -> BTreeSet<Utf8PathBuf> {
    let mut found = BTreeSet::new();
    for entry in folder.read_dir_utf8().unwrap().flatten() {
        match entry.file_type().unwrap().is_dir() {
            true => found.extend(files(entry.path())),
            false => drop(found.insert(entry.into_path())),
        }
    }
    found
}

fn manifest(bytes: &[u8]) -> FileManifest {
    let digest = Digest::of(bytes);
    let size_bytes = i64::try_from(bytes.len()).unwrap();
    FileManifest { digest: digest.clone(), size_bytes, chunks: vec![digest] }
}

async fn count(server: &Server, what: &'static str) -> i64 {
    let text = match what {
        "loose" => "SELECT count(*) FROM loose_object",
        "rows with bytes" => "SELECT count(*) FROM chunk WHERE data IS NOT NULL",
        _ => "SELECT count(*) FROM chunk WHERE object_url IS NOT NULL",
    };
    sqlx::query_scalar(text).fetch_one(&server.pool).await.unwrap()
}

#[sqlx::test(migrations = "../migrations")]
async fn a_checkpoint_s_bytes_are_files_until_nobody_refers_to_them(pool: PgPool) {
    let it = InFolder::new(pool).await;
    let others = it.files().len();
    let published = it.agent.checkpoint(&it.server, &it.fence, 1, b"weights 1").await;
    assert_eq!(count(&it.server, "rows with bytes").await, 0);
    assert_eq!(std::fs::read(it.file_of(b"weights 1")).unwrap(), b"weights 1");
    let path = format!("/v1/checkpoints/{}/file", published["id"].as_str().unwrap());
    let got = it.server.get(&path, &it.server.first.token).await;
    assert_eq!((got.status, got.body.as_slice()), (StatusCode::OK, b"weights 1".as_slice()));
    assert_eq!(it.got(b"weights 1").await, StatusCode::OK);
    assert_eq!(count(&it.server, "loose").await, 0, "what is a chunk's is not loose");

    let old = it.file_of(b"weights 1");
    it.agent.checkpoint(&it.server, &it.fence, 2, b"weights 2").await;
    assert_eq!(it.got(b"weights 1").await, StatusCode::NOT_FOUND);
    reconcile::sweep(&it.server.app).await.unwrap();
    assert!(old.exists(), "a read that had begun may still need it");
    it.server.clock.advance(LET_GO.to_std().unwrap());
    reconcile::sweep(&it.server.app).await.unwrap();
    assert!(!old.exists());
    assert_eq!((it.files().len(), count(&it.server, "loose").await), (others + 1, 0));
    assert_eq!(it.got(b"weights 2").await, StatusCode::OK);
}

#[sqlx::test(migrations = "../migrations")]
async fn what_is_put_again_while_it_is_being_let_go_of_is_not_removed(pool: PgPool) {
    let it = InFolder::new(pool).await;
    it.agent.checkpoint(&it.server, &it.fence, 1, b"same").await;
    let old = it.file_of(b"same");
    it.agent.checkpoint(&it.server, &it.fence, 2, b"other").await;
    it.agent.checkpoint(&it.server, &it.fence, 3, b"same").await;
    it.server.clock.advance(LET_GO.to_std().unwrap());
    reconcile::sweep(&it.server.app).await.unwrap();
    assert!(!old.exists());
    assert_ne!(it.file_of(b"same"), old);
    assert_eq!(it.got(b"same").await, StatusCode::OK);
}

#[sqlx::test(migrations = "../migrations")]
async fn of_many_who_put_the_same_chunk_at_once_one_object_is_left(pool: PgPool) {
    let it = InFolder::new(pool).await;
    let others = it.files().len();
    futures::future::join_all((0..6).map(|_| it.put(b"same"))).await;
    assert_eq!(it.got(b"same").await, StatusCode::OK);
    let (files, loose) = (it.files().len() - others, count(&it.server, "loose").await);
    assert_eq!(i64::try_from(files).unwrap(), 1 + loose, "each file is named by one row");
    it.server.clock.advance(LET_GO.to_std().unwrap());
    reconcile::sweep(&it.server.app).await.unwrap();
    assert_eq!((it.files().len() - others, count(&it.server, "loose").await), (1, 0));
    assert_eq!(it.got(b"same").await, StatusCode::OK);
}

#[sqlx::test(migrations = "../migrations")]
async fn an_object_that_was_put_and_never_claimed_is_removed_when_it_cannot_be_any_more(
    pool: PgPool,
) {
    let it = InFolder::new(pool).await;
    let others = it.files();
    // As if the server had been killed between the put and the transaction that makes a chunk of it.
    it.put(b"abandoned").await;
    let sql = "WITH gone AS (DELETE FROM chunk WHERE digest = $1 RETURNING project_id, object_url)
               INSERT INTO loose_object (url, project_id, claim_before, remove_after)
               SELECT object_url, project_id, $2, $3 FROM gone";
    let now = it.server.clock.now();
    sqlx::query(sql)
        .bind(Digest::of(b"abandoned").as_str())
        .bind(now + TimeDelta::minutes(30))
        .bind(now + TimeDelta::minutes(60))
        .execute(&it.server.pool)
        .await
        .unwrap();
    for minutes in [29, 30] {
        it.server.clock.advance(TimeDelta::minutes(minutes).to_std().unwrap());
        reconcile::sweep(&it.server.app).await.unwrap();
        assert!(it.file_of(b"abandoned").exists());
    }
    it.server.clock.advance(TimeDelta::minutes(2).to_std().unwrap());
    reconcile::sweep(&it.server.app).await.unwrap();
    assert_eq!(it.files(), others);
}

#[sqlx::test(migrations = "../migrations")]
async fn bytes_that_rot_or_vanish_in_the_store_are_not_published(pool: PgPool) {
    let it = InFolder::new(pool).await;
    let publish = async |bytes: &[u8]| {
        let body = Agent::publish_body(&it.fence, 3, &manifest(bytes));
        it.agent.call(&it.server, "checkpoints", body).await
    };
    it.put(b"weights").await;
    std::fs::write(it.file_of(b"weights"), b"weighty").unwrap();
    publish(b"weights").await.problem(500, "internal");
    it.put(b"gone").await;
    std::fs::remove_file(it.file_of(b"gone")).unwrap();
    let body = publish(b"gone").await.problem(500, "internal");
    assert_eq!(body["detail"], "internal error", "where things lie is nobody's business");
    it.put(b"whole").await;
    assert_eq!(publish(b"whole").await.status, StatusCode::OK);
    let view = it.server.get(&format!("/v1/jobs/{}", it.job), &it.server.first.token).await.json();
    assert_eq!(view["checkpoints"].as_array().unwrap().len(), 1);
}

#[sqlx::test(migrations = "../migrations")]
async fn rows_and_objects_live_side_by_side_and_an_object_elsewhere_is_not_looked_for(
    pool: PgPool,
) {
    let mut it = InFolder::new(pool).await;
    it.put(b"in a file").await;
    let folder = it.server.app.chunks.clone();
    it.server.set_chunks(ChunkStore::Postgres);
    it.put(b"in a row").await;
    assert_eq!(it.got(b"in a row").await, StatusCode::OK);
    assert_eq!(it.got(b"in a file").await, StatusCode::INTERNAL_SERVER_ERROR);
    let other = tempfile::tempdir().unwrap();
    let path = Utf8Path::from_path(other.path()).unwrap().to_owned();
    it.server.set_chunks(ChunkStore::open(&ChunkStoreUrl::File(path), []).unwrap());
    assert_eq!(it.got(b"in a file").await, StatusCode::INTERNAL_SERVER_ERROR);
    it.server.set_chunks(folder);
    for bytes in [b"in a row".as_slice(), b"in a file"] {
        assert_eq!(it.got(bytes).await, StatusCode::OK);
    }
}
