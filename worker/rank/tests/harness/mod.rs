//! An agent for tests: starts real `lockstep-rank train` processes over one memfd and one unix socket, hears
//! what they say, and answers. Everything has a deadline.

pub(crate) mod jobs;

use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use camino::{Utf8Path, Utf8PathBuf};
use lockstep_api::{
    AgentMessage, AttemptId, FailureReport, Generation, JobId, JobSpec, NamedValue, Rank,
    RankConfig, RankMessage, Step, StepReport,
};

/// Longest time a gang may take in a test.
const LIMIT: Duration = Duration::from_secs(60);
const KEY: &str = "attempt-key";

/// Folders and components of a job on this machine.
#[derive(Debug, Clone)]
pub(crate) struct Files {
    pub(crate) loader: Utf8PathBuf,
    pub(crate) loss: Utf8PathBuf,
    pub(crate) train_dir: Utf8PathBuf,
    pub(crate) eval_dir: Option<Utf8PathBuf>,
}

/// What a gang said until it was gone.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// By rank.
    pub(crate) messages: Vec<Vec<RankMessage>>,
    /// By rank.
    pub(crate) statuses: Vec<ExitStatus>,
    /// Holds checkpoints.
    _folder: tempfile::TempDir,
}

/// Ranks at work.
pub(crate) struct Gang {
    children: Vec<Child>,
    streams: Vec<UnixStream>,
    heard: Receiver<(usize, Option<RankMessage>)>,
    folder: tempfile::TempDir,
    messages: Vec<Vec<RankMessage>>,
}

impl Gang {
    /// Starts as many ranks as `spec.gang.ranks` allows.
    pub(crate) fn start(spec: &JobSpec, files: &Files, resume: Option<&Utf8Path>) -> Self {
        Self::start_as(spec, files, resume, |_| {})
    }

    /// The same, with other settings.
    pub(crate) fn start_as(
        spec: &JobSpec,
        files: &Files,
        resume: Option<&Utf8Path>,
        change: impl Fn(&mut RankConfig),
    ) -> Self {
        let world = spec.gang.ranks.max();
        let folder = tempfile::tempdir().unwrap();
        let dir = Utf8Path::from_path(folder.path()).unwrap();
        let listener = UnixListener::bind(dir.join("agent.sock")).unwrap();
        let group = lockstep_shm::create_group_memory().unwrap();
        let children = (0..world)
            .map(|rank| {
                let mut config = config(spec, files, resume, dir, rank, group.as_raw_fd());
                change(&mut config);
                start(&config)
            })
            .collect();
        let (say, heard) = mpsc::channel();
        let mut streams: Vec<Option<UnixStream>> = (0..world).map(|_| None).collect();
        for _ in 0..world {
            let stream = accept(&listener);
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let Some(RankMessage::Hello { rank: Rank(rank), attempt_key }) = next(&mut reader)
            else {
                panic!("a rank's first word is hello");
            };
            assert_eq!(attempt_key, KEY);
            let (rank, say) = (usize::try_from(rank).unwrap(), say.clone());
            thread::spawn(move || {
                loop {
                    let message = next(&mut reader);
                    let is_over = message.is_none();
                    // Nobody listens once the test is over.
                    if say.send((rank, message)).is_err() || is_over {
                        break;
                    }
                }
            });
            assert!(streams[rank].replace(stream).is_none(), "rank {rank} came twice");
        }
        let streams = streams.into_iter().map(Option::unwrap).collect();
        let messages = (0..world).map(|_| Vec::new()).collect();
        Self { children, streams, heard, folder, messages }
    }

    pub(crate) fn pid(&self, rank: usize) -> u32 {
        self.children[rank].id()
    }

    /// Where its flight record is, once it has begun one.
    pub(crate) fn record(&self, rank: usize) -> std::path::PathBuf {
        self.folder.path().join(format!("record-{rank}"))
    }

    pub(crate) fn kill(&mut self, rank: usize) {
        self.children[rank].kill().unwrap();
    }

    pub(crate) fn say(&mut self, rank: usize, message: &AgentMessage) {
        let mut line = serde_json::to_vec(message).unwrap();
        line.push(b'\n');
        // A rank may be gone already.
        drop(self.streams[rank].write_all(&line));
    }

    /// Listens until rank 0 has said what `is_it` wants.
    pub(crate) fn wait_for(&mut self, is_it: impl Fn(&RankMessage) -> bool) {
        let deadline = Instant::now() + LIMIT;
        while !self.messages[0].iter().any(&is_it) {
            let left = deadline.saturating_duration_since(Instant::now());
            let (rank, message) = self.heard.recv_timeout(left).expect("a word in time");
            let message = message.expect("ranks are still there");
            self.messages[rank].push(message);
        }
    }

    /// The first checkpoint that rank 0 has told of.
    pub(crate) fn first_checkpoint(&self) -> Utf8PathBuf {
        let told = self.messages[0].iter().find_map(|message| match message {
            RankMessage::Checkpoint { path, .. } => Some(path.into()),
            _ => None,
        });
        told.expect("rank 0 has told of one")
    }

    /// Closes every connection, as a dying agent does.
    pub(crate) fn hang_up(&mut self) {
        for stream in &self.streams {
            stream.shutdown(std::net::Shutdown::Both).unwrap();
        }
    }

    /// Answers `done` with `released` until every rank is gone.
    pub(crate) fn finish(mut self) -> Outcome {
        let deadline = Instant::now() + LIMIT;
        for rank in 0..self.messages.len() {
            // What was heard before this call.
            if self.messages[rank].contains(&RankMessage::Done) {
                self.say(rank, &AgentMessage::Released);
            }
            let is_waiting = |it: &RankMessage| matches!(it, RankMessage::Interrupted { .. });
            if self.messages[rank].iter().any(is_waiting) {
                self.say(rank, &AgentMessage::Stop);
            }
        }
        let mut open = self.children.len();
        while 0 < open {
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok((rank, message)) = self.heard.recv_timeout(left) else {
                let messages = std::mem::take(&mut self.messages);
                panic!("ranks still run after {LIMIT:?}; they said {messages:#?}");
            };
            match message {
                None => open -= 1,
                Some(message) => {
                    match &message {
                        RankMessage::Done => self.say(rank, &AgentMessage::Released),
                        // There is no next group here.
                        RankMessage::Interrupted { .. } => self.say(rank, &AgentMessage::Stop),
                        _ => {}
                    }
                    self.messages[rank].push(message);
                }
            }
        }
        let statuses = self.children.iter_mut().map(|child| child.wait().unwrap()).collect();
        let messages = std::mem::take(&mut self.messages);
        let folder = std::mem::replace(&mut self.folder, tempfile::tempdir().unwrap());
        Outcome { messages, statuses, _folder: folder }
    }
}

impl Drop for Gang {
    /// A failed test leaves no process behind.
    fn drop(&mut self) {
        for child in &mut self.children {
            drop(child.kill());
            drop(child.wait());
        }
    }
}

impl Outcome {
    /// Status 0 on every rank.
    pub(crate) fn assert_success(&self) -> &Self {
        for (rank, status) in self.statuses.iter().enumerate() {
            let messages = &self.messages[rank];
            assert_eq!(status.code(), Some(0), "rank {rank} said {:?}", messages.last());
        }
        self
    }

    pub(crate) fn steps(&self) -> Vec<&StepReport> {
        let said = self.messages[0].iter();
        said.filter_map(|message| match message {
            RankMessage::Step(report) => Some(report),
            _ => None,
        })
        .collect()
    }

    pub(crate) fn losses(&self) -> Vec<f64> {
        self.steps().into_iter().map(|step| step.loss.expect("a finite loss")).collect()
    }

    pub(crate) fn evaluations(&self) -> Vec<(Step, &[NamedValue])> {
        let said = self.messages[0].iter();
        said.filter_map(|message| match message {
            RankMessage::Evaluated { step, metrics } => Some((*step, metrics.as_slice())),
            _ => None,
        })
        .collect()
    }

    pub(crate) fn checkpoints(&self) -> Vec<(Step, Utf8PathBuf)> {
        let said = self.messages[0].iter();
        said.filter_map(|message| match message {
            RankMessage::Checkpoint { path, step, .. } => Some((*step, path.into())),
            _ => None,
        })
        .collect()
    }

    /// What `rank` said that broke.
    pub(crate) fn failure(&self, rank: usize) -> &FailureReport {
        let said = &self.messages[rank];
        let failed = said.iter().find_map(|message| match message {
            RankMessage::Failed(report) | RankMessage::Interrupted { report, .. } => Some(report),
            _ => None,
        });
        failed.unwrap_or_else(|| panic!("rank {rank} said {said:?}"))
    }
}

fn config(
    spec: &JobSpec,
    files: &Files,
    resume: Option<&Utf8Path>,
    dir: &Utf8Path,
    rank: u32,
    group_fd: i32,
) -> RankConfig {
    RankConfig {
        job_id: JobId::new(0, [1; 10]),
        attempt_id: AttemptId::new(0, [2; 10]),
        generation: Generation(1),
        rank: Rank(rank.cast_signed()),
        world_size: spec.gang.ranks.max(),
        local_rank: rank,
        spec: spec.clone(),
        socket_path: dir.join("agent.sock").into(),
        attempt_key: KEY.to_owned(),
        group_fd,
        listener_fd: None,
        network: None,
        heals: false,
        steps_reported: Step(0),
        faults_done: Vec::new(),
        flight_record_path: dir.join(format!("record-{rank}")).into(),
        loader_path: files.loader.to_string(),
        loss_path: files.loss.to_string(),
        train_dir: files.train_dir.to_string(),
        eval_dir: files.eval_dir.as_ref().map(ToString::to_string),
        cache_dir: cache_dir().into(),
        init_path: None,
        resume_path: resume.map(ToString::to_string),
        checkpoint_dir: dir.to_string(),
    }
}

/// Compiled once for all tests of a build.
pub(crate) fn cache_dir() -> Utf8PathBuf {
    let dir = Utf8PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("compiled");
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

fn start(config: &RankConfig) -> Child {
    let mut child = Command::new(env!("CARGO_BIN_EXE_lockstep-rank"))
        .arg("train")
        .env_clear()
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let text = serde_json::to_vec(config).unwrap();
    child.stdin.take().unwrap().write_all(&text).unwrap();
    child
}

fn accept(listener: &UnixListener) -> UnixStream {
    listener.set_nonblocking(true).unwrap();
    let deadline = Instant::now() + LIMIT;
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false).unwrap();
                return stream;
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                assert!(Instant::now() < deadline, "no rank connects");
                thread::park_timeout(Duration::from_millis(1));
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// The next message; `None` when the rank is gone.
fn next(reader: &mut impl BufRead) -> Option<RankMessage> {
    let mut line = String::new();
    match reader.read_line(&mut line) {
        Ok(0) | Err(_) => None,
        Ok(_) => Some(serde_json::from_str(&line).unwrap()),
    }
}
