//! The flight record: where a rank is, and what it did last, in a file that outlives it.
//!
//! The rank stores into mapped pages, which the kernel keeps whatever kills the process; the agent
//! reads the same pages through the file and never maps it, so no rank can make it fault.
//!
//! # What is counted
//!
//! Collectives of each group of the same ranks, its *lane*, from 1 since it formed. All ranks start the same ones in the
//! same order, so a number means the same collective everywhere. A rank has *entered* one when its communication
//! thread says to the others that it is there, it has *met* them once all ranks of its node are there, and has *left*
//! it when the result is in. Between entering and leaving it waits for others or works with them. Behind the header
//! lies, for each lane, a ring of the last [`RING_ENTRIES`] of them.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::Path,
    sync::atomic::Ordering,
};

use rustix::{
    process::getpid,
    time::{ClockId, clock_gettime},
};

use crate::{Mapping, PAGE_BYTES, entry::FlightOp};

/// "LKSFLREC", so that no other file is taken for a record.
const MAGIC: u64 = u64::from_be_bytes(*b"LKSFLREC");
const VERSION: u32 = 3;
/// Collectives that are remembered of each lane. A power of two.
pub const RING_ENTRIES: usize = 512;
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

/// What a record says. Times are the node's monotonic clock, nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlightPosition {
    /// Whose record it is.
    pub rank: u32,
    /// The process that wrote it.
    pub pid: u32,
    /// Index of the phase.
    pub phase: u32,
    /// The step it is in; -1 before the first.
    pub step: i64,
    /// How far it is in the collectives of each lane.
    pub lanes: [FlightLane; LANES],
    /// When anything of this last changed.
    pub updated_ns: u64,
    /// Since when it is in this phase.
    pub phase_since_ns: u64,
    /// Until when it has announced a pause; 0 when it has announced none.
    pub paused_until_ns: u64,
}

/// How far a rank is in the collectives of one lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FlightLane {
    /// The last one that it entered; 0 before the first of its group.
    pub entered: u64,
    /// The last one in which it has met all ranks of its node.
    pub met: u64,
    /// The last one that it left.
    pub left: u64,
    /// What the last one that it entered is.
    pub op: FlightOp,
    /// When it entered that.
    pub entered_ns: u64,
}

impl FlightLane {
    /// Whether it is in a collective.
    pub fn is_inside(&self) -> bool {
        self.left < self.entered
    }
}

/// One collective of a rank's past. Times are the node's monotonic clock, nanoseconds; 0 where it had not come so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlightEntry {
    /// Its number.
    pub sequence: u64,
    /// The step that the rank was in.
    pub step: i64,
    /// What it is.
    pub op: FlightOp,
    /// When the rank entered it.
    pub entered_ns: u64,
    /// When all ranks of the node were there.
    pub met_ns: u64,
    /// When it was over.
    pub left_ns: u64,
}

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
        Ok(FlightReader { file: File::open(path)? })
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

/// The reading end, held by the agent.
#[derive(Debug)]
pub struct FlightReader {
    file: File,
}

impl FlightReader {
    /// Where the rank is, or was when it ended.
    ///
    /// # Errors
    /// When the file is no record, or not yet one.
    pub fn read(&self) -> io::Result<FlightPosition> {
        let header = self.words::<{ at::END / 8 }>(0)?;
        let word = |offset: usize| header[offset / 8];
        let small = |offset: usize| {
            // Two halves share a word, in the machine's order.
            let halves = word(offset - offset % 8).to_ne_bytes();
            u32::from_ne_bytes(std::array::from_fn(|index| halves[offset % 8 + index]))
        };
        if word(at::MAGIC) != MAGIC || small(at::VERSION) != VERSION {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "not a flight record"));
        }
        Ok(FlightPosition {
            rank: small(at::RANK),
            pid: small(at::PID),
            phase: small(at::PHASE),
            step: word(at::STEP).cast_signed(),
            lanes: std::array::from_fn(|lane| {
                let word = |offset| word(lane_at(lane) + offset);
                FlightLane {
                    entered: word(of_lane::ENTERED),
                    met: word(of_lane::MET),
                    left: word(of_lane::LEFT),
                    op: FlightOp::of_word(word(of_lane::OP)),
                    entered_ns: word(of_lane::ENTERED_SINCE),
                }
            }),
            updated_ns: word(at::UPDATED),
            phase_since_ns: word(at::PHASE_SINCE),
            paused_until_ns: word(at::PAUSED_UNTIL),
        })
    }

    /// The last collectives of the rank in `lane`, at most `count` of them, oldest first. Those that it is just writing, or
    /// has forgotten, are left out; of a lane that a record has no room for there are none.
    ///
    /// # Errors
    /// As [`FlightReader::read`].
    pub fn tail(&self, lane: usize, count: usize) -> io::Result<Vec<FlightEntry>> {
        let Some(FlightLane { entered: last, .. }) = self.read()?.lanes.get(lane).copied() else {
            return Ok(Vec::new());
        };
        let count = u64::try_from(count.min(RING_ENTRIES)).unwrap_or(0);
        let mut entries = Vec::new();
        for sequence in last.saturating_sub(count) + 1..last + 1 {
            let words = self.words::<{ of_entry::END / 8 }>(entry_at(lane, sequence))?;
            let word = |offset: usize| words[offset / 8];
            if word(of_entry::SEQUENCE) == sequence {
                entries.push(FlightEntry {
                    sequence,
                    step: word(of_entry::STEP).cast_signed(),
                    op: FlightOp::of_word(word(of_entry::OP)),
                    entered_ns: word(of_entry::ENTERED),
                    met_ns: word(of_entry::MET),
                    left_ns: word(of_entry::LEFT),
                });
            }
        }
        Ok(entries)
    }

    fn words<const N: usize>(&self, offset: usize) -> io::Result<[u64; N]> {
        let mut bytes = vec![0; 8 * N];
        self.file.read_exact_at(&mut bytes, offset as u64)?;
        let mut words = [0; N];
        for (word, octets) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *word = u64::from_ne_bytes(*octets);
        }
        Ok(words)
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
