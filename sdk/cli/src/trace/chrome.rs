//! Chrome's trace event format, as "Trace Event Format" (Duca and Sinclair) has it: one JSON object of events.
//!
//! Slices are written as pairs of `B` and `E`: an `X` has a length in microseconds with a fraction, and the end that a
//! reader computes of it may lie a rounding past the beginning of the next. Both carry the facts: speedscope takes slices
//! with other facts for other slices.

use std::io::{self, Write};

use serde::Serialize;

use super::{Edge, Moment, Thread, Trace};

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Document<'a> {
    trace_events: Vec<Event<'a>>,
    display_time_unit: &'static str,
    other_data: Other<'a>,
}

#[derive(Serialize)]
struct Other<'a> {
    job: &'a str,
    /// Wall clock of time 0.
    began_at: String,
}

#[derive(Serialize)]
struct Event<'a> {
    ph: &'static str,
    pid: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    tid: Option<i32>,
    /// Microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    ts: Option<f64>,
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    cat: Option<&'static str>,
    /// Of a moment: it belongs to its thread.
    #[serde(skip_serializing_if = "Option::is_none")]
    s: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    args: Option<Args<'a>>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Args<'a> {
    Name { name: &'a str },
    Order { sort_index: i32 },
    Facts(serde_json::Map<String, serde_json::Value>),
}

/// Writes the trace of the job called `job`.
///
/// # Errors
/// Of `to`.
pub(crate) fn write(trace: &Trace, job: &str, to: impl Write) -> io::Result<()> {
    let mut events = Vec::new();
    for process in &trace.processes {
        let of_process = |name: &str, args| meta(process.pid, None, name, args);
        events.push(of_process("process_name", Args::Name { name: &process.name }));
        events.push(of_process("process_sort_index", Args::Order { sort_index: process.pid }));
        for thread in &process.threads {
            let of_thread = |name: &str, args| meta(process.pid, Some(thread.tid), name, args);
            events.push(of_thread("thread_name", Args::Name { name: &thread.name }));
            events.push(of_thread("thread_sort_index", Args::Order { sort_index: thread.tid }));
            add_thread(&mut events, process.pid, thread);
        }
    }
    let began_at = trace.began_at.to_rfc3339();
    let document = Document {
        trace_events: events,
        display_time_unit: "ns",
        other_data: Other { job, began_at },
    };
    serde_json::to_writer(to, &document).map_err(io::Error::from)
}

fn add_thread<'a>(events: &mut Vec<Event<'a>>, pid: i32, thread: &Thread) {
    for edge in thread.edges() {
        let (ph, ns, slice) = match edge {
            Edge::Begin(slice) => ("B", slice.start_ns, slice),
            Edge::End(slice) => ("E", slice.end_ns, slice),
        };
        events.push(Event {
            ph,
            pid,
            tid: Some(thread.tid),
            ts: Some(micros(ns)),
            name: slice.name(),
            cat: Some(slice.kind.as_str()),
            s: None,
            args: Some(Args::Facts(facts(slice.facts()))),
        });
    }
    for Moment { name, step, at_ns } in &thread.moments {
        events.push(Event {
            ph: "i",
            pid,
            tid: Some(thread.tid),
            ts: Some(micros(*at_ns)),
            name: name.clone(),
            cat: Some("moment"),
            s: Some("t"),
            args: Some(Args::Facts(facts([("step", step.0)].into_iter()))),
        });
    }
}

fn meta<'a>(pid: i32, tid: Option<i32>, name: &str, args: Args<'a>) -> Event<'a> {
    let name = name.to_owned();
    Event { ph: "M", pid, tid, ts: None, name, cat: None, s: None, args: Some(args) }
}

fn facts(
    facts: impl Iterator<Item = (&'static str, i64)>,
) -> serde_json::Map<String, serde_json::Value> {
    facts.map(|(name, value)| (name.to_owned(), value.into())).collect()
}

/// Exact for three months of nanoseconds.
fn micros(ns: u64) -> f64 {
    ns as f64 / 1000.0
}
