//! Ranks that have entered a collective and hear nothing of each other: then the link between them is at fault, and none of them.
//!
//! Whoever waits in vain names whom it waits for, and cannot know whether that one has entered. It has, if it complains of the
//! first one itself, in the same collective or the next; or if its flight record says that it is inside, and its process is not stopped.
//! Ranks that share a memory have no link between them.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};
use lockstep_api::{FailureCode, FailureReport, Lane, Rank, Transport};

use super::gang::{Gang, Suspect};
use crate::verdict::{self, Failure};

/// What was last heard of a rank from its node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct News {
    /// When.
    pub seen_at: DateTime<Utc>,
    /// Whether its process is stopped.
    pub is_stopped: bool,
    /// The collective that it is in, by lane; none where it is in none.
    pub inside: BTreeMap<Lane, i64>,
}

/// What a rank says that waits in vain.
struct Complaint<'a> {
    by: Rank,
    missing: BTreeSet<Rank>,
    collective: i64,
    lane: Lane,
    waited_ms: i64,
    report: &'a FailureReport,
}

impl<'a> Complaint<'a> {
    fn of(failure: &'a Failure) -> Option<Self> {
        let report = &failure.report;
        let number = |field: &str| report.evidence.get(field).and_then(serde_json::Value::as_i64);
        if !matches!(report.code, FailureCode::NotEntered | FailureCode::PeerGone) {
            return None;
        }
        Some(Self {
            by: Rank(i32::try_from(number("by")?).ok()?),
            missing: report.missing_ranks().collect(),
            collective: number("collective")?,
            lane: Lane(i32::try_from(number("lane")?).ok()?),
            waited_ms: number("waited_ms")?,
            report,
        })
    }
}

impl Gang {
    /// Two complaints of the same collective, by either end of a link that carries nothing.
    pub(super) fn stall_told_by_both(&self, one: &Failure, other: &Failure) -> Option<Failure> {
        let (one, other) = (Complaint::of(one)?, Complaint::of(other)?);
        let ends = self.ends(&one, &other).or_else(|| self.ends(&other, &one))?;
        Some(self.stall(&one, &ends))
    }

    /// A suspicion of ranks that are inside the collective in which they are missed.
    pub(super) fn stall_seen(&self, suspect: &Suspect) -> Option<Failure> {
        let complaint = Complaint::of(&suspect.failure)?;
        let is_inside = |rank: &&Rank| {
            let news = self.news_since(suspect, **rank);
            let inside = news.and_then(|it| it.inside.get(&complaint.lane));
            inside.is_some_and(|at| complaint.collective <= *at)
        };
        let has_link = |rank: &&Rank| !self.share_memory(**rank, complaint.by);
        let inside = complaint.missing.iter().filter(is_inside).filter(has_link);
        let mut ends: BTreeSet<Rank> = inside.copied().collect();
        if ends.is_empty()
            || ends.len() < complaint.missing.len()
            || !self.stopped(suspect).is_empty()
        {
            return None;
        }
        ends.insert(complaint.by);
        Some(self.stall(&complaint, &ends))
    }

    /// Whether news that is younger than the suspicion says why: nothing else needs to be waited for.
    pub(super) fn is_clear(&self, suspect: &Suspect) -> bool {
        suspect.failure.report.code == FailureCode::NotEntered
            && (!self.stopped(suspect).is_empty() || self.stall_seen(suspect).is_some())
    }

    /// Ranks whose processes are stopped, by such news.
    fn stopped(&self, suspect: &Suspect) -> BTreeSet<Rank> {
        let is_stopped =
            |rank: &&Rank| self.news_since(suspect, **rank).is_some_and(|it| it.is_stopped);
        self.members.keys().filter(is_stopped).copied().collect()
    }

    /// The failure of those that are stopped, if others were missed: whoever waits for one that waits for them cannot tell.
    pub(super) fn stopped_instead(&self, suspect: &Suspect) -> Option<Failure> {
        let stopped = self.stopped(suspect);
        let report = &suspect.failure.report;
        if report.code != FailureCode::NotEntered
            || stopped.is_empty()
            || stopped == verdict::culprits(report)
        {
            return None;
        }
        let report = verdict::of_stopped(&self.named(&stopped), report);
        let node = stopped.first().and_then(|rank| self.members.get(rank)).map(|it| it.node);
        Some(Failure { report, node })
    }

    fn named<'a>(&'a self, ranks: &BTreeSet<Rank>) -> Vec<(Rank, &'a str)> {
        let name = |rank: &Rank| Some((*rank, self.members.get(rank)?.node_name.as_str()));
        ranks.iter().filter_map(name).collect()
    }

    fn news_since(&self, suspect: &Suspect, rank: Rank) -> Option<&News> {
        let news = self.members.get(&rank).and_then(|member| member.news.as_ref());
        news.filter(|it| suspect.since <= it.seen_at)
    }

    /// The ends of the link, if each complaint misses ranks for which the other one speaks, and both are of one collective.
    fn ends(&self, accusation: &Complaint<'_>, answer: &Complaint<'_>) -> Option<BTreeSet<Rank>> {
        let speaks_for = |complaint: &Complaint<'_>, rank: &Rank| {
            let is_own = complaint.by == *rank || self.share_memory(complaint.by, *rank);
            is_own && !complaint.missing.contains(rank)
        };
        let is_of_one = accusation.report.code == FailureCode::NotEntered
            && accusation.lane == answer.lane
            // One end may have left a collective whose result the other never got.
            && accusation.collective.abs_diff(answer.collective) <= 1
            // One that came late finds the others gone at once.
            && accusation.waited_ms <= 2 * answer.waited_ms;
        let accused = accusation.missing.iter().filter(|rank| speaks_for(answer, rank));
        let accusers = answer.missing.iter().filter(|rank| speaks_for(accusation, rank));
        let (accused, accusers): (BTreeSet<Rank>, BTreeSet<Rank>) =
            (accused.copied().collect(), accusers.copied().collect());
        let is_mutual = is_of_one && !accused.is_empty() && !accusers.is_empty();
        is_mutual.then(|| &accused | &accusers)
    }

    fn share_memory(&self, one: Rank, other: Rank) -> bool {
        let node = |rank| self.members.get(&rank).map(|member| member.node);
        self.transport != Transport::Tcp && node(one) == node(other)
    }

    fn stall(&self, complaint: &Complaint<'_>, ends: &BTreeSet<Rank>) -> Failure {
        let place = (complaint.lane, complaint.collective);
        let report = verdict::of_stall(&self.named(ends), place, complaint.report);
        Failure { report, node: None }
    }

    /// Who is replaced when the same links carry nothing twice in a row: of the ends, those on the node with the fewest ranks.
    pub(super) fn weaker_end(&self, report: &FailureReport) -> BTreeSet<Rank> {
        let ends: BTreeSet<Rank> = report.ranks_between().collect();
        let nodes = ends.iter().filter_map(|rank| self.members.get(rank)).map(|it| it.node);
        let weaker = nodes.min_by_key(|node| (self.ranks_of(*node).len(), *node));
        let of_weaker = |rank: &Rank| weaker.is_some_and(|node| self.ranks_of(node).contains(rank));
        let chosen: BTreeSet<Rank> = ends.iter().copied().filter(of_weaker).collect();
        // With all of them nobody would be left who has the state.
        match chosen.len() < self.members.len() {
            true => chosen,
            false => ends.into_iter().next_back().into_iter().collect(),
        }
    }
}
