//! Who is missing in the collective under way, from what was last heard of each rank.
//!
//! Times are counted up to the newest news: what has happened since, nobody knows.
//!
//! News of ranks is of different age: a rank that was elsewhere before others entered may have entered since. It
//! counts as missing only by news that is younger than the moment at which somebody entered.

use std::collections::BTreeSet;

use chrono::{DateTime, TimeDelta, Utc};
use lockstep_api::{Arrival, Lane, Phase, Rank, Step};

/// What was last heard of a rank. Times are the server's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// Which.
    pub rank: Rank,
    /// Its node's name.
    pub node_name: String,
    /// What it does, and since when, once it is known.
    pub phase: Option<(Phase, Option<DateTime<Utc>>)>,
    /// The step it is in.
    pub step: Option<Step>,
    /// The last collective that it entered in each lane, once there is one.
    pub entered: Vec<Entered>,
    /// Until when it has announced to be busy.
    pub paused_until: Option<DateTime<Utc>>,
    /// Whether its process is stopped.
    pub is_stopped: bool,
    /// When it was heard of; `None` if never.
    pub seen_at: Option<DateTime<Utc>>,
    /// Whether its process is gone, or has finished.
    pub has_ended: bool,
}

impl Seen {
    /// The last collective that it entered in a lane.
    pub fn entered_in(&self, lane: Lane) -> Option<&Entered> {
        self.entered.iter().find(|it| it.lane == lane)
    }
}

/// The last collective that a rank entered in a lane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entered {
    /// Which lane.
    pub lane: Lane,
    /// Its number, the same on all ranks.
    pub sequence: i64,
    /// The last one that the rank left.
    pub left: i64,
    /// What it is, for people.
    pub what: String,
    /// When.
    pub at: DateTime<Utc>,
}

impl Entered {
    /// Whether the rank is in it.
    pub fn is_inside(&self) -> bool {
        self.left < self.sequence
    }
}

/// The collective under way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnderWay {
    /// Of which lane.
    pub lane: Lane,
    /// Its number.
    pub sequence: i64,
    /// What it is.
    pub what: String,
    /// When the first of those who are in it entered.
    pub since: DateTime<Utc>,
}

/// News is called old from this age on.
const OLD_NEWS: TimeDelta = TimeDelta::seconds(2);

/// When something was last heard of any of them.
pub fn heard_at(ranks: &[Seen], now: DateTime<Utc>) -> DateTime<Utc> {
    ranks.iter().filter_map(|rank| rank.seen_at).max().map_or(now, |at| at.min(now))
}

/// The furthest collective of a lane that some rank is in. Of several lanes, one in which somebody is missing before one that all have
/// entered, and then the one that was entered first.
pub fn under_way(ranks: &[Seen]) -> Option<UnderWay> {
    let lanes: BTreeSet<Lane> = ranks.iter().flat_map(|it| &it.entered).map(|it| it.lane).collect();
    let all = lanes.into_iter().filter_map(|lane| under_way_in(lane, ranks));
    let all_are_there =
        |it: &UnderWay| ranks.iter().all(|rank| standing(rank, Some(it)) != Arrival::Missing);
    all.min_by_key(|it| (all_are_there(it), it.since))
}

fn under_way_in(lane: Lane, ranks: &[Seen]) -> Option<UnderWay> {
    let inside = || {
        let entered = ranks.iter().filter(|rank| !rank.has_ended);
        entered.filter_map(|it| it.entered_in(lane)).filter(|it| it.is_inside())
    };
    let furthest = inside().max_by_key(|entered| entered.sequence)?;
    let (sequence, what) = (furthest.sequence, furthest.what.clone());
    // Whoever has left it has met all others there.
    let is_over = ranks.iter().filter_map(|it| it.entered_in(lane)).any(|it| sequence <= it.left);
    let since = inside().filter(|it| it.sequence == sequence).map(|it| it.at).min()?;
    (!is_over).then_some(UnderWay { lane, sequence, what, since })
}

/// Where one rank is with regard to it.
pub fn standing(rank: &Seen, under_way: Option<&UnderWay>) -> Arrival {
    let Some(under_way) = under_way else {
        return match (rank.has_ended, rank.seen_at) {
            (true, _) => Arrival::Ended,
            (false, Some(_)) => Arrival::Working,
            (false, None) => Arrival::Unknown,
        };
    };
    let entered = rank.entered_in(under_way.lane);
    let has_entered = entered.is_some_and(|it| under_way.sequence <= it.sequence);
    match rank.seen_at {
        _ if rank.has_ended => Arrival::Ended,
        Some(_) if has_entered => Arrival::Entered,
        Some(seen_at) if under_way.since <= seen_at => Arrival::Missing,
        Some(_) | None => Arrival::Unknown,
    }
}

/// Who is missing, and in which collective others have been for `soft` or longer; `None` when that is nobody.
pub fn stragglers(
    ranks: &[Seen],
    soft: TimeDelta,
    now: DateTime<Utc>,
) -> Option<(UnderWay, Vec<&Seen>)> {
    let as_of = heard_at(ranks, now);
    let under_way = under_way(ranks).filter(|it| soft <= as_of - it.since)?;
    let (late, _) = missing(ranks, &under_way);
    (!late.is_empty()).then_some((under_way, late))
}

/// Who has not entered: those that others wait for, and those that are held up in an earlier collective by them. If all are in an
/// earlier one, nobody knows better.
fn missing<'a>(ranks: &'a [Seen], under_way: &UnderWay) -> (Vec<&'a Seen>, Vec<&'a Seen>) {
    let is_missing = |rank: &&Seen| standing(rank, Some(under_way)) == Arrival::Missing;
    let waits = |rank: &&Seen| rank.entered_in(under_way.lane).is_some_and(Entered::is_inside);
    let (held, late): (Vec<&Seen>, Vec<&Seen>) = ranks.iter().filter(is_missing).partition(waits);
    if late.is_empty() { (held, late) } else { (late, held) }
}

/// One sentence for people: `rank 2 on node b has not entered bucket 3 of 9 (collective 41) for 5.0 s: phase data of step
/// 12 since 5.1 s; ranks 0, 1, 3 wait`; and how old the news is, if it is old.
pub fn sentence(ranks: &[Seen], now: DateTime<Utc>) -> String {
    let as_of = heard_at(ranks, now);
    let text = sentence_as_of(ranks, as_of);
    match now - as_of {
        age if OLD_NEWS <= age => format!("{text} (heard {} ago)", seconds(age)),
        _ => text,
    }
}

fn sentence_as_of(ranks: &[Seen], now: DateTime<Utc>) -> String {
    let Some(under_way) = under_way(ranks) else {
        return match ranks.iter().all(|rank| rank.has_ended) {
            true => "no rank is at work".to_owned(),
            false => "no rank waits in a collective".to_owned(),
        };
    };
    let of = |wanted: Arrival| -> Vec<&Seen> {
        ranks.iter().filter(|rank| standing(rank, Some(&under_way)) == wanted).collect()
    };
    let (entered, unknown) = (of(Arrival::Entered), of(Arrival::Unknown));
    let (missing, held) = missing(ranks, &under_way);
    let UnderWay { lane, sequence, ref what, .. } = under_way;
    let place = format!("{what} ({})", numbered(lane, sequence));
    let waited = seconds(now - under_way.since);
    let wait = if entered.len() == 1 { "waits" } else { "wait" };
    let mut parts: Vec<String> =
        missing.iter().map(|rank| missing_rank(rank, &place, &waited, now)).collect();
    if missing.is_empty() && unknown.is_empty() {
        return format!("all ranks have entered {place}, the first {waited} ago");
    }
    parts.push(format!("{} {wait}", named(&entered)));
    if !held.is_empty() {
        let wait = if held.len() == 1 { "waits" } else { "wait" };
        parts.push(format!("{} {wait} in an earlier one", named(&held)));
    }
    if !unknown.is_empty() {
        parts.push(format!("of {} there is no news since", named(&unknown)));
    }
    if missing.is_empty() {
        parts.insert(0, format!("{place} began {waited} ago"));
    }
    parts.join("; ")
}

/// `collective 41`, `collective 41 of lane 1`
pub(crate) fn numbered(lane: Lane, sequence: i64) -> String {
    match lane {
        Lane(0) => format!("collective {sequence}"),
        lane => format!("collective {sequence} of lane {lane}"),
    }
}

fn missing_rank(rank: &Seen, place: &str, waited: &str, now: DateTime<Utc>) -> String {
    let mut text = format!(
        "rank {} on node {} has not entered {place} for {waited}",
        rank.rank, rank.node_name
    );
    if let Some((phase, since)) = rank.phase {
        text.push_str(&format!(": phase {phase}"));
        if let Some(step) = rank.step {
            text.push_str(&format!(" of step {step}"));
        }
        if let Some(since) = since {
            text.push_str(&format!(" since {}", seconds(now - since)));
        }
    }
    if rank.is_stopped {
        text.push_str(", its process is stopped");
    }
    if let Some(left) = rank.paused_until.filter(|until| now < *until) {
        text.push_str(&format!(
            ", it has announced to be busy for {} more at most",
            seconds(left - now)
        ));
    }
    text
}

fn named(ranks: &[&Seen]) -> String {
    let list: Vec<String> = ranks.iter().map(|it| it.rank.to_string()).collect();
    format!("rank{} {}", if list.len() == 1 { "" } else { "s" }, list.join(", "))
}

fn seconds(time: TimeDelta) -> String {
    let millis = time.num_milliseconds().max(0);
    format!("{}.{} s", millis / 1000, millis % 1000 / 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: i64) -> DateTime<Utc> {
        DateTime::UNIX_EPOCH + TimeDelta::milliseconds(millis)
    }

    fn in_lane(lane: i32, sequence: i64, left: i64, entered: i64) -> Entered {
        let lane = Lane(lane);
        let what = format!("bucket {sequence} of 50");
        Entered { lane, sequence, left, what, at: at(entered) }
    }

    /// Heard of at 10 s: entered collective `sequence` at `entered`, left `left`.
    fn seen(rank: i32, sequence: i64, left: i64, entered: i64) -> Seen {
        Seen {
            rank: Rank(rank),
            node_name: "b".to_owned(),
            phase: Some((Phase::Reduce, Some(at(entered)))),
            step: Some(Step(12)),
            entered: vec![in_lane(0, sequence, left, entered)],
            paused_until: None,
            is_stopped: false,
            seen_at: Some(at(10_000)),
            has_ended: false,
        }
    }

    #[test]
    fn whoever_has_not_entered_is_missing_and_the_sentence_says_what_it_does() {
        let mut ranks = [seen(0, 41, 40, 5_000), seen(1, 41, 40, 5_500), seen(2, 40, 40, 4_000)];
        ranks[2].phase = Some((Phase::Data, Some(at(4_900))));
        let under_way = under_way(&ranks).unwrap();
        assert_eq!((under_way.sequence, under_way.since), (41, at(5_000)));
        let standings = [Arrival::Entered, Arrival::Entered, Arrival::Missing];
        assert_eq!([0, 1, 2].map(|index| standing(&ranks[index], Some(&under_way))), standings);
        assert_eq!(
            sentence(&ranks, at(10_000)),
            "rank 2 on node b has not entered bucket 41 of 50 (collective 41) for 5.0 s: \
             phase data of step 12 since 5.1 s; ranks 0, 1 wait"
        );
        ranks[2].is_stopped = true;
        ranks[2].paused_until = Some(at(12_000));
        let text = sentence(&ranks, at(10_000));
        assert!(
            text.contains("its process is stopped, it has announced to be busy for 2.0 s more"),
            "{text}"
        );
        ranks[2].has_ended = true;
        assert_eq!(standing(&ranks[2], Some(&under_way)), Arrival::Ended);
    }

    #[test]
    fn whoever_waits_in_an_earlier_collective_is_not_the_one_that_is_waited_for() {
        let mut ranks = [seen(0, 40, 39, 4_000), seen(1, 39, 39, 3_000), seen(2, 41, 40, 5_000)];
        ranks[1].is_stopped = true;
        let (_, late) = stragglers(&ranks, TimeDelta::seconds(1), at(10_000)).unwrap();
        assert_eq!(late.iter().map(|it| it.rank).collect::<Vec<_>>(), [Rank(1)]);
        assert_eq!(
            sentence(&ranks, at(10_000)),
            "rank 1 on node b has not entered bucket 41 of 50 (collective 41) for 5.0 s: phase reduce of step 12 since \
             7.0 s, its process is stopped; rank 2 waits; rank 0 waits in an earlier one"
        );
        // If nobody else is missing, they are all that is known.
        ranks[1] = seen(1, 40, 39, 4_100);
        let (_, late) = stragglers(&ranks, TimeDelta::seconds(1), at(10_000)).unwrap();
        assert_eq!(late.len(), 2);
    }

    #[test]
    fn old_news_accuses_nobody() {
        let mut ranks = [seen(0, 41, 40, 5_000), seen(1, 40, 40, 4_000)];
        ranks[1].seen_at = Some(at(4_999));
        let under_way = under_way(&ranks).unwrap();
        assert_eq!(standing(&ranks[1], Some(&under_way)), Arrival::Unknown);
        assert_eq!(
            sentence(&ranks, at(6_000)),
            "bucket 41 of 50 (collective 41) began 1.0 s ago; rank 0 waits; of rank 1 there is no news since"
        );
        assert_eq!(stragglers(&ranks, TimeDelta::zero(), at(6_000)), None);
    }

    #[test]
    fn nobody_is_said_to_have_waited_longer_than_was_heard_of() {
        let ranks = [seen(0, 41, 40, 9_500), seen(1, 40, 40, 9_000)];
        assert_eq!(
            sentence(&ranks, at(17_000)),
            "rank 1 on node b has not entered bucket 41 of 50 (collective 41) for 0.5 s: \
             phase reduce of step 12 since 1.0 s; rank 0 waits (heard 7.0 s ago)"
        );
        assert_eq!(stragglers(&ranks, TimeDelta::milliseconds(501), at(17_000)), None);
    }

    #[test]
    fn one_that_somebody_has_left_is_over_for_all() {
        let ranks = [seen(0, 41, 40, 5_000), seen(1, 41, 41, 5_000)];
        assert_eq!(under_way(&ranks), None);
        assert_eq!(standing(&ranks[0], None), Arrival::Working);
        assert_eq!(sentence(&ranks, at(6_000)), "no rank waits in a collective");
        let all = [seen(0, 41, 40, 5_000), seen(1, 41, 40, 5_000)];
        assert!(
            sentence(&all, at(6_000))
                .starts_with("all ranks have entered bucket 41 of 50 (collective 41)")
        );
    }

    #[test]
    fn of_several_lanes_the_one_is_under_way_in_which_somebody_is_missing_or_that_was_entered_first()
     {
        let mut ranks = [seen(0, 41, 40, 9_000), seen(1, 41, 40, 9_100)];
        ranks[0].entered.push(in_lane(1, 7, 6, 6_000));
        ranks[1].entered.push(in_lane(1, 6, 6, 5_900));
        let found = under_way(&ranks).unwrap();
        assert_eq!((found.lane, found.sequence, found.since), (Lane(1), 7, at(6_000)));
        let standings = ranks.each_ref().map(|rank| standing(rank, Some(&found)));
        assert_eq!(standings, [Arrival::Entered, Arrival::Missing]);
        let told = sentence(&ranks, at(10_000));
        let begins =
            "rank 1 on node b has not entered bucket 7 of 50 (collective 7 of lane 1) for 4.0 s";
        assert!(told.starts_with(begins), "{told}");
        // All have entered the older one: it hides nobody who is missing elsewhere.
        let lane = |ranks: &[Seen]| under_way(ranks).map(|it| (it.lane, it.sequence));
        for rank in &mut ranks {
            rank.entered[0] = in_lane(0, 41, 40, 5_000);
        }
        assert_eq!(lane(&ranks), Some((Lane(1), 7)));
        assert_eq!(stragglers(&ranks, TimeDelta::seconds(4), at(10_000)).unwrap().1.len(), 1);
        ranks[1].entered[1] = in_lane(1, 7, 6, 6_100);
        assert_eq!(lane(&ranks), Some((Lane(0), 41)), "then the one that was entered first");
        // What is over in one lane says nothing of the other.
        ranks[1].entered[0] = in_lane(0, 41, 41, 5_000);
        assert_eq!(lane(&ranks), Some((Lane(1), 7)));
    }

    #[test]
    fn stragglers_are_told_of_from_the_soft_limit_on() {
        let mut ranks = [seen(0, 41, 40, 5_000), seen(1, 40, 40, 4_000)];
        let soft = TimeDelta::milliseconds(6_000);
        ranks[0].seen_at = Some(at(11_000));
        assert_eq!(stragglers(&ranks, soft, at(10_999)), None);
        let (under_way, missing) = stragglers(&ranks, soft, at(11_000)).unwrap();
        assert_eq!((under_way.sequence, missing[0].rank, missing.len()), (41, Rank(1), 1));
        assert_eq!(stragglers(&ranks[..1], soft, at(11_000)), None);
    }
}
