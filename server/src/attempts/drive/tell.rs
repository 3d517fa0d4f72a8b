//! What people and programs are told of a transaction: the job's log, its stream of events, and who is woken afterwards.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use lockstep_api::{
    AttemptId, FailureReport, JobEventKind, JobId, LogLevel, LogSource, Rank, ReportedLine,
};
use lockstep_core::{Gang, Replacement};
use sqlx::PgConnection;

use super::Drive;
use crate::app::Wakeup;
use crate::problem::Problem;
use crate::progress;

/// The order in which changes of one transaction are told.
const KINDS: [JobEventKind; 5] = [
    JobEventKind::State,
    JobEventKind::Metrics,
    JobEventKind::Log,
    JobEventKind::Failure,
    JobEventKind::Checkpoint,
];

/// What readers must be told once the transaction is committed.
#[derive(Debug, Default)]
pub(crate) struct Announcement {
    pub(super) reconcilers: bool,
    pub(super) polls: bool,
    pub(super) events: BTreeSet<JobId>,
}

impl Announcement {
    /// Wakes everyone concerned. Call after the commit.
    pub(crate) fn send(self, wakeup: &Wakeup) {
        if self.polls {
            wakeup.assignments_changed();
        }
        if self.reconcilers {
            wakeup.jobs_changed();
        }
        for job in self.events {
            wakeup.job_event(job);
        }
    }
}

impl Drive<'_> {
    /// A reader of the job's stream will be told of this kind of change.
    pub(crate) fn note(&mut self, job: JobId, kind: JobEventKind) {
        let place = KINDS.iter().position(|k| *k == kind);
        self.kinds.entry(job).or_default().extend(place);
    }

    /// What happens without being asked happens soon.
    pub(crate) fn wake_reconcilers(&mut self) {
        self.announcement.reconcilers = true;
    }

    /// A line of the server's own in the job's log.
    pub(crate) fn say(
        &mut self,
        (job, attempt): (JobId, AttemptId),
        rank: Option<Rank>,
        level: LogLevel,
        text: String,
    ) {
        let line = ReportedLine { rank, source: LogSource::Server, level, at: self.now, text };
        self.said.push((job, attempt, line));
        self.note(job, JobEventKind::Log);
    }

    pub(super) fn say_verdict(&mut self, of: (JobId, AttemptId), report: &FailureReport) {
        let FailureReport { code, rank, message, .. } = report;
        let text = format!("verdict {code} (blamed on {}): {message}", code.blame().as_str());
        self.say(of, *rank, LogLevel::Error, text);
    }

    /// Writes down what was said and which kinds of change readers are told of.
    pub(super) async fn tell(&mut self, db: &mut PgConnection) -> Result<(), Problem> {
        for (id, attempt, line) in &self.said {
            let Some(job) = self.jobs.get(id) else { continue };
            let line = std::slice::from_ref(line);
            progress::store::insert_lines(db, job.project_id, *id, *attempt, line).await?;
        }
        for (id, places) in &self.kinds {
            let Some(job) = self.jobs.get(id) else { continue };
            let kinds: Vec<JobEventKind> = places.iter().map(|&place| KINDS[place]).collect();
            progress::store::append_events(db, job.project_id, *id, &kinds, self.now).await?;
            self.announcement.events.insert(*id);
        }
        Ok(())
    }
}

/// A sentence for the job's log about a group that is to form after `was`.
pub(super) fn begun(was: &Gang, gang: &Gang, started: &[Replacement]) -> String {
    let (before, size) = (was.members.len(), gang.members.len());
    let ranks = if size == 1 { "1 rank".to_owned() } else { format!("{size} ranks") };
    let how = match size.cmp(&before) {
        Ordering::Equal => "repaired in place".to_owned(),
        Ordering::Less if gang.is_planned => {
            format!("gives slots to a job that waits: goes on with {ranks} instead of {before}")
        }
        Ordering::Less => format!("goes on with {ranks} instead of {before}"),
        Ordering::Greater => format!("grows into free slots: {ranks} instead of {before}"),
    };
    let new: Vec<String> = started.iter().map(|it| it.rank.to_string()).collect();
    let new = match new.as_slice() {
        [] => String::new(),
        new => format!(": a new process for rank {}, the others go on", new.join(", ")),
    };
    format!("{how}, generation {}{new}", gang.generation)
}
