//! What a flight record says, read through its file.

use std::{fs::File, io, os::unix::fs::FileExt};

use super::{LANES, MAGIC, RING_ENTRIES, VERSION, at, entry_at, lane_at, of_entry, of_lane};
use crate::entry::FlightOp;

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

/// The reading end, held by the agent.
#[derive(Debug)]
pub struct FlightReader {
    file: File,
}

impl FlightReader {
    pub(super) fn new(file: File) -> Self {
        Self { file }
    }

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
