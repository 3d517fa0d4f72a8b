//! The layout, and Chrome's format by a reader of our own that is as strict as its description. What other readers make of
//! both formats is tested end to end: speedscope in `ui/e2e`, Perfetto's published schema in `tests/`.

use std::collections::{BTreeMap, HashMap};

use lockstep_api::{AttemptId, ClockAnchor, Generation, NodeId, Span};
use serde_json::{Value, json};

use super::*;

fn span(kind: SpanKind, index: Option<i32>, start_ns: i64, end_ns: i64) -> Span {
    Span { kind, index, start_ns, end_ns }
}

fn row(rank: i32, step: i64, clock: ClockAnchor, began_ns: i64, spans: Vec<Span>) -> StepTimeline {
    StepTimeline {
        attempt_id: AttemptId::new(1, [0; 10]),
        attempt_number: 1,
        generation: Generation(1),
        step: Step(step),
        rank: Rank(rank),
        node_id: NodeId::new(1, [0; 10]),
        clock,
        began_ns,
        spans,
        dropped: 0,
    }
}

/// A node whose monotonic clock showed `monotonic_ns` at one same moment.
fn clock(monotonic_ns: i64) -> ClockAnchor {
    let at = DateTime::from_timestamp(1_796_000_000, 0).unwrap();
    ClockAnchor { at, monotonic_ns }
}

fn one_step() -> Vec<Span> {
    vec![
        span(SpanKind::Step, None, 0, 1000),
        span(SpanKind::Data, Some(0), 0, 100),
        span(SpanKind::Forward, Some(0), 100, 300),
        span(SpanKind::Backward, Some(0), 300, 700),
        span(SpanKind::BucketQueue, Some(0), 400, 450),
        span(SpanKind::BucketReduce, Some(0), 450, 750),
        span(SpanKind::BucketQueue, Some(1), 700, 750),
        span(SpanKind::Wait, None, 700, 900),
        span(SpanKind::BucketReduce, Some(1), 750, 890),
        span(SpanKind::Optimizer, None, 900, 1000),
    ]
}

/// Reads a file as the format's description has it; every slice as (process, thread, name, begin, end), in microseconds.
fn read(document: &Value) -> Vec<(String, String, String, f64, f64)> {
    let events = document["traceEvents"].as_array().unwrap();
    let mut names: HashMap<(i64, Option<i64>), String> = HashMap::new();
    let mut open: BTreeMap<(i64, i64), Vec<(String, f64)>> = BTreeMap::new();
    let mut last: HashMap<(i64, i64), f64> = HashMap::new();
    let mut slices = Vec::new();
    for event in events {
        let pid = event["pid"].as_i64().unwrap();
        let (ph, name) = (event["ph"].as_str().unwrap(), event["name"].as_str().unwrap());
        if ph == "M" {
            if let Some(given) = event["args"]["name"].as_str() {
                let is_new = names.insert((pid, event["tid"].as_i64()), given.to_owned()).is_none();
                assert!(is_new && matches!(name, "process_name" | "thread_name"), "{event}");
            }
            continue;
        }
        let tid = event["tid"].as_i64().unwrap();
        let ts = event["ts"].as_f64().unwrap();
        assert!(event["cat"].is_string(), "{event}");
        match ph {
            "B" | "E" => {
                let before = last.insert((pid, tid), ts).unwrap_or(0.0);
                assert!(before <= ts, "{event} after {before}");
                let stack = open.entry((pid, tid)).or_default();
                if ph == "B" {
                    stack.push((name.to_owned(), ts));
                    continue;
                }
                let (begun, since) = stack.pop().unwrap();
                assert_eq!(begun, name, "slices lie within each other");
                let process = names[&(pid, None)].clone();
                slices.push((process, names[&(pid, Some(tid))].clone(), begun, since, ts));
            }
            "i" => assert_eq!(event["s"], "t"),
            other => panic!("{other} is not written: {event}"),
        }
    }
    assert!(open.values().all(Vec::is_empty), "{open:?} never end");
    slices.sort_by(|one, next| one.3.total_cmp(&next.3).then(next.4.total_cmp(&one.4)));
    slices
}

fn written(rows: &[StepTimeline]) -> Value {
    let mut bytes = Vec::new();
    chrome::write(&Trace::new(rows).unwrap(), "digits", &mut bytes).unwrap();
    serde_json::from_slice(&bytes).unwrap()
}

#[test]
fn a_step_is_laid_out_on_two_threads_and_times_of_two_nodes_side_by_side() {
    // The second node's clock began 5 s later; its rank began 250 ns later.
    let rows = [
        row(0, 3, clock(9_000_000_000), 9_000_000_500, one_step()),
        row(1, 3, clock(4_000_000_000), 4_000_000_750, one_step()),
    ];
    let document = written(&rows);
    assert_eq!(document["otherData"]["job"], "digits");
    assert_eq!(document["otherData"]["began_at"], "2026-11-30T00:53:20.000000500+00:00");
    let slices = read(&document);
    let of = |rank: &str, thread: &str| -> Vec<(&str, f64, f64)> {
        let own = slices.iter().filter(|slice| slice.0 == rank && slice.1 == thread);
        own.map(|slice| (slice.2.as_str(), slice.3, slice.4)).collect()
    };
    let compute = [
        ("step 3", 0.0, 1.0),
        ("data", 0.0, 0.1),
        ("forward", 0.1, 0.3),
        ("backward", 0.3, 0.7),
        ("wait", 0.7, 0.9),
        ("optimizer", 0.9, 1.0),
    ];
    assert_eq!(of("rank 0", "compute"), compute);
    let communication = [("bucket 0", 0.45, 0.75), ("bucket 1", 0.75, 0.89)];
    assert_eq!(of("rank 0", "communication"), communication);
    assert_eq!(of("rank 1", "compute")[..2], [("step 3", 0.25, 1.25), ("data", 0.25, 0.35)]);
    assert_eq!(slices.len(), 16);
    let ready: Vec<&Value> = document["traceEvents"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|event| event["ph"] == "i" && event["pid"] == 1)
        .collect();
    let ready: Vec<Value> = ready.iter().map(|it| json!([it["name"], it["ts"]])).collect();
    assert_eq!(ready, [json!(["bucket 0 ready", 0.4]), json!(["bucket 1 ready", 0.7])]);
}

#[test]
fn reductions_that_lie_across_each_other_get_threads_of_their_own() {
    let spans = vec![
        span(SpanKind::BucketReduce, Some(0), 0, 50),
        span(SpanKind::BucketReduce, Some(1), 30, 80),
        span(SpanKind::BucketReduce, Some(2), 60, 90),
        span(SpanKind::Data, None, 70, 70),
    ];
    let slices = read(&written(&[row(0, 0, clock(0), 0, spans)]));
    let threads: Vec<(&str, &str)> =
        slices.iter().map(|slice| (slice.1.as_str(), slice.2.as_str())).collect();
    let expected = [
        ("communication", "bucket 0"),
        ("communication 2", "bucket 1"),
        ("communication", "bucket 2"),
        ("compute", "data"),
    ];
    assert_eq!(threads, expected);
}

#[test]
fn what_is_missing_is_told_and_nothing_is_no_trace() {
    let rows = [StepTimeline { dropped: 7, ..row(0, 0, clock(0), 5, one_step()) }];
    let trace = Trace::new(&rows).unwrap();
    assert_eq!(trace.summary, Summary { ranks: 1, steps: 1, spans: 10, dropped: 7 });
    let moments: Vec<&str> =
        trace.processes[0].threads[0].moments.iter().map(|it| it.name.as_str()).collect();
    assert_eq!(moments[0], "7 spans before this were left out");
    assert!(Trace::new(&[]).is_none());
    assert!(Trace::new(&[row(0, 0, clock(0), 0, vec![])]).is_none());
}

#[test]
fn times_that_no_clock_shows_are_taken_without_a_panic() {
    let wild =
        vec![span(SpanKind::Data, None, i64::MIN, i64::MAX), span(SpanKind::Wait, None, 9, 3)];
    let rows = [row(0, 0, clock(i64::MIN), i64::MAX, wild.clone()), row(1, 0, clock(0), 0, wild)];
    read(&written(&rows));
    assert!(!perfetto::encode(&Trace::new(&rows).unwrap()).is_empty());
}
