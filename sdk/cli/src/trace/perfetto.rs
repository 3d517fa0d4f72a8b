//! Perfetto's trace format: packets that describe tracks, then packets that begin and end slices on them.

use prost::Message as _;

use super::{Edge, Moment, Process, Slice, Thread, Trace};
use schema::{
    DebugAnnotation, EventType, ProcessDescriptor, ThreadDescriptor, TracePacket, TrackDescriptor,
    TrackEvent,
};

/// All packets are one sequence's: names its writer, and any number will do.
const SEQUENCE: u32 = 1;
/// `SEQ_INCREMENTAL_STATE_CLEARED`: nothing before this packet is needed to read it.
const STATE_CLEARED: u32 = 1;

/// The trace as the bytes of its file.
pub(crate) fn encode(trace: &Trace) -> Vec<u8> {
    let mut packet = Vec::new();
    for process in &trace.processes {
        packet.push(described(process_track(process)));
        for thread in &process.threads {
            packet.push(described(thread_track(process, thread)));
            packet.extend(slices(thread));
            packet.extend(moments(thread));
        }
    }
    if let Some(first) = packet.first_mut() {
        first.sequence_flags = Some(STATE_CLEARED);
    }
    schema::Trace { packet }.encode_to_vec()
}

fn process_track(process: &Process) -> TrackDescriptor {
    let pid = Some(process.pid);
    let process_name = Some(process.name.clone());
    TrackDescriptor {
        uuid: Some(uuid(process.pid)),
        name: Some(process.name.clone()),
        process: Some(ProcessDescriptor { pid, process_name }),
        ..TrackDescriptor::default()
    }
}

fn thread_track(process: &Process, thread: &Thread) -> TrackDescriptor {
    let (pid, tid) = (Some(process.pid), Some(thread.tid));
    let thread_name = Some(thread.name.clone());
    TrackDescriptor {
        uuid: Some(uuid(thread.tid)),
        parent_uuid: Some(uuid(process.pid)),
        name: Some(thread.name.clone()),
        thread: Some(ThreadDescriptor { pid, tid, thread_name }),
        ..TrackDescriptor::default()
    }
}

/// Numbers of processes and threads lie in ranges of their own, and both above 0.
fn uuid(number: i32) -> u64 {
    u64::from(number.unsigned_abs())
}

fn described(track: TrackDescriptor) -> TracePacket {
    TracePacket { track_descriptor: Some(track), ..packet() }
}

fn packet() -> TracePacket {
    TracePacket { trusted_packet_sequence_id: Some(SEQUENCE), ..TracePacket::default() }
}

fn event(thread: &Thread, at_ns: u64, r#type: EventType) -> (TracePacket, TrackEvent) {
    let packet = TracePacket { timestamp: Some(at_ns), ..packet() };
    let event = TrackEvent {
        r#type: Some(r#type.into()),
        track_uuid: Some(uuid(thread.tid)),
        ..TrackEvent::default()
    };
    (packet, event)
}

fn slices(thread: &Thread) -> impl Iterator<Item = TracePacket> {
    thread.edges().into_iter().map(|edge| match edge {
        Edge::Begin(slice) => {
            let (packet, event) = event(thread, slice.start_ns, EventType::SliceBegin);
            let event = TrackEvent {
                name: Some(slice.name()),
                categories: vec![slice.kind.as_str().to_owned()],
                debug_annotations: annotations(slice),
                ..event
            };
            TracePacket { track_event: Some(event), ..packet }
        }
        Edge::End(slice) => {
            let (packet, event) = event(thread, slice.end_ns, EventType::SliceEnd);
            TracePacket { track_event: Some(event), ..packet }
        }
    })
}

fn annotations(slice: &Slice) -> Vec<DebugAnnotation> {
    let facts = slice.facts();
    facts.map(|(name, value)| annotation(name, value)).collect()
}

fn annotation(name: &str, value: i64) -> DebugAnnotation {
    DebugAnnotation { name: Some(name.to_owned()), int_value: Some(value) }
}

fn moments(thread: &Thread) -> impl Iterator<Item = TracePacket> {
    thread.moments.iter().map(|Moment { name, step, at_ns }| {
        let (packet, event) = event(thread, *at_ns, EventType::Instant);
        let event = TrackEvent {
            name: Some(name.clone()),
            categories: vec!["moment".to_owned()],
            debug_annotations: vec![annotation("step", step.0)],
            ..event
        };
        TracePacket { track_event: Some(event), ..packet }
    })
}

/// Those of Perfetto's published messages and fields that are written here, under their names and numbers
/// (`protos/perfetto/trace/perfetto_trace.proto`). A test decodes a file with the whole of the published schema.
mod schema {
    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Trace {
        #[prost(message, repeated, tag = "1")]
        pub(super) packet: Vec<TracePacket>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct TracePacket {
        /// Nanoseconds.
        #[prost(uint64, optional, tag = "8")]
        pub(super) timestamp: Option<u64>,
        #[prost(uint32, optional, tag = "10")]
        pub(super) trusted_packet_sequence_id: Option<u32>,
        #[prost(message, optional, tag = "11")]
        pub(super) track_event: Option<TrackEvent>,
        #[prost(uint32, optional, tag = "13")]
        pub(super) sequence_flags: Option<u32>,
        #[prost(message, optional, tag = "60")]
        pub(super) track_descriptor: Option<TrackDescriptor>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct TrackDescriptor {
        #[prost(uint64, optional, tag = "1")]
        pub(super) uuid: Option<u64>,
        #[prost(string, optional, tag = "2")]
        pub(super) name: Option<String>,
        #[prost(message, optional, tag = "3")]
        pub(super) process: Option<ProcessDescriptor>,
        #[prost(message, optional, tag = "4")]
        pub(super) thread: Option<ThreadDescriptor>,
        #[prost(uint64, optional, tag = "5")]
        pub(super) parent_uuid: Option<u64>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct ProcessDescriptor {
        #[prost(int32, optional, tag = "1")]
        pub(super) pid: Option<i32>,
        #[prost(string, optional, tag = "6")]
        pub(super) process_name: Option<String>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct ThreadDescriptor {
        #[prost(int32, optional, tag = "1")]
        pub(super) pid: Option<i32>,
        #[prost(int32, optional, tag = "2")]
        pub(super) tid: Option<i32>,
        #[prost(string, optional, tag = "5")]
        pub(super) thread_name: Option<String>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct TrackEvent {
        #[prost(message, repeated, tag = "4")]
        pub(super) debug_annotations: Vec<DebugAnnotation>,
        #[prost(enumeration = "EventType", optional, tag = "9")]
        pub(super) r#type: Option<i32>,
        #[prost(uint64, optional, tag = "11")]
        pub(super) track_uuid: Option<u64>,
        #[prost(string, repeated, tag = "22")]
        pub(super) categories: Vec<String>,
        #[prost(string, optional, tag = "23")]
        pub(super) name: Option<String>,
    }

    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
    #[repr(i32)]
    pub(super) enum EventType {
        Unspecified = 0,
        SliceBegin = 1,
        SliceEnd = 2,
        Instant = 3,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct DebugAnnotation {
        #[prost(int64, optional, tag = "4")]
        pub(super) int_value: Option<i64>,
        #[prost(string, optional, tag = "10")]
        pub(super) name: Option<String>,
    }
}
