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
//!
//! # Repair
//!
//! A failure of machines or links that leaves a rank alive which has all of the state does not end the attempt: it goes on
//! under a new generation, in which other processes take the place of the lost ones. See `repair`.
//!
//! # Size
//!
//! An elastic gang may have more or fewer ranks under a new generation. See `resize`.

mod gang;
mod judge;
mod repair;
mod resize;
mod stall;
mod words;

use chrono::{DateTime, Utc};
use lockstep_api::{AttemptOutcome, AttemptState, Blame, NodeId, Rank, RankExit};

use crate::Timeouts;
use crate::lease::{LeaseTerms, delta};
use crate::verdict::{self, Failure, Standing};

use repair::Slots;

pub use gang::{Gang, Member, Place, Readiness, Suspect};
pub use stall::News;
pub use words::{Effect, Event, NewSlot, NodeLoss, Replacement, Seated, StepError, Word};

/// How many times the grace of a stop nodes may take, once all ranks have left, to publish the last checkpoint.
const PUBLISH_GRACES: i32 = 4;

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
    /// Ranks were lost: the group forms anew, once there are processes in their place.
    Recovering {
        /// Since when.
        since: DateTime<Utc>,
    },
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
            Self::Recovering { .. } => AttemptState::Recovering,
            Self::Stopping { .. } => AttemptState::Stopping,
            Self::Ended(_) => AttemptState::Ended,
        }
    }

    /// Whether its ranks are to train.
    pub fn is_at_work(self) -> bool {
        match self {
            Self::Placing | Self::Starting | Self::Running | Self::Recovering { .. } => true,
            Self::Stopping { .. } | Self::Ended(_) => false,
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
    /// Whether the job has a retry left for faults of machines and links.
    pub can_pay: bool,
}

type Stepped = (Attempt, Vec<Effect>);

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
                let held = self.gang.generation;
                match generation == held {
                    true => self.hear(node, word, terms, now),
                    false if generation < held => {
                        self.hear_late(node, generation, word, terms, now)
                    }
                    false => Err(StepError::Stale { got: generation, held }),
                }
            }
            Event::NodeLost { node, loss } => Ok(self.lose_node(node, loss, terms, now)),
            Event::Refilled(places) => Ok(self.refill(places, terms, now)),
            Event::Grown(places) => Ok(self.grow(places, terms, now)),
            Event::Reclaimed(ranks) => Ok(self.reclaim(&ranks, terms, now)),
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
            Word::RankExited { process, exit } => match self.gang.rank_of(process) {
                Some(rank) => Ok(self.lose_rank(rank, node, exit, (terms, now))),
                // It was given up.
                None => Ok((self, vec![])),
            },
            Word::Failed(report) => {
                let report = verdict::with_node_name(report, &self.gang.node_name(node));
                Ok(self.judge(Failure { report, node: Some(node) }, vec![], (terms, now)))
            }
            Word::Finished => Ok(self.finish_node(node)),
            Word::Stopped => Ok(self.node_stopped(node, terms, now)),
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
            | Word::Formed
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
            Word::Formed | Word::Progressed => {
                if self.stage.is_at_work() && self.gang.vacant().is_empty() {
                    self.stage = Stage::Running;
                }
                if word == Word::Progressed {
                    self.gang.has_progressed = true;
                    self.gang.has_state_from = self.gang.generation;
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
            Word::RankListens { rank } | Word::RankStarted { rank } => Some(*rank),
            Word::RankExited { process, .. } => self.gang.rank_of(*process),
            Word::Prepared
            | Word::Formed
            | Word::Progressed
            | Word::Renewed
            | Word::Failed(_)
            | Word::Finished
            | Word::Stopped
            | Word::Absent => None,
        };
        let is_member = match about {
            Some(rank) => self.gang.members.get(&rank).is_some_and(|member| member.is_on(node)),
            None => self.gang.is_member(node),
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
        (terms, now): (Terms, DateTime<Utc>),
    ) -> Stepped {
        let ended_well = exit.code == Some(0) && exit.signal.is_none();
        let place = if ended_well { Place::Left } else { Place::Gone };
        let effects = self.gang.release(|r, _| r == rank, place);
        let was_held = !effects.is_empty();
        match self.stage {
            Stage::Stopping { .. } => self.end_if_all_gone(effects),
            stage if stage.is_at_work() && was_held && !ended_well => {
                let name = self.gang.node_name(node);
                let report = verdict::of_exit(rank, &name, exit);
                self.judge(Failure { report, node: Some(node) }, effects, (terms, now))
            }
            _ => (self, effects),
        }
    }

    fn finish_node(mut self, node: NodeId) -> Stepped {
        let effects = self.gang.release(|_, member| member.node == node, Place::Finished);
        let is_over = matches!(self.stage, Stage::Ended(_));
        if !is_over && self.gang.members.values().all(|m| m.place == Place::Finished) {
            return self.end(AttemptOutcome::Succeeded, Blame::Infrastructure, effects);
        }
        self.end_if_stopping_and_all_gone(effects)
    }

    fn node_stopped(mut self, node: NodeId, terms: Terms, now: DateTime<Utc>) -> Stepped {
        let was_unfinished = self.gang.has_unfinished(node);
        let mut effects = self.gang.release(|_, member| member.node == node, Place::Gone);
        match self.stage {
            stage if stage.is_at_work() && was_unfinished => {
                if let Some(suspect) = &self.gang.suspect {
                    if self.gang.could_be_explained_by_another(suspect) {
                        return (self, effects);
                    }
                    return self.promote(effects, (terms, now));
                }
                let name = self.gang.node_name(node);
                let report =
                    verdict::of_node(format!("node {name} stopped its ranks without being asked"));
                let failure = Failure { report: report.clone(), node: Some(node) };
                let (generation, standing) = (self.gang.generation, self.standing());
                effects.push(Effect::File { failure, generation, standing });
                let lost = self.gang.ranks_of(node);
                self.repair_or_end(
                    (lost, Slots::Elsewhere),
                    &report,
                    AttemptOutcome::Failed,
                    effects,
                    (terms, now),
                )
            }
            Stage::Stopping { .. } => {
                self.gang.close(node);
                self.end_if_all_gone(effects)
            }
            _ => (self, effects),
        }
    }

    fn lose_node(
        mut self,
        node: NodeId,
        loss: NodeLoss,
        terms: Terms,
        now: DateTime<Utc>,
    ) -> Stepped {
        let was_unfinished = self.gang.has_unfinished(node);
        let mut effects = match loss.proves_gone() {
            true => self.gang.release(|_, member| member.node == node, Place::Gone),
            false => vec![],
        };
        match self.stage {
            stage if stage.is_at_work() && was_unfinished => {
                let report = verdict::of_node(loss.sentence(&self.gang.node_name(node)));
                let failure = Failure { report: report.clone(), node: Some(node) };
                let (generation, standing) = (self.gang.generation, self.standing());
                effects.push(Effect::File { failure, generation, standing });
                let slots = match loss {
                    NodeLoss::LeaseExpired | NodeLoss::OrphanGracePassed => Slots::Elsewhere,
                    // There is an agent again.
                    NodeLoss::Restarted | NodeLoss::Replaced => Slots::Same,
                };
                let lost = (self.gang.ranks_of(node), slots);
                self.repair_or_end(lost, &report, AttemptOutcome::LeaseLost, effects, (terms, now))
            }
            Stage::Stopping { .. } if was_unfinished && !loss.proves_gone() => {
                self.end(AttemptOutcome::Cancelled, Blame::Infrastructure, effects)
            }
            Stage::Stopping { .. } => {
                self.gang.close(node);
                self.end_if_all_gone(effects)
            }
            _ => (self, effects),
        }
    }

    /// Asks its ranks to leave after the step they are in. Repeating changes nothing.
    fn stop(mut self, now: DateTime<Utc>) -> Stepped {
        match self.stage {
            stage if stage.is_at_work() => {
                self.stage = Stage::Stopping { since: now };
                (self, vec![Effect::Reassign])
            }
            _ => (self, vec![]),
        }
    }

    fn tick(self, terms: Terms, now: DateTime<Utc>) -> Stepped {
        match self.stage {
            Stage::Ended(_) => (self, vec![]),
            Stage::Stopping { since } => {
                let lives = self.gang.members.values().any(|member| member.place == Place::Held);
                let graces = if lives { 1 } else { PUBLISH_GRACES };
                if since + delta(terms.timeouts.stop_grace()) * graces <= now {
                    return self.end(AttemptOutcome::Cancelled, Blame::Infrastructure, vec![]);
                }
                (self, vec![])
            }
            Stage::Placing | Stage::Starting | Stage::Running | Stage::Recovering { .. } => {
                if self.is_suspicion_over(terms, now) {
                    return self.promote(vec![], (terms, now));
                }
                let generation = self.gang.generation;
                if self.gang.lease_expires_at <= now {
                    let report = verdict::of_node("no node renewed the attempt's lease".to_owned());
                    let (failure, standing) = (Failure { report, node: None }, self.standing());
                    let effects = vec![Effect::File { failure, generation, standing }];
                    return self.end(AttemptOutcome::LeaseLost, Blame::Infrastructure, effects);
                }
                if self.is_judged() {
                    return self.tick_vacant(terms, now);
                }
                if let Some(failure) = self.gang.missed_rendezvous(now) {
                    let filed = failure.clone();
                    let standing = Standing::Verdict;
                    let file = Effect::File { failure: filed, generation, standing };
                    return self.conclude(&failure, vec![file], (terms, now));
                }
                (self, vec![])
            }
        }
    }

    fn end_if_stopping_and_all_gone(self, effects: Vec<Effect>) -> Stepped {
        match self.stage {
            Stage::Stopping { .. } => self.end_if_all_gone(effects),
            _ => (self, effects),
        }
    }

    /// Of a rank that left well its node may still be publishing the last checkpoint.
    fn end_if_all_gone(self, effects: Vec<Effect>) -> Stepped {
        let is_awaited = |member: &Member| matches!(member.place, Place::Held | Place::Left);
        if self.gang.members.values().any(is_awaited) {
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
