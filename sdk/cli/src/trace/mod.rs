//! A job's timeline as trace viewers show it: one process a rank, its threads, what was done on them and when.
//!
//! Each format is a file of this folder and writes the same [`Trace`].

mod chrome;
mod lanes;
mod perfetto;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};
use lockstep_api::{Rank, SpanKind, Step, StepTimeline};

pub(crate) use chrome::write as write_chrome;
pub(crate) use lanes::Edge;
pub(crate) use perfetto::encode as encode_perfetto;

/// Numbers of a process's threads lie below this one.
const THREADS_PER_PROCESS: i32 = 1000;

/// What one file shows.
#[derive(Debug)]
pub(crate) struct Trace {
    /// When the first span began, by its node's wall clock. Every other time is nanoseconds after it.
    pub(crate) began_at: DateTime<Utc>,
    /// One a rank, in order.
    pub(crate) processes: Vec<Process>,
    pub(crate) summary: Summary,
}

/// How much a trace holds.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Summary {
    pub(crate) ranks: usize,
    pub(crate) steps: usize,
    pub(crate) spans: usize,
    /// Spans that never reached the server.
    pub(crate) dropped: i64,
}

/// One rank.
#[derive(Debug)]
pub(crate) struct Process {
    /// Above 0: viewers take process 0 for the kernel's idle one.
    pub(crate) pid: i32,
    pub(crate) name: String,
    pub(crate) threads: Vec<Thread>,
}

/// Slices that lie side by side or within each other.
#[derive(Debug)]
pub(crate) struct Thread {
    /// Unlike that of any other thread of the trace.
    pub(crate) tid: i32,
    pub(crate) name: String,
    /// Ordered by their beginnings; what encloses another comes before it.
    pub(crate) slices: Vec<Slice>,
    /// Moments, in order.
    pub(crate) moments: Vec<Moment>,
}

/// One span.
#[derive(Debug, Clone)]
pub(crate) struct Slice {
    pub(crate) kind: SpanKind,
    pub(crate) step: Step,
    pub(crate) index: Option<i32>,
    pub(crate) attempt_number: i32,
    pub(crate) start_ns: u64,
    pub(crate) end_ns: u64,
}

/// Something without a length.
#[derive(Debug, Clone)]
pub(crate) struct Moment {
    pub(crate) name: String,
    pub(crate) step: Step,
    pub(crate) at_ns: u64,
}

impl Slice {
    /// What viewers write on it.
    pub(crate) fn name(&self) -> String {
        match (self.kind, self.index) {
            (SpanKind::Step, _) => format!("step {}", self.step),
            (SpanKind::BucketReduce | SpanKind::BucketQueue, Some(bucket)) => {
                format!("bucket {bucket}")
            }
            (kind, _) => kind.as_str().to_owned(),
        }
    }

    /// Its facts, by name.
    pub(crate) fn facts(&self) -> impl Iterator<Item = (&'static str, i64)> {
        let index_name = match self.kind {
            SpanKind::BucketQueue | SpanKind::BucketReduce => "bucket",
            SpanKind::Step
            | SpanKind::Data
            | SpanKind::Forward
            | SpanKind::Backward
            | SpanKind::Wait
            | SpanKind::Optimizer
            | SpanKind::Evaluation
            | SpanKind::Checkpoint => "grain",
        };
        let index = self.index.map(|index| (index_name, i64::from(index)));
        let attempt = ("attempt", i64::from(self.attempt_number));
        [Some(("step", self.step.0)), index, Some(attempt)].into_iter().flatten()
    }
}

impl Trace {
    /// Lays out what a job's ranks did. `None` when there is nothing.
    pub(crate) fn new(rows: &[StepTimeline]) -> Option<Self> {
        let began_ns = rows.iter().filter(|row| !row.spans.is_empty()).map(unix_ns).min()?;
        let mut of_rank: BTreeMap<Rank, Gathered> = BTreeMap::new();
        for row in rows {
            of_rank.entry(row.rank).or_default().take(row, began_ns);
        }
        let steps: BTreeSet<Step> = rows.iter().map(|row| row.step).collect();
        let summary = Summary {
            ranks: of_rank.len(),
            steps: steps.len(),
            spans: rows.iter().map(|row| row.spans.len()).sum(),
            dropped: rows.iter().map(|row| row.dropped).sum(),
        };
        let processes = of_rank.into_iter().map(|(rank, gathered)| gathered.process(rank));
        let began_at = DateTime::from_timestamp_nanos(began_ns);
        Some(Self { began_at, processes: processes.collect(), summary })
    }
}

/// When the row's first span began, nanoseconds since 1970 by its node's wall clock.
fn unix_ns(row: &StepTimeline) -> i64 {
    let clock = row.clock.at.timestamp_nanos_opt().unwrap_or(0);
    clock.saturating_add(row.began_ns.saturating_sub(row.clock.monotonic_ns))
}

/// One rank's spans, not yet dealt to threads.
#[derive(Debug, Default)]
struct Gathered {
    compute: Vec<Slice>,
    communication: Vec<Slice>,
    moments: Vec<Moment>,
}

impl Gathered {
    fn take(&mut self, row: &StepTimeline, began_ns: i64) {
        let row_ns = unix_ns(row);
        let time = |ns: i64| {
            let after = row_ns.saturating_add(ns).saturating_sub(began_ns);
            u64::try_from(after).unwrap_or(0)
        };
        if 0 < row.dropped {
            let name = format!("{} spans before this were left out", row.dropped);
            self.moments.push(Moment { name, step: row.step, at_ns: time(0) });
        }
        for span in &row.spans {
            let start_ns = time(span.start_ns);
            let slice = Slice {
                kind: span.kind,
                step: row.step,
                index: span.index,
                attempt_number: row.attempt_number,
                start_ns,
                end_ns: time(span.end_ns).max(start_ns),
            };
            match span.kind {
                SpanKind::BucketReduce => self.communication.push(slice),
                // Its end is the beginning of the reduction; it may lie across other buckets' and so is shown as a moment.
                SpanKind::BucketQueue => {
                    let name = format!("{} ready", slice.name());
                    self.moments.push(Moment { name, step: row.step, at_ns: start_ns });
                }
                SpanKind::Step
                | SpanKind::Data
                | SpanKind::Forward
                | SpanKind::Backward
                | SpanKind::Wait
                | SpanKind::Optimizer
                | SpanKind::Evaluation
                | SpanKind::Checkpoint => self.compute.push(slice),
            }
        }
    }

    fn process(mut self, rank: Rank) -> Process {
        let pid = rank.0.saturating_add(1);
        self.moments.sort_by_key(|moment| moment.at_ns);
        let kinds = [("compute", self.compute), ("communication", self.communication)];
        let named = kinds.into_iter().flat_map(|(name, slices)| {
            let lanes = lanes::lanes(slices).into_iter().enumerate();
            lanes.map(move |(lane, slices)| match lane {
                0 => (name.to_owned(), slices),
                lane => (format!("{name} {}", lane + 1), slices),
            })
        });
        let mut threads: Vec<Thread> = named
            .zip(1_i32..)
            .map(|((name, slices), number)| {
                let number = number.min(THREADS_PER_PROCESS - 1);
                let tid = pid.saturating_mul(THREADS_PER_PROCESS).saturating_add(number);
                Thread { tid, name, slices, moments: Vec::new() }
            })
            .collect();
        if let Some(first) = threads.first_mut() {
            first.moments = self.moments;
        }
        Process { pid, name: format!("rank {rank}"), threads }
    }
}
