//! Everything before the first step: guests, weights, and what rests on the group. The group forms while the guests load.

use std::sync::Arc;

use camino::Utf8Path;
use lockstep_api::{FailureCode, GuestSpec, LogLevel, LogSource, RankConfig, Shard};
use lockstep_ddp::hook::HookState;
use lockstep_ddp::{Reducer, of_floats};
use lockstep_models::Model;
use lockstep_sandbox::{Loader, LogSink};
use lockstep_tensor::{Ema, LossScale, LrSchedule, OptimizerState, Peers, Threads, UpdatePlan};

use crate::agreement;
use crate::failure::{Failure, GuestCall};
use crate::grain::Engine;
use crate::guest::{Guests, Split};
use crate::joint::TimedPeers;
use crate::link::AgentLink;
use crate::loss::Loss;
use crate::schedule::Schedule;
use crate::shard::OwnShard;
use crate::start::{Start, refused};
use crate::timeline::Timeline;
use crate::update;
use lockstep_service::chain;

/// All that a rank trains with. `G`: its process group, or nothing between two of them.
#[derive(Debug)]
pub(crate) struct Ready<G = Reducer> {
    /// Model, loss, weights.
    pub(crate) engine: Engine,
    /// Reader of the training split.
    pub(crate) train: Loader,
    /// Reader of the evaluation split, and its samples.
    pub(crate) eval: Option<(Loader, u64)>,
    /// The course of the job.
    pub(crate) schedule: Schedule,
    /// How a gradient becomes a step.
    pub(crate) update: UpdatePlan,
    /// The course of the learning rate.
    pub(crate) learning_rate: LrSchedule,
    /// The running mean of the weights, if one is kept.
    pub(crate) average: Option<(Ema, Vec<f32>)>,
    /// With f16.
    pub(crate) loss_scale: Option<LossScale>,
    /// What the optimizer remembers.
    pub(crate) optimizer_state: OptimizerState,
    /// What the hook begins with.
    pub(crate) hook: Option<HookState>,
    /// The process group.
    pub(crate) reducer: G,
    /// This rank's part of the optimizer's work, if it is shared.
    pub(crate) shard: Option<OwnShard>,
    /// The step to do next.
    pub(crate) next_step: u64,
}

impl<G> Ready<G> {
    /// The same with another group.
    pub(crate) fn with_group<H>(self, reducer: H) -> (Ready<H>, G) {
        let ready = Ready {
            engine: self.engine,
            train: self.train,
            eval: self.eval,
            schedule: self.schedule,
            update: self.update,
            learning_rate: self.learning_rate,
            average: self.average,
            loss_scale: self.loss_scale,
            optimizer_state: self.optimizer_state,
            hook: self.hook,
            reducer,
            shard: self.shard,
            next_step: self.next_step,
        };
        (ready, self.reducer)
    }
}

impl Ready {
    /// Before the first step of a group that goes on from nothing but a checkpoint or the beginning: what every rank must see
    /// alike is compared.
    pub(crate) fn agree(&mut self) -> Result<(), Failure> {
        let facts = [
            ("samples of the training split", self.schedule.samples()),
            ("samples of the evaluation split", self.eval.as_ref().map_or(0, |(_, count)| *count)),
            ("steps of the job", self.schedule.steps_total()),
            ("step to do next", self.next_step),
            ("digest of the weights", of_floats(&self.engine.weights)),
            ("digest of the running statistics", of_floats(&self.engine.buffers)),
        ];
        agreement::agree(&mut self.reducer, &facts)
    }

    /// What rests on the group besides the reducer itself.
    pub(crate) fn settle(&mut self, timeline: &Timeline, shard: Shard) -> Result<(), Failure> {
        if let Some(hook) = self.hook.take() {
            let restored = self.reducer.restore_hook(hook);
            restored.map_err(|error| Failure::of_restoring(&error))?;
        }
        if shard == Shard::Zero1 {
            let own = OwnShard::new(&self.reducer, &self.update)?;
            own.keep_own(&mut self.optimizer_state);
            self.shard = Some(own);
        }
        let peers = self.reducer.batch_peers().map(|peers| {
            let (peers, timeline) = (Arc::clone(peers), timeline.clone());
            Arc::new(TimedPeers { peers, timeline }) as Arc<dyn Peers>
        });
        self.engine.set_peers(peers);
        Ok(())
    }
}

/// The guests of one rank, opened.
struct Opened {
    train: Loader,
    samples: u64,
    eval: Option<(Loader, u64)>,
    loss: Loss,
}

/// Opens guests and data and makes or loads the weights: everything but the group.
///
/// # Errors
/// Whatever is at fault, as the agent hears it.
pub(crate) fn equip(
    config: &RankConfig,
    model: Model,
    link: &AgentLink,
) -> Result<Ready<()>, Failure> {
    let spec = &config.spec;
    let Opened { train, samples, eval, loss } = open_guests(config, link)?;
    let schedule = Schedule::new(samples, &spec.train, spec.ddp.uneven).map_err(refused)?;
    let update = update::plan(&spec.train, model.layout()).map_err(refused)?;
    let learning_rate = update::schedule(&spec.train, schedule.steps_total()).map_err(refused)?;
    let start = Start::new(config, &model, &update, &schedule, link)?;
    let Start { weights, buffers, optimizer_state, average, loss_scale, hook, next_step } = start;
    let threads = Threads::new(spec.train.threads as usize)
        .map_err(|error| Failure::new(FailureCode::RankError, chain(&error)))?;
    let engine = Engine::new(model, loss, (weights, buffers), threads);
    Ok(Ready {
        engine,
        train,
        eval,
        schedule,
        update,
        learning_rate,
        average,
        loss_scale,
        optimizer_state,
        hook,
        reducer: (),
        shard: None,
        next_step,
    })
}

fn open_guests(config: &RankConfig, link: &AgentLink) -> Result<Opened, Failure> {
    let spec = &config.spec;
    let log = log_sink(link);
    let guests = Guests::prepare(
        config.loader_path.as_ref(),
        config.loss_path.as_ref(),
        config.cache_dir.as_ref(),
    )
    .map_err(|error| Failure::new(FailureCode::PrepareFailed, chain(&error)))?;
    let open = |name, dir: &str| {
        let split = Split { name, dir: Utf8Path::new(dir) };
        open_split(config, &guests, &spec.loader, split, &log)
    };
    let (train, samples) = open("train", &config.train_dir)?;
    let eval = config.eval_dir.as_deref().map(|dir| open("eval", dir)).transpose()?;
    let call = GuestCall { guest: "loss", rank: config.rank, samples: &[] };
    let loss = guests.open_loss(spec, log).map_err(|error| Failure::of_guest(&error, call))?;
    Ok(Opened { train, samples, eval, loss })
}

fn open_split(
    config: &RankConfig,
    guests: &Guests,
    spec: &GuestSpec,
    split: Split<'_>,
    log: &LogSink,
) -> Result<(Loader, u64), Failure> {
    let call = GuestCall { guest: "loader", rank: config.rank, samples: &[] };
    let opened = guests.open_loader(spec, split, Arc::clone(log)).and_then(|mut loader| {
        let samples = loader.len()?;
        Ok((loader, samples))
    });
    match opened {
        Ok((_, 0)) => {
            let message = format!("the loader says that split {:?} has no samples", split.name);
            Err(Failure::new(FailureCode::GuestShape, message).of_rank(config.rank))
        }
        Ok(opened) => Ok(opened),
        Err(error) => Err(Failure::of_guest(&error, call)),
    }
}

/// Guests' words go to the job's log.
fn log_sink(link: &AgentLink) -> LogSink {
    let link = link.clone();
    Arc::new(move |level, text| {
        let level = match level {
            lockstep_sandbox::LogLevel::Debug => LogLevel::Debug,
            lockstep_sandbox::LogLevel::Info => LogLevel::Info,
            lockstep_sandbox::LogLevel::Warn => LogLevel::Warn,
            lockstep_sandbox::LogLevel::Error => LogLevel::Error,
        };
        link.log(LogSource::Guest, level, text);
    })
}
