//! What goes over the wire when a server is busy, breaks off, or lies: a scripted one that hears every request.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::time::Duration;

use camino::Utf8PathBuf;
use lockstep_api::{
    AttemptId, CheckpointId, CheckpointView, CreateToken, Digest, JobId, ProblemBody, ProblemCode,
    Role, Step,
};
use lockstep_client::retry::Policy;
use lockstep_client::{Client, ClientError, ClientOptions};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

const LIMIT: Duration = Duration::from_secs(20);

/// Answers one connection after another with these bytes and closes it. Gives back the heads of the requests.
#[expect(clippy::disallowed_methods, reason = "the script ends with the test's runtime")]
async fn server(answers: Vec<String>) -> (Client, JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let heard = tokio::spawn(async move {
        let mut heads = Vec::new();
        for answer in answers {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = Vec::new();
            while !request.windows(4).any(|end| end == b"\r\n\r\n") {
                let mut part = [0; 1024];
                let read = stream.read(&mut part).await.unwrap();
                assert!(0 < read, "the request ends within its head");
                request.extend_from_slice(&part[..read]);
            }
            heads.push(String::from_utf8_lossy(&request).to_lowercase());
            stream.write_all(answer.as_bytes()).await.unwrap();
            stream.shutdown().await.unwrap();
            // Until the client closes, too: an early close could cut what is on its way.
            let mut rest = Vec::new();
            stream.read_to_end(&mut rest).await.ok();
        }
        heads
    });
    let policy = Policy {
        attempts: 3,
        first_delay: Duration::from_millis(1),
        max_delay: Duration::from_millis(2),
    };
    let options = ClientOptions { retry: policy, ..ClientOptions::default() };
    (Client::with_options(&url, Some("lsk_test"), options).unwrap(), heard)
}

async fn heads(heard: JoinHandle<Vec<String>>) -> Vec<String> {
    tokio::time::timeout(LIMIT, heard).await.unwrap().unwrap()
}

fn answer(status: &str, body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}")
}

fn problem(code: ProblemCode) -> String {
    let body = serde_json::to_string(&ProblemBody::new(code, "as scripted")).unwrap();
    answer(&format!("{} Scripted", code.status()), &body)
}

fn events(text: &str) -> String {
    format!("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n{text}")
}

fn event(seq: i64) -> String {
    format!(
        "id: {seq}\nevent: job\ndata: {{\"seq\":{seq},\"at\":\"2026-01-01T00:00:00Z\",\"kind\":\"state\"}}\n\n"
    )
}

fn job() -> JobId {
    JobId::new(0, [1; 10])
}

#[tokio::test]
async fn a_busy_server_is_asked_again_and_the_token_goes_along() {
    let nodes = answer("200 OK", "{\"nodes\":[]}");
    let (client, heard) =
        server(vec![problem(ProblemCode::Unavailable), answer("502 Bad Gateway", "proxy"), nodes])
            .await;
    assert_eq!(client.nodes().await.unwrap(), []);
    let heads = heads(heard).await;
    assert_eq!(heads.len(), 3);
    assert!(heads[2].starts_with("get /v1/nodes http/1.1"), "{}", heads[2]);
    assert!(heads[2].contains("authorization: bearer lsk_test"), "{}", heads[2]);
}

#[tokio::test]
async fn tries_end_with_the_policy_and_the_last_error() {
    let busy = || problem(ProblemCode::Unavailable);
    let (client, heard) = server(vec![busy(), busy(), busy()]).await;
    assert_eq!(client.me().await.unwrap_err().code(), Some(ProblemCode::Unavailable));
    assert_eq!(heads(heard).await.len(), 3);
}

#[tokio::test]
async fn what_must_not_be_repeated_is_sent_once() {
    let (client, heard) = server(vec![problem(ProblemCode::Unavailable)]).await;
    let request = CreateToken { name: "ci".to_owned(), role: Role::Viewer, ttl_seconds: None };
    let error = client.create_token(&request).await.unwrap_err();
    assert!(error.is_retryable(), "whoever called may decide so");
    assert_eq!(heads(heard).await.len(), 1);
}

#[tokio::test]
async fn an_answer_that_is_not_a_servers_is_shown() {
    let (client, heard) = server(vec![answer("404 Not Found", "<html>it works</html>")]).await;
    let error = client.job(job()).await.unwrap_err();
    assert!(matches!(error, ClientError::UnexpectedAnswer { .. }), "{error:?}");
    assert!(error.to_string().contains("it works"), "{error}");
    assert_eq!(heads(heard).await.len(), 1);
}

#[tokio::test]
async fn events_go_on_where_they_broke_off_and_none_comes_twice() {
    let first = events(&format!("{}{}id: 3\nevent: job\ndata: {{\"se", event(1), event(2)));
    let second = events(&format!(": keep-alive\n\n{}{}", event(2), event(3)));
    let (client, heard) = server(vec![first, second]).await;
    let mut stream = client.events(job(), 0);
    for seq in 1..=3 {
        let event = tokio::time::timeout(LIMIT, stream.next()).await.unwrap().unwrap();
        assert_eq!(event.seq, seq);
    }
    assert_eq!(stream.last_seq(), 3);
    drop(stream);
    let heads = heads(heard).await;
    assert!(!heads[0].contains("last-event-id"), "{}", heads[0]);
    assert!(heads[1].contains("last-event-id: 2"), "{}", heads[1]);
}

#[tokio::test]
async fn events_that_are_refused_or_end_again_and_again_are_an_error() {
    let (client, heard) = server(vec![problem(ProblemCode::NotFound)]).await;
    let error = client.events(job(), 0).next().await.unwrap_err();
    assert_eq!(error.code(), Some(ProblemCode::NotFound));
    assert_eq!(heads(heard).await.len(), 1);

    let (client, heard) = server(vec![events(""), events(": hello\n\n"), events("")]).await;
    let error = client.events(job(), 7).next().await.unwrap_err();
    assert!(matches!(error, ClientError::StreamBroken { .. }), "{error:?}");
    assert_eq!(heads(heard).await.len(), 3);
}

fn checkpoint(content: &[u8]) -> CheckpointView {
    CheckpointView {
        id: CheckpointId::new(0, [2; 10]),
        attempt_id: AttemptId::new(0, [3; 10]),
        step: Step(5),
        file: Digest::of(content),
        size_bytes: i64::try_from(content.len()).unwrap(),
        created_at: "2026-01-01T00:00:00Z".parse().unwrap(),
        is_pinned: false,
    }
}

#[tokio::test]
async fn a_download_is_whole_or_not_there() {
    let folder = tempfile::tempdir().unwrap();
    let path = Utf8PathBuf::try_from(folder.path().join("model.safetensors")).unwrap();
    let files = || std::fs::read_dir(folder.path()).unwrap().count();

    let (client, heard) = server(vec![answer("200 OK", "something else")]).await;
    let error = client.download_checkpoint(&checkpoint(b"weights"), &path).await.unwrap_err();
    assert!(matches!(error, ClientError::DigestMismatch { .. }), "{error:?}");
    assert_eq!(files(), 0);
    heads(heard).await;

    // The first answer breaks off in the middle.
    let cut = "HTTP/1.1 200 OK\r\ncontent-length: 7\r\nconnection: close\r\n\r\nwei".to_owned();
    let (client, heard) = server(vec![cut, answer("200 OK", "weights")]).await;
    let got = client.download_checkpoint(&checkpoint(b"weights"), &path).await.unwrap();
    assert_eq!((got.size_bytes, got.path.as_str()), (7, path.as_str()));
    assert_eq!(std::fs::read(&path).unwrap(), b"weights");
    assert_eq!(files(), 1);
    assert_eq!(heads(heard).await.len(), 2);
}
