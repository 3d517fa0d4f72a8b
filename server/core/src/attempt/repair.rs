//! Repair in place: the attempt goes on under a new generation, with other processes in the place of the lost ones.
//!
//! Whoever lives keeps its state. A rank that was lost on a node that answers is started again in the slot it had: its agent
//! kills what may be left of the old process before it starts the new one. The ranks of a node that does not answer are
//! given up, keep their slots there until it is proved that they are gone, and get others elsewhere.
//!
//! A repair costs the job nothing if a step was done since the one before; otherwise it costs a retry. So a rank that dies
//! again and again at one step ends its job, and one that dies every day does not.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};
use lockstep_api::{
    AttemptOutcome, Blame, FailureCode, FailureReport, Generation, NodeId, Rank, Transport,
};

use super::gang::{Gang, Member, Place, Readiness};
use super::words::{Effect, NewSlot, Replacement, StepError, Word};
use super::{Attempt, Stage, Stepped, Terms};
use crate::lease::delta;
use crate::placement::Refill;
use crate::verdict::{self, Failure, Grade, Standing};

/// Where the processes in the place of lost ones go, unless their node is shunned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Slots {
    /// Where the lost ones were.
    Same,
    /// Their node does not answer.
    Elsewhere,
}

impl Gang {
    pub(super) fn ranks_of(&self, node: NodeId) -> BTreeSet<Rank> {
        let of_node = self.members.iter().filter(|(_, member)| member.is_on(node));
        of_node.map(|(rank, _)| *rank).collect()
    }

    /// Whether a rank that is not `lost` goes on with the state, and nobody has left for good.
    fn has_survivor(&self, lost: &BTreeSet<Rank>) -> bool {
        let newcomers = self.newcomers();
        let has_left = |it: &Member| matches!(it.place, Place::Left | Place::Finished);
        let goes_on = |(rank, it): (&Rank, &Member)| {
            it.place == Place::Held && !lost.contains(rank) && !newcomers.contains(rank)
        };
        !self.members.values().any(has_left) && self.members.iter().any(goes_on)
    }

    /// Ranks that may have yet to take over the state: no step was done since their processes were to be started. Those of an
    /// attempt's first group have what it begins with.
    pub(super) fn newcomers(&self) -> BTreeSet<Rank> {
        let is_new = |it: &Member| self.has_state_from < it.first_generation;
        self.members.iter().filter(|(_, it)| is_new(it)).map(|(rank, _)| *rank).collect()
    }
}

impl Attempt {
    /// A verdict is in: repairs what it names, if that can be done, or ends the attempt.
    pub(super) fn conclude(
        self,
        failure: &Failure,
        effects: Vec<Effect>,
        at: (Terms, DateTime<Utc>),
    ) -> Stepped {
        let lost = (self.to_be_replaced(failure), Slots::Same);
        self.repair_or_end(lost, &failure.report, AttemptOutcome::Failed, effects, at)
    }

    /// Whose processes others take the place of. Links are at fault before the processes at their ends are: the same ranks form
    /// a group again first.
    fn to_be_replaced(&self, failure: &Failure) -> BTreeSet<Rank> {
        let report = &failure.report;
        match (is_of_links(report), self.gang.is_paid()) {
            (true, false) => BTreeSet::new(),
            (true, true) if verdict::culprits(report).is_empty() => self.gang.weaker_end(report),
            (true | false, _) => self.at_fault(failure),
        }
    }

    /// Whom a failure names; if nobody, the newcomers of a node that has no other ranks and could not start them.
    fn at_fault(&self, failure: &Failure) -> BTreeSet<Rank> {
        let named = verdict::culprits(&failure.report);
        let of_node = failure.node.map(|node| self.gang.ranks_of(node)).unwrap_or_default();
        let is_of_node = named.is_empty() && of_node.is_subset(&self.gang.newcomers());
        if is_of_node { of_node } else { named }
    }

    /// Whether the present generation has its verdict already and lives on only until there are slots for the next one.
    pub(super) fn is_judged(&self) -> bool {
        !self.gang.vacant().is_empty()
    }

    /// What a failure is that would end a group: of one generation only the first is the verdict.
    pub(super) fn standing(&self) -> Standing {
        if self.is_judged() { Standing::Effect } else { Standing::Verdict }
    }

    /// Replaces the ranks that are lost, or ends the attempt.
    pub(super) fn repair_or_end(
        mut self,
        (mut lost, slots): (BTreeSet<Rank>, Slots),
        report: &FailureReport,
        outcome: AttemptOutcome,
        mut effects: Vec<Effect>,
        (terms, now): (Terms, DateTime<Utc>),
    ) -> Stepped {
        lost.retain(|rank| self.gang.members.contains_key(rank));
        // Who is known to be gone is lost as well, whoever was named.
        lost.extend(self.gang.with_place(Place::Gone));
        let is_judged = self.is_judged();
        if !is_judged && report.code.blame() == Blame::Infrastructure && self.may_do_without(&lost)
        {
            effects.extend(self.drop_ranks(&lost));
            // Nobody pays for those that had done nothing yet.
            self.gang.is_planned = true;
            return self.begin(BTreeMap::new(), effects, (terms, now));
        }
        let freed_now: BTreeSet<Rank> = (effects.iter())
            .filter_map(|effect| match effect {
                Effect::Release { rank } => Some(*rank),
                _ => None,
            })
            .collect();
        let is_paid = self.gang.is_paid();
        let may_be_repaired = self.gang.has_copies
            && is_repairable(report)
            && self.stage != Stage::Placing
            && (!lost.is_empty() || is_of_links(report))
            && !self.gang.is_stuck(&freed_now)
            && (!is_paid || terms.can_pay);
        if !(is_judged || may_be_repaired) || !self.gang.has_survivor(&lost) {
            // What was judged first was a matter of machines or links.
            let blame = if is_judged { Blame::Infrastructure } else { report.code.blame() };
            return self.end(outcome, blame, effects);
        }
        effects.extend(self.gang.give_up(&lost, slots, &freed_now));
        if is_judged {
            return (self, effects);
        }
        self.gang.suspect = None;
        self.stage = Stage::Recovering { since: now };
        match self.is_judged() {
            false => self.begin(BTreeMap::new(), effects, (terms, now)),
            // Whoever is lost beside them waits for the same generation.
            true => (self, effects),
        }
    }

    /// Slots were found for those that were given up. An elastic gang goes on without those for whom there are none.
    pub(super) fn refill(self, places: Vec<Refill>, terms: Terms, now: DateTime<Utc>) -> Stepped {
        let places: BTreeMap<Rank, Refill> =
            places.into_iter().map(|place| (place.rank, place)).collect();
        let vacant = self.gang.vacant();
        let size = self.gang.members.len() - vacant.len() + places.len();
        let is_wanted = self.stage.is_at_work()
            && self.is_judged()
            && places.keys().all(|rank| vacant.contains(rank))
            && (places.len() == vacant.len() || self.gang.may_have(size))
            && self.gang.has_survivor(&BTreeSet::new());
        if !is_wanted {
            return (self, vec![]);
        }
        self.begin(places, vec![], (terms, now))
    }

    /// The next generation, of a repair or a change of size. Who was given up and has no place in it is left out.
    pub(super) fn begin(
        mut self,
        mut places: BTreeMap<Rank, Refill>,
        mut effects: Vec<Effect>,
        (terms, now): (Terms, DateTime<Utc>),
    ) -> Stepped {
        let is_paid = self.gang.is_paid();
        let gang = &mut self.gang;
        gang.generation = gang.generation.next();
        (gang.began_at, gang.has_progressed, gang.is_planned) = (now, false, false);
        gang.suspect = None;
        let size = gang.members.len();
        gang.members.retain(|rank, it| it.place != Place::Vacant || places.contains_key(rank));
        let further: Vec<Rank> =
            places.keys().filter(|rank| !gang.members.contains_key(rank)).copied().collect();
        let has_other_size = gang.members.len() != size || !further.is_empty();
        let mut slots = BTreeMap::new();
        let lost =
            gang.members.iter().filter(|(_, it)| matches!(it.place, Place::Gone | Place::Vacant));
        let lost: Vec<Rank> = lost.map(|(rank, _)| *rank).collect();
        for rank in lost.into_iter().chain(further) {
            let process = gang.next_process;
            gang.next_process += 1;
            let slot = match (places.remove(&rank), gang.members.get_mut(&rank)) {
                (Some(place), _) => {
                    gang.members.insert(rank, Member::at(&place, (process, gang.generation), now));
                    NewSlot::Free(place)
                }
                (None, Some(member)) => {
                    let before = std::mem::replace(&mut member.process, process);
                    (member.place, member.first_generation) = (Place::Held, gang.generation);
                    NewSlot::Of(before)
                }
                (None, None) => continue,
            };
            slots.insert(process, slot);
        }
        if has_other_size {
            gang.renumber();
        }
        gang.members.values_mut().for_each(|it| it.readiness = Readiness::default());
        let seats = gang.seats();
        let replacements = seats.iter().filter_map(|seat| {
            let slot = slots.remove(&seat.process)?;
            Some(Replacement { rank: seat.rank, process: seat.process, slot })
        });
        let replacements = replacements.collect();
        let is_networked = seats.iter().any(|seat| 0 < seat.memory_index);
        gang.rendezvous_by = is_networked.then(|| now + delta(terms.timeouts.formation()));
        gang.lease_expires_at = gang.lease_expires_at.max(terms.lease.expiry(now));
        self.stage = Stage::Recovering { since: now };
        effects.push(Effect::Begin { replacements, seats, is_paid });
        effects.push(Effect::Reassign);
        (self, effects)
    }

    /// Slots for those that were given up are not awaited for ever.
    pub(super) fn tick_vacant(self, terms: Terms, now: DateTime<Utc>) -> Stepped {
        match self.stage {
            Stage::Recovering { since } if since + delta(terms.timeouts.formation()) <= now => {
                self.end(AttemptOutcome::LeaseLost, Blame::Infrastructure, vec![])
            }
            _ => (self, vec![]),
        }
    }

    /// What a node says that has not yet heard of the present generation. It counts as far as it is about processes that
    /// still belong to the group.
    pub(super) fn hear_late(
        self,
        node: NodeId,
        generation: Generation,
        word: Word,
        terms: Terms,
        now: DateTime<Utc>,
    ) -> Result<Stepped, StepError> {
        let stale = StepError::Stale { got: generation, held: self.gang.generation };
        if !self.gang.is_member(node) {
            return Err(stale);
        }
        match word {
            // Whichever rank the process has now.
            Word::RankExited { process, .. } => {
                let member = self.gang.members.values().find(|it| it.process == process);
                match member.is_some_and(|it| it.first_generation <= generation) {
                    true => self.hear(node, word, terms, now),
                    false => Ok((self, vec![])),
                }
            }
            Word::Renewed => self.hear(node, word, terms, now),
            Word::Failed(report) => Ok(self.hear_late_failure(node, generation, report)),
            // Steps that were done, done they are.
            Word::Formed | Word::Progressed if !matches!(self.stage, Stage::Ended(_)) => {
                Ok((self, vec![]))
            }
            Word::Finished if self.gang.is_of_before(node, generation) => {
                Ok(self.finish_late(node, generation))
            }
            Word::Stopped
                if matches!(self.stage, Stage::Stopping { .. })
                    && self.gang.is_of_before(node, generation) =>
            {
                self.hear(node, word, terms, now)
            }
            // Said of a set that the node no longer has.
            Word::RankListens { .. }
            | Word::Prepared
            | Word::RankStarted { .. }
            | Word::Formed
            | Word::Progressed
            | Word::Finished
            | Word::Stopped
            | Word::Absent => Err(stale),
        }
    }
}

impl Attempt {
    /// What broke under an earlier generation has been judged, unless that one was given up to change its size: then whatever
    /// ends an attempt still does. Its numbers are those of that generation.
    fn hear_late_failure(
        self,
        node: NodeId,
        generation: Generation,
        report: FailureReport,
    ) -> Stepped {
        let report = verdict::with_node_name(report, &self.gang.node_name(node));
        let blame = report.code.blame();
        let is_end = self.gang.is_planned
            && generation.next() == self.gang.generation
            && self.stage.is_at_work()
            && !is_repairable(&report)
            && verdict::grade(&report) == Grade::Cause;
        let standing = if is_end { Standing::Verdict } else { Standing::Effect };
        let failure = Failure { report, node: Some(node) };
        let file = Effect::File { failure, generation, standing };
        match is_end {
            true => self.end(AttemptOutcome::Failed, blame, vec![file]),
            false => (self, vec![file]),
        }
    }

    /// Training was over before the node heard of the present generation. It is over for all once everybody that had the state
    /// says so.
    fn finish_late(mut self, node: NodeId, generation: Generation) -> Stepped {
        let is_meant = |it: &Member| it.node == node && it.first_generation <= generation;
        let effects = self.gang.release(|_, member| is_meant(member), Place::Finished);
        let newcomers = self.gang.newcomers();
        let mut others = self.gang.members.iter().filter(|(rank, _)| !newcomers.contains(rank));
        let is_over = matches!(self.stage, Stage::Ended(_));
        if !is_over && others.all(|(_, member)| member.place == Place::Finished) {
            return self.end(AttemptOutcome::Succeeded, Blame::Infrastructure, effects);
        }
        self.end_if_stopping_and_all_gone(effects)
    }

    /// Whether an elastic gang can go on without those that are lost, because they had yet to begin: it may grow again once it
    /// has done a step, and a node that cannot start ranks costs the job nothing.
    fn may_do_without(&self, lost: &BTreeSet<Rank>) -> bool {
        let left = self.gang.members.len() - lost.len();
        !lost.is_empty()
            && lost.is_subset(&self.gang.newcomers())
            && self.gang.may_have(left)
            && self.gang.has_survivor(lost)
    }
}

impl Gang {
    /// Whether the next generation costs the job a retry: the present one has done nothing, and not because it was planned.
    fn is_paid(&self) -> bool {
        !self.has_progressed && !self.is_planned
    }

    /// Whether the node's processes are all of `generation` or before.
    fn is_of_before(&self, node: NodeId, generation: Generation) -> bool {
        let mut own = self.members.values().filter(|member| member.is_on(node));
        own.all(|member| member.first_generation <= generation)
    }

    /// Ranks whose slots have been free for a while: others may have taken them.
    fn may_be_taken(&self, freed_now: &BTreeSet<Rank>) -> BTreeSet<Rank> {
        self.with_place(Place::Gone).filter(|rank| !freed_now.contains(rank)).collect()
    }

    /// Whether a rank may have lost its slot and has to stay with the others' memory: it would wait for the slot for ever.
    fn is_stuck(&self, freed_now: &BTreeSet<Rank>) -> bool {
        self.transport == Transport::Shm && !self.may_be_taken(freed_now).is_empty()
    }

    /// Of lost ranks: which are gone, and which are given up because they go elsewhere. `freed_now`: whose slots nobody can have
    /// taken since they became free.
    fn give_up(
        &mut self,
        lost: &BTreeSet<Rank>,
        slots: Slots,
        freed_now: &BTreeSet<Rank>,
    ) -> Vec<Effect> {
        let mut effects = Vec::new();
        let may_be_taken = self.may_be_taken(freed_now);
        let goes_elsewhere = |rank: &Rank, member: &Member| {
            slots == Slots::Elsewhere
                || self.shunned.contains(&member.node)
                || may_be_taken.contains(rank)
        };
        let elsewhere: BTreeSet<Rank> = (self.members.iter())
            .filter(|(rank, member)| lost.contains(rank) && goes_elsewhere(rank, member))
            .map(|(rank, _)| *rank)
            .collect();
        let slots_are_awaited = !elsewhere.is_empty() || !self.vacant().is_empty();
        for (&rank, member) in &mut self.members {
            if !lost.contains(&rank) || member.place == Place::Vacant {
                continue;
            }
            // A slot that is free may be another job's by the time there are slots for the others.
            let is_free = member.place == Place::Gone;
            if elsewhere.contains(&rank) || (slots_are_awaited && is_free) {
                effects.push(Effect::Evict { rank });
                member.place = Place::Vacant;
            } else if !slots_are_awaited {
                member.place = Place::Gone;
            }
        }
        effects
    }

    fn with_place(&self, place: Place) -> impl Iterator<Item = Rank> {
        self.members.iter().filter(move |(_, it)| it.place == place).map(|(rank, _)| *rank)
    }
}

/// Whether it may be that nothing is wrong but what is between ranks.
fn is_of_links(report: &FailureReport) -> bool {
    matches!(report.code, FailureCode::LinkOrDeviceStall | FailureCode::CommError)
}

/// Whether the state is good and only processes or links are not.
fn is_repairable(report: &FailureReport) -> bool {
    match report.code {
        FailureCode::PeerGone
        | FailureCode::NotEntered
        | FailureCode::LinkOrDeviceStall
        | FailureCode::CommError
        | FailureCode::NodeLost
        | FailureCode::RendezvousTimeout
        | FailureCode::ReformTimeout
        | FailureCode::PeerUnreachable
        | FailureCode::AbortHung => true,
        FailureCode::InterfaceUnreachable
        | FailureCode::PlanMismatch
        | FailureCode::Mismatch
        | FailureCode::Diverged
        | FailureCode::NonFinite
        | FailureCode::GuestTrap
        | FailureCode::GuestTimeLimit
        | FailureCode::GuestMemoryLimit
        | FailureCode::GuestStackOverflow
        | FailureCode::GuestOutputLimit
        | FailureCode::GuestShape
        | FailureCode::GuestError
        | FailureCode::PrepareFailed
        | FailureCode::CheckpointFailed
        | FailureCode::HealFailed
        | FailureCode::OutOfMemory
        | FailureCode::RankError => false,
    }
}
