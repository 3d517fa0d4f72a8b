//! Carries out what the core decides: rows are locked, the core takes a step, its effects are written, all in one transaction.
//!
//! The order of locks is that of [`crate::jobs::store::lifecycle`].

mod aftermath;
mod ask;
mod tell;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use chrono::{DateTime, Utc};
use lockstep_api::{
    AttemptId, FailureId, Generation, JobEventKind, JobId, JobState, LogLevel, NodeId,
    ReportedLine, StopPurpose,
};
use lockstep_core::{
    Effect, Event, Gang, JobEffect, JobEvent, LeaseTerms, NodeLoss, Place, Standing, StepError,
    Terms, Word,
};
use sqlx::PgConnection;

use crate::app::App;
use crate::attempts::shun::shunned;
use crate::attempts::store::{self, LockedAttempt};
use crate::config::Settings;
use crate::jobs::store::lifecycle::{self, LockedJob};
use crate::nodes;
use crate::problem::Problem;
use crate::progress;
use crate::progress::store::NewFailure;

pub(crate) use ask::{Wish, request};
pub(crate) use tell::Announcement;
use tell::begun;

/// What a job's `waiting` says while it is being stopped to be paused.
const PAUSES: &str = "is being paused: its ranks leave after a checkpoint";
/// Or to go on elsewhere.
const MOVES: &str = "leaves a node that is to be free: its ranks leave after a checkpoint";

/// Or to go on later.
const PREEMPTED: &str =
    "gives its slots to a job of higher priority: its ranks leave after a checkpoint";

/// The times that nodes are held to.
pub(crate) fn lease_terms(settings: &Settings) -> Result<LeaseTerms, Problem> {
    let Settings { heartbeat, lease, orphan_grace, .. } = settings;
    // Settings whose lease is short in comparison are legal; they only make a lost heartbeat count sooner.
    let heartbeat = (*heartbeat).min((*lease / 2).saturating_sub(Duration::from_millis(1)));
    LeaseTerms::new(heartbeat, *lease, *orphan_grace).map_err(Problem::internal)
}

/// What an attempt was before a step.
struct Before {
    generation: Generation,
    gang: Gang,
    nodes: BTreeSet<NodeId>,
}

/// Rows that one transaction has locked, and what has happened to them in it.
#[derive(Debug)]
pub(crate) struct Drive<'a> {
    app: &'a App,
    lease: LeaseTerms,
    now: DateTime<Utc>,
    jobs: BTreeMap<JobId, LockedJob>,
    attempts: BTreeMap<AttemptId, LockedAttempt>,
    /// Attempts and jobs whose rows differ from what is stored.
    changed_attempts: BTreeSet<AttemptId>,
    changed_jobs: BTreeSet<JobId>,
    /// Jobs whose attempt was lost.
    bereft_jobs: BTreeSet<JobId>,
    reassigned: BTreeSet<NodeId>,
    /// The server's own words for the jobs' logs. Written last, so that they stand behind what led to them.
    said: Vec<(JobId, AttemptId, ReportedLine)>,
    /// Kinds of change, as places in the order in which they are told.
    kinds: BTreeMap<JobId, BTreeSet<usize>>,
    announcement: Announcement,
}

impl<'a> Drive<'a> {
    /// Locks jobs, attempts and their nodes (and `also`), in this order.
    pub(crate) async fn lock(
        app: &'a App,
        db: &mut PgConnection,
        jobs: &[JobId],
        attempts: &[AttemptId],
        also: &[NodeId],
    ) -> Result<Self, Problem> {
        let lease = lease_terms(&app.settings)?;
        let jobs = lifecycle::lock(db, jobs).await?;
        let mut attempts = store::lock(db, attempts).await?;
        for attempt in &mut attempts {
            if let Some(job) = jobs.iter().find(|job| job.id == attempt.job_id) {
                attempt.core.gang.transport = job.spec.ddp.transport;
                attempt.core.gang.has_copies = job.spec.ddp.has_copies();
                attempt.core.gang.ranks = job.spec.gang.ranks;
            }
        }
        let mut nodes: BTreeSet<NodeId> = attempts.iter().flat_map(LockedAttempt::nodes).collect();
        nodes.extend(also.iter().copied());
        nodes::store::lock(db, &nodes.into_iter().collect::<Vec<_>>()).await?;
        Ok(Self {
            app,
            lease,
            now: app.clock.now(),
            jobs: jobs.into_iter().map(|job| (job.id, job)).collect(),
            attempts: attempts.into_iter().map(|attempt| (attempt.id, attempt)).collect(),
            changed_attempts: BTreeSet::new(),
            changed_jobs: BTreeSet::new(),
            bereft_jobs: BTreeSet::new(),
            reassigned: BTreeSet::new(),
            said: Vec::new(),
            kinds: BTreeMap::new(),
            announcement: Announcement::default(),
        })
    }

    pub(crate) fn now(&self) -> DateTime<Utc> {
        self.now
    }

    pub(crate) fn attempt(&self, id: AttemptId) -> Option<&LockedAttempt> {
        self.attempts.get(&id)
    }

    pub(crate) fn job(&self, id: JobId) -> Option<&LockedJob> {
        self.jobs.get(&id)
    }

    /// The attempt's own columns are about to change.
    pub(crate) fn attempt_mut(&mut self, id: AttemptId) -> Option<&mut LockedAttempt> {
        self.changed_attempts.insert(id);
        self.attempts.get_mut(&id)
    }

    /// Takes one step with an attempt and writes its effects down.
    pub(crate) async fn step(
        &mut self,
        db: &mut PgConnection,
        id: AttemptId,
        event: Event,
    ) -> Result<Result<(), StepError>, Problem> {
        let Some(attempt) = self.attempts.get_mut(&id) else { return Ok(Err(StepError::Over)) };
        let Some(job) = self.jobs.get(&attempt.job_id) else { return Ok(Err(StepError::Over)) };
        if attempt.core.stage.is_at_work() && attempt.core.gang.has_copies && may_lose(&event) {
            attempt.core.gang.shunned = shunned(self.app, db, attempt, job).await?;
        }
        let (job_id, before) = (job.id, attempt.core.clone());
        let can_pay = 0 < job.core.budget.infrastructure;
        let terms = Terms { lease: self.lease, timeouts: job.timeouts(), can_pay };
        let (after, effects) = match before.clone().step(event, terms, self.now) {
            Ok(stepped) => stepped,
            Err(refusal) => return Ok(Err(refusal)),
        };
        if after == before && effects.is_empty() {
            return Ok(Ok(()));
        }
        if after.stage.label() != before.stage.label() {
            self.note(job_id, JobEventKind::State);
            self.wake_reconcilers();
        }
        for (rank, member) in &after.gang.members {
            let was = before.gang.members.get(rank).map(|member| member.place);
            if member.place == Place::Finished && was != Some(Place::Finished) {
                store::record_finish(db, id, *rank, self.now).await?;
            }
        }
        if let Some(attempt) = self.attempt_mut(id) {
            attempt.core = after;
        }
        let nodes = before.gang.members.values().map(|member| member.node);
        let nodes = nodes.collect();
        let was = Before { generation: before.gang.generation, nodes, gang: before.gang };
        for effect in effects {
            self.carry_out(db, id, effect, &was).await?;
        }
        Ok(Ok(()))
    }

    async fn carry_out(
        &mut self,
        db: &mut PgConnection,
        id: AttemptId,
        effect: Effect,
        was: &Before,
    ) -> Result<(), Problem> {
        let Some(attempt) = self.attempts.get(&id) else { return Ok(()) };
        let job_id = attempt.job_id;
        match effect {
            Effect::File { failure, generation, standing } => {
                let new = NewFailure {
                    id: self.app.new_id(FailureId::new),
                    project_id: attempt.project_id,
                    job_id,
                    attempt_id: id,
                    generation,
                    failure: &failure,
                    standing,
                };
                progress::store::insert_failure(db, new, self.now).await?;
                if standing == Standing::Verdict {
                    let message = failure.report.message.as_str();
                    tracing::warn!(job.id = %job_id, attempt.id = %id, code = %failure.report.code, message, "attempt failed");
                    self.note(job_id, JobEventKind::Failure);
                    self.say_verdict((job_id, id), &failure.report);
                    self.blame(db, id, &failure, &was.gang).await?;
                }
                self.wake_reconcilers();
            }
            Effect::PromoteSuspect => {
                // Of the group as it was: the next one suspects nobody.
                let report = was.gang.suspect.as_ref().map(|it| it.failure.report.clone());
                if let Some(suspect) = &was.gang.suspect {
                    self.blame(db, id, &suspect.failure, &was.gang).await?;
                }
                progress::store::promote_suspect(db, id, was.generation).await?;
                self.note(job_id, JobEventKind::Failure);
                if let Some(report) = report {
                    self.say_verdict((job_id, id), &report);
                }
            }
            Effect::Release { rank } => {
                store::release(db, id, rank, self.now).await?;
                self.note(job_id, JobEventKind::State);
                self.wake_reconcilers();
            }
            Effect::Evict { rank } => {
                store::evict(db, id, rank, self.now).await?;
                self.wake_reconcilers();
            }
            Effect::Begin { replacements, seats, is_paid } => {
                let group = (attempt.project_id, id, attempt.core.gang.generation);
                let generation = was.generation;
                let text = begun(&was.gang, &attempt.core.gang, &replacements);
                store::begin_generation(db, group, (&replacements, &seats), self.now).await?;
                self.step_job(job_id, JobEvent::Repaired { generation, is_paid })?;
                self.say((job_id, id), None, LogLevel::Info, text);
                tracing::info!(job.id = %job_id, attempt.id = %id, attempt.generation = %group.2, started = replacements.len(), ranks = seats.len(), "an attempt goes on under another generation");
            }
            // Those that have no rank any more must hear of it too.
            Effect::Reassign => self.reassigned.extend(attempt.nodes().iter().chain(&was.nodes)),
            Effect::Over { outcome, blame } => self.end(db, id, outcome, blame).await?,
        }
        Ok(())
    }

    /// Takes one step with a job; answers what the caller must do.
    pub(crate) fn step_job(
        &mut self,
        id: JobId,
        event: JobEvent,
    ) -> Result<Vec<JobEffect>, Problem> {
        let Some(job) = self.jobs.get_mut(&id) else { return Ok(vec![]) };
        let (after, effects) = job.core.step(event).map_err(Problem::internal)?;
        if after != job.core {
            job.core = after;
            self.changed_jobs.insert(id);
            self.note(id, JobEventKind::State);
            self.wake_reconcilers();
        }
        Ok(effects)
    }

    /// The sets of these nodes changed.
    pub(crate) fn reassign(&mut self, nodes: impl IntoIterator<Item = NodeId>) {
        self.reassigned.extend(nodes);
    }

    /// Writes what is left to write. Commit afterwards, then send the announcement.
    pub(crate) async fn finish(mut self, db: &mut PgConnection) -> Result<Announcement, Problem> {
        for id in &self.changed_attempts {
            if let Some(attempt) = self.attempts.get(id) {
                store::save(db, attempt, self.now).await?;
            }
        }
        for id in std::mem::take(&mut self.changed_jobs) {
            let Some(job) = self.jobs.get_mut(&id) else { continue };
            job.not_before = None;
            let waiting = match (job.core.state, job.core.stopping) {
                (JobState::Queued, _) => Some(self.queue(db, id).await?),
                (_, Some(StopPurpose::Pause)) => Some(PAUSES.to_owned()),
                (_, Some(StopPurpose::Move)) => Some(MOVES.to_owned()),
                (_, Some(StopPurpose::Preempt)) => Some(PREEMPTED.to_owned()),
                (_, None) => None,
            };
            if let Some(job) = self.jobs.get(&id) {
                lifecycle::save(db, job, waiting.as_deref(), self.now).await?;
            }
        }
        if !self.reassigned.is_empty() {
            let nodes: Vec<NodeId> = self.reassigned.iter().copied().collect();
            nodes::store::bump(db, &nodes).await?;
            self.announcement.polls = true;
        }
        self.tell(db).await?;
        Ok(self.announcement)
    }
}

/// Whether an attempt may lose ranks by this.
fn may_lose(event: &Event) -> bool {
    match event {
        Event::Said { word: Word::RankExited { .. } | Word::Failed(_) | Word::Stopped, .. } => true,
        Event::NodeLost { .. } | Event::Tick => true,
        Event::Said { .. }
        | Event::Refilled(_)
        | Event::Grown(_)
        | Event::Reclaimed(_)
        | Event::StopRequested => false,
    }
}

/// Attempts that hear of a loss of `node`: those with a rank on it that is not known to be gone, and those at work.
pub(crate) async fn concerned(app: &App, node: NodeId) -> Result<Vec<(AttemptId, JobId)>, Problem> {
    let mut tx = app.db.system().await?;
    let concerned = store::of_node(&mut tx, node).await?;
    tx.rollback().await?;
    Ok(concerned)
}

/// Tells attempts that `node` was lost in this way.
pub(crate) async fn lose_node(
    app: &App,
    node: NodeId,
    loss: NodeLoss,
    concerned: Vec<(AttemptId, JobId)>,
) -> Result<(), Problem> {
    for (attempt, job) in concerned {
        let mut tx = app.db.system().await?;
        let mut drive = Drive::lock(app, &mut tx, &[job], &[attempt], &[node]).await?;
        if loss.proves_gone() {
            store::release_evicted(&mut tx, node, Some((attempt, store::ANY)), drive.now()).await?;
        }
        // What the core has nothing to say about changes nothing.
        let _refused = drive.step(&mut tx, attempt, Event::NodeLost { node, loss }).await?;
        let announcement = drive.finish(&mut tx).await?;
        tx.commit().await?;
        announcement.send(&app.wakeup);
    }
    Ok(())
}
