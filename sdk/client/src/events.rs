//! A job's live events, resumed where they broke off.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use lockstep_api::{JobEvent, JobId};
use reqwest::header::HeaderValue;
use reqwest::{Method, Response};

use crate::client::Call;
use crate::retry::Backoff;
use crate::sse::{SseEvent, SseParser};
use crate::{Client, ClientError};

/// A connection that lived as long as this and then broke counts as a first failure.
const SETTLED: Duration = Duration::from_secs(5);

/// Events of one job, oldest first, each once.
///
/// Reconnects by itself, from the last event that was given out. It never ends by itself: stop asking once
/// the job is final.
#[derive(Debug)]
pub struct EventStream {
    client: Client,
    call: Call,
    last_seq: i64,
    connection: Option<Connection>,
    ready: VecDeque<JobEvent>,
    backoff: Backoff,
}

#[derive(Debug)]
struct Connection {
    response: Response,
    parser: SseParser,
    since: Instant,
}

impl Client {
    /// The events of a job after `last_seq` (0: all that are kept). Connects on the first [`EventStream::next`].
    pub fn events(&self, id: JobId, last_seq: i64) -> EventStream {
        let call = self.call(Method::GET, &["v1", "jobs", &id.to_string(), "events"]);
        EventStream {
            client: self.clone(),
            call: call.timeout(None),
            last_seq,
            connection: None,
            ready: VecDeque::new(),
            backoff: Backoff::new(self.options.retry),
        }
    }
}

impl EventStream {
    /// The sequence number of the last event given out; pass it to [`Client::events`] to go on from there.
    pub fn last_seq(&self) -> i64 {
        self.last_seq
    }

    /// The next event. Waits as long as none happens. May be dropped at any await without losing one.
    ///
    /// # Errors
    /// When the server refuses, or cannot be reached within the client's retry policy. The stream can be
    /// asked again afterwards; it starts afresh with the policy's tries.
    pub async fn next(&mut self) -> Result<JobEvent, ClientError> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                self.last_seq = event.seq;
                return Ok(event);
            }
            let error = match self.receive().await {
                Ok(()) => continue,
                Err(error) => error,
            };
            if self.connection.take().is_some_and(|it| SETTLED <= it.since.elapsed()) {
                self.backoff.reset();
            }
            match self.backoff.next_delay() {
                Some(delay) if error.is_retryable() => tokio::time::sleep(delay).await,
                _ => {
                    self.backoff.reset();
                    return Err(error);
                }
            }
        }
    }

    /// Connects if need be and takes in what arrives next.
    async fn receive(&mut self) -> Result<(), ClientError> {
        let broken = || ClientError::StreamBroken { url: self.call.url.to_string() };
        let silence = self.client.options.stream_silence;
        let connection = match &mut self.connection {
            Some(connection) => connection,
            empty => {
                let mut call = self.call.clone();
                if 0 < self.last_seq {
                    call = call.header("last-event-id", HeaderValue::from(self.last_seq));
                }
                let sent = tokio::time::timeout(silence, self.client.send(&call));
                let response = sent.await.map_err(|_| broken())??;
                let parser = SseParser::default();
                empty.insert(Connection { response, parser, since: Instant::now() })
            }
        };
        let arrived = tokio::time::timeout(silence, connection.response.chunk());
        let bytes = arrived
            .await
            .map_err(|_| broken())?
            .map_err(|source| ClientError::Unreachable {
                url: self.call.url.to_string(),
                source: source.without_url(),
            })?
            .ok_or_else(broken)?;
        let mut events = Vec::new();
        connection.parser.feed(&bytes, &mut events).map_err(|_| broken())?;
        for event in events {
            if let Some(event) = self.read(event)? {
                self.ready.push_back(event);
            }
        }
        Ok(())
    }

    /// Events of other names are of a newer server; one that came before is skipped.
    fn read(&self, event: SseEvent) -> Result<Option<JobEvent>, ClientError> {
        if event.name.as_deref() != Some("job") {
            return Ok(None);
        }
        let event: JobEvent = serde_json::from_str(&event.data)
            .map_err(|source| ClientError::Decode { url: self.call.url.to_string(), source })?;
        let newest = self.ready.back().map_or(self.last_seq, |event| event.seq);
        Ok((newest < event.seq).then_some(event))
    }
}
