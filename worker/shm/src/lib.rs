//! Memory shared between the processes of a node: mapped pages, futex words, float arenas, the
//! flight record. The unsafe floor of the worker; every public function is safe.
//!
//! # What keeps shared pages sound
//! A mapping has two parts. Its *words* are only ever touched as atomics. Its *floats* are handed
//! out once, as an [`OwnArena`] (this process's own floats, by ordinary borrows) and [`NodeArenas`]
//! (everybody's, by raw pointers; its own also as bytes that go over the network). A range that the communication thread
//! works on is a [`Lease`]; the own arena refuses to lend a leased range, so no reference to it
//! exists while the communication thread or another process writes there. With several communication threads each has a
//! [`NodeArenas`] of its own, and a lease is good for one of them. Other processes are held off by the
//! protocol of `lockstep-collective`; one that breaks it can spoil numbers, not memory, since every
//! bit pattern is a number and no number is ever used as an index. The file cannot shrink under a
//! mapping: it is sealed before anybody maps more than its control pages.

mod arena;
mod buffer;
mod copy;
mod dtype;
mod entry;
mod fused;
mod futex;
mod group_memory;
mod mapping;
mod node_arenas;
mod record;
mod reduce;
mod socket;

pub use arena::{ArenaShape, Lease, OwnArena};
pub use buffer::Buffer;
pub use copy::{copy, copy_streaming};
pub use dtype::{Combine, Dtype};
pub use entry::{FlightKind, FlightOf, FlightOp};
pub use futex::{Waited, wait_until, wake_all};
pub use group_memory::{
    CONTROL_BYTES, create_group_memory, group_memory_bytes, inherited_group_memory,
    size_group_memory,
};
pub use mapping::{Mapping, PAGE_BYTES, page_aligned};
pub use node_arenas::{NodeArenas, Source, Span};
pub use record::{
    FlightEntry, FlightLane, FlightPosition, FlightReader, FlightRecord, LANES, RING_ENTRIES,
    monotonic_ns,
};
pub use reduce::{CHUNK_LEN, Found, Reduce, SumOp, Term};
pub use socket::inherited_socket;
