//! What an attempt reports: batched, in order, into the spool.

use std::sync::Arc;
use std::time::Duration;

use lockstep_api::{
    ClockAnchor, Fence, LogLevel, LogSource, Rank, RankMessage, Report, ReportedLine, StepReport,
    StepSpans,
};
use tokio::time::Instant;

use super::output::{MAX_LINE_BYTES, cut};
use crate::node::Node;
use crate::spool::Kept;

/// Longest time that a step or line waits for others.
const BATCH_TIME: Duration = Duration::from_millis(50);
/// Most steps or lines of one report.
const BATCH_COUNT: usize = 500;
/// Most metrics of one report of steps, so that it stays far below what the server takes.
const BATCH_METRICS: usize = 10_000;
/// Most bytes of text of one report of lines.
const BATCH_TEXT_BYTES: usize = 1 << 20;
/// Most spans of one report of timelines: some 70 bytes each.
const BATCH_SPANS: usize = 10_000;
/// Longest evidence of a failure, as the server takes it.
const MAX_EVIDENCE_BYTES: usize = 16 * 1024;
/// Longest sentence of a failure.
const MAX_MESSAGE_BYTES: usize = 4 * 1024;

/// The reports of one attempt.
#[derive(Debug)]
pub(crate) struct Reporter {
    node: Arc<Node>,
    fence: Fence,
    steps: Vec<StepReport>,
    metric_count: usize,
    lines: Vec<ReportedLine>,
    text_bytes: usize,
    dropped_lines: u64,
    /// Read once, so that all ranks of the attempt on this node are laid on one wall clock alike.
    clock: ClockAnchor,
    timelines: Vec<StepSpans>,
    span_count: usize,
    dropped_spans: i64,
    first_step_sent: bool,
    flush_at: Option<Instant>,
    newest_seq: i64,
}

impl Reporter {
    pub(crate) fn new(node: Arc<Node>, fence: Fence) -> Self {
        let monotonic_ns = lockstep_shm::monotonic_ns().cast_signed();
        let clock = ClockAnchor { at: node.clock.now(), monotonic_ns };
        Self {
            clock,
            timelines: Vec::new(),
            span_count: 0,
            dropped_spans: 0,
            node,
            fence,
            steps: Vec::new(),
            metric_count: 0,
            lines: Vec::new(),
            text_bytes: 0,
            dropped_lines: 0,
            first_step_sent: false,
            flush_at: None,
            newest_seq: 0,
        }
    }

    /// What comes from now on is of this generation.
    pub(crate) fn set_fence(&mut self, fence: Fence) {
        self.flush();
        self.fence = fence;
        // People wait for the first step after a repair as well.
        self.first_step_sent = false;
    }

    /// When to call [`Self::flush`].
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.flush_at
    }

    /// Number of the newest report in the spool.
    pub(crate) fn newest_seq(&self) -> i64 {
        self.newest_seq
    }

    /// A step was done. The first is reported at once: people wait for it.
    pub(crate) fn step(&mut self, step: StepReport) {
        self.metric_count += step.metrics.len();
        self.steps.push(step);
        let is_full = BATCH_COUNT <= self.steps.len() || BATCH_METRICS <= self.metric_count;
        if !std::mem::replace(&mut self.first_step_sent, true) || is_full {
            self.flush();
        } else {
            self.flush_soon();
        }
    }

    /// A line of log.
    pub(crate) fn line(&mut self, line: ReportedLine) {
        self.text_bytes += line.text.len();
        self.lines.push(line);
        if BATCH_COUNT <= self.lines.len() || BATCH_TEXT_BYTES <= self.text_bytes {
            self.flush();
        } else {
            self.flush_soon();
        }
    }

    /// What a rank did in some steps.
    fn timeline(&mut self, rank: Rank, steps: Vec<StepSpans>) {
        for step in steps {
            // A rank speaks for itself alone.
            let mut step = StepSpans { rank, ..step };
            step.dropped = step.dropped.saturating_add(std::mem::take(&mut self.dropped_spans));
            self.span_count += step.spans.len();
            self.timelines.push(step);
        }
        if BATCH_COUNT <= self.timelines.len() || BATCH_SPANS <= self.span_count {
            self.flush();
        } else {
            self.flush_soon();
        }
    }

    /// The agent's own words about the attempt.
    pub(crate) fn say(&mut self, level: LogLevel, text: &str) {
        let (at, text) = (self.node.clock.now(), cut(text, MAX_LINE_BYTES).to_owned());
        self.line(ReportedLine { rank: None, source: LogSource::Agent, level, at, text });
    }

    /// What a rank said about its training, if that is to be reported.
    pub(crate) fn message(&mut self, rank: Rank, message: RankMessage) {
        match message {
            RankMessage::Step(step) => self.step(step),
            RankMessage::Formed { step, samples_per_epoch, steps_total } => {
                self.report(Report::GroupFormed { step, samples_per_epoch, steps_total });
            }
            RankMessage::Evaluated { step, metrics } => {
                self.report(Report::Evaluated { step, metrics });
            }
            RankMessage::Log { source, level, text } => {
                let at = self.node.clock.now();
                let text = cut(&text, MAX_LINE_BYTES).replace('\0', "\u{fffd}");
                self.line(ReportedLine { rank: Some(rank), source, level, at, text });
            }
            RankMessage::Timeline { steps } => self.timeline(rank, steps),
            RankMessage::Hello { .. }
            | RankMessage::Checkpoint { .. }
            | RankMessage::Fault { .. }
            | RankMessage::Failed(_)
            | RankMessage::Interrupted { .. }
            | RankMessage::Done => {}
        }
    }

    /// Anything else, after what waits.
    pub(crate) fn report(&mut self, report: Report) {
        self.flush();
        self.append(bounded(report));
    }

    /// Hands what waits to the spool.
    pub(crate) fn flush(&mut self) {
        self.flush_at = None;
        if !self.steps.is_empty() {
            self.metric_count = 0;
            let steps = std::mem::take(&mut self.steps);
            self.append(Report::Steps { steps });
        }
        if !self.lines.is_empty() {
            self.text_bytes = 0;
            let mut lines = std::mem::take(&mut self.lines);
            let count = lines.len() as u64;
            if 0 < self.dropped_lines {
                let text =
                    format!("{} lines were dropped while the server was away", self.dropped_lines);
                let (at, source, level) = (self.node.clock.now(), LogSource::Agent, LogLevel::Warn);
                lines.insert(0, ReportedLine { rank: None, source, level, at, text });
            }
            match self.try_append(Report::Log { lines }) {
                Kept::Yes(_) => self.dropped_lines = 0,
                Kept::TooMuch => self.dropped_lines += count,
            }
        }
        if !self.timelines.is_empty() {
            let count = std::mem::take(&mut self.span_count);
            let steps = std::mem::take(&mut self.timelines);
            match self.try_append(Report::Timeline { clock: self.clock, steps }) {
                Kept::Yes(_) => {}
                Kept::TooMuch => {
                    let count = i64::try_from(count).unwrap_or(i64::MAX);
                    self.dropped_spans = self.dropped_spans.saturating_add(count);
                }
            }
        }
    }

    fn flush_soon(&mut self) {
        self.flush_at.get_or_insert_with(|| Instant::now() + BATCH_TIME);
    }

    /// Only lines of log and timelines are ever turned away.
    fn append(&mut self, report: Report) {
        if self.try_append(report) == Kept::TooMuch {
            tracing::error!("the spool turned away a report that is neither log nor timeline");
        }
    }

    fn try_append(&mut self, report: Report) -> Kept {
        let kept = self.node.spool.append(self.fence, report);
        if let Kept::Yes(seq) = kept {
            self.newest_seq = seq;
        }
        kept
    }
}

/// A failure's texts within what the server takes.
fn bounded(report: Report) -> Report {
    let Report::Failed(mut failure) = report else { return report };
    failure.message = cut(&failure.message, MAX_MESSAGE_BYTES).replace('\0', "\u{fffd}");
    if MAX_EVIDENCE_BYTES < failure.evidence.to_string().len() {
        failure.evidence = serde_json::json!({ "left_out": "the evidence was longer than 16 KiB" });
    }
    Report::Failed(failure)
}
