//! Two stages: soft (finish what you are in), hard (drop it). A first signal is soft; a second one, or the deadline, is hard.

use std::future::Future;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// How far the shutdown has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Every task ended by itself.
    Clean,
    /// The deadline or a second signal ended it.
    Forced,
}

/// The tasks of a program and the two tokens that end them. Clones are the same.
#[derive(Debug, Clone, Default)]
pub struct Shutdown {
    tracker: TaskTracker,
    soft: CancellationToken,
    hard: CancellationToken,
}

impl Shutdown {
    /// Nothing runs yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Cancelled when tasks should finish what they are in.
    pub fn soft(&self) -> &CancellationToken {
        &self.soft
    }

    /// Cancelled when tasks should drop what they are in.
    pub fn hard(&self) -> &CancellationToken {
        &self.hard
    }

    /// Runs a task that is waited for at the end, and dropped at the hard stage.
    pub fn spawn<F>(&self, task: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let hard = self.hard.clone();
        self.tracker.spawn(async move {
            tokio::select! {
                () = task => {}
                () = hard.cancelled() => {}
            }
        });
    }

    /// Begins the soft stage.
    pub fn request(&self) {
        self.soft.cancel();
    }

    /// Waits for SIGINT, SIGTERM or [`Self::request`]; then up to `grace` for the tasks.
    ///
    /// # Errors
    /// When signal handlers cannot be installed.
    pub async fn run_until_stopped(&self, grace: Duration) -> std::io::Result<Stage> {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            () = self.soft.cancelled() => {}
        }
        self.soft.cancel();
        self.tracker.close();
        let forced = async {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
                () = tokio::time::sleep(grace) => {}
            }
        };
        tokio::select! {
            () = self.tracker.wait() => Ok(Stage::Clean),
            () = forced => {
                self.hard.cancel();
                Ok(Stage::Forced)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn tasks_that_heed_the_soft_token_end_cleanly() {
        let shutdown = Shutdown::new();
        let soft = shutdown.soft().clone();
        shutdown.spawn(async move { soft.cancelled().await });
        shutdown.request();
        assert_eq!(shutdown.run_until_stopped(Duration::from_secs(5)).await.unwrap(), Stage::Clean);
    }

    #[tokio::test]
    async fn a_task_that_heeds_nothing_is_dropped_at_the_deadline() {
        let shutdown = Shutdown::new();
        shutdown.spawn(std::future::pending());
        shutdown.request();
        let stage = shutdown.run_until_stopped(Duration::from_millis(10)).await.unwrap();
        assert_eq!(stage, Stage::Forced);
    }
}
