//! The ranks of an attempt: where each is, whose slots are held, and what is still missing before they can start.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};
use lockstep_api::{FailureCode, Generation, NodeId, Rank, RankCount, Transport};

use super::stall::News;
use super::words::{Effect, Seated};
use crate::placement::memory_indices;
use crate::verdict::{self, Failure};

/// The ranks that hold an attempt together.
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
#[derive(Debug, Clone, PartialEq)]
pub struct Gang {
    /// The fence.
    pub generation: Generation,
    /// When the present group was decided on.
    pub began_at: DateTime<Utc>,
    /// Until when its nodes' word holds.
    pub lease_expires_at: DateTime<Utc>,
    /// Every rank.
    pub members: BTreeMap<Rank, Member>,
    /// Between which sizes it may be.
    pub ranks: RankCount,
    /// Until when it must be known where every rank listens; absent when all share one group memory.
    pub rendezvous_by: Option<DateTime<Utc>>,
    /// The first symptom, while its cause is unknown.
    pub suspect: Option<Suspect>,
    /// How ranks reach each other.
    pub transport: Transport,
    /// Whether every rank has all of the state, so that one that is lost can be replaced by a copy of another.
    pub has_copies: bool,
    /// Whether a step was done under the present generation.
    pub has_progressed: bool,
    /// Processes that were started under this generation or before have the state: it has done a step, or is the attempt's first.
    pub has_state_from: Generation,
    /// Whether the present generation began to change the size of a sound group, not because one broke.
    pub is_planned: bool,
    /// The number of the next process.
    pub next_process: i32,
    /// Nodes whose ranks go elsewhere when they are lost: there is room for them.
    pub shunned: BTreeSet<NodeId>,
}

/// One rank's process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Where.
    pub node: NodeId,
    /// That node's name, for sentences.
    pub node_name: String,
    /// What is known of the process.
    pub place: Place,
    /// How far it is on its way to the others. Means nothing without a rendezvous.
    pub readiness: Readiness,
    /// Which process of the attempt it is.
    pub process: i32,
    /// The generation that it was started under.
    pub first_generation: Generation,
    /// When its node was last heard.
    pub node_seen_at: DateTime<Utc>,
    /// What was last heard of it. Of a former group it knows no collective.
    pub news: Option<News>,
}

/// What a rank needs before it can be started, if it is to meet ranks that share no memory with it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Readiness {
    /// It is known where it listens.
    pub listens: bool,
    /// Its node has everything that it needs.
    pub is_prepared: bool,
}

/// What is known of a rank's process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// It may live: its slot is held.
    Held,
    /// Gone with status 0; its node has not yet said that training is over.
    Left,
    /// Gone after it had finished training.
    Finished,
    /// Gone otherwise.
    Gone,
    /// Given up: another process takes the rank as soon as there is a slot, or an elastic gang goes on without it.
    Vacant,
}

/// A symptom that waits for its cause.
#[derive(Debug, Clone, PartialEq)]
pub struct Suspect {
    /// Since when.
    pub since: DateTime<Utc>,
    /// What was seen.
    pub failure: Failure,
    /// Nodes that have told of this or another failure: what they kill from then on is their own doing.
    pub told_by: BTreeSet<NodeId>,
}

impl Member {
    /// Whether `node` runs it, or has run it until its end.
    pub(super) fn is_on(&self, node: NodeId) -> bool {
        self.node == node && self.place != Place::Vacant
    }
}

impl Suspect {
    pub(super) fn was_told_by(&self, node: Option<NodeId>) -> bool {
        node.is_some_and(|node| self.told_by.contains(&node))
    }
}

impl Gang {
    /// The node has nothing left to do for ranks that left well.
    pub(super) fn close(&mut self, node: NodeId) {
        for member in self.members.values_mut() {
            if member.node == node && member.place == Place::Left {
                member.place = Place::Gone;
            }
        }
    }

    /// What a node of it is called.
    pub fn node_name(&self, node: NodeId) -> String {
        let member = self.members.values().find(|member| member.node == node);
        member.map_or_else(|| node.to_string(), |member| member.node_name.clone())
    }

    pub(super) fn has_unfinished(&self, node: NodeId) -> bool {
        let is_unfinished = |place| !matches!(place, Place::Finished | Place::Vacant);
        self.members.values().any(|member| member.node == node && is_unfinished(member.place))
    }

    pub(super) fn is_member(&self, node: NodeId) -> bool {
        self.members.values().any(|member| member.is_on(node))
    }

    /// Ranks whose processes were given up and that no other has taken.
    pub fn vacant(&self) -> BTreeSet<Rank> {
        let vacant = self.members.iter().filter(|(_, member)| member.place == Place::Vacant);
        vacant.map(|(rank, _)| *rank).collect()
    }

    /// The rank of a process in the present group.
    pub(super) fn rank_of(&self, process: i32) -> Option<Rank> {
        self.members.iter().find(|(_, it)| it.process == process).map(|(rank, _)| *rank)
    }

    /// Everybody's place, in order of rank.
    pub(super) fn seats(&self) -> Vec<Seated> {
        let nodes: Vec<NodeId> = self.members.values().map(|member| member.node).collect();
        let indices = memory_indices(&nodes, self.transport);
        let seat = |((&rank, member), memory_index): ((&Rank, &Member), i32)| Seated {
            process: member.process,
            rank,
            memory_index,
        };
        self.members.iter().zip(indices).map(seat).collect()
    }

    pub(super) fn spans_nodes(&self) -> bool {
        let mut nodes = self.members.values().map(|member| member.node);
        let first = nodes.next();
        nodes.any(|node| Some(node) != first)
    }

    pub(super) fn are_all_ready(&self) -> bool {
        let ready = Readiness { listens: true, is_prepared: true };
        self.rendezvous_by.is_some() && self.members.values().all(|it| it.readiness == ready)
    }

    /// Of ranks that should have said by now where they listen.
    pub(super) fn missed_rendezvous(&self, now: DateTime<Utc>) -> Option<Failure> {
        self.rendezvous_by.filter(|by| *by <= now)?;
        let missing = self.members.iter().filter(|(_, member)| !member.readiness.listens);
        let missing: Vec<(Rank, &str)> =
            missing.map(|(rank, member)| (*rank, member.node_name.as_str())).collect();
        let (first, _) = *missing.first()?;
        let node = self.members.get(&first).map(|member| member.node);
        let is_first = self.members.values().all(|it| it.first_generation == self.generation);
        let code = match is_first {
            true => FailureCode::RendezvousTimeout,
            false => FailureCode::ReformTimeout,
        };
        Some(Failure { report: verdict::of_rendezvous(code, &missing), node })
    }

    /// Whether a node that has told of no failure yet may have seen what `suspect` comes from.
    pub(super) fn could_be_explained_by_another(&self, suspect: &Suspect) -> bool {
        self.members
            .values()
            .any(|member| member.place == Place::Held && !suspect.was_told_by(Some(member.node)))
    }

    /// Whether the nodes of those that the suspect names have been heard since: one that has not may be what is lost, and its
    /// lease will tell.
    pub(super) fn can_judge(&self, suspect: &Suspect) -> bool {
        let named = verdict::culprits(&suspect.failure.report);
        let members = named.iter().filter_map(|rank| self.members.get(rank));
        let mut elsewhere = members.filter(|member| Some(member.node) != suspect.failure.node);
        elsewhere.all(|member| suspect.since <= member.node_seen_at)
    }

    /// Marks held members as gone and tells whose slots are free now.
    pub(super) fn release(
        &mut self,
        whose: impl Fn(Rank, &Member) -> bool,
        place: Place,
    ) -> Vec<Effect> {
        let mut effects = Vec::new();
        for (&rank, member) in &mut self.members {
            let is_meant = whose(rank, member);
            if is_meant && member.place == Place::Held {
                member.place = place;
                effects.push(Effect::Release { rank });
            } else if is_meant && place == Place::Finished && member.place == Place::Left {
                member.place = place;
            }
        }
        effects
    }
}
