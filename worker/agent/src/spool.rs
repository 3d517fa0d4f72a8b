//! Reports on their way to the server: numbered, on disk, forgotten once the server has acted on them.
//!
//! One append-only file of JSON lines: a header `{"first_seq":n}`, then one [`NumberedReport`] a line. A crash
//! can cut the last line; on opening, the file is read up to the first line that is not whole and cut there. The
//! file is rewritten under a temporary name when most of it has been acknowledged. Numbers never repeat: after a
//! restart the server says what it has seen ([`Spool::adopt`]) before anything new is numbered.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::sync::{Mutex, MutexGuard, PoisonError};

use camino::{Utf8Path, Utf8PathBuf};
use lockstep_api::{Fence, NumberedReport, Report};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::files::replace_file;

/// Bytes of reports that may wait. About a million steps.
pub(crate) const SPOOL_CAP_BYTES: u64 = 256 << 20;
/// Logs are dropped once this part of the cap waits, so that steps still fit.
const LOG_SHARE_DIVISOR: u64 = 2;
/// Timelines are dropped before logs are: they explain less.
const TIMELINE_SHARE_DIVISOR: u64 = 4;
/// Acknowledged bytes are given back to the disk from this size of the file on.
const COMPACT_BYTES: u64 = 4 << 20;

#[derive(Debug, Serialize, Deserialize)]
struct Header {
    first_seq: i64,
}

/// Whether a report was taken.
#[must_use]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kept {
    /// Under this number.
    Yes(i64),
    /// Too much waits already; only lines of log and timelines are turned away.
    TooMuch,
}

#[derive(Debug)]
struct Entry {
    seq: i64,
    len: u64,
    place: Place,
}

/// Where an entry's line is. In memory only while the disk refuses it.
#[derive(Debug)]
enum Place {
    Disk { offset: u64 },
    Memory(Vec<u8>),
}

#[derive(Debug)]
struct Inner {
    file: File,
    /// Length of the whole lines in the file.
    end: u64,
    entries: VecDeque<Entry>,
    waiting_bytes: u64,
    next_seq: i64,
}

/// The spool of one node.
#[derive(Debug)]
pub(crate) struct Spool {
    path: Utf8PathBuf,
    cap_bytes: u64,
    inner: Mutex<Inner>,
    newest: watch::Sender<i64>,
    acked: watch::Sender<i64>,
}

impl Spool {
    /// Opens the spool at `path`, or makes it.
    pub(crate) fn open(path: &Utf8Path, cap_bytes: u64) -> io::Result<Self> {
        if !path.exists() {
            replace_file(path, &header_line(1))?;
        }
        let file = OpenOptions::new().read(true).append(true).mode(0o600).open(path)?;
        let found = recover(&file)?;
        let Found { header, entries, end, is_cut } = found;
        if is_cut {
            tracing::warn!(%path, end, "the spool ended in the middle of a report: cut there");
        }
        let next_seq = entries.back().map_or(header, |last| last.seq + 1);
        let acked = entries.front().map_or(next_seq, |first| first.seq) - 1;
        let waiting_bytes = entries.iter().map(|it| it.len).sum();
        let inner = Inner { file, end, entries, waiting_bytes, next_seq };
        let spool = Self {
            path: path.to_owned(),
            cap_bytes,
            newest: watch::Sender::new(next_seq - 1),
            acked: watch::Sender::new(acked),
            inner: Mutex::new(inner),
        };
        if end == 0 {
            spool.rewrite(&mut spool.lock())?;
        } else if is_cut {
            spool.lock().file.set_len(end)?;
        }
        Ok(spool)
    }

    /// Takes what the server says it has seen, before anything new is numbered.
    ///
    /// What it has seen is forgotten; and numbers go on above it, even if the disk lost some that were used.
    pub(crate) fn adopt(&self, acked: i64) {
        {
            let mut inner = self.lock();
            inner.next_seq = inner.next_seq.max(acked.saturating_add(1));
        }
        self.ack(acked);
    }

    /// Numbers a report and writes it down.
    pub(crate) fn append(&self, fence: Fence, report: Report) -> Kept {
        let mut inner = self.lock();
        let cap = match report {
            Report::Log { .. } => self.cap_bytes / LOG_SHARE_DIVISOR,
            Report::Timeline { .. } => self.cap_bytes / TIMELINE_SHARE_DIVISOR,
            Report::RankListens { .. }
            | Report::Prepared
            | Report::RankStarted { .. }
            | Report::FaultInjected { .. }
            | Report::GroupFormed { .. }
            | Report::Steps { .. }
            | Report::Evaluated { .. }
            | Report::RankExited { .. }
            | Report::Failed(_)
            | Report::Finished
            | Report::Stopped => u64::MAX,
        };
        if cap < inner.waiting_bytes {
            return Kept::TooMuch;
        }
        let seq = inner.next_seq;
        inner.next_seq += 1;
        let mut line = serde_json::to_vec(&NumberedReport { seq, fence, report })
            .expect("reports have string keys only");
        line.push(b'\n');
        let len = line.len() as u64;
        let place = match inner.write(&line) {
            Ok(offset) => Place::Disk { offset },
            Err(error) => {
                tracing::error!(path = %self.path, seq, %error, "the spool cannot be written: kept in memory");
                Place::Memory(line)
            }
        };
        inner.waiting_bytes += len;
        inner.entries.push_back(Entry { seq, len, place });
        self.newest.send_replace(seq);
        Kept::Yes(seq)
    }

    /// The oldest reports, up to both limits but at least one if any waits.
    pub(crate) fn next_batch(
        &self,
        max_count: usize,
        max_bytes: u64,
    ) -> io::Result<Vec<NumberedReport>> {
        let inner = self.lock();
        let mut bytes = 0;
        let mut reports = Vec::new();
        for Entry { seq, len, place } in inner.entries.iter().take(max_count) {
            bytes += len;
            if !reports.is_empty() && max_bytes < bytes {
                break;
            }
            let from_disk;
            let line = match place {
                Place::Memory(line) => line,
                Place::Disk { offset } => {
                    let mut line = vec![0; usize::try_from(*len).unwrap_or(usize::MAX)];
                    inner.file.read_exact_at(&mut line, *offset)?;
                    from_disk = line;
                    &from_disk
                }
            };
            match serde_json::from_slice(line) {
                Ok(report) => reports.push(report),
                Err(error) => {
                    tracing::error!(seq, %error, "a report in the spool was damaged and is left out");
                }
            }
        }
        Ok(reports)
    }

    /// Forgets everything up to `acked`.
    pub(crate) fn ack(&self, acked: i64) {
        let mut inner = self.lock();
        while inner.entries.front().is_some_and(|first| first.seq <= acked) {
            let gone = inner.entries.pop_front().map_or(0, |it| it.len);
            inner.waiting_bytes -= gone;
        }
        if COMPACT_BYTES < inner.end
            && inner.waiting_bytes < inner.end / 2
            && let Err(error) = self.rewrite(&mut inner)
        {
            tracing::warn!(path = %self.path, %error, "the spool cannot be made shorter");
        }
        drop(inner);
        self.acked.send_if_modified(|old| {
            let is_newer = *old < acked;
            *old = acked.max(*old);
            is_newer
        });
    }

    /// Whether so much waits that ranks should hold back.
    pub(crate) fn is_full(&self) -> bool {
        self.cap_bytes < self.lock().waiting_bytes
    }

    /// Makes everything appended so far survive a power cut. Blocks.
    ///
    /// # Errors
    /// Also when something is in memory only.
    pub(crate) fn sync(&self) -> io::Result<()> {
        let file = {
            let inner = self.lock();
            if inner.entries.iter().any(|it| matches!(it.place, Place::Memory(_))) {
                return Err(io::Error::other("some reports could not be written"));
            }
            inner.file.try_clone()?
        };
        file.sync_data()
    }

    /// The newest number given out, as it changes.
    pub(crate) fn newest(&self) -> watch::Receiver<i64> {
        self.newest.subscribe()
    }

    /// The highest number that the server has acted on, as it changes.
    pub(crate) fn acked(&self) -> watch::Receiver<i64> {
        self.acked.subscribe()
    }

    /// Writes a file that holds only what waits, and takes its place.
    fn rewrite(&self, inner: &mut Inner) -> io::Result<()> {
        let first_seq = inner.entries.front().map_or(inner.next_seq, |first| first.seq);
        let mut text = header_line(first_seq);
        let mut offsets = Vec::with_capacity(inner.entries.len());
        for Entry { seq: _, len, place } in &inner.entries {
            offsets.push(text.len() as u64);
            match place {
                Place::Memory(line) => text.extend_from_slice(line),
                Place::Disk { offset } => {
                    let from = text.len();
                    text.resize(from + usize::try_from(*len).unwrap_or(usize::MAX), 0);
                    inner.file.read_exact_at(&mut text[from..], *offset)?;
                }
            }
        }
        replace_file(&self.path, &text)?;
        inner.file = OpenOptions::new().read(true).append(true).open(&self.path)?;
        inner.end = text.len() as u64;
        for (entry, offset) in inner.entries.iter_mut().zip(offsets) {
            entry.place = Place::Disk { offset };
        }
        Ok(())
    }

    /// A panic while the lock was held would have ended the agent's task, not left half a change: every change
    /// is made whole before the next call.
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Appends a whole line, or leaves the file as it was.
    fn write(&mut self, line: &[u8]) -> io::Result<u64> {
        let offset = self.end;
        if let Err(error) = self.file.write_all(line) {
            self.file.set_len(offset)?;
            return Err(error);
        }
        self.end += line.len() as u64;
        Ok(offset)
    }
}

fn header_line(first_seq: i64) -> Vec<u8> {
    let mut line = serde_json::to_vec(&Header { first_seq }).expect("a header is one number");
    line.push(b'\n');
    line
}

struct Found {
    header: i64,
    entries: VecDeque<Entry>,
    /// Length of what is whole.
    end: u64,
    is_cut: bool,
}

/// Reads whole lines with rising numbers, up to the first thing that is not one.
fn recover(file: &File) -> io::Result<Found> {
    let length = file.metadata()?.len();
    let mut reader = BufReader::new(file);
    let mut line = Vec::new();
    let mut found = Found { header: 1, entries: VecDeque::new(), end: 0, is_cut: false };
    let mut least = None;
    loop {
        line.clear();
        let read = reader.read_until(b'\n', &mut line)? as u64;
        if line.last() != Some(&b'\n') {
            break;
        }
        match least {
            None => match serde_json::from_slice::<Header>(&line) {
                Ok(Header { first_seq }) => {
                    found.header = first_seq;
                    least = Some(first_seq);
                }
                Err(_) => break,
            },
            Some(lowest) => match serde_json::from_slice::<NumberedReport>(&line) {
                Ok(NumberedReport { seq, .. }) if lowest <= seq => {
                    let place = Place::Disk { offset: found.end };
                    found.entries.push_back(Entry { seq, len: read, place });
                    least = Some(seq + 1);
                }
                _ => break,
            },
        }
        found.end += read;
    }
    found.is_cut = found.end < length;
    Ok(found)
}

#[cfg(test)]
#[path = "spool_tests.rs"]
mod tests;
