//! The flight record: where a rank is, in a file that outlives it.
//!
//! The rank stores into mapped pages, which the kernel keeps whatever kills the process; the agent
//! reads the same pages through the file and never maps it, so no rank can make it fault.

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

use crate::{Mapping, PAGE_BYTES};

/// "LKSFLREC", so that no other file is taken for a record.
const MAGIC: u64 = u64::from_be_bytes(*b"LKSFLREC");
const VERSION: u32 = 1;

/// Byte offsets of the header's words.
mod at {
    pub(super) const MAGIC: usize = 0;
    pub(super) const VERSION: usize = 8;
    pub(super) const RANK: usize = 12;
    pub(super) const PID: usize = 16;
    pub(super) const PHASE: usize = 20;
    pub(super) const STEP: usize = 24;
    pub(super) const ISSUED: usize = 32;
    pub(super) const STARTED: usize = 40;
    pub(super) const DONE: usize = 48;
    pub(super) const UPDATED: usize = 56;
    pub(super) const PHASE_SINCE: usize = 64;
    pub(super) const END: usize = 72;
}

/// What a record says.
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
    /// Collectives handed to the communication thread.
    pub issued: u64,
    /// Collectives that every rank has entered.
    pub started: u64,
    /// Collectives that are over.
    pub done: u64,
    /// When anything of this last changed: the node's monotonic clock.
    pub updated_ns: u64,
    /// Since when it is in this phase: the node's monotonic clock.
    pub phase_since_ns: u64,
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
        file.write_all(&[0; PAGE_BYTES])?;
        let record = Self { map: Mapping::of_file(&file, PAGE_BYTES, PAGE_BYTES)? };
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

    /// Collective number `sequence` was handed to the communication thread.
    pub fn set_issued(&self, sequence: u64) {
        self.store(at::ISSUED, sequence);
    }

    /// Every rank has entered collective number `sequence`.
    pub fn set_started(&self, sequence: u64) {
        self.store(at::STARTED, sequence);
    }

    /// Collective number `sequence` is over.
    pub fn set_done(&self, sequence: u64) {
        self.store(at::DONE, sequence);
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
        let mut header = [0; at::END];
        self.file.read_exact_at(&mut header, 0)?;
        let small = |offset: usize| {
            let mut word = [0; 4];
            word.copy_from_slice(&header[offset..offset + 4]);
            u32::from_ne_bytes(word)
        };
        let large = |offset: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&header[offset..offset + 8]);
            u64::from_ne_bytes(word)
        };
        if large(at::MAGIC) != MAGIC || small(at::VERSION) != VERSION {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "not a flight record"));
        }
        Ok(FlightPosition {
            rank: small(at::RANK),
            pid: small(at::PID),
            phase: small(at::PHASE),
            step: large(at::STEP).cast_signed(),
            issued: large(at::ISSUED),
            started: large(at::STARTED),
            done: large(at::DONE),
            updated_ns: large(at::UPDATED),
            phase_since_ns: large(at::PHASE_SINCE),
        })
    }
}

/// Now, on the clock that [`FlightPosition`] uses; the same for every process of a node.
pub fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}
