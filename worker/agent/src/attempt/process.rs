//! One rank's process: fed its settings, watched until it is gone and everything it said has been heard.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::Duration;

use camino::Utf8PathBuf;
use lockstep_api::{LogLevel, LogSource, Rank, ReportedLine};
use lockstep_service::Clock;
use rustix::process::Pid;
use tokio::io::AsyncWriteExt as _;
use tokio::process::{Child, ChildStdin};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::course::{Gone, exit_of};
use super::link::{Ear, Word};
use super::output::{LastWords, pump};
use super::positions::where_is;
use crate::control_group::RankGroup;
use crate::tree::Tree;

/// How long what a dead rank said may take to be handed on.
const DRAIN: Duration = Duration::from_secs(5);

/// A started rank.
#[derive(Debug)]
pub(crate) struct RankProcess {
    /// Its rank in the present group; its watch reads it too.
    rank: Arc<AtomicI32>,
    pub(crate) pid: Pid,
    tree: Arc<Tree>,
    is_alive: Arc<AtomicBool>,
    words: mpsc::UnboundedSender<Word>,
}

impl RankProcess {
    pub(crate) fn new(
        rank: Rank,
        pid: Pid,
        group: RankGroup,
        words: mpsc::UnboundedSender<Word>,
    ) -> Self {
        let (rank, is_alive) = (Arc::new(AtomicI32::new(rank.0)), Arc::new(AtomicBool::new(true)));
        Self { rank, pid, tree: Arc::new(Tree::new(pid, group)), is_alive, words }
    }

    pub(crate) fn rank(&self) -> Rank {
        Rank(self.rank.load(Ordering::Relaxed))
    }

    /// It has another rank in the next group.
    pub(crate) fn seat(&self, rank: Rank) {
        self.rank.store(rank.0, Ordering::Relaxed);
    }

    /// Says something to the rank, as soon as it listens.
    pub(crate) fn say(&self, word: Word) {
        if self.words.send(word).is_err() {
            tracing::debug!(rank = self.rank().0, "a rank is gone before it was told something");
        }
    }

    /// Kills the rank and whatever it started, unless it has been reaped.
    pub(crate) fn kill(&self) {
        if self.is_alive.load(Ordering::SeqCst) {
            self.tree.kill();
        }
    }
}

/// Hands a rank its settings and closes its standard input.
pub(crate) async fn feed(stdin: Option<ChildStdin>, config: Vec<u8>) {
    let Some(mut stdin) = stdin else { return };
    if let Err(error) = stdin.write_all(&config).await {
        // It died before it read them; its exit says more.
        tracing::debug!(%error, "a rank did not read its settings");
    }
}

/// What watching one rank needs.
#[derive(Debug)]
pub(crate) struct Watch {
    pub(crate) process: i32,
    pub(crate) child: Child,
    pub(crate) record: Utf8PathBuf,
    pub(crate) ear: Ear,
    pub(crate) clock: Clock,
    pub(crate) lines: mpsc::Sender<ReportedLine>,
    pub(crate) gone: mpsc::Sender<Gone>,
}

impl Watch {
    /// Waits for the end of the process, then for the end of what it said, then tells.
    pub(crate) fn start(mut self, process: &RankProcess) -> impl Future<Output = ()> + use<> {
        let (tree, is_alive) = (process.tree.clone(), process.is_alive.clone());
        let pid = process.pid.as_raw_pid();
        let label = process.rank.clone();
        let rank = move || Rank(label.load(Ordering::Relaxed));
        async move {
            let last_words = LastWords::default();
            let stderr = self.child.stderr.take();
            let clock = self.clock.clone();
            let words = last_words.clone();
            let mut pumping = pin!(async {
                if let Some(stderr) = stderr {
                    pump(stderr, &rank, clock, Instant::now, words, self.lines.clone()).await;
                }
            });
            let mut is_pumped = false;
            let status = loop {
                tokio::select! {
                    status = self.child.wait() => break status,
                    () = &mut pumping, if !is_pumped => is_pumped = true,
                }
            };
            is_alive.store(false, Ordering::SeqCst);
            let exceeded_memory_mib = tree.exceeded_memory_mib();
            tree.end(|left| self.say_stuck(rank(), left)).await;
            let drained = async {
                if !is_pumped {
                    pumping.await;
                }
                self.ear.heard_out().await;
            };
            if tokio::time::timeout(DRAIN, drained).await.is_err() {
                tracing::warn!(rank = rank().0, pid, "a dead rank's words could not all be read");
            }
            let status = status.unwrap_or_else(|error| {
                tracing::error!(rank = rank().0, pid, %error, "cannot learn how a rank ended");
                std::process::ExitStatus::default()
            });
            let exit = exit_of(status, exceeded_memory_mib, where_is(&self.record));
            let (process, last_words) = (self.process, last_words.take());
            let gone = Gone { process, rank: rank(), pid, exit, last_words };
            // Nobody listens when the attempt's task is gone itself.
            drop(self.gone.send(gone).await);
        }
    }

    /// Somebody has to know why a slot does not become free: whoever runs the node, and whoever waits for the job.
    fn say_stuck(&self, rank: Rank, left: &str) {
        tracing::warn!(%rank, %left, "what a rank started does not die; its slot is held");
        let line = ReportedLine {
            rank: Some(rank),
            source: LogSource::Agent,
            level: LogLevel::Warn,
            at: self.clock.now(),
            text: format!(
                "what rank {rank} started does not die, so its slot is held: process {left}"
            ),
        };
        // It is said again; one that finds no room is no loss.
        drop(self.lines.try_send(line));
    }
}
