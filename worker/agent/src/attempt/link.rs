//! The socket on which an attempt's ranks speak with the agent: JSON documents, one a line.
//!
//! A connection belongs to a rank once it has said [`RankMessage::Hello`] with the attempt's key. When the agent
//! is gone, the socket closes, and ranks leave by themselves.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use camino::Utf8PathBuf;
use futures::StreamExt as _;
use lockstep_api::{AgentMessage, Rank, RankMessage};
use rustix::io::Errno;
use rustix::net::{
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, accept_with, sendmsg,
};
use tokio::io::{AsyncWriteExt as _, Interest};
use tokio::net::unix::OwnedWriteHalf;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio_util::codec::{FramedRead, LinesCodec};
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

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
    /// Anything but the first and the last words, from the process of that number.
    Message { process: i32, message: RankMessage },
    /// Training is over; the rank leaves once this is answered.
    Done { release: oneshot::Sender<()> },
}

/// What a rank is told, and the descriptors that go with it.
#[derive(Debug)]
pub(crate) struct Word {
    pub(crate) message: AgentMessage,
    pub(crate) descriptors: Vec<Arc<OwnedFd>>,
}

impl From<AgentMessage> for Word {
    fn from(message: AgentMessage) -> Self {
        Self { message, descriptors: Vec::new() }
    }
}

/// How far a rank's connection has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Line {
    /// Not there yet.
    Silent,
    /// It said hello.
    Open,
    /// Everything it sent has been handed on.
    Closed,
}

/// Asks that the kernel's queue of connections be emptied, and is answered once it has been.
type Sweep = oneshot::Sender<()>;

/// A socket that ranks can connect to.
#[derive(Debug)]
pub(crate) struct Socket {
    listener: UnixListener,
    pub(crate) path: Utf8PathBuf,
    expected: Vec<Expected>,
    sweep: mpsc::Sender<Sweep>,
    sweeps: mpsc::Receiver<Sweep>,
    /// Counts the connections that have not said yet whose they are.
    nameless: TaskTracker,
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
        let (sweep, sweeps) = mpsc::channel(1);
        let nameless = TaskTracker::new();
        // A closed tracker still counts; it is only then that waiting for it ends when it counts none.
        nameless.close();
        Ok(Self { listener, path, expected: Vec::new(), sweep, sweeps, nameless })
    }

    /// Lets `rank` in, which is the process of that number.
    pub(crate) fn expect(
        &mut self,
        rank: Rank,
        process: i32,
    ) -> (Ear, mpsc::UnboundedSender<Word>) {
        let (sender, line) = watch::channel(Line::Silent);
        // A few words in the life of a rank: no bound is needed.
        let (say, words) = mpsc::unbounded_channel();
        let words = Mutex::new(Some(words));
        self.expected.push(Expected { rank, process, line: sender, words });
        (Ear { line, sweep: self.sweep.clone(), nameless: self.nameless.clone() }, say)
    }
}

/// One rank's connection, for whoever watches the rank.
#[derive(Debug)]
pub(crate) struct Ear {
    line: watch::Receiver<Line>,
    sweep: mpsc::Sender<Sweep>,
    nameless: TaskTracker,
}

impl Ear {
    /// Comes back once everything that a dead rank said has been handed on; soon, if it never connected.
    ///
    /// Its connection may still be in the kernel's queue, however long ago it was made: the agent may have had no
    /// turn since. So the queue is emptied, and everybody found there is asked for a name. All that a dead rank
    /// wrote is there to be read, so only a living rank that has not said hello yet can make this wait.
    pub(crate) async fn heard_out(&mut self) {
        if *self.line.borrow() == Line::Silent {
            let (answer, answered) = oneshot::channel();
            if self.sweep.send(answer).await.is_err() || answered.await.is_err() {
                // Nobody serves any more: the attempt is over.
                return;
            }
            tokio::select! {
                _ = self.line.wait_for(|it| *it != Line::Silent) => {}
                () = self.nameless.wait() => {}
            }
        }
        if *self.line.borrow() != Line::Silent {
            drop(self.line.wait_for(|it| *it == Line::Closed).await);
        }
    }
}

/// One rank as the socket knows it.
#[derive(Debug)]
struct Expected {
    rank: Rank,
    process: i32,
    line: watch::Sender<Line>,
    /// For the one connection of this rank.
    words: Mutex<Option<mpsc::UnboundedReceiver<Word>>>,
}

/// What all connections of an attempt share.
#[derive(Debug)]
struct Shared {
    attempt_key: String,
    expected: Vec<Expected>,
    heard: mpsc::Sender<Heard>,
}

/// Serves an attempt's ranks until it is dropped.
pub(crate) async fn serve(socket: Socket, attempt_key: String, heard: mpsc::Sender<Heard>) {
    let Socket { listener, path: _, expected, sweep: _, mut sweeps, nameless } = socket;
    let most = expected.len() + SPARE_CONNECTIONS;
    let shared = Arc::new(Shared { attempt_key, expected, heard });
    let mut connections = Connections { shared, nameless, most, tasks: JoinSet::new() };
    loop {
        tokio::select! {
            accepted = listener.accept(), if connections.have_room() => match accepted {
                Ok((stream, _)) => connections.begin(stream),
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a rank's connection");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            },
            Some(answer) = sweeps.recv() => {
                if let Err(error) = connections.sweep(&listener) {
                    tracing::warn!(%error, "cannot accept a dead rank's connection");
                }
                if answer.send(()).is_err() {
                    tracing::debug!("who asked for a sweep is gone");
                }
            }
            Some(_) = connections.tasks.join_next() => {}
        }
    }
}

/// The conversations of an attempt.
struct Connections {
    shared: Arc<Shared>,
    nameless: TaskTracker,
    most: usize,
    tasks: JoinSet<()>,
}

impl Connections {
    fn have_room(&self) -> bool {
        self.tasks.len() < self.most
    }

    fn begin(&mut self, stream: UnixStream) {
        let (shared, nameless) = (self.shared.clone(), self.nameless.token());
        self.tasks.spawn(async move {
            if let Err(error) = shared.converse(stream, nameless).await {
                tracing::warn!(error = %format!("{error:#}"), "a rank's connection broke");
            }
        });
    }

    /// Takes every connection that is in the kernel's queue now, whether or not the runtime has heard of it.
    fn sweep(&mut self, listener: &UnixListener) -> std::io::Result<()> {
        while self.tasks.try_join_next().is_some() {}
        while self.have_room() {
            match accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(accepted) => self.begin(UnixStream::from_std(accepted.into())?),
                Err(Errno::WOULDBLOCK) => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

impl Shared {
    async fn converse(&self, stream: UnixStream, nameless: TaskTrackerToken) -> anyhow::Result<()> {
        let (reading, mut writing) = stream.into_split();
        let codec = LinesCodec::new_with_max_length(MAX_LINE_BYTES);
        let mut lines = FramedRead::with_capacity(reading, codec, 64 * 1024);
        let first = tokio::time::timeout(HELLO_TIMEOUT, lines.next()).await;
        let Some(first) = first.context("no hello in time")? else { return Ok(()) };
        let (expected, mut words) = self.welcome(&first?)?;
        expected.line.send_replace(Line::Open);
        drop(nameless);
        // Whatever ends the conversation, what was said has been handed on by then.
        let _closes = Closes(&expected.line);
        loop {
            tokio::select! {
                word = words.recv() => {
                    send(&mut writing, word.context("the attempt is over")?).await;
                }
                text = lines.next() => {
                    let Some(text) = text else { return Ok(()) };
                    self.hear(expected, &text?, &mut writing).await?;
                }
            }
        }
    }

    fn welcome(&self, first: &str) -> anyhow::Result<(&Expected, mpsc::UnboundedReceiver<Word>)> {
        let message: RankMessage = serde_json::from_str(first).context("first line")?;
        let RankMessage::Hello { rank, attempt_key } = message else {
            anyhow::bail!("expected hello as the first message");
        };
        ensure!(attempt_key == self.attempt_key, "rank {rank} came with a key of another attempt");
        let expected = self.expected.iter().find(|it| it.rank == rank);
        let expected = expected.with_context(|| format!("rank {rank} is not of this node"))?;
        let words = expected.words.lock().unwrap_or_else(PoisonError::into_inner).take();
        Ok((expected, words.with_context(|| format!("rank {rank} has connected already"))?))
    }

    async fn hear(
        &self,
        expected: &Expected,
        text: &str,
        writing: &mut OwnedWriteHalf,
    ) -> anyhow::Result<()> {
        let message: RankMessage = serde_json::from_str(text)
            .with_context(|| format!("message of rank {}", expected.rank))?;
        if message == RankMessage::Done {
            let (release, released) = oneshot::channel();
            self.heard.send(Heard::Done { release }).await.context("the attempt is over")?;
            released.await.context("the attempt is over")?;
            send(writing, AgentMessage::Released.into()).await;
            return Ok(());
        }
        let heard = Heard::Message { process: expected.process, message };
        self.heard.send(heard).await.context("the attempt is over")
    }
}

/// Marks a line as closed however its conversation ends.
struct Closes<'a>(&'a watch::Sender<Line>);

impl Drop for Closes<'_> {
    fn drop(&mut self) {
        self.0.send_replace(Line::Closed);
    }
}

async fn send(writing: &mut OwnedWriteHalf, Word { message, descriptors }: Word) {
    let mut text = serde_json::to_vec(&message).expect("the messages are plain words");
    text.push(b'\n');
    let sent = async {
        let begun = match descriptors.is_empty() {
            true => 0,
            false => send_first(writing, &text, &descriptors).await?,
        };
        writing.write_all(&text[begun..]).await
    };
    // The rank may have left meanwhile; its exit says more than this would.
    if let Err(error) = sent.await {
        tracing::debug!(%error, "a rank no longer listens");
    }
}

/// Sends the beginning of `text`, with descriptors. Says how much of it.
async fn send_first(
    writing: &OwnedWriteHalf,
    text: &[u8],
    descriptors: &[Arc<OwnedFd>],
) -> io::Result<usize> {
    let stream: &UnixStream = writing.as_ref();
    let descriptors: Vec<BorrowedFd<'_>> = descriptors.iter().map(|fd| fd.as_fd()).collect();
    loop {
        stream.writable().await?;
        let sent = stream.try_io(Interest::WRITABLE, || {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            if !ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)) {
                return Err(io::Error::other("more descriptors than a message takes"));
            }
            let octets = [IoSlice::new(text)];
            Ok(sendmsg(stream, &octets, &mut ancillary, SendFlags::empty())?)
        });
        match sent {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            sent => return sent,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::net::UnixStream as Client;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(20);

    struct Bench {
        socket: Socket,
        ears: Vec<Ear>,
        _words: Vec<mpsc::UnboundedSender<Word>>,
        _folder: tempfile::TempDir,
    }

    impl Bench {
        /// A socket for two ranks that nobody serves yet.
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let path = Utf8PathBuf::try_from(folder.path().join("socket")).unwrap();
            let mut socket = Socket::bind(path).unwrap();
            let (ears, words) =
                [0, 1].map(|rank| socket.expect(Rank(rank), rank)).into_iter().unzip();
            Self { socket, ears, _words: words, _folder: folder }
        }

        /// A connection on which a rank says these messages.
        fn connect(&self, messages: &[RankMessage]) -> Client {
            let mut client = Client::connect(&self.socket.path).unwrap();
            for message in messages {
                writeln!(client, "{}", serde_json::to_string(message).unwrap()).unwrap();
            }
            client
        }

        /// What has been handed on by the time that `rank` is taken to have been heard out.
        async fn heard_of(mut self, rank: usize) -> Vec<i32> {
            let (hear, mut heard) = mpsc::channel(8);
            let mut tasks = JoinSet::new();
            tasks.spawn(serve(self.socket, "key".to_owned(), hear));
            tokio::time::timeout(LIMIT, self.ears[rank].heard_out()).await.unwrap();
            let mut processes = Vec::new();
            while let Ok(Heard::Message { process, .. }) = heard.try_recv() {
                processes.push(process);
            }
            processes
        }
    }

    fn hello(rank: i32) -> RankMessage {
        RankMessage::Hello { rank: Rank(rank), attempt_key: "key".to_owned() }
    }

    fn word() -> RankMessage {
        let (source, level) = (lockstep_api::LogSource::Guest, lockstep_api::LogLevel::Info);
        RankMessage::Log { source, level, text: "a word".to_owned() }
    }

    #[tokio::test]
    async fn a_rank_that_died_before_its_connection_was_looked_at_is_heard() {
        let bench = Bench::new();
        drop(bench.connect(&[hello(1), word(), word()]));
        assert_eq!(bench.heard_of(1).await, [1; 2]);
    }

    #[tokio::test]
    async fn a_rank_that_never_connected_is_not_waited_for_whoever_else_speaks_or_fell_silent() {
        let bench = Bench::new();
        drop(bench.connect(&[]));
        drop(bench.connect(&[word()]));
        let _lives = bench.connect(&[hello(0)]);
        assert_eq!(bench.heard_of(1).await, [0; 0]);
    }
}
