//! The flight record: where a rank is, and what it did last, in a file that outlives it.
//!
//! The rank stores into mapped pages, which the kernel keeps whatever kills the process; the agent
//! reads the same pages through the file and never maps it, so no rank can make it fault.
//!
//! # What is counted
//!
//! Collectives of each group of the same ranks, its *lane*, from 1 since it formed. All ranks start the same ones in the
//! same order, so a number means the same collective everywhere. A rank has *entered* one when it
//! says to the others that it is there, it has *met* them once all ranks of its node are there, and has *left*
//! it when the result is in. Between entering and leaving it waits for others or works with them. Behind the header
//! lies, for each lane, a ring of the last [`RING_ENTRIES`] of them.

mod reader;

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
    sync::atomic::Ordering,
};

use rustix::{
    process::getpid,
    time::{ClockId, clock_gettime},
};

pub use reader::{FlightEntry, FlightLane, FlightPosition, FlightReader};

use crate::{Mapping, PAGE_BYTES, entry::FlightOp};

/// "LKSFLREC", so that no other file is taken for a record.
const MAGIC: u64 = u64::from_be_bytes(*b"LKSFLREC");
const VERSION: u32 = 3;
/// Collectives that are remembered of each lane. A power of two.
pub const RING_ENTRIES: usize = 128;
/// Groups of the same ranks that a record has room for; of further ones nothing is written.
pub const LANES: usize = 16;

/// Byte offsets of the header's words.
mod at {
    pub(super) const MAGIC: usize = 0;
    pub(super) const VERSION: usize = 8;
    pub(super) const RANK: usize = 12;
    pub(super) const PID: usize = 16;
    pub(super) const PHASE: usize = 20;
    pub(super) const STEP: usize = 24;
    pub(super) const UPDATED: usize = 32;
    pub(super) const PHASE_SINCE: usize = 40;
    pub(super) const PAUSED_UNTIL: usize = 48;
    /// The first lane's words.
    pub(super) const LANES: usize = 64;
    pub(super) const END: usize = LANES + super::LANES * super::of_lane::BYTES;
}

/// Byte offsets of a lane's words, and its size.
mod of_lane {
    pub(super) const ENTERED: usize = 0;
    pub(super) const MET: usize = 8;
    pub(super) const LEFT: usize = 16;
    pub(super) const ENTERED_SINCE: usize = 24;
    pub(super) const OP: usize = 32;
    pub(super) const BYTES: usize = 64;
}

/// Byte offsets of an entry's words, and its size. The rest of it is room for later.
mod of_entry {
    pub(super) const SEQUENCE: usize = 0;
    pub(super) const STEP: usize = 8;
    pub(super) const OP: usize = 16;
    pub(super) const ENTERED: usize = 24;
    pub(super) const MET: usize = 32;
    pub(super) const LEFT: usize = 40;
    pub(super) const END: usize = 48;
    pub(super) const BYTES: usize = 64;
}

const FILE_BYTES: usize = PAGE_BYTES + LANES * RING_ENTRIES * of_entry::BYTES;

/// The writing end, held by the rank.
#[derive(Debug)]
pub struct FlightRecord {
    map: Mapping,
}

impl FlightRecord {
    /// Makes the record of `rank` at `path`, in place of what an earlier process left there.
    pub fn create(path: impl AsRef<Path>, rank: u32) -> io::Result<Self> {
        // A file of its own: cutting the old one short would make its writer fault, if it lives.
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        let mut options = OpenOptions::new();
        let mut file = options.read(true).write(true).create_new(true).mode(0o600).open(path)?;
        // Written out, so that a full disk is an error here and not a fault at a later store.
        file.write_all(&vec![0; FILE_BYTES])?;
        let record = Self { map: Mapping::of_file(&file, FILE_BYTES, FILE_BYTES)? };
        let pid = getpid().as_raw_nonzero().get().cast_unsigned();
        record.map.u32_at(at::VERSION).store(VERSION, Ordering::Relaxed);
        record.map.u32_at(at::RANK).store(rank, Ordering::Relaxed);
        record.map.u32_at(at::PID).store(pid, Ordering::Relaxed);
        record.map.u64_at(at::STEP).store((-1_i64).cast_unsigned(), Ordering::Relaxed);
        record.set_phase(0);
        // Last: a reader that sees it sees the rest.
        record.map.u64_at(at::MAGIC).store(MAGIC, Ordering::Release);
        Ok(record)
    }

    /// Opens a record to read it, while its writer lives or afterwards.
    pub fn open(path: impl AsRef<Path>) -> io::Result<FlightReader> {
        Ok(FlightReader::new(File::open(path)?))
    }

    /// Says what the rank is doing now.
    pub fn set_phase(&self, phase: u32) {
        self.map.u32_at(at::PHASE).store(phase, Ordering::Relaxed);
        self.map.u64_at(at::PHASE_SINCE).store(monotonic_ns(), Ordering::Relaxed);
        self.touch();
    }

    /// Says which step the rank is in.
    pub fn set_step(&self, step: i64) {
        self.store(at::STEP, step.cast_unsigned());
    }

    /// The rank enters collective number `sequence` of `lane`: says to the others that it is there. Whatever it was in there
    /// before is over.
    pub fn enter(&self, lane: usize, sequence: u64, op: FlightOp) {
        if LANES <= lane {
            return;
        }
        let now = monotonic_ns();
        let entry = entry_at(lane, sequence);
        // No reader takes an entry for whole that is being written.
        self.map.u64_at(entry + of_entry::SEQUENCE).store(0, Ordering::Release);
        let step = self.map.u64_at(at::STEP).load(Ordering::Relaxed);
        let words = [
            (of_entry::STEP, step),
            (of_entry::OP, op.word()),
            (of_entry::ENTERED, now),
            (of_entry::MET, 0),
            (of_entry::LEFT, 0),
        ];
        for (offset, word) in words {
            self.map.u64_at(entry + offset).store(word, Ordering::Relaxed);
        }
        self.map.u64_at(entry + of_entry::SEQUENCE).store(sequence, Ordering::Release);
        let before = sequence.saturating_sub(1);
        let words = [
            (of_lane::OP, op.word()),
            (of_lane::ENTERED_SINCE, now),
            (of_lane::MET, before),
            (of_lane::LEFT, before),
            (of_lane::ENTERED, sequence),
        ];
        for (offset, word) in words {
            self.map.u64_at(lane_at(lane) + offset).store(word, Ordering::Release);
        }
        self.map.u64_at(at::UPDATED).store(now, Ordering::Release);
    }

    /// Every rank of the node has entered collective number `sequence` of `lane`.
    pub fn meet(&self, lane: usize, sequence: u64) {
        self.pass(lane, sequence, of_lane::MET, of_entry::MET);
    }

    /// Collective number `sequence` of `lane` is over.
    pub fn leave(&self, lane: usize, sequence: u64) {
        self.pass(lane, sequence, of_lane::LEFT, of_entry::LEFT);
    }

    /// The groups of these ranks are no more: nothing of theirs should be taken for the next ones'.
    pub fn forget_lanes(&self) {
        for word in (at::LANES..at::END).step_by(8) {
            self.map.u64_at(word).store(0, Ordering::Release);
        }
        self.touch();
    }

    /// Says until when others need not miss this rank: the node's monotonic clock; 0 when they may again.
    pub fn set_paused_until(&self, until_ns: u64) {
        self.store(at::PAUSED_UNTIL, until_ns);
    }

    fn pass(&self, lane: usize, sequence: u64, of_lane: usize, of_entry: usize) {
        if LANES <= lane {
            return;
        }
        let now = monotonic_ns();
        self.map.u64_at(entry_at(lane, sequence) + of_entry).store(now, Ordering::Relaxed);
        self.map.u64_at(lane_at(lane) + of_lane).store(sequence, Ordering::Release);
        self.map.u64_at(at::UPDATED).store(now, Ordering::Release);
    }

    fn store(&self, offset: usize, value: u64) {
        self.map.u64_at(offset).store(value, Ordering::Relaxed);
        self.touch();
    }

    fn touch(&self) {
        self.map.u64_at(at::UPDATED).store(monotonic_ns(), Ordering::Release);
    }
}

/// Where in the file a lane's words lie.
fn lane_at(lane: usize) -> usize {
    at::LANES + lane * of_lane::BYTES
}

/// Where in the file the entry of a lane's collective lies.
fn entry_at(lane: usize, sequence: u64) -> usize {
    let index = usize::try_from(sequence % RING_ENTRIES as u64).unwrap_or(0);
    PAGE_BYTES + (lane * RING_ENTRIES + index) * of_entry::BYTES
}

/// Now, on the clock that [`FlightPosition`] uses; the same for every process of a node.
pub fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}
