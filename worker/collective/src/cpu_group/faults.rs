//! Waiting for the ranks of the own node, and what becomes of a group in which something went wrong.

use std::time::{Duration, Instant};

use crate::{
    GroupError, Phase,
    control::Broken,
    error::Moment,
    net::{EXCHANGES, Mesh, MeshError},
    op::{self, Op, OpWords},
    verdict::{Verdict, mask_of, ranks_of},
};

use super::CpuGroup;

impl CpuGroup {
    /// One round: says that this rank is there, and waits for all others of its node.
    pub(super) fn meet(&mut self, op: Op, phase: Phase) -> Result<(), GroupError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        // Whoever is entered in time may still wait for other nodes until its own deadline.
        let limit = match (phase, &self.mesh) {
            (Phase::Exchanging | Phase::Leaving, Some(_)) => self.timeout + self.timeout / 4,
            (Phase::Entering, _) | (_, None) => self.timeout,
        };
        // After the first round all ranks of a node do the same amount of work.
        let worked = match phase {
            Phase::Entering => Duration::ZERO,
            Phase::Exchanging | Phase::Leaving => self.met.elapsed(),
        };
        let met = self.try_meet(op.words(phase), worked, limit);
        if let Err(error) = &met {
            self.failed = Some(error.clone());
        }
        met
    }

    fn try_meet(
        &mut self,
        words: OpWords,
        worked: Duration,
        limit: Duration,
    ) -> Result<(), GroupError> {
        let started = Instant::now();
        self.round = self.round.wrapping_add(1);
        if !self.control.enter(self.rank, self.round, words) {
            return Err(self.given_up(words, started));
        }
        // Other nodes are told now and then for whom this one waits, so that they blame nobody else.
        let every = self.timeout / 4;
        let mut until = match self.mesh {
            Some(_) => started + limit.min(every),
            None => started + limit,
        };
        loop {
            match self.control.wait_all(self.round, worked, until) {
                Ok(()) => break,
                Err(Broken::Marked { .. }) => return Err(self.given_up(words, started)),
                Err(Broken::TimedOut { missing }) => {
                    self.still_waits(&missing, (words, started, limit))?;
                    let next = missing.iter().map(|rank| self.control.due(*rank, started, limit));
                    until = next.min().unwrap_or(until).min(Instant::now() + every);
                }
            }
        }
        match self.control.first_other_op(self.round, words) {
            None => {
                self.met = Instant::now();
                Ok(())
            }
            Some((rank, theirs)) => {
                self.give_up(&Verdict::Left { rank: self.rank });
                Err(self.elsewhere(rank, words, theirs))
            }
        }
    }

    /// Ranks of this node are missing. Those that are due are at fault; of others, other nodes hear.
    fn still_waits(
        &mut self,
        missing: &[usize],
        (words, started, limit): (OpWords, Instant, Duration),
    ) -> Result<(), GroupError> {
        let now = Instant::now();
        let is_due = |rank: &&usize| self.control.due(**rank, started, limit) <= now;
        let late: Vec<usize> = missing.iter().filter(is_due).copied().collect();
        if late.is_empty() {
            let mask = mask_of(&self.control.blamed(missing));
            let pause = self.control.pause_left(missing);
            if let Some(mesh) = &mut self.mesh {
                mesh.say_waiting(EXCHANGES * self.sequence, words, (mask, pause));
            }
            return Ok(());
        }
        let missing = self.control.blamed(&late);
        let verdict = Verdict::TimedOut { rank: self.rank, missing: mask_of(&missing) };
        self.give_up(&verdict);
        Err(self.not_entered(missing, words, started))
    }

    /// The error of an exchange between nodes; everybody is told.
    pub(super) fn mesh_failed(&mut self, error: MeshError, op: Op, started: Instant) -> GroupError {
        let words = op.words(Phase::Exchanging);
        let rank = self.rank;
        let (verdict, error) = match error {
            MeshError::Silent { missing } => (
                Verdict::TimedOut { rank, missing },
                self.not_entered(ranks_of(missing), words, started),
            ),
            MeshError::Gone { rank } => {
                let (at, waited) = (self.moment(words), started.elapsed());
                (Verdict::Gone { rank }, GroupError::PeerGone { rank, at, waited })
            }
            MeshError::Verdict(verdict) => {
                (verdict.clone(), self.told_exchanging(verdict, words, started))
            }
            MeshError::GivenUp => {
                let verdict = self.control.verdict().unwrap_or(Verdict::Left { rank });
                (verdict.clone(), self.told_exchanging(verdict, words, started))
            }
            MeshError::Garbage { rank: other, detail } => {
                let at = self.moment(words);
                (Verdict::Left { rank }, GroupError::Garbage { rank: other, detail, at })
            }
            MeshError::OtherOp { rank: other, theirs } => {
                (Verdict::Left { rank }, self.elsewhere(other, words, theirs))
            }
        };
        self.give_up(&verdict);
        self.failed = Some(error.clone());
        error
    }

    /// Tells the own node and all others.
    fn give_up(&mut self, verdict: &Verdict) {
        self.control.give_up(verdict);
        if let Some(mesh) = &mut self.mesh {
            mesh.say_farewell(verdict);
        }
    }

    /// The error of a rank that sees the mark.
    fn given_up(&mut self, words: OpWords, started: Instant) -> GroupError {
        let Some(verdict) = self.control.verdict() else {
            return GroupError::Aborted { by: None };
        };
        if let Some(mesh) = &mut self.mesh {
            mesh.say_farewell(&verdict);
        }
        self.told(verdict, words, started)
    }

    /// The error of a rank that is told. Where another's deadline passed while this one waited too,
    /// it is for the same ranks.
    fn told(&self, verdict: Verdict, words: OpWords, started: Instant) -> GroupError {
        match verdict {
            Verdict::TimedOut { missing, .. } if missing >> self.rank & 1 == 0 => {
                self.not_entered(ranks_of(missing), words, started)
            }
            other => other.error(self.rank, || (self.moment(words), started.elapsed())),
        }
    }

    /// The error of a rank that is told in an exchange with other nodes. If others miss this one although it has been waiting
    /// for some itself, it says so: then it is the way between them that nothing comes through.
    fn told_exchanging(&self, verdict: Verdict, words: OpWords, started: Instant) -> GroupError {
        let waited_for = self.mesh.as_ref().map_or(0, Mesh::waited_for);
        let has_waited = self.timeout / 2 <= started.elapsed();
        match verdict {
            Verdict::TimedOut { missing, .. }
                if missing >> self.rank & 1 == 1 && waited_for != 0 && has_waited =>
            {
                self.not_entered(ranks_of(waited_for), words, started)
            }
            other => self.told(other, words, started),
        }
    }

    fn not_entered(&self, missing: Vec<usize>, words: OpWords, started: Instant) -> GroupError {
        GroupError::NotEntered { missing, at: self.moment(words), waited: started.elapsed() }
    }

    /// Another rank is at another collective, or means other numbers in the same one.
    fn elsewhere(&self, rank: usize, ours: OpWords, theirs: OpWords) -> GroupError {
        if ours[0] == theirs[0] {
            let at = self.moment(ours);
            let (ours, theirs) = (op::numbers(ours), op::numbers(theirs));
            return GroupError::NumbersMismatch { rank, at, ours, theirs };
        }
        GroupError::Diverged {
            rank,
            ours: op::name(ours, &self.plan),
            theirs: op::name(theirs, &self.plan),
            sequence: self.sequence,
        }
    }

    fn moment(&self, words: OpWords) -> Moment {
        Moment {
            what: op::name(words, &self.plan),
            sequence: self.sequence,
            lane: self.lane,
            phase: Phase::of(words),
        }
    }
}
