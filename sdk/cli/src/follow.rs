//! A job from the outside until it ends: one bar where someone looks, plain lines where nobody does.

use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use lockstep_api::{FailureId, JobId, JobState, JobView};
use lockstep_client::{Client, ClientError};

use crate::out::{Out, number};

/// The shortest time between two looks at the job, however many events come.
const LOOK_INTERVAL: Duration = Duration::from_millis(150);
/// The longest: an event that got lost must not leave us waiting.
const LOOK_AGAIN: Duration = Duration::from_secs(3);
/// Between two lines of progress where nobody watches.
const LINE_INTERVAL: Duration = Duration::from_secs(5);
/// How long a server may be away (restarting) before we give up.
const ABSENCE_CAP: Duration = Duration::from_secs(120);
/// Between two tries to reach it.
const ABSENCE_POLL: Duration = Duration::from_millis(500);

/// How following ended.
#[derive(Debug)]
pub(crate) enum Followed {
    /// With the job.
    Ended(Box<JobView>),
    /// Ctrl-C.
    Interrupted,
}

/// Follows a job to its end.
pub(crate) async fn follow(client: &Client, id: JobId, out: Out) -> anyhow::Result<Followed> {
    let mut view = View::new(out);
    let outcome = tokio::select! {
        ended = until_end(client, id, &mut view) => ended.map(|job| Followed::Ended(Box::new(job))),
        signal = tokio::signal::ctrl_c() => signal.map(|()| Followed::Interrupted).map_err(Into::into),
    };
    view.close();
    outcome
}

async fn until_end(client: &Client, id: JobId, view: &mut View) -> anyhow::Result<JobView> {
    let mut watch = Watch::new(client, id);
    loop {
        let job = patiently(|text| view.note(text), async || client.job(id).await).await?;
        view.show(&job);
        if job.summary.state.is_final() {
            return Ok(job);
        }
        tokio::time::sleep(LOOK_INTERVAL).await;
        watch.changed(LOOK_AGAIN).await;
    }
}

/// Calls the server; waits for one that is away.
pub(crate) async fn patiently<T>(
    tell: impl Fn(&str),
    mut call: impl AsyncFnMut() -> Result<T, ClientError>,
) -> Result<T, ClientError> {
    let mut away_since = None;
    loop {
        let error = match call().await {
            Ok(value) => return Ok(value),
            Err(error) => error,
        };
        if !error.is_retryable() {
            return Err(error);
        }
        let since: &mut Instant = away_since.get_or_insert_with(|| {
            tell("the server does not answer; the job goes on, waiting for the server");
            Instant::now()
        });
        if ABSENCE_CAP <= since.elapsed() {
            return Err(error);
        }
        tokio::time::sleep(ABSENCE_POLL).await;
    }
}

/// Wakes up when the server says that something about a job changed.
#[derive(Debug)]
pub(crate) struct Watch {
    events: lockstep_client::EventStream,
}

impl Watch {
    pub(crate) fn new(client: &Client, id: JobId) -> Self {
        Self { events: client.events(id, 0) }
    }

    /// Waits for the next event, at most `longest`. A hint: whoever wakes looks at the thing itself.
    pub(crate) async fn changed(&mut self, longest: Duration) {
        let deadline = tokio::time::Instant::now() + longest;
        match tokio::time::timeout_at(deadline, self.events.next()).await {
            // What else has come already is covered by the same look.
            Ok(Ok(_)) => {
                while let Ok(Ok(_)) = tokio::time::timeout(Duration::ZERO, self.events.next()).await
                {
                }
            }
            // The look that follows tells what is wrong; the stream connects again on the next call.
            Ok(Err(ClientError::Unreachable { .. })) | Err(_) => {}
            Ok(Err(_)) => {
                tokio::time::sleep_until(deadline.min(tokio::time::Instant::now() + ABSENCE_POLL))
                    .await
            }
        }
    }
}

/// What has been shown so far.
struct View {
    out: Out,
    /// Where someone watches: a spinner until the number of steps is known, then a bar.
    bar: Option<ProgressBar>,
    has_total: bool,
    state: Option<(JobState, Option<String>)>,
    failures: Vec<FailureId>,
    last_line: Option<(Instant, i64)>,
}

impl View {
    fn new(out: Out) -> Self {
        Self {
            out,
            bar: out.is_watched().then(|| out.spinner(String::new())),
            has_total: false,
            state: None,
            failures: Vec::new(),
            last_line: None,
        }
    }

    /// A line above the bar.
    fn note(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| self.out.note(text)),
            None => self.out.note(text),
        }
    }

    fn show(&mut self, job: &JobView) {
        // The end is told last, a beginning first.
        if !job.summary.state.is_final() {
            self.show_state(job);
        }
        self.show_failures(job);
        self.show_progress(job);
        self.show_state(job);
    }

    fn show_state(&mut self, job: &JobView) {
        let summary = &job.summary;
        let now = (summary.state, summary.waiting.clone());
        if self.state.as_ref() == Some(&now) {
            return;
        }
        match &summary.waiting {
            Some(reason) => self.note(&format!("{}: {reason}", summary.state)),
            None => self.note(summary.state.as_str()),
        }
        self.state = Some(now);
    }

    fn show_failures(&mut self, job: &JobView) {
        // Newest first as they come; told in the order they happened.
        for failure in job.failures.iter().rev() {
            if !self.failures.contains(&failure.id) {
                self.note(&format!("{} ({}): {}", failure.code, failure.blame, failure.message));
                self.failures.push(failure.id);
            }
        }
    }

    fn show_progress(&mut self, job: &JobView) {
        let summary = &job.summary;
        let (done, total) = (summary.steps_done.0, summary.steps_total.map(|total| total.0));
        if let (Some(waiting), Some(_), false) = (&self.bar, total, self.has_total) {
            waiting.finish_and_clear();
            self.bar = Some(self.out.steps_bar(summary.name.clone()));
            self.has_total = true;
        }
        match &self.bar {
            Some(bar) => {
                let unsigned = |count: i64| u64::try_from(count).unwrap_or(0);
                bar.set_length(unsigned(total.unwrap_or(0)));
                bar.set_position(unsigned(done));
                bar.set_message(if self.has_total { values(job) } else { summary.name.clone() });
            }
            None => {
                let is_new = self.last_line.is_none_or(|(_, step)| step != done);
                let is_due = self.last_line.is_none_or(|(at, _)| LINE_INTERVAL <= at.elapsed());
                if 0 < done && (summary.state.is_final() || (is_new && is_due)) {
                    let total = total.map(|total| format!("/{total}")).unwrap_or_default();
                    self.note(&format!("step {done}{total} {}", values(job)));
                    self.last_line = Some((Instant::now(), done));
                }
            }
        }
    }

    fn close(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// The newest loss and evaluation, on one line.
fn values(job: &JobView) -> String {
    let loss = job.summary.loss.map(|loss| format!("loss {}", number(loss)));
    let evaluation = job
        .metrics
        .iter()
        .filter(|(name, _)| name.starts_with("eval/"))
        .map(|(name, value)| format!("{name} {}", number(*value)));
    loss.into_iter().chain(evaluation).collect::<Vec<_>>().join(" ")
}
