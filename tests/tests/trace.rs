//! `lockstep trace`: the timeline of a real job in both formats, the second read with Perfetto's published schema.

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Command, Output};
use std::time::Duration;

use anyhow::Context as _;
use camino::{Utf8Path, Utf8PathBuf};
use lockstep_api::JobState;
use lockstep_e2e::{Service, python, wait_for_job};
use serde::Deserialize;
use serde_json::Value;

const JOB: &str = "examples/digits/job.toml";
/// 12 steps are a pass over the data: there is an evaluation after step 11, and two checkpoints.
const SETTINGS: [&str; 5] = [
    "gang.ranks=2",
    "train.max_steps=15",
    "train.micro_batch=32",
    "trace.first_steps=13",
    "checkpoint.every_steps=10",
];
/// Of each rank in each step: 128 samples over two ranks.
const GRAINS: usize = 2;
const DEADLINE: Duration = Duration::from_secs(60);

/// One slice, whatever the format; times in nanoseconds.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
struct Slice {
    process: String,
    thread: String,
    start_ns: u64,
    end_ns: u64,
    category: String,
    name: String,
    step: i64,
}

/// Reads Perfetto's file with the published schema, which the package `perfetto` brings along, and prints its slices.
/// What is not in that schema would be an unknown field, and is an error.
const READ_PERFETTO: &str = r#"
import json, sys
from google.protobuf.unknown_fields import UnknownFieldSet
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent

def known(message):
    assert len(UnknownFieldSet(message)) == 0, message
    for field, value in message.ListFields():
        if field.message_type is not None:
            for part in (value if hasattr(value, "__len__") else [value]):
                known(part)

trace = Trace()
trace.ParseFromString(open(sys.argv[1], "rb").read())
known(trace)
assert trace.IsInitialized()
assert trace.packet[0].sequence_flags == 1
tracks, open_, last, slices = {}, {}, {}, []
for packet in trace.packet:
    assert packet.trusted_packet_sequence_id == 1
    if packet.HasField("track_descriptor"):
        track = packet.track_descriptor
        assert track.uuid not in tracks and track.uuid != 0
        assert track.HasField("process") or track.parent_uuid in tracks
        tracks[track.uuid] = track
        continue
    event, at = packet.track_event, packet.timestamp
    track = tracks[event.track_uuid]
    if event.type == TrackEvent.TYPE_INSTANT:
        continue
    assert last.get(track.uuid, 0) <= at
    last[track.uuid] = at
    stack = open_.setdefault(track.uuid, [])
    if event.type == TrackEvent.TYPE_SLICE_BEGIN:
        stack.append((event, at))
        continue
    assert event.type == TrackEvent.TYPE_SLICE_END
    begun, start = stack.pop()
    facts = {fact.name: fact.int_value for fact in begun.debug_annotations}
    slices.append({
        "process": tracks[track.parent_uuid].process.process_name, "thread": track.thread.thread_name,
        "start_ns": start, "end_ns": at, "category": begun.categories[0], "name": begun.name, "step": facts["step"],
    })
assert not any(open_.values())
print(json.dumps(slices))
"#;

#[tokio::test]
async fn a_job_s_timeline_opens_in_both_formats_with_every_kind_of_span_of_every_rank()
-> anyhow::Result<()> {
    let service = Service::start(2).await?;
    let id = service.submit(JOB, &SETTINGS)?.summary.id;
    let over = |job: &lockstep_api::JobView| job.summary.state == JobState::Succeeded;
    wait_for_job(&service.client, id, "the job is over", DEADLINE, over).await?;

    let (json, perfetto) = (service.folder().join("t.json"), service.folder().join("t.pftrace"));
    for file in [&json, &perfetto] {
        let output = trace(&service, &id.to_string(), file, &[])?;
        anyhow::ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let mut slices = read_chrome(&json)?;
    let mut of_perfetto = read_perfetto(&perfetto)?;
    slices.sort();
    of_perfetto.sort();
    assert!(slices == of_perfetto, "both formats hold the same: {slices:#?} {of_perfetto:#?}");

    for rank in ["rank 0", "rank 1"] {
        let own: Vec<&Slice> = slices.iter().filter(|slice| slice.process == rank).collect();
        let kinds: BTreeSet<&str> = own.iter().map(|slice| slice.category.as_str()).collect();
        let expected =
            "backward bucket_reduce checkpoint data evaluation forward optimizer step wait";
        assert_eq!(kinds, expected.split(' ').collect(), "{rank}");
        for step in 0..13 {
            // The last batch of the pass has 29 samples: one grain, which is rank 0's.
            let grains = match (step, rank) {
                (11, "rank 0") => 1,
                (11, _) => 0,
                _ => GRAINS,
            };
            let slices: Vec<_> = own.iter().copied().filter(|it| it.step == step).collect();
            check_step(&slices, grains).with_context(|| format!("step {step} of {rank}"))?;
        }
    }
    let untimed = slices.iter().filter(|slice| slice.step == 13).count();
    assert_eq!(untimed, 0, "only the first 13 steps are timed");
    let whole = |slice: &&Slice| slice.category == "step" && slice.step == 3;
    let steps: Vec<&Slice> = slices.iter().filter(whole).collect();
    assert!(
        steps[0].start_ns < steps[1].end_ns && steps[1].start_ns < steps[0].end_ns,
        "both ranks do a step at the same time: {steps:?}"
    );
    Ok(())
}

/// One timed step of one rank: in order, within its step, and reduced after it was full.
fn check_step(slices: &[&Slice], grains: usize) -> anyhow::Result<()> {
    let of = |kind: &str| -> Vec<&Slice> {
        slices.iter().copied().filter(|slice| slice.category == kind).collect()
    };
    let one = |kind: &str| -> anyhow::Result<&Slice> {
        let of_kind = of(kind);
        anyhow::ensure!(of_kind.len() == 1, "one {kind}, not {of_kind:?}");
        Ok(of_kind[0])
    };
    let (step, optimizer) = (one("step")?, one("optimizer")?);
    let waits = of("wait");
    let wait = waits.iter().find(|wait| wait.end_ns <= optimizer.start_ns);
    let wait = wait.context("it waits before the optimizer")?;
    let (data, forward, backward) = (of("data"), of("forward"), of("backward"));
    anyhow::ensure!((data.len(), forward.len(), backward.len()) == (grains, grains, grains));
    let mut before = step.start_ns;
    for ((data, forward), backward) in data.into_iter().zip(forward).zip(backward) {
        for span in [data, forward, backward] {
            anyhow::ensure!(before <= span.start_ns && span.start_ns <= span.end_ns, "{span:?}");
            before = span.end_ns;
        }
    }
    anyhow::ensure!(before <= wait.start_ns && optimizer.end_ns <= step.end_ns, "{step:?}");
    let buckets = of("bucket_reduce");
    anyhow::ensure!(!buckets.is_empty(), "there is a bucket");
    for bucket in buckets {
        anyhow::ensure!(bucket.start_ns < bucket.end_ns, "{bucket:?}");
        anyhow::ensure!(bucket.end_ns <= wait.end_ns, "{bucket:?} is waited for in {wait:?}");
        anyhow::ensure!(bucket.thread == "communication", "{bucket:?}");
    }
    Ok(())
}

#[tokio::test]
async fn a_trace_that_cannot_be_written_says_why() -> anyhow::Result<()> {
    let service = Service::start(2).await?;
    let settings = ["train.max_steps=2", "trace.first_steps=0", "trace.every_steps=0"];
    let id = service.submit(JOB, &settings)?.summary.id;
    let over = |job: &lockstep_api::JobView| job.summary.state == JobState::Succeeded;
    wait_for_job(&service.client, id, "the job is over", DEADLINE, over).await?;
    let id = id.to_string();

    let file = service.folder().join("t.json");
    let words = refusal(&service, &id, &file, &[], 3)?;
    assert!(words.contains("has no spans") && words.contains("trace.first_steps"), "{words}");
    let words = refusal(&service, &id, &file, &["--from-step", "5", "--to-step", "9"], 3)?;
    assert!(words.contains("from step 5 to 9"), "{words}");
    let words = refusal(&service, &id, &service.folder().join("t.txt"), &[], 2)?;
    assert!(words.contains(".perfetto-trace"), "{words}");
    assert!(!file.exists());

    let timed = service.submit(JOB, &["train.max_steps=2"])?.summary.id;
    wait_for_job(&service.client, timed, "the job is over", DEADLINE, over).await?;
    let timed = timed.to_string();
    std::fs::write(&file, "precious")?;
    let words = refusal(&service, &timed, &file, &[], 2)?;
    assert!(words.contains("--force"), "{words}");
    assert_eq!(std::fs::read_to_string(&file)?, "precious");
    let output = trace(&service, &timed, &file, &["--force", "--from-step", "1"])?;
    anyhow::ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let steps: BTreeSet<i64> = read_chrome(&file)?.into_iter().map(|slice| slice.step).collect();
    assert_eq!(steps, BTreeSet::from([1]));
    Ok(())
}

fn trace(service: &Service, job: &str, to: &Utf8Path, more: &[&str]) -> anyhow::Result<Output> {
    let mut command = service.lockstep();
    Ok(command.args(["trace", job, "-o", to.as_str()]).args(more).output()?)
}

fn refusal(
    service: &Service,
    job: &str,
    to: &Utf8Path,
    more: &[&str],
    code: i32,
) -> anyhow::Result<String> {
    let output = trace(service, job, to, more)?;
    let words = String::from_utf8(output.stderr)?;
    anyhow::ensure!(output.status.code() == Some(code), "{:?}: {words}", output.status);
    Ok(words)
}

fn read_perfetto(file: &Utf8PathBuf) -> anyhow::Result<Vec<Slice>> {
    let read = Command::new(python()?).args(["-c", READ_PERFETTO, file.as_str()]).output()?;
    anyhow::ensure!(read.status.success(), "{}", String::from_utf8_lossy(&read.stderr));
    Ok(serde_json::from_slice(&read.stdout)?)
}

/// The other format is read strictly where it is written; here for its slices alone.
fn read_chrome(file: &Utf8PathBuf) -> anyhow::Result<Vec<Slice>> {
    let document: Value = serde_json::from_slice(&std::fs::read(file)?)?;
    let mut names: BTreeMap<(i64, Option<i64>), String> = BTreeMap::new();
    let mut open: BTreeMap<i64, Vec<u64>> = BTreeMap::new();
    let mut slices = Vec::new();
    for event in document["traceEvents"].as_array().context("a list of events")? {
        let text = |field: &str| event[field].as_str().map(ToOwned::to_owned).context("a text");
        let (pid, tid) = (event["pid"].as_i64().context("a process")?, event["tid"].as_i64());
        if let (Some("M"), Some(name)) = (event["ph"].as_str(), event["args"]["name"].as_str()) {
            names.insert((pid, tid), name.to_owned());
        }
        let stack = open.entry(tid.unwrap_or(0)).or_default();
        let at_ns = (event["ts"].as_f64().unwrap_or(0.0) * 1000.0).round() as u64;
        match event["ph"].as_str() {
            Some("B") => stack.push(at_ns),
            Some("E") => slices.push(Slice {
                process: names[&(pid, None)].clone(),
                thread: names[&(pid, tid)].clone(),
                start_ns: stack.pop().context("nothing has begun")?,
                end_ns: at_ns,
                category: text("cat")?,
                name: text("name")?,
                step: event["args"]["step"].as_i64().context("a step")?,
            }),
            _ => {}
        }
    }
    Ok(slices)
}
