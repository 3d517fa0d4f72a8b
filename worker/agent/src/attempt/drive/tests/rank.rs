//! The other side: a rank that is this test program again and does what the job's name says.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;

use lockstep_api::{
    AgentMessage, FailureCode, FailureReport, LedgerEntry, LogLevel, LogSource, Phase,
    RANK_ENVIRONMENT, Rank, RankConfig, RankMessage, Span, SpanKind, Step, StepReport, StepSpans,
};
use lockstep_shm::FlightRecord;

use super::meet_tests;
use crate::attempt::course::own_failure;

#[expect(clippy::exit, reason = "a rank says how it went by its exit status")]
pub(super) fn leave(status: i32) -> ! {
    std::process::exit(status)
}

pub(super) fn act(config: &RankConfig) -> i32 {
    let mut stream = UnixStream::connect(&config.socket_path).unwrap();
    let mut answers = BufReader::new(stream.try_clone().unwrap());
    let mut say = |message: &RankMessage| {
        writeln!(stream, "{}", serde_json::to_string(message).unwrap()).unwrap();
    };
    let mut hear = || {
        let mut line = String::new();
        answers.read_line(&mut line).unwrap();
        serde_json::from_str::<AgentMessage>(&line).ok()
    };
    if config.network.is_some() {
        meet_tests::look_at_what_was_inherited(config);
    }
    begin(config, &mut say);
    match config.spec.name.as_str() {
        "meet" | "parent" | "deserter" => {
            prepare_to_finish(config);
            finish(&mut say, &mut hear)
        }
        "eat" if config.rank == Rank(0) => {
            eat(256);
            finish(&mut say, &mut hear)
        }
        "finish" => {
            if config.rank == Rank(0) {
                (0..1200).for_each(|step| say(&RankMessage::Step(step_report(step))));
            }
            // Whatever it says of its number, it is the rank that said hello.
            let step = StepSpans { rank: Rank(99), ..step_spans() };
            say(&RankMessage::Timeline { steps: vec![step] });
            finish(&mut say, &mut hear)
        }
        "obey" => {
            assert_eq!(hear(), Some(AgentMessage::Stop));
            finish(&mut say, &mut hear)
        }
        "work" => {
            while hear().is_some() {}
            std::thread::park();
            3
        }
        // Its successors finish at once, and it does when it has what the next group needs.
        "regroup" if config.heals => {
            assert_eq!(config.steps_reported, Step(41));
            finish(&mut say, &mut hear)
        }
        "regroup" if config.rank == Rank(0) => {
            let reading = answers.into_inner();
            meet_next_group(config, reading, &mut say)
        }
        "panic" => {
            writeln!(std::io::stderr(), "something is off").unwrap();
            101
        }
        "fail" if config.rank == Rank(1) => {
            fail_with_much_to_say(&mut say);
            1
        }
        "complain" if config.rank == Rank(0) => {
            assert_eq!(hear(), Some(AgentMessage::Stop));
            complain(&mut say);
            1
        }
        _ => {
            while hear().is_some() {}
            3
        }
    }
}

/// What a rank does that is to be let go.
fn prepare_to_finish(config: &RankConfig) {
    match config.spec.name.as_str() {
        "meet" => meet_tests::compare_memories(config),
        "parent" => leave_a_child_behind(),
        _ => leave_a_deserter_behind(),
    }
}

fn complain(say: &mut impl FnMut(&RankMessage)) {
    let evidence = serde_json::json!({ "missing": [1] });
    let message = "rank 1 has not entered".to_owned();
    let report = own_failure(FailureCode::NotEntered, message);
    say(&RankMessage::Failed(FailureReport { evidence, ..report }));
}

/// Status 0 if it is let go.
fn finish(
    say: &mut impl FnMut(&RankMessage),
    hear: &mut impl FnMut() -> Option<AgentMessage>,
) -> i32 {
    say(&RankMessage::Done);
    i32::from(hear() != Some(AgentMessage::Released))
}

/// Of this rank's group, and deaf to its end.
#[expect(clippy::zombie_processes, reason = "nobody waits for it: that is the point")]
fn leave_a_child_behind() {
    let mut child = std::process::Command::new("sleep");
    let child = child.arg("1000").stderr(std::process::Stdio::null()).spawn().unwrap();
    writeln!(std::io::stderr(), "child {}", child.id()).unwrap();
}

/// Of another session, so of another process group, and no child of this rank any more.
fn leave_a_deserter_behind() {
    let mut shell = std::process::Command::new("setsid");
    let script = "sleep 1000 2>/dev/null & echo child $! >&2";
    assert!(shell.args(["sh", "-c", script]).status().unwrap().success());
}

/// Uses so much memory: every page of it.
fn eat(mib: usize) {
    let mut eaten = vec![0_u8; mib << 20];
    for page in eaten.chunks_mut(4096) {
        page[0] = 1;
    }
    std::hint::black_box(&eaten);
}

/// Much is still on its way when the rank is gone.
fn fail_with_much_to_say(say: &mut impl FnMut(&RankMessage)) {
    for _ in 0..3000 {
        let (source, level) = (LogSource::Guest, LogLevel::Info);
        say(&RankMessage::Log { source, level, text: "almost there".to_owned() });
    }
    let trap = own_failure(FailureCode::GuestTrap, "unreachable".to_owned());
    say(&RankMessage::Failed(trap));
}

/// A rank that goes on: it is told of the next group and handed its memory.
fn meet_next_group(
    config: &RankConfig,
    mut reading: UnixStream,
    say: &mut impl FnMut(&RankMessage),
) -> i32 {
    let (text, descriptors) = hear_with_descriptors(&mut reading);
    assert!(text.contains("\"interrupt\"") && text.contains("\"regroup\""), "{text}");
    let next = text.lines().last().unwrap();
    let AgentMessage::Regroup(next) = serde_json::from_str(next).unwrap() else { return 4 };
    assert_eq!((next.generation.0, next.steps_reported), (config.generation.0 + 1, Step(41)));
    assert_eq!((next.world_size, next.network), (3, None));
    assert_eq!(descriptors.len(), 1);
    let own = lockstep_shm::group_memory_bytes(&descriptors[0]).unwrap();
    assert!(0 < own);
    say(&RankMessage::Done);
    let mut last = String::new();
    BufReader::new(reading).read_line(&mut last).unwrap();
    i32::from(!last.contains("released"))
}

/// Everything that comes until descriptors have come.
fn hear_with_descriptors(stream: &mut UnixStream) -> (String, Vec<std::os::fd::OwnedFd>) {
    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
    let (mut text, mut come) = (String::new(), Vec::new());
    while come.is_empty() || !text.ends_with('\n') {
        let mut octets = [0; 4096];
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut into = [std::io::IoSliceMut::new(&mut octets)];
        let received =
            recvmsg(&*stream, &mut into, &mut ancillary, RecvFlags::CMSG_CLOEXEC).unwrap();
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                come.extend(descriptors);
            }
        }
        text.push_str(std::str::from_utf8(&octets[..received.bytes]).unwrap());
    }
    (text, come)
}

/// Looks at what the agent gave, writes a flight record, says hello.
fn begin(config: &RankConfig, say: &mut impl FnMut(&RankMessage)) {
    assert!(lockstep_shm::inherited_group_memory(config.group_fd).is_ok());
    // The shell in between sets some of its own; which ones depends on the shell.
    let of_the_shell = ["PWD", "OLDPWD", "SHLVL", "_"];
    for (name, value) in std::env::vars() {
        let is_ours = RANK_ENVIRONMENT.contains(&(&name, &value));
        let is_known = is_ours || of_the_shell.contains(&name.as_str());
        assert!(is_known, "{name} is in a rank's environment");
    }
    let path = camino::Utf8Path::new(&config.flight_record_path);
    let record = FlightRecord::create(path, config.rank.0.unsigned_abs()).unwrap();
    record.set_step(41);
    let backward = Phase::ALL.iter().position(|it| *it == Phase::Backward).unwrap();
    record.set_phase(u32::try_from(backward).unwrap());
    say(&RankMessage::Hello { rank: config.rank, attempt_key: config.attempt_key.clone() });
    // Rank 0 speaks of a group only once all have begun.
    let begun = |rank: i32| path.with_file_name(format!("begun-{rank}"));
    std::fs::write(begun(config.rank.0), "").unwrap();
    if config.rank == Rank(0) {
        while !(0..config.world_size.cast_signed()).all(|rank| begun(rank).exists()) {
            std::thread::yield_now();
        }
        say(&RankMessage::Formed { step: Step(0), samples_per_epoch: 1, steps_total: Step(1200) });
    }
}

fn step_spans() -> StepSpans {
    let span = Span { kind: SpanKind::Step, index: None, start_ns: 0, end_ns: 5 };
    StepSpans { rank: Rank(0), step: Step(7), began_ns: 1, spans: vec![span], dropped: 0 }
}

fn step_report(step: i64) -> StepReport {
    let ledger =
        LedgerEntry { step: Step(step), data_epoch: 0, first_position: step, sample_count: 1 };
    StepReport { ledger, loss: Some(0.5), metrics: Vec::new(), duration_us: 1 }
}
