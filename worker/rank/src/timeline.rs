//! What this rank does in its steps, and for how long.
//!
//! Spans are written into a ring that is made at the start: recording allocates nothing, waits for nobody and costs
//! one look at the clock a span. A thread of its own takes what whole steps have left there and sends it to the agent;
//! when it cannot keep up, the oldest spans make room for new ones and are counted.
//!
//! Which spans there are follows from [`Phase`]s: entering a phase ends the span before and begins one, so that a wait
//! begins when the rank is ready to wait, and a rank that waits long is not the slow one.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use lockstep_api::{
    MAX_SPANS, Phase, Rank, RankMessage, Span, SpanKind, Step, StepSpans, TraceSpec,
};
use lockstep_ddp::BucketSpan;
use lockstep_shm::monotonic_ns;

use crate::link::AgentLink;

/// Steps are sent together that end within this time.
const SEND_EVERY: Duration = Duration::from_millis(50);
/// Most steps of one attempt that a rank sends: what the server has to keep of a job is bounded.
const MAX_STEPS: u64 = 10_000;

/// Records spans. Clones write to the same ring.
#[derive(Debug, Clone)]
pub(crate) struct Timeline {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    spec: TraceSpec,
    recorder: Mutex<Recorder>,
    changed: Condvar,
}

impl Timeline {
    /// Begins to send to `link`, if anything is timed.
    ///
    /// # Errors
    /// When no thread can be started.
    pub(crate) fn start(spec: &TraceSpec, rank: Rank, link: &AgentLink) -> io::Result<Self> {
        let timeline = Self::new(spec);
        if spec.is_on() {
            let (sender, link) = (timeline.clone(), link.clone());
            thread::Builder::new()
                .name("timeline".to_owned())
                .spawn(move || sender.send_until_closed(rank, &link))?;
        } else {
            timeline.lock().is_sent = true;
        }
        Ok(timeline)
    }

    fn new(spec: &TraceSpec) -> Self {
        let recorder = Mutex::new(Recorder::new(if spec.is_on() { MAX_SPANS } else { 0 }));
        let shared = Shared { spec: spec.clone(), recorder, changed: Condvar::new() };
        Self { shared: Arc::new(shared) }
    }

    /// A new step begins; the one before is over.
    pub(crate) fn begin_step(&self, step: Step) {
        if self.shared.spec.is_on() {
            let mut recorder = self.lock();
            recorder.begin_step(step, &self.shared.spec, monotonic_ns());
            if recorder.has_whole_steps() {
                self.shared.changed.notify_all();
            }
        }
    }

    /// Another phase begins.
    pub(crate) fn enter(&self, phase: Phase) {
        if self.shared.spec.is_on() {
            self.lock().enter(phase, monotonic_ns());
        }
    }

    /// The step's weights are new. What comes before the next step still belongs to it.
    pub(crate) fn end_step(&self) {
        if self.shared.spec.is_on() {
            self.lock().end_step(monotonic_ns());
        }
    }

    /// The buckets of the step that has just been reduced.
    pub(crate) fn buckets(&self, buckets: &[BucketSpan]) {
        if self.shared.spec.is_on() {
            self.lock().buckets(buckets);
        }
    }

    /// Runs `work`, which waits for other ranks within the present phase.
    pub(crate) fn wait<T>(&self, work: impl FnOnce() -> T) -> T {
        if !self.shared.spec.is_on() {
            return work();
        }
        let start_ns = monotonic_ns();
        let done = work();
        self.lock().add(SpanKind::Wait, None, start_ns, monotonic_ns());
        done
    }

    /// Nothing more happens: sends what is left, for at most `limit`. Safe to repeat.
    pub(crate) fn finish(&self, limit: Duration) {
        let deadline = Instant::now() + limit;
        let mut recorder = self.lock();
        if !recorder.is_closed {
            recorder.close(monotonic_ns());
            self.shared.changed.notify_all();
        }
        while !recorder.is_sent {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            recorder = self.wait_for_change(recorder, left);
        }
    }

    fn send_until_closed(&self, rank: Rank, link: &AgentLink) {
        let mut taken = Vec::with_capacity(MAX_SPANS);
        loop {
            let mut recorder = self.lock();
            while !recorder.is_closed && !recorder.has_whole_steps() {
                let waited = self.shared.changed.wait(recorder);
                recorder = waited.unwrap_or_else(PoisonError::into_inner);
            }
            // Other steps may end soon and go along.
            let deadline = Instant::now() + SEND_EVERY;
            while !recorder.is_closed && Instant::now() < deadline {
                let left = deadline.saturating_duration_since(Instant::now());
                recorder = self.wait_for_change(recorder, left);
            }
            let dropped = recorder.take(&mut taken);
            let is_closed = recorder.is_closed;
            drop(recorder);
            let count = taken.len() as u64;
            let steps = by_step(&taken, rank, dropped);
            // What was lost is told with the next steps.
            let is_silent = steps.is_empty();
            let is_taken = is_silent || link.offer(RankMessage::Timeline { steps });
            let mut recorder = self.lock();
            if !is_taken {
                recorder.dropped += dropped + count;
            } else if is_silent {
                recorder.dropped += dropped;
            }
            if is_closed {
                recorder.is_sent = true;
                self.shared.changed.notify_all();
                return;
            }
        }
    }

    /// A panic while the lock was held leaves the ring whole enough: a span may be missing.
    fn lock(&self) -> MutexGuard<'_, Recorder> {
        self.shared.recorder.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_for_change<'a>(
        &self,
        recorder: MutexGuard<'a, Recorder>,
        limit: Duration,
    ) -> MutexGuard<'a, Recorder> {
        let waited = self.shared.changed.wait_timeout(recorder, limit);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// A span in the ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Record {
    step: Step,
    kind: SpanKind,
    index: Option<i32>,
    start_ns: u64,
    end_ns: u64,
}

/// The ring and what is open. Times are handed in.
#[derive(Debug)]
struct Recorder {
    /// Filled up to its capacity, which never changes; then written around.
    ring: Vec<Record>,
    cap: usize,
    /// Numbers of records: the oldest that is kept, the first that is not yet of a whole step, the next to be written.
    oldest: u64,
    whole: u64,
    next: u64,
    dropped: u64,
    step: Option<Stepping>,
    first_step: Option<u64>,
    steps_kept: u64,
    is_closed: bool,
    is_sent: bool,
}

/// The step that is under way.
#[derive(Debug, Clone, Copy)]
struct Stepping {
    step: Step,
    since_ns: u64,
    /// Whether more than evaluations and checkpoints is recorded of it.
    is_timed: bool,
    is_over: bool,
    open: Option<(SpanKind, Option<i32>, u64)>,
    /// Grains begun.
    grains: i32,
}

impl Recorder {
    fn new(cap: usize) -> Self {
        Self {
            ring: Vec::with_capacity(cap),
            cap,
            oldest: 0,
            whole: 0,
            next: 0,
            dropped: 0,
            step: None,
            first_step: None,
            steps_kept: 0,
            is_closed: false,
            is_sent: false,
        }
    }

    fn begin_step(&mut self, step: Step, spec: &TraceSpec, now_ns: u64) {
        self.leave_step(now_ns);
        let number = step.0.unsigned_abs();
        let first = *self.first_step.get_or_insert(number);
        let is_timed = spec.wants(number, first);
        let since_ns = now_ns;
        self.step =
            Some(Stepping { step, since_ns, is_timed, is_over: false, open: None, grains: 0 });
    }

    fn enter(&mut self, phase: Phase, now_ns: u64) {
        self.close_open(now_ns);
        let Some(stepping) = &mut self.step else { return };
        if phase == Phase::Data {
            stepping.grains += 1;
        }
        let grain = Some(stepping.grains - 1);
        let kind = match phase {
            Phase::Data => Some((SpanKind::Data, grain)),
            Phase::Forward => Some((SpanKind::Forward, grain)),
            Phase::Backward => Some((SpanKind::Backward, grain)),
            Phase::Reduce => Some((SpanKind::Wait, None)),
            Phase::Optimizer => Some((SpanKind::Optimizer, None)),
            Phase::Checkpoint => Some((SpanKind::Checkpoint, None)),
            Phase::Evaluation => Some((SpanKind::Evaluation, None)),
            Phase::Starting | Phase::Forming | Phase::Recovering | Phase::Done => None,
        };
        stepping.open = kind.map(|(kind, index)| (kind, index, now_ns));
    }

    fn end_step(&mut self, now_ns: u64) {
        self.close_open(now_ns);
        let Some(stepping) = &mut self.step else { return };
        stepping.is_over = true;
        let since_ns = stepping.since_ns;
        self.add(SpanKind::Step, None, since_ns, now_ns);
    }

    fn buckets(&mut self, buckets: &[BucketSpan]) {
        for &BucketSpan { bucket, ready_ns, launched_ns, done_ns } in buckets {
            let index = i32::try_from(bucket).ok();
            self.add(SpanKind::BucketQueue, index, ready_ns, launched_ns);
            self.add(SpanKind::BucketReduce, index, launched_ns, done_ns);
        }
    }

    /// The span that is open, if any, ends.
    fn close_open(&mut self, now_ns: u64) {
        let open = self.step.as_mut().and_then(|stepping| stepping.open.take());
        if let Some((kind, index, since_ns)) = open {
            self.add(kind, index, since_ns, now_ns);
        }
    }

    /// Everything of the step that is under way is there.
    fn leave_step(&mut self, now_ns: u64) {
        self.close_open(now_ns);
        if let Some(stepping) = self.step
            && !stepping.is_over
        {
            self.end_step(now_ns);
        }
        self.step = None;
        if self.whole < self.next {
            self.whole = self.next;
            self.steps_kept += 1;
        }
    }

    fn close(&mut self, now_ns: u64) {
        self.leave_step(now_ns);
        self.is_closed = true;
    }

    fn add(&mut self, kind: SpanKind, index: Option<i32>, start_ns: u64, end_ns: u64) {
        let Some(stepping) = self.step else { return };
        let is_always_kept = match kind {
            SpanKind::Evaluation | SpanKind::Checkpoint => true,
            SpanKind::Wait => matches!(stepping.open, Some((SpanKind::Evaluation, ..))),
            SpanKind::Step
            | SpanKind::Data
            | SpanKind::Forward
            | SpanKind::Backward
            | SpanKind::Optimizer
            | SpanKind::BucketQueue
            | SpanKind::BucketReduce => false,
        };
        if !(stepping.is_timed || is_always_kept) || MAX_STEPS <= self.steps_kept {
            return;
        }
        let record = Record { step: stepping.step, kind, index, start_ns, end_ns };
        if self.ring.len() < self.cap {
            self.ring.push(record);
        } else {
            let place = self.place(self.next);
            self.ring[place] = record;
        }
        self.next += 1;
        if (self.cap as u64) < self.next - self.oldest {
            self.oldest += 1;
            self.whole = self.whole.max(self.oldest);
            self.dropped += 1;
        }
    }

    fn place(&self, number: u64) -> usize {
        usize::try_from(number % self.cap as u64).expect("less than a length")
    }

    fn has_whole_steps(&self) -> bool {
        self.oldest < self.whole
    }

    /// Moves the records of whole steps to `into`; answers how many were lost before them.
    fn take(&mut self, into: &mut Vec<Record>) -> u64 {
        into.clear();
        for number in self.oldest..self.whole {
            into.push(self.ring[self.place(number)]);
        }
        self.oldest = self.whole;
        std::mem::take(&mut self.dropped)
    }
}

/// Records of whole steps as the agent is told them.
fn by_step(records: &[Record], rank: Rank, dropped: u64) -> Vec<StepSpans> {
    let steps = records.chunk_by(|one, next| one.step == next.step);
    let mut dropped = dropped.cast_signed();
    steps.map(|records| step_spans(records, rank, std::mem::take(&mut dropped))).collect()
}

fn step_spans(records: &[Record], rank: Rank, dropped: i64) -> StepSpans {
    let began_ns = records.iter().map(|record| record.start_ns).min().unwrap_or(0);
    let after = |ns: u64| ns.saturating_sub(began_ns).cast_signed();
    let span = |record: &Record| Span {
        kind: record.kind,
        index: record.index,
        start_ns: after(record.start_ns),
        end_ns: after(record.end_ns.max(record.start_ns)),
    };
    let mut spans: Vec<Span> = records.iter().map(span).collect();
    spans.sort_by_key(|span| (span.start_ns, std::cmp::Reverse(span.end_ns)));
    let step = records.first().map(|record| record.step).unwrap_or_default();
    StepSpans { rank, step, began_ns: began_ns.cast_signed(), spans, dropped }
}

#[cfg(test)]
#[path = "timeline_tests.rs"]
mod tests;
