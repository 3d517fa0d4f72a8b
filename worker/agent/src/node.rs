//! What every task of the agent may reach, and its one way to the server.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use camino::Utf8PathBuf;
use lockstep_api::Fence;
use lockstep_client::{Client, ClientError};
use lockstep_service::Clock;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::cache::Cache;
use crate::control_group::ControlGroups;
use crate::network::Reach;
use crate::spawn::Spawner;
use crate::spool::Spool;

/// Shared by all tasks.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) server: Server,
    pub(crate) spool: Spool,
    pub(crate) cache: Arc<Cache>,
    pub(crate) spawner: Spawner,
    pub(crate) control_groups: ControlGroups,
    pub(crate) clock: Clock,
    pub(crate) places: Places,
    pub(crate) reach: Reach,
    pub(crate) notes: mpsc::UnboundedSender<Note>,
}

/// Where things lie on this machine.
#[derive(Debug, Clone)]
pub(crate) struct Places {
    /// The program that ranks run.
    pub(crate) rank_binary: Utf8PathBuf,
    /// One folder an attempt.
    pub(crate) attempts: Utf8PathBuf,
    /// Sockets.
    pub(crate) sockets: Utf8PathBuf,
    /// Compiled components.
    pub(crate) compiled: Utf8PathBuf,
}

/// What tasks tell the session. At most a few for each attempt and heartbeat, so the channel needs no bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Note {
    /// The server said that the lease is lost.
    Lost(Fence),
}

/// The server, as far as this node knows it.
#[derive(Debug)]
pub(crate) struct Server {
    client: Mutex<Client>,
    answered_at: watch::Sender<Instant>,
    /// Until when nothing comes through, because a job asked for that.
    cut_until: watch::Sender<Instant>,
}

impl Server {
    pub(crate) fn new(client: Client) -> Self {
        let (now, client) = (Instant::now(), Mutex::new(client));
        let (answered_at, cut_until) = (watch::Sender::new(now), watch::Sender::new(now));
        Self { client, answered_at, cut_until }
    }

    /// The client with the present token.
    pub(crate) fn client(&self) -> Client {
        self.client.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The node joined anew.
    pub(crate) fn set_client(&self, client: Client) {
        *self.client.lock().unwrap_or_else(PoisonError::into_inner) = client;
    }

    /// Notes whether the server was heard. A problem is an answer, too.
    pub(crate) fn note<T>(&self, result: Result<T, ClientError>) -> Result<T, ClientError> {
        if matches!(result, Ok(_) | Err(ClientError::Problem(_))) {
            self.answered_at.send_replace(Instant::now());
        }
        result
    }

    /// For so long there are no heartbeats, polls or reports, and no upload begins. What is being fetched or uploaded goes on.
    pub(crate) fn cut(&self, duration: Duration) {
        self.cut_until.send_replace(Instant::now() + duration);
    }

    /// Comes back once something can come through.
    pub(crate) async fn reachable(&self) {
        let mut until = self.cut_until.subscribe();
        loop {
            let over = *until.borrow_and_update();
            tokio::time::sleep_until(over).await;
            if !until.has_changed().unwrap_or(false) {
                return;
            }
        }
    }

    /// Comes back once nothing comes through any more.
    pub(crate) async fn cut_off(&self) {
        let mut until = self.cut_until.subscribe();
        // The sender is in `self`.
        drop(until.wait_for(|until| Instant::now() < *until).await);
    }

    /// As if the last answer had come that much earlier.
    #[cfg(test)]
    pub(crate) fn set_back(&self, by: Duration) {
        self.answered_at.send_modify(|at| *at -= by);
    }

    /// Comes back once the server has been silent for `grace`.
    pub(crate) async fn silent_for(&self, grace: Duration) {
        let mut answered_at = self.answered_at.subscribe();
        loop {
            let deadline = *answered_at.borrow_and_update() + grace;
            tokio::select! {
                () = tokio::time::sleep_until(deadline) => return,
                _ = answered_at.changed() => {}
            }
        }
    }
}

/// Runs blocking work on a thread made for it.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(value) => value,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures::poll;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(20);

    #[tokio::test]
    async fn nothing_comes_through_for_as_long_as_was_asked() {
        let server = Server::new(Client::new("http://127.0.0.1:9", "lsn_test").unwrap());
        let mut cut_off = pin!(server.cut_off());
        assert!(poll!(&mut cut_off).is_pending());
        server.reachable().await;
        let cut = Duration::from_millis(50);
        let began = Instant::now();
        server.cut(cut);
        cut_off.await;
        server.reachable().await;
        assert!(cut <= began.elapsed());
    }

    #[tokio::test]
    async fn silence_is_counted_from_the_last_answer() {
        let server = Server::new(Client::new("http://127.0.0.1:9", "lsn_test").unwrap());
        let grace = Duration::from_secs(60);
        let mut silence = pin!(server.silent_for(grace));
        assert!(poll!(&mut silence).is_pending());
        server.set_back(grace);
        server.note(Ok(())).unwrap();
        assert!(poll!(&mut silence).is_pending());
        server.set_back(grace);
        tokio::time::timeout(LIMIT, silence).await.unwrap();
    }
}
