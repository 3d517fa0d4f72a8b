//! Spans from phases; what is kept of which step; the bounds.

use std::io::{BufRead as _, BufReader};
use std::os::unix::net::UnixListener;

use super::*;

const LIMIT: Duration = Duration::from_secs(10);
const ALL_STEPS: TraceSpec = TraceSpec { first_steps: 0, every_steps: 1 };

/// A step whose phases begin 10 ns after each other: two grains, wait, optimizer.
fn one_step(recorder: &mut Recorder, spec: &TraceSpec, step: i64, began_ns: u64) {
    recorder.begin_step(Step(step), spec, began_ns);
    let phases = [
        Phase::Data,
        Phase::Forward,
        Phase::Backward,
        Phase::Data,
        Phase::Forward,
        Phase::Backward,
        Phase::Reduce,
        Phase::Optimizer,
    ];
    for (phase, tens) in phases.into_iter().zip(0..) {
        recorder.enter(phase, began_ns + 10 * tens);
    }
    recorder.end_step(began_ns + 80);
}

fn taken(recorder: &mut Recorder) -> Vec<StepSpans> {
    let mut records = Vec::new();
    let dropped = recorder.take(&mut records);
    by_step(&records, Rank(3), dropped)
}

fn words(spans: &[Span]) -> Vec<String> {
    let word = |span: &Span| {
        let index = span.index.map_or_else(String::new, |index| format!(" {index}"));
        format!("{}{index} {}..{}", span.kind.as_str(), span.start_ns, span.end_ns)
    };
    spans.iter().map(word).collect()
}

#[test]
fn a_phase_lasts_until_the_next_one_and_the_step_encloses_them() {
    let mut recorder = Recorder::new(MAX_SPANS);
    one_step(&mut recorder, &ALL_STEPS, 5, 1000);
    assert!(taken(&mut recorder).is_empty(), "what comes before the next step belongs to it");
    recorder.enter(Phase::Evaluation, 1090);
    recorder.add(SpanKind::Wait, None, 1094, 1097);
    recorder.enter(Phase::Checkpoint, 1100);
    recorder.begin_step(Step(6), &ALL_STEPS, 1120);
    let steps = taken(&mut recorder);
    assert_eq!(steps.len(), 1);
    assert_eq!((steps[0].rank, steps[0].step, steps[0].began_ns), (Rank(3), Step(5), 1000));
    let expected = [
        "step 0..80",
        "data 0 0..10",
        "forward 0 10..20",
        "backward 0 20..30",
        "data 1 30..40",
        "forward 1 40..50",
        "backward 1 50..60",
        "wait 60..70",
        "optimizer 70..80",
        "evaluation 90..100",
        "wait 94..97",
        "checkpoint 100..120",
    ];
    assert_eq!(words(&steps[0].spans), expected);
}

#[test]
fn of_a_step_that_is_not_timed_only_evaluation_and_checkpoint_are_kept() {
    let spec = TraceSpec { first_steps: 1, every_steps: 0 };
    let mut recorder = Recorder::new(MAX_SPANS);
    one_step(&mut recorder, &spec, 7, 0);
    one_step(&mut recorder, &spec, 8, 1000);
    recorder.enter(Phase::Evaluation, 1100);
    recorder.add(SpanKind::Wait, None, 1120, 1130);
    recorder.enter(Phase::Checkpoint, 1150);
    one_step(&mut recorder, &spec, 9, 2000);
    recorder.close(2100);
    let steps = taken(&mut recorder);
    let numbers: Vec<i64> = steps.iter().map(|step| step.step.0).collect();
    assert_eq!(numbers, [7, 8], "the first step of the attempt is timed, whatever its number");
    let expected = ["evaluation 0..50", "wait 20..30", "checkpoint 50..900"];
    assert_eq!(words(&steps[1].spans), expected);
}

#[test]
fn buckets_wait_for_their_turn_and_are_reduced() {
    let mut recorder = Recorder::new(MAX_SPANS);
    recorder.begin_step(Step(0), &ALL_STEPS, 0);
    recorder.enter(Phase::Data, 0);
    recorder.enter(Phase::Backward, 0);
    recorder.enter(Phase::Reduce, 100);
    let times = |bucket, ready_ns| BucketSpan {
        bucket,
        ready_ns,
        launched_ns: ready_ns + 5,
        done_ns: ready_ns + 30,
    };
    recorder.buckets(&[times(0, 40), times(1, 60)]);
    recorder.close(120);
    let expected = [
        "step 0..120",
        "backward 0 0..100",
        "data 0 0..0",
        "bucket_queue 0 40..45",
        "bucket_reduce 0 45..70",
        "bucket_queue 1 60..65",
        "bucket_reduce 1 65..90",
        "wait 100..120",
    ];
    assert_eq!(words(&taken(&mut recorder)[0].spans), expected);
}

#[test]
fn a_full_ring_drops_the_oldest_counts_them_and_never_grows() {
    let mut recorder = Recorder::new(12);
    let (place, capacity) = (recorder.ring.as_ptr(), recorder.ring.capacity());
    for step in 0..100 {
        one_step(&mut recorder, &ALL_STEPS, step, 1000 * step.unsigned_abs());
    }
    recorder.close(200_000);
    assert_eq!((recorder.ring.as_ptr(), recorder.ring.capacity()), (place, capacity));
    let steps = taken(&mut recorder);
    let kept: usize = steps.iter().map(|step| step.spans.len()).sum();
    assert_eq!((kept, steps[0].dropped), (12, 900 - 12));
    assert_eq!((steps[0].step, steps[1].step), (Step(98), Step(99)));
    assert_eq!(steps[1].spans.len(), 9);
    assert_eq!(steps[1].dropped, 0);
}

#[test]
fn an_attempt_s_steps_are_bounded() {
    let mut recorder = Recorder::new(MAX_SPANS);
    let mut steps = 0;
    for step in 0..MAX_STEPS.cast_signed() + 5 {
        one_step(&mut recorder, &ALL_STEPS, step, 1000 * step.unsigned_abs());
        steps += taken(&mut recorder).len();
    }
    recorder.close(u64::MAX / 2);
    steps += taken(&mut recorder).len();
    assert_eq!(steps as u64, MAX_STEPS);
}

#[test]
fn the_agent_hears_every_step_and_nothing_when_nothing_is_timed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("agent");
    let listener = UnixListener::bind(&path).unwrap();
    let link = AgentLink::connect(path.to_str().unwrap(), Rank(1), "key", LIMIT).unwrap();
    // Never closed: that would end the process.
    let stream = Box::leak(Box::new(listener.accept().unwrap().0));
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let mut lines = BufReader::new(&*stream);
    let mut hear = || {
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        serde_json::from_str::<RankMessage>(&line).unwrap()
    };
    assert!(matches!(hear(), RankMessage::Hello { .. }));

    let off = TraceSpec { first_steps: 0, every_steps: 0 };
    for spec in [off, ALL_STEPS] {
        let timeline = Timeline::start(&spec, Rank(1), &link).unwrap();
        for step in 0..3 {
            timeline.begin_step(Step(step));
            timeline.enter(Phase::Data);
            assert_eq!(timeline.wait(|| 5), 5);
            timeline.end_step();
        }
        timeline.finish(LIMIT);
        timeline.finish(LIMIT);
    }
    link.send(RankMessage::Done);
    let mut heard = Vec::new();
    loop {
        match hear() {
            RankMessage::Timeline { steps } => heard.extend(steps),
            RankMessage::Done => break,
            other => panic!("{other:?}"),
        }
    }
    let numbers: Vec<i64> = heard.iter().map(|step| step.step.0).collect();
    assert_eq!(numbers, [0, 1, 2]);
    for step in &heard {
        let kinds: Vec<SpanKind> = step.spans.iter().map(|span| span.kind).collect();
        assert_eq!(kinds.len(), 3, "{step:?}");
        assert!(step.spans.iter().all(|span| span.start_ns <= span.end_ns), "{step:?}");
    }
}
