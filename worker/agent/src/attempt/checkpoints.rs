//! Checkpoints on their way to the server, one after the other, in the order they were written.
//!
//! A checkpoint is published only after the server has acted on every report that came before it. Otherwise an
//! attempt that resumes from it could start behind steps that the server never heard of.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use camino::{Utf8Path, Utf8PathBuf};
use futures::{TryStreamExt as _, stream};
use lockstep_api::{
    Digest, FailureCode, FailureReport, Fence, FileManifest, ProblemCode, PublishCheckpoint, Step,
};
use lockstep_client::retry::{self, Policy};
use lockstep_client::{Client, ClientError, manifest_of_file, verified_chunk};
use tokio::sync::{Notify, mpsc, watch};

use super::course::own_failure;
use crate::fetch::adopt;
use crate::node::{Node, blocking};
use lockstep_service::chain;

/// Checkpoints that may wait while one is under way; the oldest goes when there are more.
const MAX_WAITING: usize = 2;
/// Chunks under way at once.
const PARALLEL_CHUNKS: usize = 4;
/// Digests of one question.
const MISSING_BATCH: usize = 4096;
/// How often a chunk may vanish on the server between its upload and the publication.
const CONFLICT_ROUNDS: usize = 5;

/// A checkpoint that a rank has written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Written {
    pub(crate) path: Utf8PathBuf,
    pub(crate) step: Step,
    pub(crate) data_epoch: i64,
    pub(crate) next_position: i64,
    /// The newest report that came before it.
    pub(crate) after_seq: i64,
}

/// How it went.
#[derive(Debug)]
pub(crate) enum Outcome {
    Published(Step),
    /// The attempt is no longer this node's.
    Fenced,
    Failed(FailureReport),
}

#[derive(Debug)]
struct Queue {
    waiting: Mutex<VecDeque<Written>>,
    added: Notify,
    unfinished: watch::Sender<usize>,
}

/// The checkpoints of one attempt.
#[derive(Debug)]
pub(crate) struct Checkpoints {
    queue: Arc<Queue>,
    outcomes: mpsc::Receiver<Outcome>,
}

impl Checkpoints {
    /// And the task that works on them.
    pub(crate) fn start(node: Arc<Node>, fence: Fence) -> (Self, impl Future<Output = ()>) {
        let queue = Arc::new(Queue {
            waiting: Mutex::default(),
            added: Notify::new(),
            unfinished: watch::Sender::new(0),
        });
        let (outcome, outcomes) = mpsc::channel(MAX_WAITING + 2);
        let work = work(node, fence, queue.clone(), outcome);
        (Self { queue, outcomes }, work)
    }

    /// Takes a checkpoint. When too many wait, the oldest is given up: a newer one says more.
    pub(crate) fn add(&self, written: Written) {
        let mut waiting = self.queue.lock();
        waiting.push_back(written);
        let given_up = if MAX_WAITING < waiting.len() { waiting.pop_front() } else { None };
        drop(waiting);
        match given_up {
            None => self.queue.unfinished.send_modify(|count| *count += 1),
            Some(old) => {
                tracing::warn!(
                    step = old.step.0,
                    "a checkpoint is given up: newer ones wait for the server"
                );
                remove(&old);
            }
        }
        self.queue.added.notify_one();
    }

    /// The next outcome. May be dropped while it waits.
    pub(crate) async fn outcome(&mut self) -> Outcome {
        match self.outcomes.recv().await {
            Some(outcome) => outcome,
            None => std::future::pending().await,
        }
    }

    /// Whether nothing waits or is under way.
    pub(crate) fn are_done(&self) -> bool {
        *self.queue.unfinished.borrow() == 0 && self.outcomes.is_empty()
    }

    /// Changes whenever one is finished.
    pub(crate) fn unfinished(&self) -> watch::Receiver<usize> {
        self.queue.unfinished.subscribe()
    }
}

impl Queue {
    async fn next(&self) -> Written {
        loop {
            if let Some(written) = self.lock().pop_front() {
                return written;
            }
            self.added.notified().await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Written>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn work(node: Arc<Node>, fence: Fence, queue: Arc<Queue>, outcome: mpsc::Sender<Outcome>) {
    loop {
        let written = queue.next().await;
        let step = written.step;
        let result = match publish(&node, fence, &written).await {
            Ok(()) => Outcome::Published(step),
            Err(error) if error.code() == Some(ProblemCode::Fenced) => Outcome::Fenced,
            Err(error) => {
                let text = format!(
                    "the checkpoint of step {step} could not be published: {}",
                    chain(&error)
                );
                let report = own_failure(FailureCode::CheckpointFailed, text);
                Outcome::Failed(FailureReport { step: Some(step), ..report })
            }
        };
        remove(&written);
        // The outcome first, so that nobody sees "done" without it.
        if outcome.send(result).await.is_err() {
            return;
        }
        queue.unfinished.send_modify(|count| *count -= 1);
    }
}

async fn publish(node: &Node, fence: Fence, written: &Written) -> Result<(), ClientError> {
    let Written { path, step, data_epoch, next_position, after_seq } = written.clone();
    let to_hash = path.clone();
    let file = blocking(move || manifest_of_file(&to_hash)).await?;
    let request = PublishCheckpoint { fence, step, data_epoch, next_position, file };
    let mut acked = node.spool.acked();
    for round in 1.. {
        let uploaded = retry::run(Policy::PATIENT, || async {
            node.server.reachable().await;
            upload(node.server.client(), fence, &path, &request.file).await
        });
        uploaded.await?;
        // The spool outlives every attempt, so the sender is there.
        drop(acked.wait_for(|acked| after_seq <= *acked).await);
        let published = retry::run(Policy::PATIENT, || {
            let request = &request;
            async move {
                node.server.reachable().await;
                node.server.client().publish_checkpoint(request).await
            }
        });
        match published.await {
            // A chunk that was there is gone: another job's retention collected it.
            Err(error)
                if error.code() == Some(ProblemCode::Conflict) && round < CONFLICT_ROUNDS =>
            {
                tracing::info!(step = step.0, "chunks of a checkpoint vanished: uploading again");
            }
            other => {
                other?;
                break;
            }
        }
    }
    let (cache, digest) = (node.cache.clone(), request.file.digest);
    // Whoever resumes here need not fetch it. A failure costs only that.
    if let Err(error) = blocking(move || adopt(&cache, &digest, &path)).await {
        tracing::debug!(%error, "a published checkpoint is not kept");
    }
    Ok(())
}

async fn upload(
    client: Client,
    fence: Fence,
    path: &Utf8Path,
    file: &FileManifest,
) -> Result<(), ClientError> {
    let mut missing = std::collections::HashSet::new();
    for batch in file.chunks.chunks(MISSING_BATCH) {
        missing.extend(client.agent_missing_chunks(fence, batch.to_vec()).await?);
    }
    let chunks = file.chunks.iter().cloned().enumerate();
    let to_put: Vec<(usize, Digest)> = chunks.filter(|(_, it)| missing.contains(it)).collect();
    let client = &client;
    stream::iter(to_put.into_iter().map(Ok))
        .try_for_each_concurrent(PARALLEL_CHUNKS, |(index, digest)| async move {
            let bytes = verified_chunk(path, index, &digest).await?;
            client.agent_put_chunk(fence, &digest, bytes).await
        })
        .await
}

/// What is left is removed with the attempt's folder.
fn remove(written: &Written) {
    if let Err(error) = std::fs::remove_file(&written.path)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        tracing::debug!(path = %written.path, %error, "cannot remove a checkpoint");
    }
}
