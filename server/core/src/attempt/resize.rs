//! Elastic gangs: they grow when slots are free, and ranks are reclaimed when other jobs wait for their slots.
//!
//! Both are a new generation of the same attempt, like a repair: whoever goes on keeps its state, the step in work is done again,
//! and new processes take the state over. Nobody pays for it. It happens only to a gang at work that has done a step since it
//! last changed, and growth has a least distance as well.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, TimeDelta, Utc};
use lockstep_api::{Generation, NodeId, Rank};

use super::gang::{Gang, Member, Place, Readiness};
use super::words::Effect;
use super::{Attempt, Stage, Stepped, Terms};
use crate::placement::Refill;

/// Least time from one change to the next growth: slots that come and go must not keep a gang from its work.
const GROWTH_EVERY: TimeDelta = TimeDelta::seconds(5);

impl Gang {
    /// Whether its size may be this, although it was another.
    pub(super) fn may_have(&self, size: usize) -> bool {
        let within = self.ranks.min()..=self.ranks.max();
        self.ranks.is_elastic() && u32::try_from(size).is_ok_and(|size| within.contains(&size))
    }

    /// Ranks from 0 on, without gaps and in their order, but for those of one node: they are neighbours.
    pub(super) fn renumber(&mut self) {
        let mut members: Vec<Member> = std::mem::take(&mut self.members).into_values().collect();
        let mut nodes: Vec<NodeId> = Vec::new();
        for member in &members {
            if !nodes.contains(&member.node) {
                nodes.push(member.node);
            }
        }
        members.sort_by_key(|member| nodes.iter().position(|node| *node == member.node));
        self.members = (0..).map(Rank).zip(members).collect();
    }
}

impl Member {
    /// A process that is to be started.
    pub(super) fn at(
        place: &Refill,
        (process, generation): (i32, Generation),
        now: DateTime<Utc>,
    ) -> Self {
        Self {
            node: place.node,
            node_name: place.node_name.clone(),
            place: Place::Held,
            readiness: Readiness::default(),
            process,
            first_generation: generation,
            node_seen_at: now,
            news: None,
        }
    }
}

impl Attempt {
    /// Whether its gang can take another size now.
    fn can_resize(&self) -> bool {
        let gang = &self.gang;
        self.stage == Stage::Running
            && gang.ranks.is_elastic()
            && gang.has_copies
            && gang.has_progressed
            && gang.suspect.is_none()
            && gang.members.values().all(|member| member.place == Place::Held)
    }

    /// More ranks. What does not fit changes nothing.
    pub(super) fn grow(self, places: Vec<Refill>, terms: Terms, now: DateTime<Utc>) -> Stepped {
        let size = self.gang.members.len();
        let are_next = (size..).zip(&places).all(|(at, it)| usize::try_from(it.rank.0) == Ok(at));
        let is_wanted = self.can_resize()
            && self.gang.began_at + GROWTH_EVERY <= now
            && !places.is_empty()
            && are_next
            && self.gang.may_have(size + places.len());
        if !is_wanted {
            return (self, vec![]);
        }
        let places = places.into_iter().map(|place| (place.rank, place)).collect();
        self.begin_planned(places, vec![], (terms, now))
    }

    /// Fewer ranks: these are given up. What does not fit changes nothing.
    pub(super) fn reclaim(
        mut self,
        ranks: &BTreeSet<Rank>,
        terms: Terms,
        now: DateTime<Utc>,
    ) -> Stepped {
        let members = &self.gang.members;
        let are_there = ranks.iter().all(|rank| members.contains_key(rank));
        let left = members.len() - ranks.len().min(members.len());
        if !are_there || ranks.is_empty() || !self.can_resize() || !self.gang.may_have(left) {
            return (self, vec![]);
        }
        let effects = self.drop_ranks(ranks);
        self.begin_planned(BTreeMap::new(), effects, (terms, now))
    }

    /// These are given up for good.
    pub(super) fn drop_ranks(&mut self, ranks: &BTreeSet<Rank>) -> Vec<Effect> {
        let mut effects = Vec::new();
        for rank in ranks {
            if let Some(member) = self.gang.members.get_mut(rank) {
                member.place = Place::Vacant;
                effects.push(Effect::Evict { rank: *rank });
            }
        }
        effects
    }

    fn begin_planned(
        self,
        places: BTreeMap<Rank, Refill>,
        effects: Vec<Effect>,
        at: (Terms, DateTime<Utc>),
    ) -> Stepped {
        let (mut attempt, effects) = self.begin(places, effects, at);
        attempt.gang.is_planned = true;
        (attempt, effects)
    }
}
