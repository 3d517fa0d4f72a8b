//! `/v1/jobs/{id}/events`: server-sent events, resumed by `Last-Event-ID`.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures::Stream;
use futures::stream;
use lockstep_api::{JobEvent, JobId, ProjectId};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{OwnedSemaphorePermit, broadcast};
use tokio::time::{Instant, sleep, sleep_until};

use crate::app::{App, OPEN_STREAMS};
use crate::extract::{Caller, Path};
use crate::jobs;
use crate::problem::Problem;
use crate::progress;

/// How often the rows are looked at without a hint: another replica may have written them.
const POLL: Duration = Duration::from_secs(1);
/// Events read at once.
const BATCH: i64 = 500;
/// A comment goes out after so long a silence, for the sake of proxies.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// A stream ends after so long and the client resumes it, so that a revoked token does not listen on for ever.
const LIFETIME: Duration = Duration::from_secs(5 * 60);

/// What happens to a job, live. Ends once the job has ended and everything was told.
#[utoipa::path(
    get, path = "/v1/jobs/{id}/events", operation_id = "stream_job_events", tag = "jobs",
    params(
        ("id" = JobId, Path),
        ("Last-Event-ID" = Option<i64>, Header, description = "Only events after this one; absent: all"),
    ),
    responses(
        (status = 200, body = JobEvent, content_type = "text/event-stream", description = "Events named `job`"),
    ),
)]
#[tracing::instrument(name = "events.stream", skip_all)]
pub(crate) async fn stream_job_events(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<JobId>,
    headers: HeaderMap,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>> + use<>>, Problem> {
    let last = last_event_id(&headers)?;
    // Before the first look at the rows, so that nothing falls between the two.
    let hints = app.wakeup.job_events();
    let mut tx = app.db.project(caller.project_id).await?;
    let state = jobs::store::find_state(&mut tx, caller.project_id, id).await?;
    tx.rollback().await?;
    if state.is_none() {
        return Err(Problem::not_found("job", id));
    }
    let place = Arc::clone(&app.streams).try_acquire_owned().map_err(|_| {
        Problem::Unavailable(format!("this server has {OPEN_STREAMS} event streams open already"))
    })?;
    let until = Instant::now() + LIFETIME;
    let project = caller.project_id;
    let tail =
        Tail { app, project, job: id, last, hints, read: VecDeque::new(), until, _place: place };
    let events = stream::unfold(tail, |mut tail| async move {
        let event = tail.next().await?;
        Some((Ok(event), tail))
    });
    Ok(Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)))
}

fn last_event_id(headers: &HeaderMap) -> Result<i64, Problem> {
    let Some(value) = headers.get("last-event-id") else { return Ok(0) };
    let number =
        value.to_str().ok().and_then(|text| text.parse().ok()).filter(|number| 0 <= *number);
    number.ok_or_else(|| {
        Problem::field("Last-Event-ID", format!("expected a number from 0, got {value:?}"))
    })
}

/// A reader of one job's outbox.
struct Tail {
    app: App,
    project: ProjectId,
    job: JobId,
    last: i64,
    hints: broadcast::Receiver<JobId>,
    read: VecDeque<JobEvent>,
    until: Instant,
    _place: OwnedSemaphorePermit,
}

impl Tail {
    /// The next event; `None` when there will be none, when the server stops, or when the stream is old.
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.read.pop_front() {
                self.last = event.seq;
                let sent =
                    Event::default().id(event.seq.to_string()).event("job").json_data(&event);
                return sent
                    .inspect_err(|error| tracing::error!(%error, "an event could not be written"))
                    .ok();
            }
            match self.look().await {
                Ok(Look::Over) => return None,
                Ok(Look::Found) => continue,
                Ok(Look::Nothing) => {}
                Err(error) => {
                    // The client resumes; by then the database may answer again.
                    tracing::warn!(%error, "an event stream ends because the database does not answer");
                    return None;
                }
            }
            let soft = self.app.shutdown.soft().clone();
            tokio::select! {
                () = soft.cancelled() => return None,
                () = sleep_until(self.until) => return None,
                () = hint(&mut self.hints, self.job) => {}
                () = sleep(POLL) => {}
            }
        }
    }

    async fn look(&mut self) -> sqlx::Result<Look> {
        let mut tx = self.app.db.project(self.project).await?;
        // First the state: the last event is written together with the final state, so whoever sees that sees all.
        let state = jobs::store::find_state(&mut tx, self.project, self.job).await?;
        self.read =
            progress::store::events_after(&mut tx, self.project, self.job, self.last, BATCH)
                .await?
                .into();
        tx.rollback().await?;
        Ok(match state {
            _ if !self.read.is_empty() => Look::Found,
            Some(state) if !state.is_final() => Look::Nothing,
            _ => Look::Over,
        })
    }
}

enum Look {
    Found,
    Nothing,
    Over,
}

/// Resolves when the job got events, or when so many did that some hints were lost.
async fn hint(hints: &mut broadcast::Receiver<JobId>, job: JobId) {
    loop {
        match hints.recv().await {
            Ok(other) if other != job => {}
            Ok(_) | Err(RecvError::Lagged(_)) => return,
            // Cannot happen while the app lives, which holds the sender. Polling goes on.
            Err(RecvError::Closed) => std::future::pending().await,
        }
    }
}
