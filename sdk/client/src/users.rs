//! One method for each endpoint that users call.

use bytes::Bytes;
use lockstep_api::{
    ArrivalMap, CheckpointId, CheckpointView, CreateJoinToken, CreateToken, DatasetView, Digest,
    FileManifest, JobId, JobSpec, JobSummary, JobView, JoinToken, LedgerView, ListJobs, LogLine,
    Me, MetricSeries, MissingRequest, MissingResponse, NewToken, NodeView, Page, ReadLog,
    ReadTimeline, RegisterDataset, Step, StepTimeline, TokenId, TokenList, TokenView,
};
use reqwest::Method;
use reqwest::header::HeaderValue;
use serde::Deserialize;

use crate::{Client, ClientError};

/// Largest page of [`Client::list_jobs`].
const MAX_PAGE: u32 = 200;

#[derive(Debug, Deserialize)]
struct MetricsAnswer {
    series: Vec<MetricSeries>,
}

#[derive(Debug, Deserialize)]
struct LogAnswer {
    lines: Vec<LogLine>,
}

#[derive(Debug, Deserialize)]
struct NodesAnswer {
    nodes: Vec<NodeView>,
}

impl Client {
    /// Whether a server answers. Sent once, without retries.
    ///
    /// # Errors
    /// When none does.
    pub async fn health(&self) -> Result<(), ClientError> {
        self.once_unit(self.call(Method::GET, &["healthz"])).await
    }

    /// Who the token speaks for.
    pub async fn me(&self) -> Result<Me, ClientError> {
        self.repeat(self.call(Method::GET, &["v1", "me"])).await
    }

    /// Makes an access token. Sent once: a repeat would make a second one.
    pub async fn create_token(&self, request: &CreateToken) -> Result<NewToken, ClientError> {
        self.once(self.call(Method::POST, &["v1", "tokens"]).json(request)).await
    }

    /// The project's access tokens, without their secrets.
    pub async fn tokens(&self) -> Result<Vec<TokenView>, ClientError> {
        let answer: TokenList = self.repeat(self.call(Method::GET, &["v1", "tokens"])).await?;
        Ok(answer.tokens)
    }

    /// Revokes an access token.
    pub async fn delete_token(&self, id: TokenId) -> Result<(), ClientError> {
        self.repeat_unit(self.call(Method::DELETE, &["v1", "tokens", &id.to_string()])).await
    }

    /// Makes a token for a node to join with. Sent once: a repeat would make a second one.
    pub async fn create_join_token(
        &self,
        request: &CreateJoinToken,
    ) -> Result<JoinToken, ClientError> {
        self.once(self.call(Method::POST, &["v1", "join-tokens"]).json(request)).await
    }

    /// Which of these chunks the project lacks: at most 4096 digests.
    pub async fn missing_chunks(&self, digests: Vec<Digest>) -> Result<Vec<Digest>, ClientError> {
        let call = self.call(Method::POST, &["v1", "chunks", "missing"]);
        let answer: MissingResponse = self.repeat(call.json(&MissingRequest { digests })).await?;
        Ok(answer.missing)
    }

    /// Stores a chunk.
    pub async fn put_chunk(&self, digest: &Digest, bytes: Bytes) -> Result<(), ClientError> {
        let call = self.call(Method::PUT, &["v1", "chunks", digest.as_str()]);
        self.repeat_unit(call.octets(bytes)).await
    }

    /// Which of these files the project lacks: at most 4096 digests.
    pub async fn missing_files(&self, digests: Vec<Digest>) -> Result<Vec<Digest>, ClientError> {
        let call = self.call(Method::POST, &["v1", "files", "missing"]);
        let answer: MissingResponse = self.repeat(call.json(&MissingRequest { digests })).await?;
        Ok(answer.missing)
    }

    /// Stores a file, whose chunks must have been stored before.
    pub async fn put_file(&self, file: &FileManifest) -> Result<(), ClientError> {
        let call = self.call(Method::PUT, &["v1", "files", file.digest.as_str()]);
        self.repeat_unit(call.json(file)).await
    }

    /// Registers a dataset, whose files must have been stored before.
    pub async fn register_dataset(
        &self,
        request: &RegisterDataset,
    ) -> Result<DatasetView, ClientError> {
        self.repeat(self.call(Method::POST, &["v1", "datasets"]).json(request)).await
    }

    /// A dataset by digest or name.
    pub async fn dataset(&self, digest_or_name: &str) -> Result<DatasetView, ClientError> {
        self.repeat(self.call(Method::GET, &["v1", "datasets", digest_or_name])).await
    }

    /// Submits a job. The same `idempotency_key` with the same job gives the job made the first time.
    pub async fn submit(
        &self,
        spec: &JobSpec,
        idempotency_key: &str,
    ) -> Result<JobView, ClientError> {
        let key = HeaderValue::from_str(idempotency_key).map_err(|_| ClientError::Unsuitable {
            path: "Idempotency-Key".into(),
            reason: format!("expected printable ASCII, got {idempotency_key:?}"),
        })?;
        let call = self.call(Method::POST, &["v1", "jobs"]).json(spec);
        self.repeat(call.header("idempotency-key", key)).await
    }

    /// One page of jobs, newest first.
    pub async fn list_jobs(&self, query: &ListJobs) -> Result<Page<JobSummary>, ClientError> {
        let ListJobs { state, limit, cursor } = query;
        let mut call = self.call(Method::GET, &["v1", "jobs"]);
        if let Some(state) = state {
            call = call.query("state", state);
        }
        if let Some(limit) = limit {
            call = call.query("limit", limit);
        }
        if let Some(cursor) = cursor {
            call = call.query("cursor", cursor);
        }
        self.repeat(call).await
    }

    /// The newest `max_count` jobs, from as many pages as it takes.
    pub async fn list_jobs_up_to(
        &self,
        query: &ListJobs,
        max_count: usize,
    ) -> Result<Vec<JobSummary>, ClientError> {
        let mut query = query.clone();
        let mut jobs = Vec::new();
        while jobs.len() < max_count {
            let left = u32::try_from(max_count - jobs.len()).unwrap_or(MAX_PAGE);
            query.limit = Some(left.min(MAX_PAGE));
            let page = self.list_jobs(&query).await?;
            jobs.extend(page.items);
            match page.next_cursor {
                Some(cursor) => query.cursor = Some(cursor),
                None => break,
            }
        }
        jobs.truncate(max_count);
        Ok(jobs)
    }

    /// One job in full.
    pub async fn job(&self, id: JobId) -> Result<JobView, ClientError> {
        self.repeat(self.call(Method::GET, &["v1", "jobs", &id.to_string()])).await
    }

    /// Asks a job to end. Safe to repeat; read the job again to see how far it is.
    pub async fn cancel(&self, id: JobId) -> Result<JobView, ClientError> {
        self.repeat(self.call(Method::POST, &["v1", "jobs", &id.to_string(), "cancel"])).await
    }

    /// Sets a job aside after a checkpoint. Safe to repeat; read the job again to see how far it is.
    pub async fn pause(&self, id: JobId) -> Result<JobView, ClientError> {
        self.repeat(self.call(Method::POST, &["v1", "jobs", &id.to_string(), "pause"])).await
    }

    /// Queues a paused job again. Safe to repeat.
    pub async fn resume(&self, id: JobId) -> Result<JobView, ClientError> {
        self.repeat(self.call(Method::POST, &["v1", "jobs", &id.to_string(), "resume"])).await
    }

    /// Series of a job: all, or the one called `name`; only points after `after_step`, if given.
    pub async fn metrics(
        &self,
        id: JobId,
        name: Option<&str>,
        after_step: Option<Step>,
    ) -> Result<Vec<MetricSeries>, ClientError> {
        let mut call = self.call(Method::GET, &["v1", "jobs", &id.to_string(), "metrics"]);
        if let Some(name) = name {
            call = call.query("name", name);
        }
        if let Some(step) = after_step {
            call = call.query("after_step", step);
        }
        let answer: MetricsAnswer = self.repeat(call).await?;
        Ok(answer.series)
    }

    /// Who has entered the collective under way, who has not, and what those do instead.
    pub async fn ranks(&self, id: JobId) -> Result<ArrivalMap, ClientError> {
        self.repeat(self.call(Method::GET, &["v1", "jobs", &id.to_string(), "ranks"])).await
    }

    /// Lines of a job's log.
    pub async fn log(&self, id: JobId, query: &ReadLog) -> Result<Vec<LogLine>, ClientError> {
        let ReadLog { after, limit, tail } = query;
        let mut call = self.call(Method::GET, &["v1", "jobs", &id.to_string(), "log"]);
        call = call.query("after", after).query("tail", tail);
        if let Some(limit) = limit {
            call = call.query("limit", limit);
        }
        let answer: LogAnswer = self.repeat(call).await?;
        Ok(answer.lines)
    }

    /// Which samples each step of a job used.
    pub async fn ledger(&self, id: JobId) -> Result<LedgerView, ClientError> {
        self.repeat(self.call(Method::GET, &["v1", "jobs", &id.to_string(), "ledger"])).await
    }

    /// One page of what each rank did in each step that it kept a timeline of, by attempt, step and rank.
    pub async fn timeline(
        &self,
        id: JobId,
        query: &ReadTimeline,
    ) -> Result<Page<StepTimeline>, ClientError> {
        let ReadTimeline { from_step, to_step, rank, limit, cursor } = query;
        let mut call = self.call(Method::GET, &["v1", "jobs", &id.to_string(), "timeline"]);
        if let Some(step) = from_step {
            call = call.query("from_step", step);
        }
        if let Some(step) = to_step {
            call = call.query("to_step", step);
        }
        if let Some(rank) = rank {
            call = call.query("rank", rank);
        }
        if let Some(limit) = limit {
            call = call.query("limit", limit);
        }
        if let Some(cursor) = cursor {
            call = call.query("cursor", cursor);
        }
        self.repeat(call).await
    }

    /// Keeps a checkpoint until it is unpinned. Safe to repeat.
    ///
    /// # Errors
    /// [`ProblemCode::NotFound`](lockstep_api::ProblemCode) when it is gone; `Conflict` when the job has as many pinned
    /// ones as it may.
    pub async fn pin_checkpoint(&self, id: CheckpointId) -> Result<CheckpointView, ClientError> {
        self.repeat(self.call(Method::PUT, &["v1", "checkpoints", &id.to_string(), "pin"])).await
    }

    /// Leaves a checkpoint to what its job keeps: it may be gone at once. Safe to repeat.
    pub async fn unpin_checkpoint(&self, id: CheckpointId) -> Result<(), ClientError> {
        let call = self.call(Method::DELETE, &["v1", "checkpoints", &id.to_string(), "pin"]);
        self.repeat_unit(call).await
    }

    /// Every node of the organisation.
    pub async fn nodes(&self) -> Result<Vec<NodeView>, ClientError> {
        let answer: NodesAnswer = self.repeat(self.call(Method::GET, &["v1", "nodes"])).await?;
        Ok(answer.nodes)
    }

    /// Makes a node free: what runs there goes on elsewhere. Safe to repeat.
    pub async fn drain_node(&self, name: &str) -> Result<NodeView, ClientError> {
        self.repeat(self.call(Method::POST, &["v1", "nodes", name, "drain"])).await
    }

    /// Lets a drained node take work again. Safe to repeat.
    pub async fn undrain_node(&self, name: &str) -> Result<NodeView, ClientError> {
        self.repeat(self.call(Method::POST, &["v1", "nodes", name, "undrain"])).await
    }

    /// Ends a node's quarantine and forgets what it is blamed for.
    pub async fn release_node(&self, name: &str) -> Result<NodeView, ClientError> {
        self.repeat(self.call(Method::POST, &["v1", "nodes", name, "release"])).await
    }
}
