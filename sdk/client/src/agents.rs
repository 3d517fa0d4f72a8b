//! One method for each endpoint that agents call.
//!
//! `join`, `poll`, `heartbeat` and `report` are sent once: the agent's loops decide when to try again, since
//! what they send changes in between. The others move bytes by digest and are retried like a user's.

use std::time::Duration;

use bytes::Bytes;
use lockstep_api::{
    AgentMissingRequest, Digest, Fence, FileManifest, HeartbeatRequest, HeartbeatResponse,
    JoinRequest, JoinResponse, MissingResponse, POLL_PARK_SECONDS, PollRequest, PollResponse,
    PublishCheckpoint, ReportRequest, ReportResponse,
};
use reqwest::Method;

use crate::client::Call;
use crate::{Client, ClientError};

/// How long past its longest park a poll is waited for.
const POLL_SLACK: Duration = Duration::from_secs(10);

impl Client {
    /// Joins as a node. Joining again under the same name takes that name's place.
    pub async fn join(&self, request: &JoinRequest) -> Result<JoinResponse, ClientError> {
        self.once(self.agent(Method::POST, &["join"]).json(request)).await
    }

    /// Waits until the node's set of assignments differs from `seen_version`, or the park is over.
    pub async fn poll(&self, request: &PollRequest) -> Result<PollResponse, ClientError> {
        let timeout = Duration::from_secs(POLL_PARK_SECONDS) + POLL_SLACK;
        let call = self.agent(Method::POST, &["poll"]).json(request);
        self.once(call.timeout(Some(timeout))).await
    }

    /// Renews the leases. `timeout` bounds the whole call, so that a silent server costs one beat and no more.
    pub async fn heartbeat(
        &self,
        request: &HeartbeatRequest,
        timeout: Duration,
    ) -> Result<HeartbeatResponse, ClientError> {
        let call = self.agent(Method::POST, &["heartbeat"]).json(request);
        self.once(call.timeout(Some(timeout))).await
    }

    /// Hands over numbered reports. The same ones may be sent again: their numbers make it harmless.
    pub async fn report(&self, request: &ReportRequest) -> Result<ReportResponse, ClientError> {
        self.once(self.agent(Method::POST, &["reports"]).json(request)).await
    }

    /// Which chunks the attempt's project lacks: at most 4096 digests.
    pub async fn agent_missing_chunks(
        &self,
        fence: Fence,
        digests: Vec<Digest>,
    ) -> Result<Vec<Digest>, ClientError> {
        let call = self.agent(Method::POST, &["chunks", "missing"]);
        let answer: MissingResponse =
            self.repeat(call.json(&AgentMissingRequest { fence, digests })).await?;
        Ok(answer.missing)
    }

    /// Stores a chunk in the attempt's project.
    pub async fn agent_put_chunk(
        &self,
        fence: Fence,
        digest: &Digest,
        bytes: Bytes,
    ) -> Result<(), ClientError> {
        let call = fenced(self.agent(Method::PUT, &["chunks", digest.as_str()]), fence);
        self.repeat_unit(call.octets(bytes)).await
    }

    /// Reads a chunk of the attempt's project and verifies it.
    pub async fn agent_chunk(&self, fence: Fence, digest: &Digest) -> Result<Bytes, ClientError> {
        let call = fenced(self.agent(Method::GET, &["chunks", digest.as_str()]), fence);
        let bytes = self.repeat_bytes(call).await?;
        let got = Digest::of(&bytes);
        if got != *digest {
            let what = "a chunk from the server".to_owned();
            return Err(ClientError::DigestMismatch { what, expected: digest.clone(), got });
        }
        Ok(bytes)
    }

    /// The chunks of a file of the attempt's project.
    pub async fn agent_file(
        &self,
        fence: Fence,
        digest: &Digest,
    ) -> Result<FileManifest, ClientError> {
        let call = fenced(self.agent(Method::GET, &["files", digest.as_str()]), fence);
        self.repeat(call).await
    }

    /// Publishes a checkpoint whose chunks were all stored before. Publishing it again changes nothing.
    pub async fn publish_checkpoint(&self, request: &PublishCheckpoint) -> Result<(), ClientError> {
        self.repeat_unit(self.agent(Method::POST, &["checkpoints"]).json(request)).await
    }

    fn agent(&self, method: Method, segments: &[&str]) -> Call {
        let path: Vec<&str> = ["v1", "agent"].iter().chain(segments).copied().collect();
        self.call(method, &path)
    }
}

fn fenced(call: Call, fence: Fence) -> Call {
    let Fence { attempt_id, generation } = fence;
    call.query("attempt", attempt_id).query("generation", generation)
}
