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
use lockstep_api::{AttemptOutcome, Blame, FailureCode, FailureReport, NodeId, Rank};

use super::gang::{Gang, Member, Place, Readiness};
use super::words::{Effect, NewSlot, Replacement, StepError, Word};
use super::{Attempt, Stage, Stepped, Terms};
use crate::lease::delta;
use crate::placement::Refill;
use crate::verdict::{self, Failure, Standing};

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
        let others = self.members.iter().filter(|(rank, _)| !lost.contains(rank));
        let mut lives = false;
        for (_, member) in others {
            match member.place {
                Place::Held => lives = true,
                Place::Left | Place::Finished => return false,
                Place::Gone | Place::Vacant => {}
            }
        }
        lives
    }
}

impl Attempt {
    /// A verdict is in: repairs what it names, if that can be done, or ends the attempt.
    pub(super) fn conclude(
        self,
        report: &FailureReport,
        outcome: AttemptOutcome,
        effects: Vec<Effect>,
        at: (Terms, DateTime<Utc>),
    ) -> Stepped {
        let lost = verdict::culprits(report);
        self.repair_or_end((lost, Slots::Same), report, outcome, effects, at)
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
        let is_paid = !self.gang.has_progressed;
        let may_be_repaired = self.gang.has_copies
            && is_repairable(report)
            && self.stage != Stage::Placing
            && !lost.is_empty()
            && (!is_paid || terms.can_pay);
        if !(is_judged || may_be_repaired) || !self.gang.has_survivor(&lost) {
            // What was judged first was a matter of machines or links.
            let blame = if is_judged { Blame::Infrastructure } else { report.code.blame() };
            return self.end(outcome, blame, effects);
        }
        effects.extend(self.gang.give_up(&lost, slots));
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

    /// The next generation. Who was given up and has no place in it is left out.
    pub(super) fn begin(
        mut self,
        mut places: BTreeMap<Rank, Refill>,
        mut effects: Vec<Effect>,
        (terms, now): (Terms, DateTime<Utc>),
    ) -> Stepped {
        let is_paid = !self.gang.has_progressed;
        let gang = &mut self.gang;
        gang.generation = gang.generation.next();
        (gang.has_progressed, gang.suspect) = (false, None);
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
            Stage::Recovering { since }
                if self.is_judged() && since + delta(terms.timeouts.formation()) <= now =>
            {
                self.end(AttemptOutcome::LeaseLost, Blame::Infrastructure, vec![])
            }
            _ => (self, vec![]),
        }
    }

    /// What a node says that has not yet heard of the present generation. It counts as far as it is about processes that
    /// still belong to the group; what broke under the old generation has been judged.
    pub(super) fn hear_late(
        self,
        node: NodeId,
        generation: lockstep_api::Generation,
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
            Word::Failed(report) => {
                let report = verdict::with_node_name(report, &self.gang.node_name(node));
                let failure = Failure { report, node: Some(node) };
                let file = Effect::File { failure, generation, standing: Standing::Effect };
                Ok((self, vec![file]))
            }
            // Steps that were done, done they are.
            Word::Formed | Word::Progressed if self.stage.is_at_work() => Ok((self, vec![])),
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

impl Gang {
    /// Of lost ranks: which are gone, and which are given up because they go elsewhere.
    fn give_up(&mut self, lost: &BTreeSet<Rank>, slots: Slots) -> Vec<Effect> {
        let mut effects = Vec::new();
        let goes_elsewhere =
            |member: &Member| slots == Slots::Elsewhere || self.shunned.contains(&member.node);
        let elsewhere: BTreeSet<Rank> = (self.members.iter())
            .filter(|(rank, member)| lost.contains(rank) && goes_elsewhere(member))
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

/// Whether the state is good and only processes or links are not.
fn is_repairable(report: &FailureReport) -> bool {
    match report.code {
        FailureCode::PeerGone
        | FailureCode::NotEntered
        | FailureCode::NodeLost
        | FailureCode::RendezvousTimeout => true,
        FailureCode::InterfaceUnreachable
        | FailureCode::PlanMismatch
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
        | FailureCode::RankError => false,
    }
}
