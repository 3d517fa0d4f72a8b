//! Where an attempt's ranks are, as their flight records say.

use std::cmp::Reverse;
use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use lockstep_api::{CollectivePosition, Phase, Rank, RankPosition, Step};
use lockstep_shm::{FlightEntry, FlightLane, FlightRecord, monotonic_ns};
use serde_json::{Value, json};

use crate::stat::Stat;

/// Collectives of a culprit's past that go into the evidence.
const TAIL_ENTRIES: usize = 16;
/// Longest evidence with them, bytes: what is longer goes without. The server takes 16 KiB.
const EVIDENCE_BYTES: usize = 15 << 10;

/// The ranks of one attempt that were started here. Clones of the `Arc` around it are read by heartbeats.
#[derive(Debug, Default)]
pub(crate) struct Positions {
    ranks: Mutex<Vec<Local>>,
    /// From when on a wait is worth telling at once.
    soft: Duration,
}

#[derive(Debug)]
struct Local {
    rank: Rank,
    pid: i32,
    record: Utf8PathBuf,
}

impl Positions {
    /// Of an attempt whose job has this soft time limit.
    pub(crate) fn new(soft: Duration) -> Self {
        Self { ranks: Mutex::default(), soft }
    }

    /// A rank was started. It makes the flight record at `record` itself.
    pub(crate) fn add(&self, rank: Rank, pid: i32, record: Utf8PathBuf) {
        self.lock().push(Local { rank, pid, record });
    }

    /// The ranks that processes have in the next group; `None`: not one of it.
    pub(crate) fn seat(&self, rank_of: impl Fn(i32) -> Option<Rank>) {
        self.lock().retain_mut(|it| match rank_of(it.pid) {
            Some(rank) => {
                it.rank = rank;
                true
            }
            None => false,
        });
    }

    /// Where a rank is, or was when it died.
    pub(crate) fn of(&self, rank: Rank) -> (Phase, Step) {
        let ranks = self.lock();
        let found = ranks.iter().find(|it| it.rank == rank);
        found.map_or((Phase::Starting, Step(0)), |it| where_is(&it.record))
    }

    /// A rank's process.
    pub(crate) fn pid(&self, rank: Rank) -> Option<i32> {
        self.lock().iter().find(|it| it.rank == rank).map(|it| it.pid)
    }

    /// Where all are.
    pub(crate) fn all(&self) -> Vec<RankPosition> {
        let now = monotonic_ns();
        self.lock().iter().map(|it| position(it, now)).collect()
    }

    /// Whether some rank has been in a collective for longer than the soft limit.
    pub(crate) fn has_long_wait(&self) -> bool {
        let (now, soft) = (monotonic_ns(), u64::try_from(self.soft.as_nanos()).unwrap_or(u64::MAX));
        let waits = |it: &Local| {
            let found = FlightRecord::open(&it.record).and_then(|record| record.read());
            let is_long =
                |it: &FlightLane| it.is_inside() && soft <= now.saturating_sub(it.entered_ns);
            found.is_ok_and(|it| it.lanes.iter().any(is_long))
        };
        self.lock().iter().any(waits)
    }

    /// Adds the last collectives of `rank` to the evidence of a failure, if it is of this node and there is room: of the lane
    /// that the evidence names, or else of the one that the rank entered last.
    pub(crate) fn add_tail(&self, rank: Rank, evidence: &mut Value) {
        let path = self.lock().iter().find(|it| it.rank == rank).map(|it| it.record.clone());
        let named = evidence["lane"].as_u64().and_then(|lane| usize::try_from(lane).ok());
        let Some(Ok((lane, tail))) = path.map(|path| tail_of(&path, named)) else { return };
        if tail.is_empty() {
            return;
        }
        let now = monotonic_ns();
        let record: Vec<Value> = tail.iter().map(|entry| described(entry, now)).collect();
        let mut longer = match &*evidence {
            Value::Null => json!({}),
            found => found.clone(),
        };
        let Some(fields) = longer.as_object_mut() else { return };
        let record = json!({ "rank": rank, "lane": lane, "collectives": record });
        fields.insert("flight_record".to_owned(), record);
        if longer.to_string().len() <= EVIDENCE_BYTES {
            *evidence = longer;
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Local>> {
        self.ranks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where the rank with this flight record is, or was when it died. A record that cannot be read is one that it had not begun.
pub(crate) fn where_is(record: &Utf8Path) -> (Phase, Step) {
    let found = FlightRecord::open(record).and_then(|record| record.read());
    let Ok(position) = found else { return (Phase::Starting, Step(0)) };
    let phase = Phase::ALL.get(position.phase as usize).copied().unwrap_or(Phase::Starting);
    (phase, Step(position.step.max(0)))
}

fn position(local: &Local, now: u64) -> RankPosition {
    let Local { rank, pid, record } = local;
    let (phase, step) = where_is(record);
    let found = FlightRecord::open(record).and_then(|record| record.read()).ok();
    let is_stopped = Stat::of(*pid).is_some_and(|it| it.is_stopped());
    let pause = found.map_or(0, |it| it.paused_until_ns.saturating_sub(now));
    let lanes = found.map_or_else(Vec::new, |it| lanes(&it.lanes, now));
    RankPosition {
        rank: *rank,
        pid: *pid,
        phase,
        step,
        phase_ms: found.map(|it| millis(now.saturating_sub(it.phase_since_ns))),
        collective: lanes.first().filter(|it| 0 < it.entered).cloned(),
        further_lanes: lanes.into_iter().skip(1).collect(),
        pause_left_ms: (0 < pause).then(|| millis(pause)),
        is_stopped,
    }
}

/// The last collectives of a lane: of the one that is named, or else of the one that the rank entered last.
fn tail_of(record: &Utf8Path, named: Option<usize>) -> io::Result<(usize, Vec<FlightEntry>)> {
    let record = FlightRecord::open(record)?;
    let lanes = record.read()?.lanes;
    let newest = (0..lanes.len()).max_by_key(|lane| (lanes[*lane].entered_ns, Reverse(*lane)));
    let lane = named.or(newest).unwrap_or(0);
    Ok((lane, record.tail(lane, TAIL_ENTRIES)?))
}

/// Up to the last one that is in use.
fn lanes(all: &[FlightLane], now: u64) -> Vec<CollectivePosition> {
    let used = all.iter().rposition(|it| 0 < it.entered).map_or(0, |last| last + 1);
    let position = |it: &FlightLane| CollectivePosition {
        entered: it.entered.cast_signed(),
        left: it.left.cast_signed(),
        what: it.op.to_string(),
        entered_ms: millis(now.saturating_sub(it.entered_ns)),
    };
    all[..used].iter().map(position).collect()
}

/// Times before `now`, and how long it took; without an end when the rank was still in it.
fn described(entry: &FlightEntry, now: u64) -> Value {
    let FlightEntry { sequence, step, op, entered_ns, met_ns, left_ns } = *entry;
    let since = |end: u64| (end != 0).then(|| millis(end.saturating_sub(entered_ns)));
    json!({
        "collective": sequence, "what": op.to_string(), "step": step,
        "entered_ms_ago": millis(now.saturating_sub(entered_ns)),
        "met_after_ms": since(met_ns), "left_after_ms": since(left_ns),
    })
}

fn millis(ns: u64) -> i64 {
    i64::try_from(ns / 1_000_000).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use lockstep_shm::{FlightKind, FlightOf, FlightOp};

    use super::*;
    use crate::stat::process_state;

    #[test]
    fn a_rank_is_starting_until_its_record_says_more_and_this_process_runs() {
        let folder = tempfile::tempdir().unwrap();
        let path = Utf8PathBuf::try_from(folder.path().join("flight-0")).unwrap();
        let positions = Positions::default();
        positions.add(Rank(0), 77, path.clone());
        assert_eq!(positions.of(Rank(0)), (Phase::Starting, Step(0)));
        let record = FlightRecord::create(&path, 0).unwrap();
        record.set_step(41);
        let backward = Phase::ALL.iter().position(|it| *it == Phase::Backward).unwrap();
        record.set_phase(u32::try_from(backward).unwrap());
        assert_eq!(positions.of(Rank(0)), (Phase::Backward, Step(41)));
        assert_eq!(positions.pid(Rank(0)), Some(77));
        let state = process_state(i32::try_from(std::process::id()).unwrap()).unwrap();
        assert!("RSD".contains(state), "{state}");
    }

    #[test]
    fn a_rank_in_a_collective_is_told_with_what_it_is_and_since_when_and_its_past_is_evidence() {
        let folder = tempfile::tempdir().unwrap();
        let path = Utf8PathBuf::try_from(folder.path().join("flight-2")).unwrap();
        let positions = Positions::new(Duration::ZERO);
        positions.add(Rank(2), i32::try_from(std::process::id()).unwrap(), path.clone());
        let record = FlightRecord::create(&path, 2).unwrap();
        let before = positions.all().remove(0);
        assert_eq!(
            (before.collective, before.pause_left_ms, before.is_stopped),
            (None, None, false)
        );
        assert!(!positions.has_long_wait());
        let bucket =
            FlightOp { kind: FlightKind::AllReduce, of: FlightOf::Bucket { index: 0, count: 2 } };
        for sequence in 1..=20 {
            record.enter(0, sequence, bucket);
            record.meet(0, sequence);
            record.leave(0, sequence);
        }
        assert!(!positions.has_long_wait());
        record.enter(0, 21, bucket);
        record.set_paused_until(monotonic_ns() + 60_000_000_000);
        let inside = positions.all().remove(0);
        let found = inside.collective.as_ref().unwrap();
        assert_eq!(inside.further_lanes, []);
        assert_eq!((found.entered, found.left, found.what.as_str()), (21, 20, "bucket 1 of 2"));
        assert!((0..60_000).contains(&found.entered_ms) && inside.phase_ms.is_some());
        assert!(inside.pause_left_ms.is_some_and(|left| (1..=60_000).contains(&left)));
        assert!(positions.has_long_wait());
        assert!(!Positions::new(Duration::from_secs(60)).has_long_wait());
        record.leave(0, 21);
        assert!(!positions.has_long_wait());
        record.enter(2, 5, bucket);
        assert!(positions.has_long_wait());
        let told = positions.all().remove(0);
        let lanes: Vec<_> = told.lanes().map(|(lane, it)| (lane.0, it.entered, it.left)).collect();
        assert_eq!((lanes, told.further_lanes.len()), (vec![(0, 21, 21), (2, 5, 4)], 2));

        let mut evidence = json!({ "pid": 7, "lane": 0 });
        positions.add_tail(Rank(2), &mut evidence);
        let told = evidence["flight_record"]["collectives"].as_array().unwrap();
        assert_eq!((told.len(), &evidence["pid"]), (TAIL_ENTRIES, &json!(7)));
        let last = &told[TAIL_ENTRIES - 1];
        assert_eq!((&last["collective"], &last["met_after_ms"]), (&json!(21), &Value::Null));
        assert!(told[0]["left_after_ms"].is_number(), "{told:?}");
        // Where no lane is told, it is the one that the rank entered last.
        let mut of_a_lane = json!({});
        positions.add_tail(Rank(2), &mut of_a_lane);
        let told = &of_a_lane["flight_record"];
        assert_eq!((&told["lane"], &told["collectives"][0]["collective"]), (&json!(2), &json!(5)));
        assert_eq!(told["collectives"].as_array().unwrap().len(), 1);
        let mut of_another_node = Value::Null;
        positions.add_tail(Rank(3), &mut of_another_node);
        assert_eq!(of_another_node, Value::Null);
        let full = json!({ "stderr": "x".repeat(EVIDENCE_BYTES) });
        let mut kept = full.clone();
        positions.add_tail(Rank(2), &mut kept);
        assert_eq!(kept, full);
    }
}
