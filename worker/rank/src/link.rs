//! The line to the agent: JSON documents, one a line, on a unix socket.
//!
//! A writer thread empties a bounded queue, so a step never waits for the agent unless the queue is full. A reader
//! thread listens for [`AgentMessage`]s; when the line closes the process leaves at once, whatever it was doing,
//! because no rank may outlive its agent.

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use lockstep_api::{AgentMessage, LogLevel, LogSource, Rank, RankMessage};
use lockstep_ddp::Interrupt;

use crate::descriptors::WithDescriptors;
use crate::seat::Seat;

/// Messages that may wait for the agent. A step is one message, so this is many steps' worth.
const QUEUE_CAP: usize = 1024;
/// Log lines and timelines leave this much of the queue to everything else; beyond it they are counted and dropped.
const LOG_QUEUE_CAP: usize = QUEUE_CAP * 3 / 4;
/// Of one log line.
const LOG_LINE_BYTES: usize = 8 * 1024;
/// Of one line from the agent: its messages are a few words.
const AGENT_LINE_BYTES: u64 = 64 * 1024;

/// Longest wait for the next group. Long: it is the agent that ends it, and a server may be away meanwhile.
const NEXT_GROUP_LIMIT: Duration = Duration::from_secs(3600);

/// Exit status when the agent is gone.
pub(crate) const STATUS_AGENT_GONE: i32 = 3;
/// Exit status after a panic, the standard library's own.
pub(crate) const STATUS_PANIC: i32 = 101;

/// Ends the process from whatever thread. The only place that does.
#[expect(
    clippy::exit,
    reason = "no rank may outlive its agent, and a panic on any thread ends the rank"
)]
pub(crate) fn leave(status: i32) -> ! {
    std::process::exit(status)
}

/// A connection to the agent. Clones speak on the same one.
#[derive(Debug, Clone)]
pub(crate) struct AgentLink {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
    is_stop_requested: AtomicBool,
    timeout: Duration,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<RankMessage>,
    is_writing: bool,
    is_released: bool,
    dropped_lines: u64,
    next: Next,
    /// Of the group in work.
    interrupt: Interrupt,
}

/// What is known of the group after the one that was joined last.
#[derive(Debug, Default)]
enum Next {
    /// Nothing: that one goes on.
    #[default]
    Unknown,
    /// That one is to be given up.
    Lost,
    /// The place in the next one.
    Seat(Seat),
}

impl AgentLink {
    /// Connects, says hello, and starts both threads. `timeout` bounds every later wait for the agent.
    ///
    /// # Errors
    /// When nobody listens at `path`.
    pub(crate) fn connect(
        path: &str,
        rank: Rank,
        attempt_key: &str,
        timeout: Duration,
    ) -> io::Result<Self> {
        let stream = UnixStream::connect(path)?;
        stream.set_write_timeout(Some(timeout))?;
        let reading = stream.try_clone()?;
        let shared = Arc::new(Shared {
            queue: Mutex::default(),
            changed: Condvar::new(),
            is_stop_requested: AtomicBool::new(false),
            timeout,
        });
        let link = Self { shared };
        link.send(RankMessage::Hello { rank, attempt_key: attempt_key.to_owned() });
        let (writer, reader) = (link.clone(), link.clone());
        thread::Builder::new()
            .name("agent-writer".to_owned())
            .spawn(move || writer.write_until_broken(&stream))?;
        thread::Builder::new()
            .name("agent-reader".to_owned())
            .spawn(move || reader.read_until_closed(reading))?;
        Ok(link)
    }

    /// Queues a message. Waits while the queue is full; an agent that takes nothing for the whole timeout is
    /// taken for gone.
    pub(crate) fn send(&self, message: RankMessage) {
        let deadline = Instant::now() + self.shared.timeout;
        let mut queue = self.lock();
        while QUEUE_CAP <= queue.waiting.len() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                leave(STATUS_AGENT_GONE);
            }
            queue = self.wait(queue, left);
        }
        queue.waiting.push_back(message);
        self.shared.changed.notify_all();
    }

    /// Queues a message that may as well be lost, unless messages come faster than they leave. Says whether it did.
    pub(crate) fn offer(&self, message: RankMessage) -> bool {
        let mut queue = self.lock();
        let has_room = queue.waiting.len() < LOG_QUEUE_CAP;
        if has_room {
            queue.waiting.push_back(message);
            self.shared.changed.notify_all();
        }
        has_room
    }

    /// Queues a line of log, or drops it when lines come faster than they leave. Cut at 8 KiB.
    pub(crate) fn log(&self, source: LogSource, level: LogLevel, text: &str) {
        let mut queue = self.lock();
        if LOG_QUEUE_CAP <= queue.waiting.len() {
            queue.dropped_lines += 1;
            return;
        }
        let dropped = std::mem::take(&mut queue.dropped_lines);
        if 0 < dropped {
            let text = format!(
                "{dropped} log lines were dropped: they came faster than they could be sent"
            );
            let (source, level) = (LogSource::Rank, LogLevel::Warn);
            queue.waiting.push_back(RankMessage::Log { source, level, text });
        }
        let text = cut(text, LOG_LINE_BYTES).to_owned();
        queue.waiting.push_back(RankMessage::Log { source, level, text });
        self.shared.changed.notify_all();
    }

    /// Whether the agent asked to leave after the current step.
    pub(crate) fn is_stop_requested(&self) -> bool {
        self.shared.is_stop_requested.load(Ordering::Relaxed)
    }

    /// Waits until everything queued is written, or for `limit`. Says whether it is.
    pub(crate) fn flush(&self, limit: Duration) -> bool {
        self.wait_until(limit, |queue| queue.waiting.is_empty() && !queue.is_writing)
    }

    /// Waits for the answer to [`RankMessage::Done`]. Says whether it came.
    pub(crate) fn wait_released(&self, limit: Duration) -> bool {
        self.wait_until(limit, |queue| queue.is_released)
    }

    /// What gives up the group that is joined now; at once, if that is known to be lost already.
    pub(crate) fn interrupts(&self, interrupt: &Interrupt) {
        let mut queue = self.lock();
        if !matches!(queue.next, Next::Unknown) {
            interrupt.raise();
        }
        queue.interrupt = interrupt.clone();
    }

    /// The place in the next group, when it comes. `None`: the rank is to leave instead.
    pub(crate) fn next_seat(&self) -> Option<Seat> {
        let is_over =
            |queue: &Queue| matches!(queue.next, Next::Seat(_)) || self.is_stop_requested();
        if !self.wait_until(NEXT_GROUP_LIMIT, is_over) || self.is_stop_requested() {
            return None;
        }
        match std::mem::take(&mut self.lock().next) {
            Next::Seat(seat) => Some(seat),
            Next::Unknown | Next::Lost => None,
        }
    }

    /// The group in work is lost, whether one is formed already or about to be.
    fn give_up_group(&self, next: Next) {
        let mut queue = self.lock();
        queue.next = next;
        // Before anybody can sit down in the next one and bring what gives up that.
        queue.interrupt.raise();
        self.shared.changed.notify_all();
    }

    fn wait_until(&self, limit: Duration, is_reached: impl Fn(&Queue) -> bool) -> bool {
        let deadline = Instant::now() + limit;
        let mut queue = self.lock();
        loop {
            if is_reached(&queue) {
                return true;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            queue = self.wait(queue, left);
        }
    }

    fn write_until_broken(&self, mut stream: &UnixStream) {
        let mut bytes = Vec::new();
        loop {
            let batch = self.take_batch();
            bytes.clear();
            for message in batch {
                serde_json::to_writer(&mut bytes, &message)
                    .expect("messages have string keys only");
                bytes.push(b'\n');
            }
            if stream.write_all(&bytes).is_err() {
                leave(STATUS_AGENT_GONE);
            }
            self.lock().is_writing = false;
            self.shared.changed.notify_all();
        }
    }

    fn take_batch(&self) -> VecDeque<RankMessage> {
        let mut queue = self.lock();
        while queue.waiting.is_empty() {
            queue = self.shared.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        queue.is_writing = true;
        let batch = std::mem::take(&mut queue.waiting);
        self.shared.changed.notify_all();
        batch
    }

    fn read_until_closed(&self, stream: UnixStream) {
        let mut reader = BufReader::new(WithDescriptors::new(stream));
        let mut line = Vec::new();
        loop {
            line.clear();
            let read = io::Read::take(&mut reader, AGENT_LINE_BYTES).read_until(b'\n', &mut line);
            match read.map(|_| serde_json::from_slice(&line)) {
                Ok(Ok(AgentMessage::Stop)) => {
                    self.shared.is_stop_requested.store(true, Ordering::Relaxed);
                    self.shared.changed.notify_all();
                }
                Ok(Ok(AgentMessage::Interrupt)) => {
                    self.give_up_group(Next::Lost);
                }
                Ok(Ok(AgentMessage::Regroup(regroup))) => {
                    let count = 1 + usize::from(regroup.network.is_some());
                    let Ok(seat) = Seat::next(regroup, reader.get_mut().take(count)) else {
                        leave(STATUS_AGENT_GONE)
                    };
                    self.give_up_group(Next::Seat(seat));
                }
                Ok(Ok(AgentMessage::Released)) => {
                    self.lock().is_released = true;
                    self.shared.changed.notify_all();
                }
                // Closed, broken, or not an agent's words: either way nobody is there to report to.
                Ok(Err(_)) | Err(_) => leave(STATUS_AGENT_GONE),
            }
        }
    }

    /// A panic while the lock was held leaves the queue whole: every change to it is one statement.
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.shared.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, queue: MutexGuard<'a, Queue>, limit: Duration) -> MutexGuard<'a, Queue> {
        let waited = self.shared.changed.wait_timeout(queue, limit);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// The longest beginning of `text` that fits in `cap` bytes and ends between characters.
pub(crate) fn cut(text: &str, cap: usize) -> &str {
    &text[..text.floor_char_boundary(cap)]
}

#[cfg(test)]
pub(crate) mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    /// The agent's end is never closed: that would end the process.
    pub(crate) fn connected() -> (tempfile::TempDir, AgentLink, &'static UnixStream) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent");
        let listener = UnixListener::bind(&path).unwrap();
        let link = AgentLink::connect(path.to_str().unwrap(), Rank(1), "key", LIMIT).unwrap();
        let stream = listener.accept().unwrap().0;
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        (folder, link, Box::leak(Box::new(stream)))
    }

    pub(crate) fn next(reader: &mut BufReader<&UnixStream>) -> RankMessage {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }

    #[test]
    fn hello_comes_first_and_messages_keep_their_order() {
        let (_folder, link, stream) = connected();
        link.send(RankMessage::Done);
        link.log(LogSource::Guest, LogLevel::Info, "one");
        let mut reader = BufReader::new(stream);
        assert_eq!(
            next(&mut reader),
            RankMessage::Hello { rank: Rank(1), attempt_key: "key".to_owned() }
        );
        assert_eq!(next(&mut reader), RankMessage::Done);
        assert!(matches!(next(&mut reader), RankMessage::Log { text, .. } if text == "one"));
        assert!(link.flush(LIMIT));
    }

    #[test]
    fn stop_and_released_arrive() {
        let (_folder, link, mut stream) = connected();
        assert!(!link.is_stop_requested());
        stream.write_all(b"{\"kind\":\"stop\"}\n{\"kind\":\"released\"}\n").unwrap();
        assert!(link.wait_released(LIMIT));
        assert!(link.is_stop_requested());
    }

    #[test]
    fn a_flood_of_log_lines_is_dropped_and_counted_and_messages_still_pass() {
        let (_folder, link, stream) = connected();
        let line = "x".repeat(2 * LOG_LINE_BYTES);
        // More than the queue and the socket's own buffer hold, while nobody reads.
        for _ in 0..4 * QUEUE_CAP {
            link.log(LogSource::Guest, LogLevel::Info, &line);
        }
        link.send(RankMessage::Done);
        let mut reader = BufReader::new(stream);
        // The writer may take the queue at any moment, so notes of dropped lines may stand among the flood's own.
        let (mut lines, mut dropped, mut is_done) = (0, 0, false);
        while lines + dropped < 4 * QUEUE_CAP + 1 {
            match next(&mut reader) {
                RankMessage::Log { text, .. } => {
                    if let Some((number, _)) = text.split_once(" log lines were dropped") {
                        dropped += number.parse::<usize>().unwrap();
                    } else {
                        assert_eq!(text.len(), LOG_LINE_BYTES);
                        lines += 1;
                    }
                }
                // What was dropped since the last note is told with the next line.
                RankMessage::Done => {
                    link.log(LogSource::Guest, LogLevel::Info, &line);
                    is_done = true;
                }
                RankMessage::Hello { .. } => {}
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(lines + dropped, 4 * QUEUE_CAP + 1);
        assert!(is_done && 1 < lines && 1 <= dropped, "{lines} and {dropped}");
    }

    #[test]
    fn a_cut_never_splits_a_character() {
        assert_eq!(cut("aé", 2), "a");
        assert_eq!(cut("aé", 3), "aé");
    }
}
