//! The socket on which an attempt's ranks speak with the agent: JSON documents, one a line.
//!
//! A connection belongs to a rank once it has said [`RankMessage::Hello`] with the attempt's key. When the agent
//! is gone, the socket closes, and ranks leave by themselves.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use camino::Utf8PathBuf;
use futures::StreamExt as _;
use lockstep_api::{AgentMessage, Rank, RankMessage};
use tokio::io::AsyncWriteExt as _;
use tokio::net::unix::OwnedWriteHalf;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio_util::codec::{FramedRead, LinesCodec};

/// Longest line of a rank. A step is a few hundred bytes, a failure's evidence 16 KiB.
const MAX_LINE_BYTES: usize = 1 << 20;
/// Longest wait for the first words of a connection.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);
/// Connections under way at once: one a rank, and a few that are refused.
const SPARE_CONNECTIONS: usize = 4;
/// Longest path of a unix socket that the kernel takes.
const MAX_SOCKET_PATH_BYTES: usize = 107;

/// What arrives from ranks.
#[derive(Debug)]
pub(crate) enum Heard {
    /// Anything but the first and the last words.
    Message { rank: Rank, message: RankMessage },
    /// Training is over; the rank leaves once this is answered.
    Done { release: oneshot::Sender<()> },
}

/// How far a rank's connection has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Line {
    /// Not there yet.
    Silent,
    /// It said hello.
    Open,
    /// Everything it sent has been handed on.
    Closed,
}

/// A socket that ranks can connect to.
#[derive(Debug)]
pub(crate) struct Socket {
    listener: UnixListener,
    pub(crate) path: Utf8PathBuf,
}

impl Socket {
    /// Listens at `path`.
    pub(crate) fn bind(path: Utf8PathBuf) -> anyhow::Result<Self> {
        ensure!(
            path.as_str().len() <= MAX_SOCKET_PATH_BYTES,
            "the socket path {path} has {} bytes, at most {MAX_SOCKET_PATH_BYTES} are possible; give a shorter --runtime-dir",
            path.as_str().len()
        );
        let listener =
            UnixListener::bind(&path).with_context(|| format!("cannot listen at {path}"))?;
        Ok(Self { listener, path })
    }
}

/// One rank as the socket knows it.
#[derive(Debug)]
pub(crate) struct Expected {
    pub(crate) rank: Rank,
    pub(crate) line: watch::Sender<Line>,
}

/// What all connections of an attempt share.
#[derive(Debug)]
struct Shared {
    attempt_key: String,
    expected: Vec<Expected>,
    taken: Mutex<HashSet<Rank>>,
    heard: mpsc::Sender<Heard>,
    stop: watch::Receiver<bool>,
}

/// Serves an attempt's ranks until it is dropped. `stop` turns true when they shall leave.
pub(crate) async fn serve(
    socket: Socket,
    attempt_key: String,
    expected: Vec<Expected>,
    heard: mpsc::Sender<Heard>,
    stop: watch::Receiver<bool>,
) {
    let most = expected.len() + SPARE_CONNECTIONS;
    let taken = Mutex::default();
    let shared = Arc::new(Shared { attempt_key, expected, taken, heard, stop });
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = socket.listener.accept(), if connections.len() < most => match accepted {
                Ok((stream, _)) => {
                    let shared = shared.clone();
                    connections.spawn(async move {
                        if let Err(error) = shared.converse(stream).await {
                            tracing::warn!(error = %format!("{error:#}"), "a rank's connection broke");
                        }
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a rank's connection");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

impl Shared {
    async fn converse(&self, stream: UnixStream) -> anyhow::Result<()> {
        let (reading, mut writing) = stream.into_split();
        let codec = LinesCodec::new_with_max_length(MAX_LINE_BYTES);
        let mut lines = FramedRead::with_capacity(reading, codec, 64 * 1024);
        let first = tokio::time::timeout(HELLO_TIMEOUT, lines.next()).await;
        let Some(first) = first.context("no hello in time")? else { return Ok(()) };
        let (rank, line) = self.welcome(&first?)?;
        line.send_replace(Line::Open);
        // Whatever ends the conversation, what was said has been handed on by then.
        let _closes = Closes(line);
        let mut stop = self.stop.clone();
        if *stop.borrow_and_update() {
            send(&mut writing, AgentMessage::Stop).await?;
        }
        loop {
            tokio::select! {
                changed = stop.changed() => {
                    changed.context("the attempt is over")?;
                    send(&mut writing, AgentMessage::Stop).await?;
                }
                text = lines.next() => {
                    let Some(text) = text else { return Ok(()) };
                    self.hear(rank, &text?, &mut writing).await?;
                }
            }
        }
    }

    fn welcome(&self, first: &str) -> anyhow::Result<(Rank, &watch::Sender<Line>)> {
        let message: RankMessage = serde_json::from_str(first).context("first line")?;
        let RankMessage::Hello { rank, attempt_key } = message else {
            anyhow::bail!("expected hello as the first message");
        };
        ensure!(attempt_key == self.attempt_key, "rank {rank} came with a key of another attempt");
        let expected = self.expected.iter().find(|it| it.rank == rank);
        let expected = expected.with_context(|| format!("rank {rank} is not of this node"))?;
        let is_first = self.taken.lock().unwrap_or_else(PoisonError::into_inner).insert(rank);
        ensure!(is_first, "rank {rank} has connected already");
        Ok((rank, &expected.line))
    }

    async fn hear(
        &self,
        rank: Rank,
        text: &str,
        writing: &mut OwnedWriteHalf,
    ) -> anyhow::Result<()> {
        let message: RankMessage =
            serde_json::from_str(text).with_context(|| format!("message of rank {rank}"))?;
        if message == RankMessage::Done {
            let (release, released) = oneshot::channel();
            self.heard.send(Heard::Done { release }).await.context("the attempt is over")?;
            released.await.context("the attempt is over")?;
            return send(writing, AgentMessage::Released).await;
        }
        self.heard.send(Heard::Message { rank, message }).await.context("the attempt is over")
    }
}

/// Marks a line as closed however its conversation ends.
struct Closes<'a>(&'a watch::Sender<Line>);

impl Drop for Closes<'_> {
    fn drop(&mut self) {
        self.0.send_replace(Line::Closed);
    }
}

async fn send(writing: &mut OwnedWriteHalf, message: AgentMessage) -> anyhow::Result<()> {
    let mut text = serde_json::to_vec(&message).expect("the messages are plain words");
    text.push(b'\n');
    // The rank may have left meanwhile; its exit says more than this would.
    if let Err(error) = writing.write_all(&text).await {
        tracing::debug!(%error, "a rank no longer listens");
    }
    Ok(())
}
