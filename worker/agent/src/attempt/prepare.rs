//! Everything a gang needs on this node before its ranks start: components, data, a checkpoint, a socket.

use camino::Utf8PathBuf;
use lockstep_api::{AssignedRank, Assignment, Digest, FailureCode, RankConfig, RankNetwork};
use lockstep_client::Client;
use lockstep_client::retry::{Backoff, Policy};

use crate::fetch::{FetchError, Fetcher, Source};
use crate::files::private_folder;
use crate::folder::WorkFolder;
use crate::gang::fence_of;
use crate::network::NetworkError;
use crate::node::Node;
use lockstep_service::chain;

/// Where an attempt's files lie.
#[derive(Debug, Clone)]
pub(crate) struct Ready {
    pub(crate) folder: Utf8PathBuf,
    loader: Utf8PathBuf,
    loss: Utf8PathBuf,
    train: Utf8PathBuf,
    eval: Option<Utf8PathBuf>,
    init: Option<Utf8PathBuf>,
    resume: Option<Utf8PathBuf>,
    checkpoints: Utf8PathBuf,
}

/// Why a gang cannot start here.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PrepareError {
    /// A file cannot be had.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// A component, or weights, not named by digest.
    #[error("{field}: {source}")]
    Digest {
        /// Of the job.
        field: &'static str,
        /// Why.
        source: lockstep_api::DigestError,
    },
    /// Ranks of other nodes cannot be met.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// The attempt's own folder.
    #[error("cannot make the attempt's folder: {0}")]
    Folder(String),
}

impl PrepareError {
    fn is_retryable(&self) -> bool {
        matches!(self, Self::Fetch(FetchError::Server { source, .. }) if source.is_retryable())
    }

    /// What to call it.
    pub(crate) fn code(&self) -> FailureCode {
        match self {
            Self::Network(NetworkError::Unreachable { .. }) => FailureCode::InterfaceUnreachable,
            Self::Fetch(_) | Self::Digest { .. } | Self::Network(_) | Self::Folder(_) => {
                FailureCode::PrepareFailed
            }
        }
    }

    /// Whether the server said that the attempt is no longer this node's.
    pub(crate) fn is_fenced(&self) -> bool {
        let code = match self {
            Self::Fetch(FetchError::Server { source, .. }) => source.code(),
            _ => None,
        };
        code == Some(lockstep_api::ProblemCode::Fenced)
    }
}

/// The folder of an attempt on this node.
pub(crate) fn folder_of(node: &Node, assignment: &Assignment) -> WorkFolder {
    let Assignment { attempt_id, generation, .. } = assignment;
    WorkFolder::new(node.places.attempts.join(format!("{attempt_id}-{generation}")))
}

/// Fetches and lays out. While the server cannot be reached it keeps trying: whoever waits decides how long.
pub(crate) async fn prepare(
    node: &Node,
    assignment: &Assignment,
    folder: &WorkFolder,
) -> Result<Ready, PrepareError> {
    let mut backoff = Backoff::new(Policy::PATIENT);
    loop {
        let error = match prepare_once(node, assignment, folder).await {
            Ok(ready) => return Ok(ready),
            Err(error) => error,
        };
        match backoff.next_delay() {
            Some(delay) if error.is_retryable() => {
                tracing::warn!(error = %chain(&error), "cannot prepare an attempt yet");
                tokio::time::sleep(delay).await;
            }
            _ => return Err(error),
        }
    }
}

async fn prepare_once(
    node: &Node,
    assignment: &Assignment,
    work_folder: &WorkFolder,
) -> Result<Ready, PrepareError> {
    let digest = |field, text: &str| {
        text.parse::<Digest>().map_err(|source| PrepareError::Digest { field, source })
    };
    let loader = digest("loader.component", &assignment.spec.loader.component)?;
    let loss = digest("loss.component", &assignment.spec.loss.component)?;
    let init = match &assignment.spec.model.init_from {
        // A checkpoint has every weight already.
        Some(text) if assignment.resume.is_none() => Some(digest("model.init_from", text)?),
        Some(_) | None => None,
    };
    let folder = work_folder.path().to_owned();
    let ready = Ready {
        loader: folder.join("loader.wasm"),
        loss: folder.join("loss.wasm"),
        train: folder.join("train"),
        eval: assignment.spec.data.eval.as_ref().map(|_| folder.join("eval")),
        init: init.as_ref().map(|_| folder.join("init.safetensors")),
        resume: assignment.resume.as_ref().map(|_| folder.join("resume.safetensors")),
        checkpoints: folder.join("checkpoints"),
        folder,
    };
    let made = make_anew(work_folder, ready.checkpoints.clone()).await;
    made.map_err(|error| PrepareError::Folder(format!("{error:#}")))?;

    let client: Client = node.server.client();
    let fetcher = Fetcher {
        client: &client,
        cache: &node.cache,
        fence: fence_of(assignment),
        folder: work_folder,
    };
    let eval = async {
        match &ready.eval {
            Some(folder) => fetcher.place_dataset(&assignment.eval_files, folder).await,
            None => Ok(()),
        }
    };
    let init = async {
        match (&init, &ready.init) {
            (Some(digest), Some(path)) => {
                fetcher.place(Source::Digest(digest), path, "the weights to begin with").await
            }
            _ => Ok(()),
        }
    };
    let resume = async {
        match (&assignment.resume, &ready.resume) {
            (Some(from), Some(path)) => {
                let what = format!("the checkpoint of step {}", from.step);
                fetcher.place(Source::Manifest(&from.file), path, &what).await
            }
            _ => Ok(()),
        }
    };
    tokio::try_join!(
        fetcher.place(Source::Digest(&loader), &ready.loader, "the loader component"),
        fetcher.place(Source::Digest(&loss), &ready.loss, "the loss component"),
        fetcher.place_dataset(&assignment.train_files, &ready.train),
        eval,
        init,
        resume,
    )?;
    Ok(ready)
}

/// An empty folder, whatever an earlier try has left or is still at work on.
async fn make_anew(folder: &WorkFolder, checkpoints: Utf8PathBuf) -> anyhow::Result<()> {
    folder.remove().await?;
    let path = folder.path().to_owned();
    let made = folder.blocking(move || {
        private_folder(&path)?;
        private_folder(&checkpoints)
    });
    made.await
}

impl Ready {
    /// Where a rank's process writes its flight record.
    pub(crate) fn flight_record(&self, process: i32) -> Utf8PathBuf {
        self.folder.join(format!("flight-{process}"))
    }

    /// The settings of the `local_rank`-th rank here.
    pub(crate) fn config(
        &self,
        node: &Node,
        assignment: &Assignment,
        local_rank: usize,
        socket_path: &str,
        (group_fd, listener_fd, network): (i32, Option<i32>, Option<RankNetwork>),
    ) -> RankConfig {
        let AssignedRank { rank, process, heals, .. } = assignment.ranks[local_rank];
        RankConfig {
            job_id: assignment.job_id,
            attempt_id: assignment.attempt_id,
            generation: assignment.generation,
            rank,
            world_size: assignment.world_size,
            local_rank: u32::try_from(local_rank).unwrap_or(u32::MAX),
            spec: assignment.spec.clone(),
            socket_path: socket_path.to_owned(),
            attempt_key: assignment.attempt_key.clone(),
            group_fd,
            listener_fd,
            network,
            heals,
            steps_reported: assignment.steps_reported,
            faults_done: assignment.faults_done.clone(),
            flight_record_path: self.flight_record(process).into_string(),
            loader_path: self.loader.to_string(),
            loss_path: self.loss.to_string(),
            train_dir: self.train.to_string(),
            eval_dir: self.eval.as_ref().map(ToString::to_string),
            cache_dir: node.places.compiled.to_string(),
            init_path: self.init.as_ref().map(ToString::to_string),
            resume_path: self.resume.as_ref().map(ToString::to_string),
            checkpoint_dir: self.checkpoints.to_string(),
        }
    }
}
