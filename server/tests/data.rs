//! Chunks, files and datasets: only what was proven by its bytes is there, and only for its own project.

use crate::common::{Answer, Server};
use axum::body::Body;
use axum::http::{Request, StatusCode, header};
use lockstep_api::{CHUNK_BYTES, DatasetFile, Digest, dataset_digest};
use serde_json::{Value, json};
use sqlx::PgPool;

#[sqlx::test(migrations = "../migrations")]
async fn a_chunk_must_have_the_digest_it_is_put_under(pool: PgPool) {
    let server = Server::new(pool).await;
    let token = &server.first.token;
    let digest = Digest::of(b"right");
    let answer = server.put_chunk(token, digest.as_str(), b"wrong").await;
    let body = answer.problem(400, "invalid_request");
    assert_eq!(answer.fields(), ["digest"]);
    assert!(body["detail"].as_str().unwrap().contains(Digest::of(b"wrong").as_str()));
    let missing = json!({"digests": [digest]});
    let answer = server.call("POST", "/v1/chunks/missing", token, missing.clone()).await;
    assert_eq!(answer.json(), json!({"missing": [digest]}));
    for _ in 0..2 {
        assert_eq!(
            server.put_chunk(token, digest.as_str(), b"right").await.status,
            StatusCode::NO_CONTENT
        );
    }
    let answer = server.call("POST", "/v1/chunks/missing", token, missing).await;
    assert_eq!(answer.json(), json!({"missing": []}));
}

#[sqlx::test(migrations = "../migrations")]
async fn a_chunk_has_1_byte_to_4_mib_of_octets(pool: PgPool) {
    let server = Server::new(pool).await;
    let token = &server.first.token;
    let largest = vec![7; CHUNK_BYTES];
    let digest = Digest::of(&largest);
    assert_eq!(
        server.put_chunk(token, digest.as_str(), &largest).await.status,
        StatusCode::NO_CONTENT
    );
    let larger = vec![7; CHUNK_BYTES + 1];
    let body = server
        .put_chunk(token, Digest::of(&larger).as_str(), &larger)
        .await
        .problem(413, "too_large");
    assert!(body["detail"].as_str().unwrap().contains("4194304"), "{body}");
    let empty = server.put_chunk(token, Digest::of(b"").as_str(), b"").await;
    empty.problem(400, "invalid_request");
    server.put_chunk(token, "sha256:abc", b"x").await.problem(400, "invalid_request");
    let request = Request::put(format!("/v1/chunks/{}", Digest::of(b"x")))
        .header(header::AUTHORIZATION, format!("Bearer {token}"))
        .header(header::CONTENT_TYPE, "text/plain")
        .body(Body::from("x"));
    server.send(request.unwrap()).await.problem(415, "unsupported_media_type");
}

async fn put_manifest(server: &Server, digest: &Digest, size: usize, chunks: &[Digest]) -> Answer {
    let body = json!({"digest": digest, "size_bytes": size, "chunks": chunks});
    server.call("PUT", &format!("/v1/files/{digest}"), &server.first.token, body).await
}

#[sqlx::test(migrations = "../migrations")]
async fn a_file_is_read_back_before_it_is_there(pool: PgPool) {
    let server = Server::new(pool).await;
    let token = &server.first.token;
    let (first, second) = (vec![1; CHUNK_BYTES], b"tail".to_vec());
    let (a, b) = (Digest::of(&first), Digest::of(&second));
    let whole = Digest::of(&[first.clone(), second.clone()].concat());
    let size = CHUNK_BYTES + 4;
    server.put_chunk(token, a.as_str(), &first).await;
    let chunks = [a.clone(), b.clone()];
    let answer = put_manifest(&server, &whole, size, &chunks).await;
    let body = answer.problem(409, "conflict");
    assert!(body["detail"].as_str().unwrap().contains(b.as_str()), "{body}");
    server.put_chunk(token, b.as_str(), &second).await;

    let other = Digest::of(b"other");
    let cases = [
        (&other, size, chunks.to_vec(), "digest"),
        (&whole, size - 1, chunks.to_vec(), "chunks"),
        (&whole, size, vec![b.clone(), a.clone()], "chunks"),
        (&whole, size, vec![a.clone()], "size_bytes"),
        (&whole, 4, chunks.to_vec(), "size_bytes"),
    ];
    for (digest, size, chunks, field) in cases {
        let answer = put_manifest(&server, digest, size, &chunks).await;
        answer.problem(400, "invalid_request");
        assert_eq!(answer.fields(), [field], "{}", answer.json());
    }
    let missing = json!({"digests": [whole, other]});
    let answer = server.call("POST", "/v1/files/missing", token, missing.clone()).await;
    assert_eq!(answer.json()["missing"].as_array().unwrap().len(), 2, "nothing wrong was kept");
    for _ in 0..2 {
        assert_eq!(
            put_manifest(&server, &whole, size, &chunks).await.status,
            StatusCode::NO_CONTENT
        );
    }
    let answer = server.call("POST", "/v1/files/missing", token, missing).await;
    assert_eq!(answer.json(), json!({"missing": [other]}));
}

#[sqlx::test(migrations = "../migrations")]
async fn an_empty_file_has_no_chunks(pool: PgPool) {
    let server = Server::new(pool).await;
    let file = server.put_file(&server.first.token, b"").await;
    assert_eq!(file.chunks, []);
}

#[sqlx::test(migrations = "../migrations")]
async fn a_dataset_is_named_by_its_content_and_a_name_can_move(pool: PgPool) {
    let server = Server::new(pool).await;
    let token = &server.first.token;
    let first = server.put_dataset(token, "digits/train", b"one").await;
    let files =
        [DatasetFile { path: "digits.csv".to_owned(), file: Digest::of(b"one"), size_bytes: 3 }];
    assert_eq!(first["digest"], dataset_digest(&files).as_str());
    let again = server.put_dataset(token, "digits/train", b"one").await;
    assert_eq!(first, again);
    let second = server.put_dataset(token, "digits/train", b"two").await;
    assert_ne!(first["id"], second["id"]);
    let found = server.get("/v1/datasets/digits%2Ftrain", token).await.json();
    assert_eq!(found, second);
    let path = format!("/v1/datasets/{}", first["digest"].as_str().unwrap());
    let found = server.get(&path, token).await.json();
    assert_eq!(
        (&found["id"], &found["name"]),
        (&first["id"], &Value::Null),
        "its name has moved on"
    );
}

#[sqlx::test(migrations = "../migrations")]
async fn a_dataset_names_what_is_wrong_with_its_files(pool: PgPool) {
    let server = Server::new(pool).await;
    let token = &server.first.token;
    let file = server.put_file(token, b"one").await.digest;
    let entry = |path: &str, file: &Digest, size: i64| json!({"path": path, "file": file, "size_bytes": size});
    let cases = [
        (json!([entry("../a", &file, 3)]), "files[0].path"),
        (json!([entry("a", &file, 3), entry("a", &file, 3)]), "files[1].path"),
        (json!([entry("a", &file, 4)]), "files[0].size_bytes"),
        (json!([entry("b", &file, 3), entry("a", &Digest::of(b"two"), 3)]), "files[1].file"),
        (json!([]), "files"),
    ];
    for (files, field) in cases {
        let answer = server.call("POST", "/v1/datasets", token, json!({"files": files})).await;
        answer.problem(400, "invalid_request");
        assert_eq!(answer.fields(), [field], "{}", answer.json());
    }
    let request = json!({"name": "sha256:0", "files": [entry("a", &file, 3)]});
    let answer = server.call("POST", "/v1/datasets", token, request).await;
    assert_eq!(answer.fields(), ["name"]);
}

#[sqlx::test(migrations = "../migrations")]
async fn nobody_learns_from_a_digest_what_another_project_holds(pool: PgPool) {
    let server = Server::new(pool).await;
    let other = server.other_project().await.token;
    let dataset = server.put_dataset(&server.first.token, "digits", b"secret rows").await;
    let file = Digest::of(b"secret rows");
    for what in ["chunks", "files"] {
        let path = format!("/v1/{what}/missing");
        let answer = server.call("POST", &path, &other, json!({"digests": [file]})).await;
        assert_eq!(answer.json(), json!({"missing": [file]}), "{what}");
    }
    for name in ["digits", dataset["digest"].as_str().unwrap()] {
        server.get(&format!("/v1/datasets/{name}"), &other).await.problem(404, "not_found");
    }
    // Knowing the digest does not help either: the bytes must be shown.
    let body = json!({"digest": file, "size_bytes": 11, "chunks": [file]});
    server.call("PUT", &format!("/v1/files/{file}"), &other, body).await.problem(409, "conflict");
    let files = json!([{"path": "a", "file": file, "size_bytes": 11}]);
    let answer = server.call("POST", "/v1/datasets", &other, json!({"files": files})).await;
    assert_eq!(answer.fields(), ["files[0].file"]);
    let mine = server.put_dataset(&other, "digits", b"my rows").await;
    assert_ne!(server.get("/v1/datasets/digits", &server.first.token).await.json(), mine);
}

#[sqlx::test(migrations = "../migrations")]
async fn a_viewer_reads_and_puts_nothing(pool: PgPool) {
    let server = Server::new(pool).await;
    let viewer = server.token(&server.first.token, "vera", "viewer").await;
    server.put_dataset(&server.first.token, "digits", b"rows").await;
    assert_eq!(server.get("/v1/datasets/digits", &viewer).await.status, StatusCode::OK);
    server.put_chunk(&viewer, Digest::of(b"x").as_str(), b"x").await.problem(403, "forbidden");
    let request = json!({"files": []});
    server.call("POST", "/v1/datasets", &viewer, request).await.problem(403, "forbidden");
}
