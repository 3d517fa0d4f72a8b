//! Perfetto's trace format: packets that describe tracks, then packets that begin and end slices on them.
//!
//! Its messages are those of Perfetto's published schema (`protos/perfetto/trace/perfetto_trace.proto`), of which five are
//! written here, field by field under its names and numbers: a library that derives them would also read them, which nobody
//! needs, and would have every procedural macro of the workspace built with more of `syn`. A test decodes a file with the
//! whole of the published schema and refuses fields that are not in it.

use super::{Edge, Moment, Process, Slice, Thread, Trace};
use wire::Fields;

/// All packets are one sequence's: names its writer, and any number will do.
const SEQUENCE: u64 = 1;
/// `SEQ_INCREMENTAL_STATE_CLEARED`: nothing before this packet is needed to read it.
const STATE_CLEARED: u64 = 1;

/// Field numbers, by message.
mod field {
    pub(super) mod trace {
        pub(in super::super) const PACKET: u32 = 1;
    }
    pub(super) mod trace_packet {
        /// Nanoseconds.
        pub(in super::super) const TIMESTAMP: u32 = 8;
        pub(in super::super) const TRUSTED_PACKET_SEQUENCE_ID: u32 = 10;
        pub(in super::super) const TRACK_EVENT: u32 = 11;
        pub(in super::super) const SEQUENCE_FLAGS: u32 = 13;
        pub(in super::super) const TRACK_DESCRIPTOR: u32 = 60;
    }
    pub(super) mod track_descriptor {
        pub(in super::super) const UUID: u32 = 1;
        pub(in super::super) const NAME: u32 = 2;
        pub(in super::super) const PROCESS: u32 = 3;
        pub(in super::super) const THREAD: u32 = 4;
        pub(in super::super) const PARENT_UUID: u32 = 5;
    }
    pub(super) mod process_descriptor {
        pub(in super::super) const PID: u32 = 1;
        pub(in super::super) const PROCESS_NAME: u32 = 6;
    }
    pub(super) mod thread_descriptor {
        pub(in super::super) const PID: u32 = 1;
        pub(in super::super) const TID: u32 = 2;
        pub(in super::super) const THREAD_NAME: u32 = 5;
    }
    pub(super) mod track_event {
        pub(in super::super) const DEBUG_ANNOTATIONS: u32 = 4;
        pub(in super::super) const TYPE: u32 = 9;
        pub(in super::super) const TRACK_UUID: u32 = 11;
        pub(in super::super) const CATEGORIES: u32 = 22;
        pub(in super::super) const NAME: u32 = 23;
    }
    pub(super) mod debug_annotation {
        pub(in super::super) const INT_VALUE: u32 = 4;
        pub(in super::super) const NAME: u32 = 10;
    }
}

/// `TrackEvent.Type`.
#[derive(Clone, Copy)]
enum EventType {
    SliceBegin = 1,
    SliceEnd = 2,
    Instant = 3,
}

/// The trace as the bytes of its file.
pub(crate) fn encode(trace: &Trace) -> Vec<u8> {
    let mut packets = Packets::default();
    for process in &trace.processes {
        packets.describe(process_track(process));
        for thread in &process.threads {
            packets.describe(thread_track(process, thread));
            for edge in thread.edges() {
                match edge {
                    Edge::Begin(slice) => packets.event(slice.start_ns, slice_begin(thread, slice)),
                    Edge::End(slice) => {
                        packets.event(slice.end_ns, event(thread, EventType::SliceEnd));
                    }
                }
            }
            for moment in &thread.moments {
                packets.event(moment.at_ns, instant(thread, moment));
            }
        }
    }
    packets.trace.into_bytes()
}

/// The file so far.
#[derive(Default)]
struct Packets {
    trace: Fields,
}

impl Packets {
    fn describe(&mut self, track: Fields) {
        let mut packet = Fields::default();
        packet.message(field::trace_packet::TRACK_DESCRIPTOR, track);
        if self.trace.is_empty() {
            packet.number(field::trace_packet::SEQUENCE_FLAGS, STATE_CLEARED);
        }
        self.push(packet);
    }

    fn event(&mut self, at_ns: u64, event: Fields) {
        let mut packet = Fields::default();
        packet.number(field::trace_packet::TIMESTAMP, at_ns);
        packet.message(field::trace_packet::TRACK_EVENT, event);
        self.push(packet);
    }

    fn push(&mut self, mut packet: Fields) {
        packet.number(field::trace_packet::TRUSTED_PACKET_SEQUENCE_ID, SEQUENCE);
        self.trace.message(field::trace::PACKET, packet);
    }
}

fn process_track(process: &Process) -> Fields {
    let mut descriptor = Fields::default();
    descriptor.number(field::process_descriptor::PID, unsigned(process.pid));
    descriptor.text(field::process_descriptor::PROCESS_NAME, &process.name);
    let mut track = Fields::default();
    track.number(field::track_descriptor::UUID, unsigned(process.pid));
    track.text(field::track_descriptor::NAME, &process.name);
    track.message(field::track_descriptor::PROCESS, descriptor);
    track
}

fn thread_track(process: &Process, thread: &Thread) -> Fields {
    let mut descriptor = Fields::default();
    descriptor.number(field::thread_descriptor::PID, unsigned(process.pid));
    descriptor.number(field::thread_descriptor::TID, unsigned(thread.tid));
    descriptor.text(field::thread_descriptor::THREAD_NAME, &thread.name);
    let mut track = Fields::default();
    track.number(field::track_descriptor::UUID, unsigned(thread.tid));
    track.number(field::track_descriptor::PARENT_UUID, unsigned(process.pid));
    track.text(field::track_descriptor::NAME, &thread.name);
    track.message(field::track_descriptor::THREAD, descriptor);
    track
}

/// Numbers of processes and threads are above 0 and lie in ranges of their own: they name tracks as well.
fn unsigned(number: i32) -> u64 {
    u64::from(number.unsigned_abs())
}

fn event(thread: &Thread, r#type: EventType) -> Fields {
    let mut event = Fields::default();
    event.number(field::track_event::TYPE, r#type as u64);
    event.number(field::track_event::TRACK_UUID, unsigned(thread.tid));
    event
}

fn slice_begin(thread: &Thread, slice: &Slice) -> Fields {
    let mut event = event(thread, EventType::SliceBegin);
    event.text(field::track_event::NAME, &slice.name());
    event.text(field::track_event::CATEGORIES, slice.kind.as_str());
    for (name, value) in slice.facts() {
        event.message(field::track_event::DEBUG_ANNOTATIONS, annotation(name, value));
    }
    event
}

fn instant(thread: &Thread, Moment { name, step, at_ns: _ }: &Moment) -> Fields {
    let mut event = event(thread, EventType::Instant);
    event.text(field::track_event::NAME, name);
    event.text(field::track_event::CATEGORIES, "moment");
    event.message(field::track_event::DEBUG_ANNOTATIONS, annotation("step", step.0));
    event
}

fn annotation(name: &str, value: i64) -> Fields {
    let mut annotation = Fields::default();
    annotation.text(field::debug_annotation::NAME, name);
    annotation.number(field::debug_annotation::INT_VALUE, value.cast_unsigned());
    annotation
}

/// Protocol buffers' encoding, as far as it is needed: <https://protobuf.dev/programming-guides/encoding>.
mod wire {
    const VARINT: u64 = 0;
    const LENGTH_DELIMITED: u64 = 2;

    /// The fields of one message, in any order.
    #[derive(Debug, Default)]
    pub(super) struct Fields {
        bytes: Vec<u8>,
    }

    impl Fields {
        pub(super) fn is_empty(&self) -> bool {
            self.bytes.is_empty()
        }

        pub(super) fn into_bytes(self) -> Vec<u8> {
            self.bytes
        }

        /// Of the types `uint32`, `uint64`, `int32`, `int64` and enums; one below 0 as its two's complement of 64 bits.
        pub(super) fn number(&mut self, field: u32, value: u64) {
            self.key(field, VARINT);
            self.varint(value);
        }

        pub(super) fn text(&mut self, field: u32, text: &str) {
            self.delimited(field, text.as_bytes());
        }

        pub(super) fn message(&mut self, field: u32, message: Fields) {
            self.delimited(field, &message.bytes);
        }

        fn delimited(&mut self, field: u32, bytes: &[u8]) {
            self.key(field, LENGTH_DELIMITED);
            self.varint(bytes.len() as u64);
            self.bytes.extend_from_slice(bytes);
        }

        fn key(&mut self, field: u32, wire_type: u64) {
            self.varint(u64::from(field) << 3 | wire_type);
        }

        /// Seven bits a byte, the low ones first; the eighth says that there are more.
        fn varint(&mut self, mut value: u64) {
            while 0x80 <= value {
                self.bytes.push((value & 0x7f) as u8 | 0x80);
                value >>= 7;
            }
            self.bytes.push(value as u8);
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn numbers_and_texts_are_encoded_as_in_the_format_s_own_examples() {
            let mut fields = Fields::default();
            fields.number(1, 150);
            fields.text(2, "testing");
            let mut whole = Fields::default();
            whole.message(3, fields);
            whole.number(1, (-2_i64).cast_unsigned());
            let expected = b"\x1a\x0c\x08\x96\x01\x12\x07testing\
                             \x08\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01";
            assert_eq!(whole.into_bytes(), expected);
        }
    }
}
