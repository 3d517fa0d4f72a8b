//! Jobs that are hit by drawn faults: each must be named rightly and end as its kind does, and leave no trace.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use lockstep_api::{
    AttemptOutcome, FailureCode, FaultKind, FaultSpec, FaultTarget, FaultView, JobState, JobView,
    Phase, Rank, Step,
};

use crate::{Service, is_running, wait_for};

const JOB: &str = "examples/digits/job.toml";
/// Short, with evaluations and checkpoints in it, and weights that are compared at every step.
const SETTINGS: [&str; 7] = [
    "train.epochs=6",
    "checkpoint.every_steps=12",
    "checkpoint.keep_last=3",
    "ddp.compare_every=1",
    "timeouts.collective=2s",
    "gang.ranks=3",
    "trace.first_steps=0",
];
/// Gradients in three buckets, of which the second group of the ranks has one. Such a job takes thrice as long.
const LANES: [&str; 3] = ["model.hidden=[512, 512]", "ddp.bucket_mib=1", "ddp.groups=2"];
/// One job of so many has them.
const LANES_OF: u64 = 6;
/// World size.
const RANKS: i32 = 3;
/// Steps of the job.
const STEPS: i64 = 6 * EPOCH;
/// Steps of a pass over the data.
const EPOCH: i64 = 12;
/// What is drawn from: what happens most often more than once.
const KINDS: [(FaultKind, FaultTarget); 11] = [
    (FaultKind::Kill, FaultTarget::Rank),
    (FaultKind::Kill, FaultTarget::Rank),
    (FaultKind::Kill, FaultTarget::Rank),
    (FaultKind::Freeze, FaultTarget::Rank),
    (FaultKind::Slow, FaultTarget::Rank),
    (FaultKind::Corrupt, FaultTarget::Rank),
    (FaultKind::Partition, FaultTarget::Link),
    (FaultKind::Slow, FaultTarget::Link),
    (FaultKind::Corrupt, FaultTarget::Link),
    (FaultKind::Kill, FaultTarget::Agent),
    (FaultKind::Partition, FaultTarget::Agent),
];
/// Longest time of one job.
const DEADLINE: Duration = Duration::from_secs(60);
/// How often it is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Longest time until what a job leaves is gone.
const CLEAN_UP: Duration = Duration::from_secs(20);

/// A drawn fault, and what it is to hit.
#[derive(Debug, Clone, Copy)]
pub struct Draw {
    /// The fault.
    pub fault: FaultSpec,
    /// Whether the buckets of its job go through two groups of its ranks in turn.
    pub has_lanes: bool,
}

/// Draws numbers, the same ones for the same seed (SplitMix64).
#[derive(Debug, Clone)]
pub struct Dice(u64);

impl Dice {
    /// From a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Below `sides`, which is above 0.
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut drawn = self.0;
        drawn = (drawn ^ drawn >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        drawn = (drawn ^ drawn >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (drawn ^ drawn >> 31) % sides
    }

    /// A fault of any kind, to any rank, its links or its node's agent, at any point of a job of either sort.
    pub fn draw(&mut self) -> Draw {
        Draw { fault: self.fault(), has_lanes: self.roll(LANES_OF) == 0 }
    }

    fn fault(&mut self) -> FaultSpec {
        const PHASES: [Phase; 5] =
            [Phase::Data, Phase::Forward, Phase::Backward, Phase::Reduce, Phase::Optimizer];
        let (kind, target) = KINDS[self.index(KINDS.len())];
        let mut phase = PHASES[self.index(PHASES.len())];
        let mut step = Step(self.roll(STEPS.cast_unsigned()).cast_signed());
        let mut rank = Rank(i32::try_from(self.roll(RANKS.cast_unsigned().into())).unwrap_or(0));
        if self.roll(5) == 0 {
            // After the last step of a pass.
            step = Step(step.0 / EPOCH * EPOCH + EPOCH - 1);
            phase = Phase::Evaluation;
        }
        match (kind, target) {
            (FaultKind::Corrupt, FaultTarget::Rank) => {
                // Of three ranks the one that differs is known; before the first step nothing is compared.
                step = Step(step.0.max(1));
                phase = Phase::Forward;
                rank = Rank(rank.0.max(1));
            }
            // Behind the last step too little travels for every link to have a part in it; and whoever has left hears of nothing.
            (_, FaultTarget::Link | FaultTarget::Agent) => {
                step = Step(step.0 % (STEPS - EPOCH));
            }
            (_, FaultTarget::Rank) => {}
        }
        let milliseconds = 50 + self.roll(300);
        FaultSpec { kind, target, rank, step, phase, milliseconds }
    }

    fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.roll(len as u64)).unwrap_or(0)
    }
}

/// What undisturbed runs of both sorts of job come to.
#[derive(Debug, Clone)]
pub struct References {
    plain: Reference,
    with_lanes: Reference,
}

/// What an undisturbed run of a job comes to.
#[derive(Debug, Clone, PartialEq)]
struct Reference {
    /// Digest of the file of the last checkpoint: weights, moments, position.
    checkpoint: String,
    /// The training curve, bit for bit.
    curve: Vec<(i64, u64)>,
}

/// What one disturbed run came to.
#[derive(Debug)]
pub struct Outcome {
    /// The fault and what the service says of it.
    pub fault: FaultView,
    /// What is wrong. Empty: nothing.
    pub wrong: Vec<String>,
}

impl Service {
    /// Trains jobs of both sorts undisturbed.
    ///
    /// # Errors
    /// When one does not succeed.
    pub async fn undisturbed(&self) -> anyhow::Result<References> {
        let train = async |settings: &[&str]| {
            let job = self.train(JOB, settings).await?;
            ensure!(job.failures.is_empty(), "{:#?}", job.failures);
            self.reference(&job).await
        };
        let (plain, with_lanes) =
            (train(&SETTINGS).await?, train(&[&SETTINGS[..], &LANES].concat()).await?);
        Ok(References { plain, with_lanes })
    }

    /// What faults are drawn for: two nodes, neither of which has room for a job alone.
    ///
    /// # Errors
    /// When anything does not come up.
    pub async fn start_for_faults() -> anyhow::Result<Self> {
        Self::start_two_nodes((2, 1)).await
    }

    /// Trains the job with a fault in it. An agent that is killed is started anew.
    ///
    /// # Errors
    /// When the service cannot be asked; a job that ends wrongly is an outcome.
    pub async fn disturbed(
        &mut self,
        Draw { fault, has_lanes }: Draw,
        references: &References,
    ) -> anyhow::Result<Outcome> {
        let (further, reference) = match has_lanes {
            true => (&LANES[..], &references.with_lanes),
            false => (&[][..], &references.plain),
        };
        let chaos = format!("chaos=[{}]", in_toml(fault));
        let settings = [&SETTINGS[..], further, &[&chaos]].concat();
        let id = self.submit(JOB, &settings)?.summary.id;
        let mut pids = BTreeSet::new();
        let deadline = Instant::now() + DEADLINE;
        let job = loop {
            self.revive_agents().await?;
            let job = self.client.job(id).await?;
            if job.summary.state.is_final() || deadline <= Instant::now() {
                break job;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        };
        pids.extend(job.attempts.iter().flat_map(|it| &it.ranks).filter_map(|rank| rank.pid));
        let view = job.faults.first().context("the job asked for a fault")?.clone();
        let mut wrong = Vec::new();
        judge(&job, &view, &mut wrong);
        if job.summary.state == JobState::Succeeded {
            if self.reference(&job).await? != *reference {
                wrong.push("weights or curve differ from the undisturbed run".to_owned());
            }
            let ledger = self.client.ledger(id).await?;
            let epochs: Vec<i64> = (0..STEPS / EPOCH).collect();
            if ledger.complete_epochs != epochs {
                wrong.push(format!("complete epochs are {:?}", ledger.complete_epochs));
            }
        }
        let gone = || async { pids.iter().all(|pid| !is_running(*pid)).then_some(()) };
        if wait_for("its processes are gone", CLEAN_UP, gone).await.is_err() {
            wrong.push("processes are left".to_owned());
        }
        if !wrong.is_empty() {
            // Whoever reads of it has only this.
            wrong.push(self.told_of(&job)?);
        }
        Ok(Outcome { fault: view, wrong })
    }

    /// What the service shows of a job, and its log.
    fn told_of(&self, job: &JobView) -> anyhow::Result<String> {
        let id = job.summary.id.to_string();
        let mut told = String::new();
        for verb in ["show", "logs"] {
            let output = self.lockstep().args([verb, &id]).output()?;
            told.push_str(&String::from_utf8_lossy(&output.stdout));
        }
        Ok(format!("\n{told}"))
    }

    async fn reference(&self, job: &JobView) -> anyhow::Result<Reference> {
        let last = job.checkpoints.first().context("a job leaves a checkpoint")?;
        ensure!(last.step == Step(STEPS), "the last checkpoint is of step {}", last.step);
        let curve = self.curve(job.summary.id).await?;
        Ok(Reference { checkpoint: last.file.to_string(), curve })
    }
}

/// What the end of the job should have been.
fn judge(job: &JobView, view: &FaultView, wrong: &mut Vec<String>) {
    let FaultSpec { kind, target, rank, .. } = view.fault;
    if job.summary.state != JobState::Succeeded {
        let said: Vec<&str> = job.failures.iter().map(|it| it.message.as_str()).collect();
        wrong.push(format!("the job is {}: {said:?}", job.summary.state));
    }
    if view.injected_at.is_none() {
        wrong.push("the fault has not happened".to_owned());
    }
    let (code, attempts) = match (kind, target) {
        (FaultKind::Kill, FaultTarget::Agent) => (Some(FailureCode::NodeLost), 1),
        (FaultKind::Kill, _) => (Some(FailureCode::PeerGone), 1),
        (FaultKind::Freeze, _) => (Some(FailureCode::NotEntered), 1),
        (FaultKind::Partition, FaultTarget::Link) => (Some(FailureCode::LinkOrDeviceStall), 1),
        // Shorter than a lease.
        (FaultKind::Slow | FaultKind::Partition, _) => (None, 1),
        (FaultKind::Corrupt, FaultTarget::Link) => (Some(FailureCode::CommError), 1),
        (FaultKind::Corrupt, _) => (Some(FailureCode::Diverged), 2),
    };
    let is_named = match (code, target) {
        // Of a changed message its sender is named, of a link both ends, in the sentence.
        (Some(FailureCode::CommError), _) => view.named_rank.is_some_and(|it| it != rank),
        (None, _) | (_, FaultTarget::Link | FaultTarget::Agent) => view.named_rank.is_none(),
        (_, FaultTarget::Rank) => view.named_rank == Some(rank),
    };
    if view.verdict != code || !is_named {
        let (code, rank) = (view.verdict, view.named_rank);
        wrong.push(format!("the verdict is {code:?} of {rank:?}"));
    }
    let verdicts = usize::from(code.is_some());
    if job.failures.len() != verdicts {
        let said: Vec<&str> = job.failures.iter().map(|it| it.message.as_str()).collect();
        wrong.push(format!("{} verdicts: {said:?}", said.len()));
    }
    if job.attempts.len() != attempts {
        wrong.push(format!("{} attempts", job.attempts.len()));
    }
    let is_success = |outcome| outcome == Some(AttemptOutcome::Succeeded);
    if !job.attempts.first().is_some_and(|it| is_success(it.outcome)) {
        wrong.push("the last attempt has not succeeded".to_owned());
    }
    if attempts == 1 && view.steps_lost.is_some_and(|lost| lost != 0) {
        wrong.push(format!("{:?} steps lost", view.steps_lost));
    }
}

fn in_toml(fault: FaultSpec) -> String {
    let FaultSpec { kind, target, rank, step, phase, milliseconds } = fault;
    format!(
        "{{kind=\"{kind}\",target=\"{target}\",rank={rank},step={step},phase=\"{phase}\",milliseconds={milliseconds}}}"
    )
}
