//! Checkpoints are written off the step path: the state is copied, a thread writes it and tells the agent.

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use camino::Utf8PathBuf;
use lockstep_api::{FailureCode, Generation, Phase, Rank, RankMessage, Step};
use lockstep_checkpoint::{CheckpointError, FORMAT_VERSION, Meta, curve_settings};
use lockstep_ddp::hook::HookState;

use crate::failure::Failure;
use crate::link::AgentLink;
use crate::report::signed;
use crate::setup::Ready;
use crate::snapshot::{Snapshot, Source};
use crate::train::Trainer;

/// Longest wait for a checkpoint to be written and read back: a disk that takes longer has stopped.
const WRITE_LIMIT: Duration = Duration::from_secs(600);

/// Writes one checkpoint at a time.
#[derive(Debug)]
pub(crate) struct Checkpoints {
    dir: Utf8PathBuf,
    /// What this process began as: no two of an attempt share both, and those of one node write into one folder.
    began_as: (Generation, Rank),
    /// The step of the newest one that was begun here.
    begun: Option<Step>,
    link: AgentLink,
    writing: Option<Receiver<Written>>,
    /// The memory of the last snapshot, until the next one.
    spare: Option<Box<Snapshot>>,
    /// How long the newest checkpoint held the step path, until that is told.
    stall: Cell<Option<Duration>>,
}

/// A snapshot that is on disk, or why it is not.
#[derive(Debug)]
struct Written {
    snapshot: Box<Snapshot>,
    outcome: Result<(), CheckpointError>,
}

impl Checkpoints {
    /// Into `dir`, which exists.
    pub(crate) fn new(dir: Utf8PathBuf, began_as: (Generation, Rank), link: AgentLink) -> Self {
        let (begun, writing, spare, stall) = (None, None, None, Cell::new(None));
        Self { dir, began_as, begun, link, writing, spare, stall }
    }

    /// How long the step path was held by a checkpoint since this was asked last.
    pub(crate) fn take_stall(&self) -> Option<Duration> {
        self.stall.take()
    }

    /// Copies the state and starts writing, after the one before is done. One of a step is written once: when a group that
    /// formed again comes back to it, the agent may be sending the file that is there.
    ///
    /// # Errors
    /// That of the one before.
    fn begin(&mut self, source: Source<'_>) -> Result<(), Failure> {
        self.finish()?;
        let step = source.meta.step;
        if self.begun.replace(step) == Some(step) {
            return Ok(());
        }
        let spare = self.spare.take();
        let mut snapshot =
            spare.unwrap_or_else(|| Box::new(Snapshot::empty(source.model, source.meta.clone())));
        snapshot.take(source);
        let (generation, rank) = self.began_as;
        let name = format!("step-{:08}-generation-{generation}-rank-{rank}.safetensors", step.0);
        let path = self.dir.join(name);
        let link = self.link.clone();
        self.start(move || {
            let outcome = write(&path, &snapshot, &link);
            Written { snapshot, outcome }
        })
    }

    /// Makes the memory of the first snapshot, unless there is one: no step should wait for pages that are new.
    fn prepare(
        &mut self,
        roomy: impl FnOnce() -> Snapshot + Send + 'static,
    ) -> Result<(), Failure> {
        if self.writing.is_some() || self.spare.is_some() {
            return Ok(());
        }
        self.start(|| Written { snapshot: Box::new(roomy()), outcome: Ok(()) })
    }

    /// Begins work off the step path, of which there is one at a time.
    fn start(&mut self, work: impl FnOnce() -> Written + Send + 'static) -> Result<(), Failure> {
        let (done, writing) = channel();
        thread::Builder::new()
            .name("checkpoint".to_owned())
            // Nobody listens any more if the job has failed meanwhile.
            .spawn(move || drop(done.send(work())))
            .map_err(|error| Failure::new(FailureCode::CheckpointFailed, error.to_string()))?;
        self.writing = Some(writing);
        Ok(())
    }

    /// Waits for the one that is being written.
    ///
    /// # Errors
    /// Why it could not be.
    pub(crate) fn finish(&mut self) -> Result<(), Failure> {
        let Some(writing) = self.writing.take() else { return Ok(()) };
        let message = match writing.recv_timeout(WRITE_LIMIT) {
            Ok(Written { snapshot, outcome }) => {
                self.spare = Some(snapshot);
                return outcome.map_err(|error| Failure::of_checkpoint(&error));
            }
            Err(RecvTimeoutError::Timeout) => {
                format!("a checkpoint in {} was not written within {WRITE_LIMIT:?}", self.dir)
            }
            Err(RecvTimeoutError::Disconnected) => {
                "the thread that writes checkpoints panicked".to_owned()
            }
        };
        Err(Failure::new(FailureCode::CheckpointFailed, message))
    }
}

impl Trainer {
    pub(crate) fn is_checkpoint_due(&self) -> bool {
        let done = self.ready.next_step;
        let every = self.spec.checkpoint.every_steps;
        done == self.ready.schedule.steps_total()
            || every.is_some_and(|every| done.is_multiple_of(every))
    }

    /// Whoever is to write the checkpoints has memory for the first by then.
    pub(crate) fn prepare_checkpoints(&mut self) -> Result<(), Failure> {
        if !self.is_reporter() {
            return Ok(());
        }
        let roomy = Snapshot::roomy(&self.ready, self.checkpoint_meta());
        self.checkpoints.prepare(roomy)
    }

    /// Begins a checkpoint of the state between two steps.
    pub(crate) fn checkpoint(&mut self) -> Result<(), Failure> {
        let began = Instant::now();
        self.position.enter(Phase::Checkpoint);
        self.begin_checkpoint()?;
        if self.is_reporter() {
            self.checkpoints.stall.set(Some(began.elapsed()));
        }
        Ok(())
    }

    fn begin_checkpoint(&mut self) -> Result<(), Failure> {
        let hook = self.share_hook_state()?;
        let gathered = match &self.ready.shard {
            None => None,
            Some(shard) => {
                let len = self.ready.engine.weights.len();
                let (reducer, state) = (&mut self.ready.reducer, &self.ready.optimizer_state);
                let whole = shard.whole_state(reducer, state, len);
                Some(whole.map_err(|error| Failure::of_group(&error))?)
            }
        };
        if !self.is_reporter() {
            return Ok(());
        }
        let meta = self.checkpoint_meta();
        let Ready { engine, average, optimizer_state, .. } = &self.ready;
        self.checkpoints.begin(Source {
            model: &engine.model,
            weights: &engine.weights,
            buffers: &engine.buffers,
            average: average.as_ref().map(|(_, average)| average.as_slice()),
            hook,
            optimizer: gathered.map_or(Cow::Borrowed(optimizer_state), Cow::Owned),
            meta,
        })
    }

    fn checkpoint_meta(&self) -> Meta {
        let step = self.ready.next_step;
        let place = self.ready.schedule.place(step);
        Meta {
            version: FORMAT_VERSION,
            step: signed(step),
            data_epoch: place.data_epoch.cast_signed(),
            next_position: place.first_position.cast_signed(),
            samples_per_epoch: self.ready.schedule.samples().cast_signed(),
            optimizer_step: self.ready.optimizer_state.step,
            loss_scale: self.ready.loss_scale.as_ref().map(|scale| scale.state()),
            settings: curve_settings(&self.spec),
            digests: BTreeMap::new(),
        }
    }

    /// What the hook carries, if it does, becomes the same on every rank: a checkpoint has what all have left over
    /// together, and whoever goes on from it must do as this run does.
    fn share_hook_state(&mut self) -> Result<Option<HookState>, Failure> {
        if !self.spec.ddp.hook.has_state() {
            return Ok(None);
        }
        let shared = self.ready.reducer.share_hook_state();
        shared.map(Some).map_err(|error| Failure::of_restoring(&error))
    }
}

fn write(path: &Utf8PathBuf, snapshot: &Snapshot, link: &AgentLink) -> Result<(), CheckpointError> {
    let meta = &snapshot.meta;
    snapshot.save(path)?;
    link.send(RankMessage::Checkpoint {
        path: path.to_string(),
        step: meta.step,
        data_epoch: meta.data_epoch,
        next_position: meta.next_position,
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::BufReader;

    use lockstep_models::Model;
    use lockstep_tensor::OptimizerState;

    use super::*;
    use crate::link::tests::{connected, next};
    use crate::snapshot::tests::source;

    #[test]
    fn the_first_snapshot_is_taken_into_memory_that_was_made_before() {
        let spec = serde_json::from_str(r#"{"arch":"mlp","inputs":2,"classes":2}"#).unwrap();
        let model = Model::new(&spec).unwrap();
        let (_socket, link, _stream) = connected();
        let folder = tempfile::tempdir().unwrap();
        let dir: Utf8PathBuf = folder.path().to_path_buf().try_into().unwrap();
        let mut checkpoints = Checkpoints::new(dir, (Generation(1), Rank(0)), link);
        let state = OptimizerState { step: 0, moments: vec![] };
        let mut roomy = Snapshot::empty(&model, source(&model, &[], &state, 0).meta);
        roomy.weights = vec![1.0; 6];
        let made = roomy.weights.as_ptr();
        checkpoints.prepare(|| roomy).unwrap();
        checkpoints.finish().unwrap();
        checkpoints.prepare(|| panic!("there is some")).unwrap();
        checkpoints.begin(source(&model, &[3.0; 6], &state, 4)).unwrap();
        checkpoints.finish().unwrap();
        let spare = checkpoints.spare.unwrap();
        assert_eq!((spare.weights.as_ptr(), spare.weights.as_slice()), (made, &[3.0; 6][..]));
        assert_eq!(
            std::fs::read_dir(folder.path()).unwrap().count(),
            1,
            "nothing was written before"
        );
    }

    #[test]
    fn a_step_that_is_come_back_to_is_not_written_again() {
        let spec = serde_json::from_str(r#"{"arch":"mlp","inputs":2,"classes":2}"#).unwrap();
        let model = Model::new(&spec).unwrap();
        let (_socket, link, stream) = connected();
        let folder = tempfile::tempdir().unwrap();
        let dir: Utf8PathBuf = folder.path().to_path_buf().try_into().unwrap();
        let mut checkpoints = Checkpoints::new(dir, (Generation(3), Rank(1)), link.clone());
        let state = |step| OptimizerState { step, moments: vec![] };
        let paths = || -> Vec<_> {
            let files = std::fs::read_dir(folder.path()).unwrap();
            files.map(|it| it.unwrap().file_name().into_string().unwrap()).collect()
        };
        checkpoints.begin(source(&model, &[1.0; 6], &state(4), 4)).unwrap();
        checkpoints.finish().unwrap();
        assert_eq!(paths(), ["step-00000004-generation-3-rank-1.safetensors"]);
        std::fs::remove_file(folder.path().join(&paths()[0])).unwrap();
        checkpoints.begin(source(&model, &[1.0; 6], &state(4), 4)).unwrap();
        checkpoints.finish().unwrap();
        assert_eq!(paths(), [""; 0], "the agent has it already");
        checkpoints.begin(source(&model, &[1.0; 6], &state(5), 5)).unwrap();
        checkpoints.finish().unwrap();
        link.send(RankMessage::Done);
        let mut reader = BufReader::new(stream);
        let steps: Vec<Step> = std::iter::from_fn(|| match next(&mut reader) {
            RankMessage::Done => None,
            RankMessage::Checkpoint { step, .. } => Some(Some(step)),
            _ => Some(None),
        })
        .flatten()
        .collect();
        assert_eq!(steps, [Step(4), Step(5)]);
    }
}
