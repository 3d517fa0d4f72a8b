//! The life of one attempt, as a pure function of (state, event, time).
//!
//! [`Attempt::step`] returns the next state and the [`Effect`]s that the caller must carry out, in order, in the transaction
//! that writes the state down.
//!
//! # Over is not gone
//!
//! An attempt ends the moment it is known that it cannot succeed, so that the job can go on. Its processes may live a
//! little longer. Each rank therefore keeps its slot until its node has said that the process is gone, or until it is
//! proved otherwise ([`NodeLoss::proves_gone`]): a slot is never given out while a process may live in it.

mod gang;
mod words;

use std::collections::BTreeSet;

use chrono::{DateTime, Utc};
use lockstep_api::{AttemptOutcome, AttemptState, Blame, NodeId, Rank, RankExit};

use crate::Timeouts;
use crate::lease::{LeaseTerms, delta};
use crate::verdict::{self, Failure, Grade, Standing};

pub use gang::{Gang, Member, Place, Readiness, Suspect};
pub use words::{Effect, Event, NodeLoss, StepError, Word};

/// One try at a job.
#[derive(Debug, Clone, PartialEq)]
pub struct Attempt {
    /// Who runs it.
    pub gang: Gang,
    /// Where it stands.
    pub stage: Stage,
}

/// Where an attempt stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Slots are chosen.
    Placing,
    /// Ranks start.
    Starting,
    /// The group is formed.
    Running,
    /// Told to stop.
    Stopping {
        /// When.
        since: DateTime<Utc>,
    },
    /// Over.
    Ended(AttemptOutcome),
}

impl Stage {
    /// Its label in SQL and JSON.
    pub fn label(self) -> AttemptState {
        match self {
            Self::Placing => AttemptState::Placing,
            Self::Starting => AttemptState::Starting,
            Self::Running => AttemptState::Running,
            Self::Stopping { .. } => AttemptState::Stopping,
            Self::Ended(_) => AttemptState::Ended,
        }
    }
}

/// The times that decide about an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// Of nodes.
    pub lease: LeaseTerms,
    /// Of the job.
    pub timeouts: Timeouts,
}

type Stepped = (Attempt, Vec<Effect>);

/// The signal that agents end ranks with.
const SIGKILL: i32 = 9;

impl Attempt {
    /// A gang that was just placed.
    pub fn placed(gang: Gang) -> Self {
        Self { gang, stage: Stage::Placing }
    }

    /// Whether a process may live in the slot of `rank`.
    pub fn holds_slot(&self, rank: Rank) -> bool {
        self.gang.members.get(&rank).is_some_and(|member| member.place == Place::Held)
    }

    /// Takes one step.
    ///
    /// # Errors
    /// See [`StepError`]; the attempt is as it was.
    pub fn step(
        self,
        event: Event,
        terms: Terms,
        now: DateTime<Utc>,
    ) -> Result<Stepped, StepError> {
        match event {
            Event::Said { node, generation, word } => {
                if generation != self.gang.generation {
                    return Err(StepError::Stale { got: generation, held: self.gang.generation });
                }
                self.hear(node, word, terms, now)
            }
            Event::NodeLost { node, loss } => Ok(self.lose_node(node, loss)),
            Event::StopRequested => Ok(self.stop(now)),
            Event::Tick => Ok(self.tick(terms, now)),
        }
    }

    fn hear(
        mut self,
        node: NodeId,
        word: Word,
        terms: Terms,
        now: DateTime<Utc>,
    ) -> Result<Stepped, StepError> {
        self.check_member(node, &word)?;
        let is_over = matches!(self.stage, Stage::Ended(_));
        match word {
            Word::RankExited { rank, exit } => Ok(self.lose_rank(rank, node, exit, now)),
            Word::Failed(report) => {
                let report = verdict::with_node_name(report, &self.gang.node_name(node));
                Ok(self.judge(Failure { report, node: Some(node) }, vec![], now))
            }
            Word::Finished => Ok(self.finish_node(node)),
            Word::Stopped => Ok(self.node_stopped(node)),
            Word::Absent => {
                let effects = match is_over {
                    true => self.gang.release(|_, member| member.node == node, Place::Gone),
                    false => vec![],
                };
                Ok((self, effects))
            }
            Word::RankListens { .. }
            | Word::Prepared
            | Word::RankStarted { .. }
            | Word::Progressed
            | Word::Renewed
                if is_over =>
            {
                Err(StepError::Over)
            }
            Word::RankListens { rank } => {
                Ok(self.make_ready(|of, _| of == rank, |it| it.listens = true))
            }
            Word::Prepared => {
                Ok(self.make_ready(|_, member| member.node == node, |it| it.is_prepared = true))
            }
            Word::RankStarted { .. } => {
                if self.stage == Stage::Placing {
                    self.stage = Stage::Starting;
                }
                Ok((self, vec![]))
            }
            Word::Progressed => {
                if matches!(self.stage, Stage::Placing | Stage::Starting) {
                    self.stage = Stage::Running;
                }
                Ok((self, vec![]))
            }
            Word::Renewed => {
                self.gang.lease_expires_at =
                    self.gang.lease_expires_at.max(terms.lease.expiry(now));
                Ok((self, vec![]))
            }
        }
    }

    fn check_member(&self, node: NodeId, word: &Word) -> Result<(), StepError> {
        let about = match word {
            Word::RankListens { rank }
            | Word::RankStarted { rank }
            | Word::RankExited { rank, .. } => Some(*rank),
            Word::Prepared
            | Word::Progressed
            | Word::Renewed
            | Word::Failed(_)
            | Word::Finished
            | Word::Stopped
            | Word::Absent => None,
        };
        let is_member = match about {
            Some(rank) => self.gang.members.get(&rank).is_some_and(|member| member.node == node),
            None => self.gang.members.values().any(|member| member.node == node),
        };
        if is_member { Ok(()) } else { Err(StepError::NotAMember { node, rank: about }) }
    }

    /// Ranks come closer to being started. Once all are ready, their nodes must hear where each of them listens.
    fn make_ready(
        mut self,
        whose: impl Fn(Rank, &Member) -> bool,
        mark: impl Fn(&mut Readiness),
    ) -> Stepped {
        let were_ready = self.gang.are_all_ready();
        for (&rank, member) in &mut self.gang.members {
            if whose(rank, member) {
                mark(&mut member.readiness);
            }
        }
        let effects = match !were_ready && self.gang.are_all_ready() {
            true => vec![Effect::Reassign],
            false => vec![],
        };
        (self, effects)
    }

    /// A rank's process is gone. Leaving with status 0 is how a rank ends well, wherever it stood.
    fn lose_rank(
        mut self,
        rank: Rank,
        node: NodeId,
        exit: RankExit,
        now: DateTime<Utc>,
    ) -> Stepped {
        let ended_well = exit.code == Some(0) && exit.signal.is_none();
        let place = if ended_well { Place::Left } else { Place::Gone };
        let effects = self.gang.release(|r, _| r == rank, place);
        let was_held = !effects.is_empty();
        match self.stage {
            Stage::Stopping { .. } => self.end_if_all_gone(effects),
            Stage::Placing | Stage::Starting | Stage::Running if was_held && !ended_well => {
                let name = self.gang.node_name(node);
                let report = verdict::of_exit(rank, &name, exit);
                self.judge(Failure { report, node: Some(node) }, effects, now)
            }
            Stage::Placing | Stage::Starting | Stage::Running | Stage::Ended(_) => (self, effects),
        }
    }

    /// Cause and symptom: see [`crate::verdict`].
    fn judge(mut self, failure: Failure, mut effects: Vec<Effect>, now: DateTime<Utc>) -> Stepped {
        let is_at_work = matches!(self.stage, Stage::Placing | Stage::Starting | Stage::Running);
        let grade = verdict::grade(&failure.report);
        let is_verdict = is_at_work
            && match (&self.gang.suspect, grade) {
                (_, Grade::Symptom) => false,
                (None, Grade::Cause) => true,
                (Some(suspect), Grade::Cause) => match failure.report.exit {
                    None => true,
                    // A node tells the deaths it knows of before a complaint, then kills what is left: its own doing.
                    Some(exit) if suspect.was_told_by(failure.node) => {
                        exit.signal != Some(SIGKILL)
                            && verdict::could_be_caused_by(&suspect.failure.report, &failure.report)
                    }
                    // Seen where it happened. Whom others miss may only have left because of it.
                    Some(_) => true,
                },
            };
        if is_verdict {
            let blame = failure.report.code.blame();
            effects.push(Effect::File { failure, standing: Standing::Verdict });
            return self.end(AttemptOutcome::Failed, blame, effects);
        }
        if is_at_work {
            let suspect = self.gang.suspect.get_or_insert_with(|| Suspect {
                since: now,
                failure: failure.clone(),
                told_by: BTreeSet::new(),
            });
            suspect.told_by.extend(failure.node);
        }
        effects.push(Effect::File { failure, standing: Standing::Effect });
        (self, effects)
    }

    fn finish_node(mut self, node: NodeId) -> Stepped {
        let effects = self.gang.release(|_, member| member.node == node, Place::Finished);
        let is_over = matches!(self.stage, Stage::Ended(_));
        if !is_over && self.gang.members.values().all(|m| m.place == Place::Finished) {
            return self.end(AttemptOutcome::Succeeded, Blame::Infrastructure, effects);
        }
        self.end_if_stopping_and_all_gone(effects)
    }

    fn node_stopped(mut self, node: NodeId) -> Stepped {
        let was_unfinished = self.gang.has_unfinished(node);
        let mut effects = self.gang.release(|_, member| member.node == node, Place::Gone);
        match self.stage {
            Stage::Placing | Stage::Starting | Stage::Running if was_unfinished => {
                if let Some(suspect) = &self.gang.suspect {
                    if self.gang.could_be_explained_by_another(suspect) {
                        return (self, effects);
                    }
                    effects.push(Effect::PromoteSuspect);
                    let blame = self.gang.suspect_blame();
                    return self.end(AttemptOutcome::Failed, blame, effects);
                }
                let name = self.gang.node_name(node);
                let report =
                    verdict::of_node(format!("node {name} stopped its ranks without being asked"));
                let blame = report.code.blame();
                let failure = Failure { report, node: Some(node) };
                effects.push(Effect::File { failure, standing: Standing::Verdict });
                self.end(AttemptOutcome::Failed, blame, effects)
            }
            Stage::Placing | Stage::Starting | Stage::Running | Stage::Ended(_) => (self, effects),
            Stage::Stopping { .. } => self.end_if_all_gone(effects),
        }
    }

    fn lose_node(mut self, node: NodeId, loss: NodeLoss) -> Stepped {
        let was_unfinished = self.gang.has_unfinished(node);
        let mut effects = match loss.proves_gone() {
            true => self.gang.release(|_, member| member.node == node, Place::Gone),
            false => vec![],
        };
        match self.stage {
            Stage::Placing | Stage::Starting | Stage::Running if was_unfinished => {
                let report = verdict::of_node(loss.sentence(&self.gang.node_name(node)));
                let blame = report.code.blame();
                let failure = Failure { report, node: Some(node) };
                effects.push(Effect::File { failure, standing: Standing::Verdict });
                self.end(AttemptOutcome::LeaseLost, blame, effects)
            }
            Stage::Stopping { .. } if was_unfinished && !loss.proves_gone() => {
                self.end(AttemptOutcome::Cancelled, Blame::Infrastructure, effects)
            }
            Stage::Stopping { .. } => self.end_if_all_gone(effects),
            Stage::Placing | Stage::Starting | Stage::Running | Stage::Ended(_) => (self, effects),
        }
    }

    /// Asks its ranks to leave after the step they are in. Repeating changes nothing.
    fn stop(mut self, now: DateTime<Utc>) -> Stepped {
        match self.stage {
            Stage::Placing | Stage::Starting | Stage::Running => {
                self.stage = Stage::Stopping { since: now };
                (self, vec![Effect::Reassign])
            }
            Stage::Stopping { .. } | Stage::Ended(_) => (self, vec![]),
        }
    }

    fn tick(self, terms: Terms, now: DateTime<Utc>) -> Stepped {
        match self.stage {
            Stage::Ended(_) => (self, vec![]),
            Stage::Stopping { since } => {
                if since + delta(terms.timeouts.stop_grace()) <= now {
                    return self.end(AttemptOutcome::Cancelled, Blame::Infrastructure, vec![]);
                }
                (self, vec![])
            }
            Stage::Placing | Stage::Starting | Stage::Running => {
                let window = delta(match self.gang.spans_nodes() {
                    true => terms.timeouts.snapshot_of_nodes(),
                    false => terms.timeouts.snapshot(),
                });
                if self.gang.suspect.as_ref().is_some_and(|suspect| suspect.since + window <= now) {
                    let blame = self.gang.suspect_blame();
                    return self.end(AttemptOutcome::Failed, blame, vec![Effect::PromoteSuspect]);
                }
                if self.gang.lease_expires_at <= now {
                    let report = verdict::of_node("no node renewed the attempt's lease".to_owned());
                    let blame = report.code.blame();
                    let failure = Failure { report, node: None };
                    let file = Effect::File { failure, standing: Standing::Verdict };
                    return self.end(AttemptOutcome::LeaseLost, blame, vec![file]);
                }
                if let Some(failure) = self.gang.missed_rendezvous(now) {
                    let blame = failure.report.code.blame();
                    let file = Effect::File { failure, standing: Standing::Verdict };
                    return self.end(AttemptOutcome::Failed, blame, vec![file]);
                }
                (self, vec![])
            }
        }
    }

    fn end_if_stopping_and_all_gone(self, effects: Vec<Effect>) -> Stepped {
        match self.stage {
            Stage::Stopping { .. } => self.end_if_all_gone(effects),
            Stage::Placing | Stage::Starting | Stage::Running | Stage::Ended(_) => (self, effects),
        }
    }

    fn end_if_all_gone(self, effects: Vec<Effect>) -> Stepped {
        if self.gang.members.values().any(|member| member.place == Place::Held) {
            return (self, effects);
        }
        self.end(AttemptOutcome::Cancelled, Blame::Infrastructure, effects)
    }

    fn end(mut self, outcome: AttemptOutcome, blame: Blame, mut effects: Vec<Effect>) -> Stepped {
        self.stage = Stage::Ended(outcome);
        effects.push(Effect::Reassign);
        effects.push(Effect::Over { outcome, blame });
        (self, effects)
    }
}
